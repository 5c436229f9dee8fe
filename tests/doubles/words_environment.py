"""An environment of words of one letter, which can show some that pass."""

from collections.abc import Sequence

from flowright.core.errors import Failure, Reason
from flowright.data.task import Task
from flowright.environments.base import Demonstration, Environment, Scaffold, TaskSets
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.grading import Gold
from flowright.llm.chat import Message

WORDS = ("y", "n", "m")


class Words(Environment):
    """A word is its first letter. ``y`` is right, ``n`` wrong, ``m`` right on tasks of even number;
    nothing else is valid. ``judge.model: lost`` loses every attempt."""

    def tasks(self) -> TaskSets:
        tasks = [Task(f"t{i}", "word", "words", f"Say it, {i}.", "y") for i in range(12)]
        return TaskSets(tasks[:10], tasks[10:])

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return [[self._one(completion) for completion in group] for group in groups]

    def _one(self, completion: Episode) -> Rollout:
        task, sample = completion.task, completion.sample
        if self.config.judge.model == "lost":
            return Rollout(task, sample, UNSCORED, Failure(Reason.JUDGE_FAILED, "unavailable"))
        word = sample.text[:1]
        if word not in WORDS:
            failure = Failure(Reason.NO_PROGRAM, "no such word")
            return Rollout(task, sample, Reward(-0.2, {"validity": -0.2}), failure)
        even = int(task.id[1:]) % 2 == 0
        right = word == "y" or (word == "m" and even)
        return Rollout(
            task, sample, Reward(float(right), {"correctness": float(right)}), gold=Gold(right, "")
        )

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        words = [WORDS[(seed + i) % 3] for i in range(completions)]
        return [Demonstration(self.messages(task), words) for task in tasks[:count]]


class Hinted(Words):
    """Shows the first attempt at a word a hint, and the second one that no prompt has room for."""

    def scaffolds(self, task: Task, step: int, steps: int, attempts: int) -> Sequence[Scaffold]:
        own = self.messages(task)
        hints = ["Say y.", "y" * self.config.policy.max_prompt_tokens]
        shown = [[Message("system", hint), *own] for hint in hints]
        return [Scaffold(m) for m in [*shown, *[own] * (attempts - len(shown))]]


class Twice(Words):
    """Asks again after the first word."""

    @property
    def max_turns(self) -> int:
        return 2

    async def respond(self, episode: Episode) -> Observation | None:
        return Observation(f"Again, after {episode.sample.text}.")
