"""One execution of a workflow: runs its program, serves its operator calls, keeps its trace.

A failure on the host (the model's server, the sandbox, a budget, an argument) ends the execution at
once; the program cannot catch it. An answer made after a failure of ours never exists, and nothing
is spent past a budget.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from flowright.config.workflow import ExecutorSection, WorkflowSection
from flowright.core.errors import Failure, FailureError, Reason
from flowright.core.off_loop import off_loop
from flowright.data.task import Problem
from flowright.llm.chat import ChatModel, Usage
from flowright.llm.context import first_tokens, most_tokens
from flowright.llm.replies import extract_code
from flowright.workflows.context import Budget, CallContext, CodeRunner
from flowright.workflows.interpreter import MOST_PATIENCE, Interpreter
from flowright.workflows.pool import PARAMETER, ModelPool
from flowright.workflows.registry import Operator, Operators, bind, holds, is_no_value
from flowright.workflows.runtime import (
    Called,
    Event,
    Finished,
    InterpreterDied,
    InterpreterStarved,
    RunningProgram,
)
from flowright.workflows.source import Workflow
from flowright.workflows.trace import Execution, OperatorCall, as_text

PARK_AFTER_SECONDS = 0.005  # a program whose result comes sooner keeps its worker
BACKSTOP = 10.0
"""A single wait this many times as long as a whole workflow may take is none of its doing."""

Watch = Callable[[OperatorCall], None]
"""Called with each operator call as it ends."""


@dataclass(frozen=True)
class Host:
    """Resources shared by executions. ``models`` are by name where there is a ``pool``, else one
    under ``""``."""

    models: Mapping[str, ChatModel]
    sandbox: CodeRunner
    limits: WorkflowSection
    settings: ExecutorSection
    interpreter: Interpreter
    operators: Operators
    pool: ModelPool | None = None

    @cached_property
    def functions(self) -> dict[str, Callable[..., None]]:
        """The operators' host functions for the interpreter."""
        return {name: _host_function(name) for name in self.operators}


@dataclass(slots=True)
class _Call:
    """An operator call of a program. Its task outlives the interpreter: a program that is started
    again after a crash finds the replies that it had."""

    operator: Operator
    arguments: dict[str, Any]
    line: int
    context: CallContext
    started: float
    model: str
    ended: float | None = None
    result: Any = None
    error: str | None = "cancelled"
    task: "asyncio.Task[Any] | None" = field(default=None, repr=False)

    def record(self, clock_start: float) -> OperatorCall:
        ended = time.perf_counter() if self.ended is None else self.ended
        return OperatorCall(
            operator=self.operator.name,
            arguments={name: as_text(value) for name, value in self.arguments.items()},
            result=None if self.error is not None else as_text(self.result),
            error=self.error,
            started=self.started - clock_start,
            seconds=ended - self.started,
            usage=self.context.usage,
            exchanges=tuple(self.context.exchanges),
            children=tuple(self.context.children),
            model=self.model,
        )


class Run:
    """One execution: :meth:`play` it, then take the :meth:`execution`."""

    def __init__(
        self, host: Host, workflow: Workflow, task: Problem, key: str, watch: Watch | None = None
    ) -> None:
        self.host = host
        self.watch = watch
        self.workflow = workflow
        self.task = task
        self.key = key
        self.limits = host.limits
        self.budget = Budget(host.limits)
        self.clock_start = time.perf_counter()
        self.own_seconds = 0.0
        self.charged_seconds = 0.0
        self.printed = ""
        self.calls: list[_Call] = []
        self._pending: dict[int, _Call] = {}
        self._same_calls: Counter[str] = Counter()
        self._started_calls = 0
        self._gate = asyncio.Semaphore(host.limits.max_concurrency)
        self._failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def play(self) -> str:
        """The answer. Raises FailureError; leaves no call behind."""
        try:
            return await self._answer(await self._outlive_crash())
        except FailureError as error:
            raise error.at(self.workflow.source_line(error.failure.line)) from None
        finally:
            tasks = [call.task for call in self.calls if call.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def execution(self, answer: str | None, failure: Failure | None) -> Execution:
        return Execution(
            answer=answer,
            failure=failure,
            trace=tuple(call.record(self.clock_start) for call in self.calls),
            usage=sum((call.context.usage for call in self.calls), Usage()),
            seconds=time.perf_counter() - self.clock_start,
            own_seconds=self.own_seconds,
            printed=self.printed,
        )

    async def _outlive_crash(self) -> Any:
        """Run the program; when its worker dies, again on the replies that it had. A program that
        ends two workers at the same point, or three anywhere, is to blame for it. One that a busy
        machine held up is run again, on the same replies, with more wall time each time."""
        deaths: list[tuple[int, InterpreterDied]] = []
        values = {"problem": self.task.problem, "entry_point": self.task.entry_point}
        inputs = {**self.host.functions, **values}
        patience = 1.0
        while len(deaths) < 3 and (len(deaths) < 2 or deaths[0][0] != deaths[1][0]):
            program = RunningProgram(
                self.host.interpreter, self.workflow.program, inputs, self.key, patience
            )
            self._started_calls = 0
            self._pending.clear()
            self.charged_seconds = 0.0
            own_before = self.own_seconds
            try:
                return await self._drive(program)
            except InterpreterDied as died:
                deaths.append((program.turns, died))
            except InterpreterStarved as starved:
                patience *= 4.0
                if patience > MOST_PATIENCE:
                    raise FailureError(Reason.WORKER_LOST, str(starved)) from None
            finally:
                self.own_seconds = own_before + program.own_seconds
                self.printed = program.printed
                await program.close()
        raise FailureError(Reason.CRASHED, f"the program ends its interpreter: {deaths[-1][1]}")

    async def _drive(self, program: RunningProgram) -> Any:
        event: Event = await program.start()
        while not isinstance(event, Finished):
            if isinstance(event, Called):
                self._pending[event.id] = self._begin(event)
                event = await program.defer()
                continue
            # Replies are handed over in the order of the calls, not of their arrival: one by one
            # where that order could reach the program's logic, else all at once.
            ids = event.ids[:1] if self.workflow.concurrent else event.ids
            await self._wait(program, [self._pending[id] for id in ids])
            event = await program.settle({id: self._pending.pop(id).result for id in ids})
        if self._failed.done():  # a call that the program did not wait for
            raise self._failed.result()
        return event.value

    def _begin(self, event: Called) -> _Call:
        """Admit a call and start it, or find it where a crash has interrupted the program."""
        operator = self.host.operators[event.name]
        try:
            arguments = bind(operator, event.args, event.kwargs, self.limits.max_prompt_chars)
            number = self._started_calls
            self._started_calls += 1
            if number < len(self.calls):
                known = self.calls[number]
                if (known.operator, known.arguments) == (operator, arguments):
                    return known
                raise FailureError(Reason.WORKER_LOST, "the program took another way when repeated")
            self.budget.admit(operator.asks_model)
            model = self._model(operator, arguments)
        except FailureError as error:
            raise error.at(event.line) from None
        what = f"{operator.name}\x1f{arguments!r}"
        self._same_calls[what] += 1
        call = _Call(
            operator=operator,
            arguments=arguments,
            line=event.line,
            context=CallContext(
                graded=self.task,
                model=self.host.models[model],
                sandbox=self.host.sandbox,
                settings=self.host.settings,
                budget=self.budget,
                seed_key=f"{self.key}\x1f{what}\x1f{self._same_calls[what]}",
                clock_start=self.clock_start,
            ),
            started=time.perf_counter(),
            model=model,
        )
        self.calls.append(call)
        call.task = asyncio.create_task(self._serve(call))
        call.task.add_done_callback(self._note_failure)
        return call

    def _model(self, operator: Operator, arguments: Mapping[str, Any]) -> str:
        """Return the name of the model that a call may ask. Raises BAD_ARGUMENT."""
        pool = self.host.pool
        if pool is None:
            return ""
        return pool.chosen(self.task.id, arguments.get(PARAMETER.name, ""), operator.name)

    async def _serve(self, call: _Call) -> None:
        try:
            async with self._gate:
                call.started = time.perf_counter()
                arguments = call.arguments
                if self.host.pool is not None:  # which model it is, is the host's matter
                    arguments = {n: v for n, v in arguments.items() if n != PARAMETER.name}
                result = await call.operator.run(call.context, **arguments)
            if not holds(call.operator.returns, result):  # a fault of ours
                name, kind = call.operator.name, type(result).__name__
                raise TypeError(f"operator {name} returned a {kind}, not {call.operator.returns}")
            call.result = _plain(result, self.limits.max_prompt_chars)
            call.error = None
        except FailureError as error:
            call.error = str(error)
            raise error.at(call.line) from error
        finally:
            call.ended = time.perf_counter()
            if self.watch is not None:
                self.watch(call.record(self.clock_start))

    def _note_failure(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failed.done():
            self._failed.set_result(error)

    async def _wait(self, program: RunningProgram, calls: Sequence[_Call]) -> None:
        """Wait for calls, parked unless the wait is short. Raises what any call failed with.

        The workflow is charged for the time that its calls took to be served, not for queues on
        our side; a wait that never ends is ours too.
        """
        tasks = [call.task for call in calls if call.task is not None]
        started = time.perf_counter()
        await asyncio.sleep(0)
        if not self.host.interpreter.crowded:
            await self._until(tasks, PARK_AFTER_SECONDS)
        if not self._failed.done() and not all(task.done() for task in tasks):
            await program.park()
            await self._until(tasks, BACKSTOP * self.limits.total_seconds)
        if self._failed.done():
            raise self._failed.result()
        waited = time.perf_counter() - started
        if not all(task.done() for task in tasks):
            raise FailureError(Reason.LLM_UNAVAILABLE, f"no reply within {waited:.0f} seconds")
        self.charged_seconds += min(waited, max(call.context.served_seconds for call in calls))
        if self.charged_seconds + program.own_seconds > self.limits.total_seconds:
            message = f"the workflow takes more than {self.limits.total_seconds:g} seconds"
            raise FailureError(Reason.TIME_BUDGET, message, calls[-1].line)

    async def _until(self, tasks: Iterable["asyncio.Task[Any]"], seconds: float) -> None:
        """Wait until all tasks are done, one call has failed or time is up."""
        deadline = time.perf_counter() + seconds
        waiting = {task for task in tasks if not task.done()}
        while waiting and not self._failed.done():
            left = deadline - time.perf_counter()
            if left <= 0:
                return
            done, _ = await asyncio.wait(
                {*waiting, self._failed}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            waiting -= done

    async def _answer(self, value: Any) -> str:
        """The answer that a program's value is. Raises NO_ANSWER or SIZE_BUDGET."""
        if type(value) not in (str, int, float, bool):
            shown = "nothing" if value is None else f"a {type(value).__name__}"
            raise _no_answer(f"{shown}; an answer is a string or number")
        try:
            text = str(value).encode("utf-8", "replace").decode()
        except ValueError:
            raise _no_answer("an integer with too many digits to print") from None
        most, size = self.limits.max_answer_chars, most_tokens(text)
        if size > most:
            message = f"an answer may have {most} characters (as UTF-8 bytes), this one has {size}"
            raise FailureError(Reason.SIZE_BUDGET, message)
        if is_no_value(text):
            raise _no_answer(f"{text}; was an `await` forgotten?")
        if self.task.kind == "code" and "```" in text:
            text = await off_loop(partial(extract_code, text, self.task.entry_point), text)
        if not text.strip():
            raise _no_answer("an empty answer")
        return text


def _no_answer(returned: str) -> FailureError:
    return FailureError(Reason.NO_ANSWER, f"the workflow returned {returned}")


def _host_function(name: str) -> Callable[..., None]:
    """Stands for an operator in the interpreter, which sees nothing of it but its name."""

    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__name__ = function.__qualname__ = name
    return function


def _plain(result: Any, max_chars: int) -> Any:
    """An operator's result as it may enter the interpreter: cut to what may be handed to the next
    one, without surrogates."""
    if isinstance(result, str):
        return first_tokens(result.encode("utf-8", "replace").decode(), max_chars)
    if isinstance(result, dict):
        return {name: _plain(value, max_chars) for name, value in result.items()}
    if isinstance(result, list):
        return [_plain(value, max_chars) for value in result]
    return result
