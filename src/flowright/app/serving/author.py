"""A trained policy that writes a workflow for a question and has it run: by the prompt, sampler and
executor that training and evaluation use. Nobody judges the answer.
"""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from rich.console import Console

from flowright.app.serving.opening import Opening
from flowright.app.terminal import stage_progress
from flowright.app.world import check_samplers, open_policy, open_samplers
from flowright.config.llm import SIMULATED
from flowright.config.root import Config
from flowright.core.errors import Blame, Failure, UserError, boundary
from flowright.core.off_loop import off_loop
from flowright.data.task import Problem, Task
from flowright.environments.base import prompt_encoder
from flowright.environments.workflow.config import WorkflowConfig
from flowright.environments.workflow.environment import open_sandbox
from flowright.grpo.checkpoint import load_weights
from flowright.grpo.objectives import resolved
from flowright.grpo.selfcheck import check_sampler
from flowright.llm.chat import Usage
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy, choose_device
from flowright.policy.model_thread import RequestBatcher, on_model_thread
from flowright.policy.sampling import Prompt, Sample, Sampler, Sampling
from flowright.simulation.large_models import open_models
from flowright.workflows.executor import Execution, Executor, OperatorCall
from flowright.workflows.source import Workflow

MOST_AT_ONCE = 256
"""Prompts that are drawn for together, at most."""


@dataclass(frozen=True, slots=True)
class Ask:
    """How a question is put: so many ``samples`` are drawn, by ``seed``."""

    seed: int
    samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A completion that was accepted as a program and is about to be run."""

    number: int
    workflow: Workflow


@dataclass(frozen=True, slots=True)
class Attempt:
    """A completion and what came of it; ``failure`` is the program's or its execution's."""

    completion: str
    workflow: Workflow | None = None
    execution: Execution | None = None
    failure: Failure | None = None


Event = Draft | OperatorCall | Attempt
Watch = Callable[[Event], None]
"""Is told of a draft, of each operator call that has ended, and of each attempt that failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Either ``answer`` or ``failure`` is set. ``attempts`` are those that were looked at, the one
    that gave the answer last; ``drawn`` is how many there were to look at. ``policy`` and
    ``executor`` are what was spent on each; ``truncated``: the policy was shown a part of the
    question."""

    answer: str | None
    failure: Failure | None
    attempts: tuple[Attempt, ...] = ()
    drawn: int = 0
    policy: Usage = field(default_factory=Usage)
    executor: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    truncated: bool = False

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, slots=True)
class Author:
    """A policy and the executor of what it writes, both open; for one event loop."""

    opening: Opening
    config: Config
    draw: Callable[[tuple[int, ...], Ask], Awaitable[Sequence[Sample]]]
    encode: Callable[[Task], Prompt]
    executor: Executor

    @property
    def simulated(self) -> bool:
        """Whether the embedded server answers."""
        return self.config.aflow_executor_model == SIMULATED

    async def answer(
        self, problem: Problem, ask: Ask, watch: Watch = lambda event: None
    ) -> Outcome:
        """Draw workflows for a problem and run the first that can be read, runs to its end and
        gives an answer. A failure of ours ends it: another workflow would meet it, too. Raises
        UserError for what only the configuration can mend."""
        began, attempts = time.perf_counter(), list[Attempt]()
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
        return Outcome(
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
    ) -> Attempt:
        workflow: Workflow | None = None
        execution: Execution | None = None
        with boundary("workflow") as caught:
            workflow = await self.executor.validate(sample.text, sample.finish_reason)
            watch(Draft(number, workflow))
            execution = await self.executor.execute(workflow, problem, key, watch)
        failure = caught.failure or (execution.failure if execution is not None else None)
        return Attempt(sample.text, workflow, execution, failure)


class Draw:
    """Draws completions for prompts. In this process those that wait together are drawn together;
    a server does so by itself."""

    def __init__(self, sampler: Sampler, config: Config) -> None:
        self._sampler = sampler
        self._config = config
        self._together: RequestBatcher[_Wish, list[Sample]] | None = None
        if isinstance(sampler, LocalSampler):
            self._together = RequestBatcher(partial(_drawn, sampler), MOST_AT_ONCE)

    async def __call__(self, prompt: tuple[int, ...], ask: Ask) -> list[Sample]:
        sampling = Sampling(
            ask.temperature, ask.top_p, self._config.policy.max_new_tokens, self._config.seed
        )
        if self._together is None:
            return (await self._sampler.sample([prompt], ask.samples, sampling, [ask.seed]))[0]
        return await self._together.ask(_Wish(prompt, ask.samples, sampling, ask.seed))


@dataclass(frozen=True, slots=True)
class _Wish:
    prompt: tuple[int, ...]
    samples: int
    sampling: Sampling
    place: int

    @property
    def kind(self) -> tuple[int, float, float]:
        """Those of a kind can be drawn together."""
        return self.samples, self.sampling.temperature, self.sampling.top_p


def _drawn(sampler: LocalSampler, wishes: Sequence[_Wish]) -> list[list[Sample]]:
    found: dict[int, list[Sample]] = {}
    order = sorted(range(len(wishes)), key=lambda i: wishes[i].kind)
    for _, numbers in groupby(order, key=lambda i: wishes[i].kind):
        some = list(numbers)
        first = wishes[some[0]]
        prompts, places = [wishes[i].prompt for i in some], [wishes[i].place for i in some]
        drawn = sampler.draw(prompts, first.samples, first.sampling, places)
        found.update(zip(some, drawn, strict=True))
    return [found[i] for i in range(len(wishes))]


@asynccontextmanager
async def open_author(opening: Opening, console: Console) -> AsyncIterator[Author]:
    """The policy with the checkpoint's weights, its sampler, and the executor with its server and
    sandbox. Raises UserError with a line for what cannot be used."""
    config = resolved(opening.config, choose_device(opening.config.policy).type)
    policy = await on_model_thread(_policy, opening, config, console)
    await check_samplers(config)
    async with AsyncExitStack() as stack:
        executor = await stack.enter_async_context(_open_executor(config, opening))
        folder = f"serving-{secrets.token_hex(4)}"  # the run itself may be training
        sampler, _ = await stack.enter_async_context(open_samplers(config, policy, folder))
        await sampler.refresh(1)
        encode = prompt_encoder(
            opening.environment, policy.tokenizer, config.policy.max_prompt_tokens
        )
        yield Author(opening, config, Draw(sampler, config), encode, executor)


def _policy(opening: Opening, config: Config, console: Console) -> Policy:
    with stage_progress(console, "making the policy") as progress:
        policy = open_policy(config, opening.environment, opening.tasks.train, progress)
    load_weights(opening.checkpoint, policy)
    if config.policy.sampler == "local":  # servers give a proof
        check_sampler(policy, config.grpo, config.policy.temperature)
    return policy


@asynccontextmanager
async def _open_executor(config: Config, opening: Opening) -> AsyncIterator[Executor]:
    name = config.aflow_executor_model
    known = (*opening.tasks.train, *opening.tasks.val)
    problems = [task for task in known if isinstance(task, Problem)]
    async with open_models(
        {name}, config.llm, config.simulated, config.sandbox, problems
    ) as models:
        if lines := await models.check({name: {"executor.max_tokens": config.executor.max_tokens}}):
            raise UserError(*lines)
        model = models.clients[name]
        async with (
            open_sandbox(config) as sandbox,
            Executor(model, sandbox, config.own(WorkflowConfig), config.executor) as executor,
        ):
            yield executor
