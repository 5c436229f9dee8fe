"""The base class of environments, and what they hand to the trainer: tasks, baselines,
conversations.

The trainer knows prompts, completions and rewards; an environment defines everything else. The
configuration names one (``environment: workflow``, or ``package.module:Class`` for a user's own);
see docs/extending.md.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from flowright.config.root import Config as RunConfig, EnvironmentSection
from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.data.contamination import TrainedOn
from flowright.data.task import Task
from flowright.environments.display import Display, name_environment
from flowright.environments.episode import Episode, Observation
from flowright.environments.registry import ENVIRONMENTS
from flowright.environments.rollout import Rollout, outcome_metrics
from flowright.judging.verdict import Judge, JudgeQuery
from flowright.llm.chat import Message
from flowright.llm.counters import Counters
from flowright.policy.sampling import Prompt, Tokenizer, render
from flowright.sandbox import SandboxStatus

TokenCount = Callable[[Sequence[Message]], int]
"""Tokens of messages in a chat template, with what begins the reply. Raises DataError for messages
that the template refuses, such as a role that it does not know."""


@dataclass(frozen=True, slots=True)
class TaskSets:
    """The tasks of a run: to train on, and held out."""

    train: Sequence[Task]
    val: Sequence[Task]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A completion that is the same for every task; the policy is compared with it. ``shown``:
    always measured and in the table, which else has only the best of them. ``branches``: what it
    does depends on the task."""

    name: str
    completion: str
    shown: bool = False
    branches: bool = False


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt and some completions that answer it: what the embedded policy is cold-started on."""

    messages: Sequence[Message]
    completions: Sequence[str]


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    """A conversation of fixed data, which ends with an answer, and its weight in the loss. Of two
    that are compared the one with the larger weight is better, by the difference. ``every_turn``:
    the answers before the last are trained on, too."""

    messages: Sequence[Message]
    weight: float = 1.0
    every_turn: bool = False


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """Condition of an open environment, for its screens and metrics. ``simulated``: something in it
    is a stand-in. ``notes``: the judge's. ``sandbox``: None without one."""

    simulated: bool = False
    notes: tuple[str, ...] = ()
    sandbox: SandboxStatus | None = None

    def metrics(self) -> dict[str, float]:
        return {} if self.sandbox is None else self.sandbox.metrics()


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A prompt that an attempt is sampled from and not trained on. ``share`` is the share of the
    task's criteria that it shows, for the metric ``rollout/scaffold_share``; None without one."""

    messages: Sequence[Message]
    share: float | None = None


SIMULATED_BY_ADDRESS = "SIMULATED: a simulated server is asked; its numbers are no claims"


class Environment:
    """Base of every environment. Only :meth:`tasks` and :meth:`rollout` have no default. Made from
    the configuration alone; :meth:`open` opens what costs time or may fail. With
    ``rollout.workers`` it is made and opened in other processes, too: :meth:`respond`,
    :meth:`rollout`, :meth:`status`, :meth:`counters`, :meth:`state` and :meth:`restore` are called
    there, all other methods here, where it is not open."""

    Config: ClassVar[type[EnvironmentSection]] = EnvironmentSection
    """Section of its own keys, at the root of a configuration under ``Config.key``."""

    display: ClassVar[Display] = Display()
    """Presentation of its runs on screens, from the run's files."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Further names of a step's metrics, as in other trainers, and the metrics that they stand for.
    Written beside the metric."""

    respond_seconds: ClassVar[float] = 600.0
    """Timeout of :meth:`respond`, after which an attempt is unscored."""

    def __init__(self, config: RunConfig) -> None:
        config.own(self.Config)  # made with its section
        self.config = config

    def tasks(self) -> TaskSets:
        """Load the tasks of the configuration. Raises DataError."""
        raise NotImplementedError

    def read_tasks(self, name: str) -> Sequence[Task]:
        """Read a file of other tasks to measure on. Raises DataError."""
        raise ConfigError(f"environment {self.config.environment}: reads no task files; got {name}")

    def messages(self, task: Task) -> list[Message]:
        """Return the prompt for a task, before the chat template. If it is too long, the last
        message is cut in its middle."""
        return [Message("user", task.problem)]

    @property
    def rolls_out(self) -> bool:
        """False if completions cannot be graded, because there are only those of the data."""
        return True

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        """Bounds of graded rewards: evaluations then report the mean reward, and the best
        checkpoint is chosen by it (``val/reward``). None: evaluations report the share that is
        right by gold."""
        return None

    def steps(self, train: Sequence[Task]) -> int | None:
        """Return the number of steps of a run on these tasks; None for ``grpo.steps``."""
        return None

    def fitted(self, tasks: TaskSets, tokens: TokenCount, limit: int) -> TaskSets:
        """Return the tasks that fit the policy's tokenizer and limit. ``tokens`` counts the tokens
        of messages in the chat template. Default: all; :meth:`messages` that are too long are cut.
        Raises DataError."""
        return tasks

    def was_cut(self, task: Task) -> bool:
        """True if :meth:`fitted` has shortened a task's text."""
        return False

    def forms(self, task: Task) -> Sequence[Task]:
        """Return the variants of a task, such as a pair of answers in both orders, each a task with
        a prompt of its own: a group's attempts are shared evenly among them and have one
        baseline."""
        return (task,)

    def scaffolds(
        self, task: Task, step: int, steps: int, attempts: int
    ) -> Sequence[Scaffold] | None:
        """Return the prompt from which each attempt at a task, or at one of its :meth:`forms`, is
        sampled while training, at a step from 1 to ``steps``; None if all are sampled from
        :meth:`messages`, on which every attempt is trained and measured. An attempt whose scaffold
        is too long for ``policy.max_prompt_tokens`` is sampled from the task's own prompt and
        counted (``rollout/scaffold_left_out``). A function of its arguments and the configuration
        alone, so that a resumed run repeats it."""
        return None

    @property
    def max_turns(self) -> int:
        """The most completions of an attempt. With 1 nothing is answered."""
        return 1

    @property
    def answers_at_once(self) -> bool:
        """True if :meth:`respond` waits for nothing; all groups are then decoded together."""
        return False

    @property
    def max_episode_tokens(self) -> int:
        """The most tokens behind an attempt's prompt, answers included: another turn is taken only
        if ``policy.max_new_tokens`` fit. Default: ``policy.max_episode_tokens``, or enough for all
        turns."""
        policy, turns = self.config.policy, self.max_turns
        return policy.max_episode_tokens or policy.episode_tokens(turns)

    def with_limits(self, config: RunConfig) -> RunConfig:
        """Return a configuration whose ``policy.max_episode_tokens`` is that of its attempts; None
        where they have one turn."""
        tokens = self.max_episode_tokens if self.max_turns > 1 else None
        policy = config.policy.model_copy(update={"max_episode_tokens": tokens})
        return config.model_copy(update={"policy": policy})

    async def respond(self, episode: Episode) -> Observation | None:
        """Return the answer to an attempt's newest turn; None ends the attempt. It is asked after
        the last turn, too: that answer is only recorded. A function of the episode, as one that was
        interrupted is played again from its task. An exception leaves the attempt unscored."""
        return None

    async def answer_in_time(self, episode: Episode) -> Observation | None:
        """Return the answer of :meth:`respond`. Raises FailureError after ``respond_seconds``."""
        limit = asyncio.timeout(self.respond_seconds)
        try:
            async with limit:
                return await self.respond(episode)
        except TimeoutError:
            if not limit.expired():
                raise
            raise FailureError(
                Reason.INTERNAL, f"respond: no answer in {self.respond_seconds:g} s"
            ) from None

    @asynccontextmanager
    async def open(self, tasks: Sequence[Task]) -> AsyncIterator[None]:
        """Open what rollouts of these tasks need, such as servers and sandboxes, and close it at
        the end. Raises UserError with a line for everything that cannot be used."""
        yield

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        """Roll out all groups of a step at once; rollouts in the order of the episodes. Whole
        groups, because some rewards compare the attempts of a group. An error is a rollout with a
        failure (:func:`flowright.core.errors.boundary`), never an exception."""
        raise NotImplementedError

    def judge_settings(self) -> Mapping[str, Any] | None:
        """Return all settings that a verdict of its judge depends on, as plain JSON: environments
        with equal ones have one judge. None if single answers are not judged. Raises
        ConfigError."""
        return None

    def query(self, rollout: Rollout, key: str) -> JudgeQuery | None:
        """Return the judge's query about an attempt, so that another judge can be asked the same;
        None if the attempt has no answer. ``key`` names the attempt."""
        return None

    @asynccontextmanager
    async def open_judge(self) -> AsyncIterator[Judge]:
        """Open its judge alone, for queries of :meth:`query`. Raises UserError with a line for
        everything that cannot be used."""
        raise ConfigError(f"environment {self.config.environment}: judges no single answers")
        yield  # what makes it a generator

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return metrics of some rollouts under the field's names, without those of no value."""
        return outcome_metrics(rollouts)

    def mix(self, rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
        """Return by kind of task the mean make-up of its attempts; see ``display.mixes``."""
        return {}

    def record(self, rollout: Rollout) -> Mapping[str, Any]:
        """Return the environment's fields of a rollout's record: plain JSON, under names that
        ``display.blocks`` reads."""
        return {}

    def problem_class(self, task: Task) -> str:
        """Return the class of a task, for the best baseline of each class. Default: its kind."""
        return task.kind

    def counterfactual(self, task: Task) -> Task | None:
        """Return the task with only those words replaced that put it into its class, which puts it
        into another, for a probe of the policy; None if there is no such task."""
        return None

    def signature(self, completion: str) -> str:
        """Return the part of a completion that a probe compares; default all of it."""
        return completion

    def baselines(self) -> Sequence[Baseline]:
        """Return fixed completions to compare the policy with."""
        return ()

    def read_baselines(self, paths: Sequence[Path]) -> Sequence[Baseline]:
        """Return the baselines in a user's files and folders. Raises ConfigError with a line, as
        ``file:line: message``, for each that cannot be used."""
        raise ConfigError(
            f"evaluation.baselines: environment {self.config.environment} reads no files; set it "
            "to true or false"
        )

    def all_baselines(self) -> list[Baseline]:
        """Return the baselines of ``evaluation.baselines``. Raises ConfigError as
        :meth:`read_baselines`."""
        wanted = self.config.evaluation.baselines
        own = self.read_baselines(wanted) if isinstance(wanted, list) else ()
        return [*self.baselines(), *own] if wanted else []

    def equal_tokens(self, policy: float, spent: Mapping[str, float]) -> Baseline | None:
        """Return a baseline that spends about as much as the policy. ``policy``: its mean tokens of
        large models per task; ``spent``: those of :meth:`baselines` by name."""
        return None

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Return ``count`` prompts with ``completions`` completions each, for the cold start of the
        embedded policy. They may not reveal which choice pays. Raises ConfigError by default."""
        raise ConfigError(
            f"environment {self.config.environment}: has no demonstrations for the embedded "
            "policy's cold start; set strategy_model to another model"
        )

    def training_conversations(self, task: Task) -> Sequence[TrainingConversation]:
        """Return the task's conversations where ``grpo.loss`` trains on fixed data and nothing is
        sampled: one, or the two that are compared."""
        raise ConfigError(
            f"environment {self.config.environment}: its data gives no answers to learn from; "
            f"grpo.loss: {self.config.grpo.loss} needs some"
        )

    @property
    def simulated(self) -> bool:
        """True if any number comes from a stand-in; every screen then shows it."""
        return False

    def models(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the large models that rollouts ask, as the configuration has them, by
        role (``executor``, ``judge``); empty where that is not known."""
        return {}

    def simulated_note(self) -> str:
        """Return the line on the parts that the embedded server plays by the configuration; empty
        if none."""
        verbs = {"executor": "answers", "judge": "judges"}
        models, simulated = self.models(), self.config.simulated
        played = [verb for role, verb in verbs.items() if simulated.played(models.get(role, ()))]
        if not played:
            return ""
        return f"SIMULATED: the embedded server {' and '.join(played)}; its numbers are no claims"

    def counters(self) -> Sequence[Counters]:
        """Return the counters of its servers, for the metrics ``servers/*`` of a step."""
        return ()

    def state(self, without: Sequence[str] = ()) -> Any:
        """Return the memory of earlier rollouts, such as verdicts, that a resumed run needs: plain
        JSON, or None. ``without``: beginnings of the keys of completions that will be rolled out
        again, as if for the first time."""
        return None

    def restore(self, state: Any) -> None:
        """Restore what :meth:`state` returned; the environment is open and has rolled out
        nothing."""

    async def memory(self, without: Sequence[str] = ()) -> Any:
        """Return :meth:`state`, of all workers where there are some."""
        return self.state(without)

    def remember(self, memory: Any) -> None:
        """Restore a :meth:`memory`, also one of another number of workers."""
        for state in states_of(memory):
            self.restore(state)

    def status(self) -> EnvironmentStatus:
        """Return the condition of an open environment."""
        return EnvironmentStatus()

    def about(self) -> Mapping[str, Any]:
        """Return the fields of ``state.json`` on an open environment, for the heads of screens. A
        list ``warnings`` is shown on all of them."""
        return {}

    def task_notes(self) -> Sequence[str]:
        """Return notes on the loaded and :meth:`fitted` tasks, such as rows left out: lines of the
        dry run and of a start."""
        return ()

    def planned_calls(self, train: Sequence[Task]) -> Mapping[str, float]:
        """Return the mean calls of large models per attempt at these tasks, by role (``executor``,
        ``judge``), as far as they are known in advance; for the dry run's plan."""
        return {}

    def trained_on(self) -> TrainedOn | None:
        """Return names and hashes of the training data, held-out tasks included, for the run's
        ``trained_on.json``; None if policies trained here are not measured by conversations. Called
        after :meth:`tasks`."""
        return None

    def introduction(self) -> Sequence[str]:
        """Return the terminal's lines on an open environment, before the first step."""
        return ()

    def checks(self) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        """Return the checks of a dry run by name: each returns a line on its findings or raises
        UserError."""
        return ()


OF_WORKERS = "of_workers"
"""The key of a memory that has the states of several workers."""


def states_of(memory: Any) -> list[Any]:
    """Return the states in a memory: one, or one for each worker."""
    several = isinstance(memory, dict) and memory.keys() == {OF_WORKERS}
    return list(memory[OF_WORKERS]) if several else [memory]


def make_environment(config: RunConfig) -> Environment:
    """Make the environment of a configuration. Raises ConfigError."""
    made = ENVIRONMENTS.load(config.environment)(config)
    name_environment(config.environment)
    if not isinstance(made, Environment):
        raise ConfigError(
            f"environment: {config.environment} makes a {type(made).__name__}; a subclass of "
            "flowright.environments.base.Environment is needed"
        )
    return made


def prompt_encoder(
    environment: Environment, tokenizer: Tokenizer, max_tokens: int
) -> Callable[[Task], Prompt]:
    """Return a function from a task to the policy's prompt tokens, cut to ``max_tokens``."""
    return lambda task: render(environment.messages(task), tokenizer, max_tokens)
