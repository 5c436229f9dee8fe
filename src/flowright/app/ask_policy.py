"""Answer questions with a trained policy: open it, draw workflows, run them, print the answer.

Checks that need no torch come first (:func:`open_run`). The answer is not judged.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from flowright.app.open_policies import check_samplers, fit_memory, open_policy, open_samplers
from flowright.app.preflight_checks import (
    check_checkpoint,
    check_model,
    check_quantised,
    load_tasks,
    refuse,
)
from flowright.app.terminal import stage_progress
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.core.batch_calls import RequestBatcher
from flowright.core.command_line import say
from flowright.core.errors import Blame, Failure, UserError, boundary
from flowright.core.off_loop import off_loop
from flowright.core.untrusted import one_line, visible
from flowright.data.task import Kind, Problem, Task
from flowright.environments.base import Environment, TaskSets, make_environment, prompt_encoder
from flowright.environments.registry import load_config
from flowright.environments.workflow.config import WorkflowConfig
from flowright.environments.workflow.environment import open_sandbox
from flowright.environments.workflow.servers import make_pool, open_executor
from flowright.grpo.checkpoint import load_weights
from flowright.grpo.objectives import resolved
from flowright.grpo.selfcheck import check_sampler
from flowright.llm.chat import Usage
from flowright.llm.control_tokens import fenced
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy, choose_device
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Prompt, Sample, Sampler, Sampling
from flowright.runs.run_files import checkpoint_of, chosen_as_best
from flowright.simulation.large_models import open_models
from flowright.workflows.executor import Execution, Executor, OperatorCall
from flowright.workflows.source import Workflow


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A checkpoint with the configuration of its run."""

    config: Config
    checkpoint: Path
    environment: Environment
    tasks: TaskSets

    @property
    def name(self) -> str:
        """Names of run and checkpoint."""
        return f"{self.config.run.name}/{self.checkpoint.name}"

    @property
    def words(self) -> str:
        """The checkpoint, with the reason if it is its run's best one."""
        best = chosen_as_best(self.checkpoint)
        return f"{self.checkpoint}, the best of its run: {best}" if best else str(self.checkpoint)


def open_run(source: Path, config: Path | None = None, overrides: Sequence[str] = ()) -> ServedRun:
    """Check a run (for its best checkpoint, or else its newest) or a checkpoint, with the settings
    of its run, or of the file ``config``, and ``overrides``.

    Raises UserError with a line per problem.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; give a run of outputs/, or a checkpoint of one")
    checkpoint = checkpoint_of(source)
    settings = load_config(config or _config_of(checkpoint), overrides)
    environment = make_environment(settings)
    if not isinstance(settings.section, WorkflowConfig):
        raise UserError(
            f"environment: {settings.environment}: its policy writes no workflows; give a run of "
            "environment: workflow"
        )
    found: list[TaskSets] = []
    refuse(
        lambda: check_checkpoint(checkpoint, settings),
        lambda: check_quantised(settings.policy),
        lambda: check_model(settings),
        lambda: load_entries(settings.llm.file, settings.executor_models, settings.simulated),
        lambda: found.append(load_tasks(environment, batches=False)),
    )
    return ServedRun(settings, checkpoint, environment, found[0])


def _config_of(checkpoint: Path) -> Path:
    file = checkpoint.absolute().parent.parent / "config.json"
    if not file.is_file():
        raise UserError(
            f"{checkpoint}: it is not in a run directory, whose config.json has its settings; "
            "give the run, or --config FILE"
        )
    return file


def question_of(text: str, kind: Kind, context: str | None = None) -> Problem:
    """Return a question as a problem without a reference answer."""
    return Problem("question", kind, "asked", text, "", context=context)


MOST_AT_ONCE = 256
"""Most prompts that are sampled together."""


@dataclass(frozen=True, slots=True)
class PolicyDraws:
    """Sampling of a question: ``samples`` workflows, drawn with ``seed``."""

    seed: int
    samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A completion that was parsed as a program and is about to run."""

    number: int
    workflow: Workflow


@dataclass(frozen=True, slots=True)
class AnswerAttempt:
    """A completion with its result; ``failure`` is the program's or its execution's."""

    completion: str
    workflow: Workflow | None = None
    execution: Execution | None = None
    failure: Failure | None = None


Event = Draft | OperatorCall | AnswerAttempt
Watch = Callable[[Event], None]
"""Called with each draft, each finished operator call and each failed attempt."""


@dataclass(frozen=True, slots=True)
class DraftedAnswer:
    """Either ``answer`` or ``failure`` is set. ``attempts`` are those that were run, the one with
    the answer last, of ``drawn`` samples. ``policy`` and ``executor`` are the usage of each;
    ``truncated``: the policy saw a part of the question."""

    answer: str | None
    failure: Failure | None
    attempts: tuple[AnswerAttempt, ...] = ()
    drawn: int = 0
    policy: Usage = field(default_factory=Usage)
    executor: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    truncated: bool = False

    @property
    def last(self) -> AnswerAttempt | None:
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, slots=True)
class WorkflowPolicy:
    """A policy and the executor of its workflows, both open; for one event loop."""

    opening: ServedRun
    config: Config
    draw: Callable[[tuple[int, ...], PolicyDraws], Awaitable[Sequence[Sample]]]
    encode: Callable[[Task], Prompt]
    executor: Executor
    simulated: bool = False
    """True if a simulated server answers."""

    async def answer(
        self, problem: Problem, ask: PolicyDraws, watch: Watch = lambda event: None
    ) -> DraftedAnswer:
        """Draw workflows for a problem and run the first that parses, finishes and answers. An
        infrastructure failure ends it, since another workflow would meet it, too. Raises UserError
        for a mistake in the configuration."""
        began, attempts = time.perf_counter(), list[AnswerAttempt]()
        samples: Sequence[Sample] = ()
        spent, truncated = Usage(), False
        with boundary("policy") as caught:
            prompt = await off_loop(partial(self.encode, problem), problem.problem)
            truncated = prompt.truncated
            samples = await self.draw(prompt.token_ids, ask)
            written = sum(len(sample.token_ids) for sample in samples)
            spent = Usage(len(samples), len(prompt.token_ids), written)
        failure = caught.failure
        for number, sample in enumerate(samples):
            key = f"{ask.seed}/{problem.id}/{number}"
            attempts.append(await self._attempt(problem, sample, number, key, watch))
            failure = attempts[-1].failure
            if failure is None or failure.blame is Blame.INFRASTRUCTURE:
                break
            watch(attempts[-1])
        executions = [one.execution for one in attempts if one.execution is not None]
        answer = executions[-1].answer if executions and failure is None else None
        return DraftedAnswer(
            answer,
            failure,
            tuple(attempts),
            len(samples),
            spent,
            sum((one.usage for one in executions), Usage()),
            time.perf_counter() - began,
            truncated,
        )

    async def _attempt(
        self, problem: Problem, sample: Sample, number: int, key: str, watch: Watch
    ) -> AnswerAttempt:
        workflow: Workflow | None = None
        execution: Execution | None = None
        with boundary("workflow") as caught:
            workflow = await self.executor.validate(sample.text, sample.finish_reason)
            watch(Draft(number, workflow))
            execution = await self.executor.execute(workflow, problem, key, watch)
        failure = caught.failure or (execution.failure if execution is not None else None)
        return AnswerAttempt(sample.text, workflow, execution, failure)


def completion_draw(
    sampler: Sampler, config: Config
) -> Callable[[tuple[int, ...], PolicyDraws], Awaitable[Sequence[Sample]]]:
    """Return a function that samples completions. In this process concurrent requests are batched;
    a server batches by itself."""

    def sampling(ask: PolicyDraws) -> Sampling:
        return Sampling(ask.temperature, ask.top_p, config.policy.max_new_tokens, config.seed)

    if not isinstance(sampler, LocalSampler):

        async def draw(prompt: tuple[int, ...], ask: PolicyDraws) -> Sequence[Sample]:
            return (await sampler.sample([prompt], ask.samples, sampling(ask), [ask.seed]))[0]

        return draw

    def drawn(requests: Sequence[tuple[tuple[int, ...], PolicyDraws]]) -> list[list[Sample]]:
        """Sample requests of one kind together."""
        found: dict[int, list[Sample]] = {}

        def kind(place: int) -> tuple[int, float, float]:
            ask = requests[place][1]
            return ask.samples, ask.temperature, ask.top_p

        for _, places in groupby(sorted(range(len(requests)), key=kind), key=kind):
            some = list(places)
            ask = requests[some[0]][1]
            prompts, seeds = [requests[i][0] for i in some], [requests[i][1].seed for i in some]
            samples = sampler.draw(prompts, ask.samples, sampling(ask), seeds)
            found.update(zip(some, samples, strict=True))
        return [found[i] for i in range(len(requests))]

    batcher = RequestBatcher(partial(on_model_thread, drawn), MOST_AT_ONCE)
    return lambda prompt, ask: batcher.ask((prompt, ask))


@asynccontextmanager
async def open_workflow_policy(
    opening: ServedRun, console: Console
) -> AsyncIterator[WorkflowPolicy]:
    """Open the policy with the checkpoint's weights, its sampler, and the executor with its server
    and sandbox. Raises UserError with a line per problem."""
    config = resolved(
        opening.config, choose_device(opening.config.policy).type, opening.environment
    )
    config = await fit_memory(config)
    policy = await on_model_thread(_policy, opening, config, console)
    await check_samplers(config)
    async with AsyncExitStack() as stack:
        executor, simulated = await stack.enter_async_context(_open_executor(config, opening))
        folder = f"serving-{secrets.token_hex(4)}"  # the run itself may be training
        sampler, _ = await stack.enter_async_context(open_samplers(config, policy, folder))
        await sampler.refresh(1)
        encode = prompt_encoder(
            opening.environment, policy.tokenizer, config.policy.max_prompt_tokens
        )
        draw = completion_draw(sampler, config)
        yield WorkflowPolicy(opening, config, draw, encode, executor, simulated)


def _policy(opening: ServedRun, config: Config, console: Console) -> Policy:
    with stage_progress(console, "making the policy") as progress:
        policy = open_policy(config, opening.environment, opening.tasks.train, progress)
    load_weights(opening.checkpoint, policy)
    if config.policy.sampler == "local":  # servers give a proof
        check_sampler(policy, config.grpo, config.policy.temperature)
    return policy


@asynccontextmanager
async def _open_executor(
    config: Config, opening: ServedRun
) -> AsyncIterator[tuple[Executor, bool]]:
    """Open the executor; the flag is true if a simulated server answers it."""
    names = {*config.executor_models}
    known = (*opening.tasks.train, *opening.tasks.val)
    problems = [task for task in known if isinstance(task, Problem)]
    async with open_models(names, config.llm, config.simulated, config.sandbox, problems) as models:
        budgets = {name: {"executor.max_tokens": config.executor.max_tokens} for name in names}
        if lines := await models.check(budgets):
            raise UserError(*lines)
        own = config.own(WorkflowConfig)
        async with (
            open_sandbox(config) as sandbox,
            open_executor(config, models.clients, sandbox, own, make_pool(config)) as executor,
        ):
            yield executor, models.simulated


TEXT_CHARS = 160
"""Longest text in a line of the trace."""


def event_text(event: Event) -> str:
    """Render an event while the answer is being made, as Markdown."""
    if isinstance(event, Draft):
        repairs = ", ".join(event.workflow.repairs)
        head = f"workflow {event.number + 1}" + (f" (repaired: {repairs})" if repairs else "")
        return f"{head}\n\n{fenced(event.workflow.source.rstrip(), 'python')}\n\n"
    if isinstance(event, AnswerAttempt):
        assert event.failure is not None
        return f"- {blame_line(event.failure)}\n\n"
    return f"- {call_line(event)}\n"


def call_line(call: OperatorCall) -> str:
    """Render an operator call as a line: its first argument, its result, its cost."""
    given = next(iter(call.arguments.values()), "")
    came = call.result if call.error is None else call.error
    model = f" of {call.model}" * bool(call.model)
    spent = f"{call.usage.calls} calls{model}, {call.usage.tokens} tokens, {call.seconds:.2f} s"
    shown = f"{call.operator}({one_line(given, TEXT_CHARS)}) -> {one_line(came or '', TEXT_CHARS)}"
    return f"{shown}  [{spent}]"


def blame_line(failure: Failure) -> str:
    """Render a failure and whose fault it is."""
    if failure.blame is Blame.POLICY:
        return f"the policy's fault, {failure}"
    return f"not the policy's fault (servers, sandbox or this program), {failure}"


def answer_record(
    author: WorkflowPolicy, question: str, kind: str, outcome: DraftedAnswer
) -> dict[str, Any]:
    """Return the whole answer as plain JSON."""
    last = outcome.last
    execution = last.execution if last else None
    return {
        "question": question,
        "kind": kind,
        "answer": outcome.answer,
        "failure": _failed(outcome.failure),
        "program": last.workflow.source if last and last.workflow else None,
        "trace": [_call(call) for call in execution.trace] if execution else [],
        "attempts": [
            {"completion": one.completion, "failure": _failed(one.failure)}
            for one in outcome.attempts
        ],
        "samples": outcome.drawn,
        "usage": {"policy": asdict(outcome.policy), "executor": asdict(outcome.executor)},
        "seconds": round(outcome.seconds, 3),
        "policy": str(author.opening.checkpoint),
        "executor": author.config.executor_name,
        "simulated": author.simulated,
        "question_cut_for_policy": outcome.truncated,
    }


def _failed(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else failure.record()


def _call(call: OperatorCall) -> dict[str, Any]:
    whole = asdict(call)
    whole |= {name: round(whole[name], 3) for name in ("started", "seconds")}
    exchanges = whole.pop("exchanges")
    del whole["children"]
    shown = [{name: one[name] for name in ("prompt", "reply", "seconds")} for one in exchanges]
    return whole | {"exchanges": shown}


POLICY_FAILED, WE_FAILED = 1, 2
"""Exit statuses without an answer."""

CALLS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class QuestionRequest:
    """A question on the command line. ``temperature``: None for that of the run's evaluations."""

    source: Path
    question: str
    kind: Kind
    samples: int
    seed: int
    temperature: float | None
    as_json: bool


def run_workflow(opening: ServedRun, request: QuestionRequest, console: Console) -> int:
    """Answer and print; return the exit status. Raises UserError for what prevents it."""
    return uvloop.run(_answered(opening, request, console))


async def _answered(opening: ServedRun, request: QuestionRequest, console: Console) -> int:
    temperature = request.temperature
    if temperature is None:
        temperature = opening.config.evaluation.temperature
    ask = PolicyDraws(request.seed, request.samples, temperature, opening.config.policy.top_p)
    problem = question_of(request.question, request.kind)
    async with open_workflow_policy(opening, console) as author:
        outcome = await author.answer(problem, ask)
    if request.as_json:
        print(json.dumps(answer_record(author, request.question, request.kind, outcome), indent=2))
    else:
        for line in _lines(author, outcome):
            print(visible(line))
    if outcome.failure is None:
        return 0
    if not request.as_json:
        say(console, f"no answer: {visible(blame_line(outcome.failure))}")
    return POLICY_FAILED if outcome.failure.blame is Blame.POLICY else WE_FAILED


def _lines(author: WorkflowPolicy, outcome: DraftedAnswer) -> list[str]:
    executor = author.config.executor_name
    lines = [f"policy    {author.opening.words}", f"executor  {executor}"]
    if author.simulated:
        lines.append("SIMULATED: the embedded server answers; it knows the run's problems alone")
    if outcome.truncated:
        lines.append("cut       the policy was shown a part of the question; the workflow gets all")
    for number, attempt in enumerate(outcome.attempts[:-1]):
        assert attempt.failure is not None
        lines.append(f"passed over, workflow {number + 1}: {blame_line(attempt.failure)}")
    last = outcome.last
    if last is not None:
        lines.append(f"workflow  {len(outcome.attempts)} of {outcome.drawn}")
        text = last.workflow.source if last.workflow else last.completion
        lines += [f"    {line}" for line in text.rstrip().splitlines()]
    if last is not None and last.execution is not None:
        trace = last.execution.trace
        lines.append("calls")
        lines += [f"    {call_line(call)}" for call in trace[:CALLS_SHOWN]]
        lines += [f"    and {len(trace) - CALLS_SHOWN} more"] * (len(trace) > CALLS_SHOWN)
    if outcome.answer is not None:
        lines += ["answer", *(f"    {line}" for line in outcome.answer.splitlines())]
    asked, wrote = outcome.executor, outcome.policy
    lines.append(
        f"spent     {asked.calls} calls and {asked.tokens} tokens of {executor}"
        f"{f', money {asked.money:.3g}' * bool(asked.money)}; "
        f"{wrote.completion_tokens} tokens written by the policy; {outcome.seconds:.1f} s"
    )
    return lines
