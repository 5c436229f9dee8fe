"""The context of an operator call: the model, the sandbox, the public task, and the budget.

One context per call; it writes the call's part of the trace and keeps to the budget. No hidden test
or reference passes through here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Protocol

from flowright.config.workflow import ExecutorSection, WorkflowSection
from flowright.core.errors import FailureError, Reason
from flowright.core.off_loop import off_loop
from flowright.data.task import Kind, Problem, complete_solution
from flowright.llm.chat import (
    LESS_EFFORT,
    ChatModel,
    ChatReply,
    ChatRequest,
    Message,
    RequestRefused,
    Usage,
)
from flowright.llm.context import SettingsRefused
from flowright.llm.replies import strip_thinking
from flowright.sandbox import RunResult, TestReport
from flowright.workflows.trace import Exchange, OperatorCall, cut

# Calls that ask the model rarely or never (`test`, `ensemble`) also cost something: a workflow may
# make this many operator calls for each model call that it may make.
OPERATOR_CALLS_PER_LLM_CALL = 4


class Budget:
    """Counts calls, tokens and runs of code of an execution, or of all executions of an attempt. A
    question is one call however often the host asks it again; the tokens of every reply count,
    those of empty ones too."""

    def __init__(self, limits: WorkflowSection) -> None:
        self.limits = limits
        self._operators = 0
        self._asking = 0
        self._calls = 0
        self.tokens = 0
        self._checks = 0
        self._sandbox = asyncio.Lock()

    @property
    def calls(self) -> int:
        """Questions to the model."""
        return min(self._calls, self.limits.max_llm_calls)

    @property
    def left(self) -> tuple[int, int]:
        """Calls and tokens that are left."""
        calls = self.limits.max_llm_calls - max(self._calls, self._asking)
        return max(0, calls), max(0, self.limits.max_tokens - self.tokens)

    def admit(self, asks_model: bool) -> None:
        """Count an operator call before it starts. Raises CALL_BUDGET, so that a flood of calls
        ends at its first call too many, before any further one was sent."""
        self._operators += 1
        self._asking += asks_model
        allowed = self.limits.max_llm_calls
        if self._asking > allowed or self._operators > allowed * OPERATOR_CALLS_PER_LLM_CALL:
            raise _too_many(allowed)

    def take_call(self) -> None:
        """Count a question to the model before it is sent. Raises CALL_BUDGET or TOKEN_BUDGET."""
        self._calls += 1
        if self._calls > self.limits.max_llm_calls:
            raise _too_many(self.limits.max_llm_calls)
        self._check_tokens(more=1)

    def spend(self, tokens: int) -> None:
        """Count the tokens of a question and its reply. Raises TOKEN_BUDGET."""
        self.tokens += tokens
        self._check_tokens()

    @asynccontextmanager
    async def execution(self) -> AsyncIterator[None]:
        """Around a run of code in the sandbox: counted before it starts, and one after another, so
        that the workers are shared by all workflows however many runs one of them asks for. Raises
        CALL_BUDGET."""
        self._checks += 1
        allowed = self.limits.max_checks
        if self._checks > allowed:
            raise FailureError(Reason.CALL_BUDGET, f"the workflow may run code {allowed} times")
        async with self._sandbox:
            yield

    def _check_tokens(self, more: int = 0) -> None:
        allowed = self.limits.max_tokens
        if self.tokens + more > allowed:
            message = f"the workflow may use {allowed} tokens; {self.tokens} are used"
            raise FailureError(Reason.TOKEN_BUDGET, message)


def _too_many(allowed: int) -> FailureError:
    return FailureError(Reason.CALL_BUDGET, f"the workflow may call the model {allowed} times")


EMPTY_REPLY_TRIES = 4
"""Tries per question, the first included: a server that returns empty replies at random, 13 % of
the time as GPT-OSS can, leaves 3 questions in 10,000 without content."""
MOST_ROOM = 4  # times executor.max_tokens
LONGEST_REPLY = 60.0
"""Seconds that a reply may take to be given more room: what the model thinks about without end is
to be cut, and not to run into `llm.request_seconds`."""


class CodeRunner(Protocol):
    """The part of :class:`flowright.sandbox.Sandbox` that operators use."""

    async def run(self, source: str, *, wall_seconds: float | None = None) -> RunResult: ...

    async def check(
        self,
        solution: str,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        *,
        wall_seconds: float | None = None,
        reference: str = "",
    ) -> TestReport: ...


@dataclass(frozen=True, slots=True)
class PublicTask:
    """The public side of a task; ``problem`` is its text as a solver reads it."""

    id: str
    kind: Kind
    problem: str
    choices: tuple[tuple[str, str], ...]
    entry_point: str | None
    public_tests: tuple[str, ...]
    is_program: bool


@dataclass(slots=True)
class CallContext:
    """One operator call on the host: ``task`` is the problem, :meth:`ask` the model, :meth:`run`
    and :meth:`check` the sandbox.

    ``settings`` are the keys of ``executor``. ``seed_key`` names the call within the whole run:
    rollout, operator, arguments and how often the program made that same call before; what an
    operator draws at random should come from it. ``graded`` is the task with all that grades it,
    for the host alone. ``served_seconds`` is what the model and the sandbox took for the call,
    without queues and failed tries of ours.
    """

    graded: Problem
    model: ChatModel
    sandbox: CodeRunner
    settings: ExecutorSection
    budget: Budget
    seed_key: str
    clock_start: float
    usage: Usage = field(default_factory=Usage)
    exchanges: list[Exchange] = field(default_factory=list)
    children: list[OperatorCall] = field(default_factory=list)
    asked: int = 0
    served_seconds: float = 0.0

    @property
    def task(self) -> PublicTask:
        of = self.graded
        shown = (of.problem, of.choices, of.entry_point, of.public_tests, of.is_program)
        return PublicTask(of.id, of.kind, *shown)

    async def ask(self, prompt: str) -> str:
        """Return the model's reply to ``prompt``, without its thinking.

        A reply without content, or truncated inside its thinking, is asked for again with another
        seed, less reasoning effort if that is set and, after an early length stop, more room. If
        all tries are empty the text is empty: the prompt may have asked for that. The tokens of all
        tries count as the workflow's. Raises CALL_BUDGET, TOKEN_BUDGET, and SIZE_BUDGET for a
        prompt that the server refuses; a failure of the server is LLM_UNAVAILABLE.
        """
        self.budget.take_call()
        self.asked += 1
        request = ChatRequest(
            messages=(Message("user", prompt),),
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            reasoning_effort=self.settings.reasoning_effort,
        )
        for attempt in range(EMPTY_REPLY_TRIES):
            request = replace(request, seed=_seed(self.seed_key, self.asked, attempt, prompt))
            try:
                reply = await self.model.chat(request)
            except (RequestRefused, SettingsRefused) as refused:
                if attempt:  # served before, so it is the larger room that it refuses
                    break
                if isinstance(refused, SettingsRefused):
                    raise
                message = f"the prompt is refused: {refused.failure.message}"
                raise FailureError(Reason.SIZE_BUDGET, message) from None
            self._record(prompt, reply)
            spoken = await off_loop(partial(strip_thinking, reply.text), reply.text) or ""
            if spoken.strip() or (reply.text.strip() and reply.finish_reason != "length"):
                return spoken
            request = self._changed(request, reply)
        return ""

    def _changed(self, request: ChatRequest, reply: ChatReply) -> ChatRequest:
        """The request after a reply without content."""
        effort, room = request.reasoning_effort, request.max_tokens or 1
        if reply.finish_reason == "length" and 2 * reply.seconds <= LONGEST_REPLY:
            most = min(MOST_ROOM * self.settings.max_tokens, reply.room)
            room = max(room, int(min(2 * room, most)))
        return replace(
            request, max_tokens=room, reasoning_effort=LESS_EFFORT[effort] if effort else None
        )

    def _record(self, prompt: str, reply: ChatReply) -> None:
        self.usage += reply.usage
        self.exchanges.append(
            Exchange(
                prompt=cut(prompt),
                reply=cut(reply.text),
                finish_reason=reply.finish_reason,
                usage=reply.usage,
                seconds=reply.seconds,
                attempts=reply.attempts,
            )
        )
        self.served_seconds += reply.seconds / max(1, reply.attempts)
        self.budget.spend(reply.usage.tokens)

    async def run(self, program: str) -> RunResult:
        """Run a program that the model wrote, isolated. Raises CALL_BUDGET."""
        started = time.perf_counter()
        longest = self.budget.limits.check_seconds
        async with self.budget.execution():
            result = await self.sandbox.run(program, wall_seconds=longest)
        self.served_seconds += min(result.seconds, longest)  # the rest a busy machine took
        shown = f"{result.status}\n{result.stdout}\n{result.stderr}".strip()
        self.add_step("run", {"program": cut(program)}, shown, started)
        return result

    async def check(self, solution: str) -> TestReport:
        """A solution against the task's public tests; without any, that it loads and defines what
        the task asks for. Hidden tests never get here. Raises CALL_BUDGET."""
        started = time.perf_counter()
        task = self.graded
        loads = f"assert callable({task.entry_point})" if task.entry_point else "assert True"
        tests = task.public_tests or (loads,)
        whole = complete_solution(task, solution)
        if task.is_program and not task.public_tests:  # it would wait for its input
            whole = f"compile({whole!r}, 'main.py', 'exec')"
        longest = self.budget.limits.check_seconds
        async with self.budget.execution():
            report = await self.sandbox.check(
                whole,
                task.test_setup,
                tests,
                task.entry_point,
                wall_seconds=longest,
                reference=task.reference,
            )
        self.served_seconds += min(report.seconds, longest)
        shown = f"{report.count} of {len(report.results)} tests passed ({report.status})"
        self.add_step("check", {"solution": cut(solution)}, shown, started)
        return report

    def add_step(self, name: str, arguments: dict[str, str], result: str, started: float) -> None:
        """Add a step that asked no model to the call's trace."""
        begin, seconds = started - self.clock_start, time.perf_counter() - started
        self.children.append(OperatorCall(name, arguments, cut(result), None, begin, seconds))


def _seed(*parts: object) -> int:
    """A sampling seed in [0, 2**31), a function of ``parts`` alone."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "big") >> 1
