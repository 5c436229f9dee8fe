"""Training runs with a toy environment and a random policy, for tests of the loop around them.

The environment rewards completions that hold one of some tokens; nothing in it runs a program.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
from clocks import without_clocks
from tiny_policy import tiny_policy, weights
from torch import Tensor

from flowright.app.session import make_trainer
from flowright.config.grpo import GrpoSection, PipelineSection
from flowright.config.judge import JudgeSection
from flowright.config.policy import PolicySection
from flowright.config.root import Config, EvaluationSection
from flowright.config.run import RunSection
from flowright.core.errors import Failure, Reason
from flowright.data.task import Problem
from flowright.environments.base import Environment, TaskSets
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.evaluation.perplexity import open_text
from flowright.grading import Gold
from flowright.grpo.teacher import Teacher
from flowright.judging.verdict import Verdict
from flowright.llm.counters import Counters
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy
from flowright.policy.sampling import Draw, Sample, Sampler, Sampling
from flowright.runs.directory import RunDirectory
from flowright.runs.run_files import read_metrics

TASKS = [Problem(f"t{i}", "math", "toy", f"What is {i}?", str(i)) for i in range(5)]
WANTED = frozenset(range(60, 90))


class Killed(BaseException):
    """Stands for a kill: nothing may be done about it."""


@dataclass
class Toy(Environment):
    """Rewards a completion that holds a wanted token. ``lost`` says which completions cannot be
    scored; ``before`` is called with the step whose completions are about to be played."""

    lost: Callable[[Episode], bool] = lambda completion: False
    before: Callable[[int], None] = lambda step: None
    reward: Callable[[Episode], float] = lambda completion: float(
        bool(WANTED & set(completion.sample.token_ids))
    )
    fooled: Callable[[Episode], bool] | None = None  # where there is a judge, and it errs

    aliases: ClassVar[Mapping[str, str]] = {"train/policy_loss": "policy/pg_loss"}

    def tasks(self) -> TaskSets:
        return TaskSets(TASKS, TASKS)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        if "evaluation" not in groups[0][0].key:
            self.before(int(groups[0][0].key.split("/")[1]))
        return [[self._one(completion) for completion in group] for group in groups]

    def _one(self, completion: Episode) -> Rollout:
        task, sample = completion.task, completion.sample
        if self.lost(completion):
            failure = Failure(Reason.JUDGE_FAILED, "unavailable: connection refused")
            return Rollout(task, sample, UNSCORED, failure)
        value = self.reward(completion)
        return Rollout(
            task,
            sample,
            Reward(value, {"correctness": value}),
            verdict=self._judge(completion, value > 0),
            gold=Gold(value > 0, "toy"),
        )

    def _judge(self, completion: Episode, right: bool) -> Verdict | None:
        if self.fooled is None:
            return None
        said = right != self.fooled(completion)
        return Verdict(float(said), said, "llm", "ok")

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        scored = [r.reward.value for r in rollouts if r.reward.value is not None]
        unscored = {"rollout/unscored": 1 - len(scored) / len(rollouts)}
        return unscored | ({"reward/mean": sum(scored) / len(scored)} if scored else {})


@dataclass
class Lines:
    """A reporter that keeps what it was told."""

    said: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)

    def say(self, line: str) -> None:
        self.said.append(line)


@dataclass
class Wrapped:
    """A sampler around the local one: ``change`` edits every group, ``refreshed`` is told the
    version that is served from now on."""

    inner: LocalSampler
    more: int = 0
    change: Callable[[list[Sample]], list[Sample]] = lambda group: group
    refreshed: Callable[[int], None] = lambda version: None

    @property
    def batches(self) -> bool:
        return self.inner.batches

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def counters(self) -> Sequence[Counters]:
        return self.inner.counters

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.inner.metrics

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        groups = await self.inner.sample(prompts, n + self.more, sampling, places)
        return [self.change(group) for group in groups]

    def for_episodes(self, sets: int) -> Draw:
        inner: Any = SimpleNamespace(sample=self.inner.for_episodes(sets))
        return replace(self, inner=inner).sample

    async def refresh(self, version: int) -> None:
        await self.inner.refresh(version)
        self.refreshed(version)


def configured(
    grpo: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    judge: dict[str, Any] | None = None,
    max_staleness: int = 0,
    order: Literal["batch", "ready"] = "batch",
) -> Config:
    training: dict[str, Any] = {
        "steps": 4,
        "prompts_per_step": 2,
        "group_size": 4,
        "learning_rate": 0.02,
    }
    training |= {"epochs": 2, "minibatches": 2}
    kept: dict[str, Any] = {"tensorboard": False, "checkpoint_every": 2}
    measured: dict[str, Any] = {"every": 2, "problems": 3}
    return make_config(
        seed=1,
        policy=PolicySection(max_new_tokens=6, max_prompt_tokens=100),
        grpo=GrpoSection(**training | (grpo or {})),
        run=RunSection(**kept | (run or {})),
        evaluation=EvaluationSection(**measured | (evaluation or {})),
        judge=JudgeSection(**judge or {}),
        pipeline=PipelineSection(max_staleness=max_staleness, order=order),
    )


@dataclass
class Outcome:
    """What a training run left."""

    step: int
    policy: Policy
    reporter: Lines
    path: Path

    @property
    def metrics(self) -> list[dict[str, float]]:
        """All metrics but those of the clock."""
        return [without_clocks(row) for row in read_metrics(self.path)]

    @property
    def weights(self) -> dict[str, Tensor]:
        return weights(self.policy)

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(p.name.split("_")[1]) for p in (self.path / "checkpoints").iterdir())


async def train(
    path: Path,
    environment: Environment | None = None,
    config: Config | None = None,
    resume: bool = False,
    sampler: Callable[[LocalSampler], Sampler] = lambda local: local,
    raises: type[BaseException] | None = None,
    teacher: Teacher | None = None,
    template: str | None = None,
) -> Outcome:
    """Train a fresh random policy in a run directory; with ``raises``, until that comes up.
    ``template``: a chat template in place of its own."""
    config = config or configured()
    policy, reporter = tiny_policy(trained=False), Lines()
    policy.tokenizer.chat_template = template or policy.tokenizer.chat_template
    environment = environment or Toy()
    run = RunDirectory(path, config, resume)
    try:
        local = LocalSampler(policy, 64)
        trainer = make_trainer(
            config,
            run,
            reporter,
            environment,
            environment.tasks(),
            policy,
            sampler(local),
            text=open_text(config, policy),
            teacher=teacher,
        )
        if raises is None:
            return Outcome(await trainer.train(resume), policy, reporter, path)
        with pytest.raises(raises) as caught:
            await trainer.train(resume)
        reporter.said += str(caught.value).splitlines()
        return Outcome(-1, policy, reporter, path)
    finally:
        run.close()
