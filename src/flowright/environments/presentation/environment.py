"""Presented answers as an environment: small questions, a choice for each, a planted judge."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from flowright.config.llm import SIMULATED
from flowright.config.root import Config as RunConfig
from flowright.data.task import Task
from flowright.environments.base import Baseline, Demonstration, Environment, TaskSets
from flowright.environments.episode import Episode
from flowright.environments.presentation.config import PresentationSection
from flowright.environments.presentation.display import DISPLAY
from flowright.environments.presentation.reward import (
    QueriedJudge,
    judge_of,
    presentation_metrics,
    query_about,
    record_of,
    roll_out,
)
from flowright.environments.presentation.tasks import (
    PLAIN,
    PRESENTATIONS,
    WAYS,
    Choice,
    SmallQuestion,
    drawn_choice,
    small_questions,
)
from flowright.environments.rollout import Rollout, outcome_metrics
from flowright.judging.verdict import Judge, JudgeQuery


class PresentationEnvironment(Environment):
    """The environment of ``environment: presentation``; its keys are those of ``presentation`` and
    the judge's of ``simulated``, with ``judge.gate``, ``judge.max_attempts`` and ``llm.attempts``.
    """

    Config = PresentationSection
    display = DISPLAY

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._judge = judge_of(config)

    def tasks(self) -> TaskSets:
        """The same for every seed of a run, so that all share a cold start; the seed decides in
        which order they come and which answers are right."""
        section = self.config.own(PresentationSection)
        found = small_questions(section.held_out + section.train)
        return TaskSets(found[section.held_out :], found[: section.held_out])

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return roll_out(self.config, self._judge, groups)

    def judge_settings(self) -> Mapping[str, Any] | None:
        """Return the settings of the judge in this process; the run's seed is one, because its
        draws are a run's own."""
        config = self.config
        return {
            "simulated": config.simulated.model_dump(mode="json"),
            "panel": config.own(PresentationSection).reward == "panel",
            "length_failures": config.own(PresentationSection).length_failures,
            "tries": [config.judge.gate, config.judge.max_attempts, config.llm.attempts],
            "seed": config.seed,
        }

    def query(self, rollout: Rollout, key: str) -> JudgeQuery | None:
        return query_about(rollout, key)

    @asynccontextmanager
    async def open_judge(self) -> AsyncIterator[Judge]:
        yield QueriedJudge(self._judge)

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        return outcome_metrics(rollouts) | presentation_metrics(rollouts)

    def mix(self, rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
        measured = presentation_metrics(rollouts)
        names = (*PRESENTATIONS, PLAIN)
        return {"presented": {name: measured[f"presentation/share/{name}"] for name in names}}

    def record(self, rollout: Rollout) -> Mapping[str, Any]:
        return record_of(rollout)

    def baselines(self) -> Sequence[Baseline]:
        """Each way, plainly presented; the best for each kind of question is what can be had."""
        return [Baseline(f"always {way}", str(Choice(way))) for way in WAYS]

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Questions with choices that were drawn evenly, whatever the question."""
        rng = random.Random(seed)
        asked = [task for task in tasks if isinstance(task, SmallQuestion)]
        drawn = []
        for _ in range(count):
            task = rng.choice(asked)
            choices = [str(drawn_choice(task.kind, rng)) for _ in range(completions)]
            drawn.append(Demonstration(self.messages(task), choices))
        return drawn

    @property
    def simulated(self) -> bool:
        return True

    def about(self) -> Mapping[str, Any]:
        biases = self.config.simulated.judge_biases
        planted = {name: weight for name, weight in biases.items() if weight}
        shown = ", ".join(f"{name} {weight:+g}" for name, weight in planted.items())
        return {
            "judge": SIMULATED,
            "reward": self.config.own(PresentationSection).reward,
            "biases": shown or "none",
        }

    def introduction(self) -> Sequence[str]:
        about = self.about()
        lines = [f"reward    {about['reward']}    planted biases  {about['biases']}"]
        if self.config.own(PresentationSection).failures == "zero":
            lines.append("WARNING: an attempt that the judge failed on is scored 0, as asked for")
        return [*lines, self.simulated_note()]

    def simulated_note(self) -> str:
        return "SIMULATED: questions, answers and judge are planted; no number is a claim"

    def planned_calls(self, train: Sequence[Task]) -> Mapping[str, float]:
        """No server is asked."""
        return {"executor": 0.0, "judge": 0.0}
