"""Instructions as an environment: the policy answers prompts, and earns what criteria say of its
answers.
"""

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from flowright.config.llm import SIMULATED
from flowright.config.reward import LARGEST_REWARD
from flowright.config.root import Config as RunConfig
from flowright.core.errors import DataError, FailureError
from flowright.core.statistics import SHARE
from flowright.criteria.constraints.checkers import InstructedPrompt
from flowright.criteria.constraints.drawable import sentence_of
from flowright.criteria.rubrics.rows import RubricRow, criteria_sha256
from flowright.criteria.rubrics.scaffolding import Schedule, scaffolded, shown_items
from flowright.data.contamination import TrainedOn
from flowright.data.task import Task
from flowright.environments.base import (
    SIMULATED_BY_ADDRESS,
    Baseline,
    Demonstration,
    EnvironmentStatus,
    Scaffold,
    TaskSets,
    TokenCount,
)
from flowright.environments.episode import Episode, Observation
from flowright.environments.instructions.config import CHECKED, Feedback, InstructionsSection
from flowright.environments.instructions.display import DISPLAY
from flowright.environments.instructions.grader import (
    OpenGrader,
    check_judge,
    check_packages,
    open_grader,
    planned_calls,
    wording_of,
)
from flowright.environments.instructions.reward import (
    InstructionGrade,
    instruction_metrics,
    record_of,
    roll_out,
    term_sample,
)
from flowright.environments.instructions.tasks import (
    SOURCE as KNOWN_RULE,
    InstructionTask,
    Row,
    drawn_answer,
    found_files,
    load_sets,
    messages_of,
    read_tasks,
    sentences_of,
    trained_on,
)
from flowright.environments.rollout import Rollout, outcome_metrics, with_terms
from flowright.environments.row_tasks import RowEnvironment
from flowright.environments.workflow.environment import open_sandbox
from flowright.llm.chat import Message
from flowright.llm.counters import Counters


class InstructionsEnvironment(RowEnvironment[InstructionsSection]):
    """The environment of ``environment: instructions``; its keys are those of ``instructions``."""

    Config = InstructionsSection
    display = DISPLAY

    _open: OpenGrader

    def __init__(self, config: RunConfig) -> None:
        section = config.own(InstructionsSection)
        section = section.model_copy(update={"reward": section.kind(config)})
        section = section.with_rules(os.environ)
        super().__init__(config.model_copy(update={"instructions": section}))
        self._section = section
        self._words = wording_of(section)
        self._grades: dict[str, InstructionGrade] = {}

    def tasks(self) -> TaskSets:
        self._sets = sets = load_sets(self._section, self.config.seed)
        return TaskSets(sets.train, sets.held_out)

    def read_tasks(self, name: str) -> Sequence[Task]:
        return read_tasks(found_files([name]), self._section.reward).rows

    def messages(self, task: Task) -> list[Message]:
        return messages_of(_instruction(task).conversation)

    def fitted(self, tasks: TaskSets, tokens: TokenCount, limit: int) -> TaskSets:
        """Return the tasks whose prompt has at most ``limit`` tokens; the others are dropped, or
        cut when they are asked, by ``instructions.overlong``. Raises DataError."""
        found = self._fitted(
            tasks,
            lambda task: tokens(self.messages(task)),
            limit,
            lambda task, count: (task, 0),
        )
        if tasks.train and not found.train:
            raise DataError(
                f"all {len(tasks.train):,} prompts have more than {limit:,} tokens; raise "
                "policy.max_prompt_tokens, or set instructions.overlong: cut"
            )
        return found

    def scaffolds(
        self, task: Task, step: int, steps: int, attempts: int
    ) -> Sequence[Scaffold] | None:
        """Return for each attempt a prompt with some of the task's criteria, chosen by seed, step,
        task and attempt alone; None without scaffolding."""
        task, section = _instruction(task), self._section.scaffolding
        if not section.enabled or not task.shown:
            return None
        schedule = Schedule(section.decay, section.power, section.start, section.steepness)
        found: list[Scaffold] = []
        for attempt in range(attempts):
            items = shown_items(
                task.shown,
                schedule.share(step, steps, attempt, attempts),
                f"{self.config.seed}/scaffold/{step}/{task.id}/{attempt}",
            )
            messages = messages_of(scaffolded(task.conversation, items, self._words.scaffold))
            found.append(Scaffold(messages, len(items) / len(task.shown)))
        return found

    @property
    def max_turns(self) -> int:
        return self._section.turns

    @property
    def answers_at_once(self) -> bool:
        return self._section.reward == "constraints"

    async def respond(self, episode: Episode) -> Observation | None:
        """Return the criteria that the newest answer does not meet, by the grader of the reward;
        None if it meets all. Raises FailureError where it cannot be graded."""
        task = _instruction(episode.task)
        grade = await self._open.grader.grade(task, episode)
        if grade.failure is not None:
            raise FailureError(grade.failure.reason, grade.failure.message)
        self._grades[episode.key] = grade
        return observation_of(task.row, grade, self._section.feedback)

    @asynccontextmanager
    async def open(self, tasks: Sequence[Task]) -> AsyncIterator[None]:
        async with open_grader(self.config) as self._open:
            yield

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        rollouts = await roll_out(self._open.grader, groups, self._grades)
        return await with_terms(self._open.terms, groups, rollouts, term_sample)

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        own = self.status().metrics()
        return outcome_metrics(rollouts) | instruction_metrics(rollouts) | own

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        """The bounds of rubrics, VerIF and terms; with checkers, the table has the share that is
        right."""
        if self._section.reward in CHECKED:
            return None
        return (-LARGEST_REWARD, LARGEST_REWARD) if self.config.reward.has_terms else SHARE

    def mix(self, rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
        """Return shares of criteria for the evaluation; with gold in its table, the reward, too."""
        names = {"criteria met": "instructions/met", "ungraded": "instructions/ungraded"}
        if self.reward_bounds is None:
            names = {"reward": "reward/mean", **names}
        names |= {
            "all met": "instructions/all_met",
            "all met at first": "instructions/first_turn_all_met",
            "second answers": "instructions/second_turn",
        }
        measured = outcome_metrics(rollouts) | instruction_metrics(rollouts)
        found = {name: measured[metric] for name, metric in names.items() if metric in measured}
        return {"instructions": found} if found else {}

    def record(self, rollout: Rollout) -> Mapping[str, Any]:
        return record_of(rollout)

    def baselines(self) -> Sequence[Baseline]:
        """Return a useless answer, which earns what criteria give for nothing."""
        return [Baseline("always: I do not know.", "I do not know.", shown=True)]

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Return the form of an answer with its choices drawn at random: words for prompts of the
        known rule, lines of the prompt itself for those of files."""
        rng = random.Random(seed)
        drawn = []
        for _ in range(count):
            task = _instruction(rng.choice(tasks))
            lines = sentences_of(task.question)
            answers = [
                drawn_answer(task.question, rng)
                if task.source == KNOWN_RULE
                else " ".join(rng.choices(lines, k=rng.randint(1, 3)))
                for _ in range(completions)
            ]
            drawn.append(Demonstration(self.messages(task), answers))
        return drawn

    @property
    def simulated(self) -> bool:
        return SIMULATED in self.config.models or self.status().simulated

    def models(self) -> Mapping[str, Sequence[str]]:
        """No executor is asked, and a judge unless checkers decide."""
        return {"executor": (), "judge": self.config.judge_names if self._asks_judge else ()}

    @property
    def _asks_judge(self) -> bool:
        reward = self.config.reward
        return self._section.reward not in ("constraints", "own") or bool(reward.aspects)

    def counters(self) -> Sequence[Counters]:
        return self._open.counters

    def state(self, without: Sequence[str] = ()) -> Any:
        """The judge's cache."""
        return self._open.state(without)

    def restore(self, state: Any) -> None:
        self._open.restore(state)

    def status(self) -> EnvironmentStatus:
        judge, sandbox = self._open.judge, self._open.sandbox
        return EnvironmentStatus(
            judge is not None and judge.simulated, (), sandbox and sandbox.status
        )

    def about(self) -> Mapping[str, Any]:
        sandbox = self.status().sandbox
        about: dict[str, Any] = {**super().about(), "reward": self._reward, "warnings": []}
        if self._asks_judge:
            about["judge"] = ", ".join(self.config.judge_names)
        if self._section.reward == "rubric" and self._sets:
            tasks = (*self._sets.train, *self._sets.held_out)
            rubrics = [task.row for task in tasks if isinstance(task.row, RubricRow)]
            about["criteria_sha256"] = criteria_sha256(rubrics)
        if sandbox is not None and not sandbox.isolation.sufficient:
            about["warnings"] = [f"WEAKER ISOLATION than required: {sandbox.isolation}"]
        return about

    def introduction(self) -> Sequence[str]:
        lines = [f"reward    {self._reward}"]
        if self._asks_judge:
            lines[0] += f"    judge  {', '.join(self.config.judge_names)}"
        if sandbox := self.status().sandbox:
            lines.append(f"sandbox   {sandbox.isolation}")
        if self.simulated:
            lines.append(self.simulated_note() or SIMULATED_BY_ADDRESS)
        return lines

    @property
    def _reward(self) -> str:
        """The reward, for people."""
        kind, formula = self._section.reward, self.config.reward.formula
        return formula if kind == "own" else f"{kind}{f' ({formula})' * bool(formula)}"

    def planned_calls(self, train: Sequence[Task]) -> Mapping[str, float]:
        """An attempt asks no executor, and the judge about its criteria, in each of its turns."""
        calls = planned_calls(self.config, [_instruction(task) for task in train])
        return {"executor": 0.0, "judge": calls * self.max_turns}

    def trained_on(self) -> TrainedOn | None:
        return trained_on(self._sets) if self._sets else None

    def checks(self) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        if self._section.reward == "constraints":
            return (("checkers", self._check_checkers),)
        if self._section.reward == "own":
            return (("judge", self._check_judge),) if self._asks_judge else ()
        if self._section.reward == "judge":
            return (("checkers", self._check_checkers), ("judge", self._check_judge))
        return (("judge", self._check_judge), ("sandbox", self._check_sandbox))

    async def _check_checkers(self) -> str:
        return check_packages()

    async def _check_judge(self) -> str:
        return await check_judge(self.config)

    async def _check_sandbox(self) -> str:
        async with open_sandbox(self.config) as sandbox:
            return str(sandbox.isolation)


def _instruction(task: Task) -> InstructionTask:
    assert isinstance(task, InstructionTask)
    return task


def observation_of(row: Row, grade: InstructionGrade, feedback: Feedback) -> Observation | None:
    """Return the criteria that an answer does not meet, or their number; None if it meets all.
    They are of the row's texts and arguments alone."""
    if grade.meets_all:
        return None
    if not grade.unmet:
        text = "Your answer is empty or cannot be read."
    elif feedback == "count":
        text = f"Your answer does not meet {len(grade.unmet)} of {len(grade.parts)} criteria."
    else:
        lines = [f"- {_sentence(row, grade, number)}" for number in grade.unmet]
        text = "\n".join(["Your answer does not meet this:", *lines])
    return Observation(f"{text}\nWrite the whole answer again.", memory=grade.outcome)


def _sentence(row: Row, grade: InstructionGrade, number: int) -> str:
    if isinstance(row, InstructedPrompt):
        return sentence_of(row.ids[number], row.arguments[number])
    part = grade.parts[number]
    lines = part.text.splitlines()
    text = f"At least one of these: {' '.join(lines)}" if len(lines) > 1 else part.text
    return f"Avoid: {text}" if part.is_penalty else text
