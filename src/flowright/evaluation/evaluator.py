"""Measuring policies and fixed workflows on the same problems, with the same server and judge.

Nothing is trained here and nothing is drawn: rows go to ``evaluation.json`` and to whoever shows
them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flowright.config import Config
from flowright.data.task import KINDS, Task
from flowright.environments.rollout import Completion, Environment, Rollout
from flowright.environments.workflow import gold_of, is_valid, operator_mix
from flowright.errors import Blame
from flowright.grpo.ranks import ONE, Ranks, interleaved
from flowright.policy.sampler import Sample, Sampler, Sampling
from flowright.statistics import bootstrap
from flowright.workflows.prompt import Prompt

SEED_STRIDE = 1_000_003
"""Between the seeds of runs: more than any run has steps."""

AT_ONCE = 256
"""Rollouts in play at a time: a fixed workflow over a whole test split is thousands of calls."""


@dataclass(frozen=True, slots=True)
class Score:
    """Results on some problems. Accuracies have 95 % intervals from a bootstrap over problems;
    ``valid`` is a share of the attempts that we did not lose; the rest are means per attempt.
    What could not be measured on a single attempt is None, never 0 (law 1)."""

    problems: int
    gold: float | None
    gold_low: float | None
    gold_high: float | None
    judge: float | None
    judge_low: float | None
    judge_high: float | None
    valid: float | None
    unscored: float
    llm_calls: float
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``kinds`` and ``sources`` hold scores by kind of problem ("all"
    included) and by dataset; ``operators`` the mean calls per workflow by kind."""

    name: str
    group: Literal["policy", "baseline"]
    kinds: Mapping[str, Score]
    sources: Mapping[str, Score]
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """How a policy is measured: the same draws for whoever has the same configuration."""

    environment: Environment
    encode: Callable[[Task], Prompt]
    config: Config
    ranks: Ranks = ONE

    async def row(self, name: str, sampler: Sampler, tasks: Sequence[Task], draw: int = 0) -> Row:
        """The row of the policy that ``sampler`` serves; ``draw`` tells evaluations apart."""
        config, section = self.config, self.config.evaluation
        sampling = Sampling(
            section.temperature,
            config.policy.top_p,
            config.policy.max_new_tokens,
            # Never a training step's draws: steps count up from 1, these seeds down from -1.
            seed=config.seed * SEED_STRIDE - 1 - draw,
        )
        places = self.ranks.mine(range(len(tasks)))
        mine = [tasks[place] for place in places]
        prompts = [self.encode(task).token_ids for task in mine]
        drawn = await sampler.sample(prompts, section.samples, sampling, places) if mine else []
        key = f"{config.seed}/evaluation/{draw}"
        groups = [
            [Completion(task, sample, f"{key}/{task.id}/{i}") for i, sample in enumerate(group)]
            for task, group in zip(mine, drawn, strict=True)
        ]
        shares = await self.ranks.all_gather(await play_all(self.environment, groups))
        return make_row(name, "policy", interleaved(shares))


async def play_fixed(
    environment: Environment, program: str, tasks: Sequence[Task], samples: int, key: str
) -> list[list[Rollout]]:
    """The same program for every task: a baseline goes through all that a completion does."""
    sample = Sample((), (), program, "stop", -1)
    groups = [
        [Completion(task, sample, f"{key}/{task.id}/{i}") for i in range(samples)] for task in tasks
    ]
    return await play_all(environment, groups)


async def play_all(
    environment: Environment, groups: Sequence[Sequence[Completion]]
) -> list[list[Rollout]]:
    """Play in parts, so that a large evaluation does not hold every request at once."""
    size = max(1, AT_ONCE // max(1, max((len(group) for group in groups), default=1)))
    played: list[list[Rollout]] = []
    for start in range(0, len(groups), size):
        played += await environment.play(groups[start : start + size])
    return played


def make_row(
    name: str, group: Literal["policy", "baseline"], rollouts: Sequence[Sequence[Rollout]]
) -> Row:
    """A row from groups of rollouts, one group a problem."""
    kinds = {"all": score(rollouts)}
    for kind in KINDS:
        some = [g for g in rollouts if g[0].task.kind == kind]
        if some:
            kinds[kind] = score(some)
    names = sorted({g[0].task.source for g in rollouts})
    sources = {s: score([g for g in rollouts if g[0].task.source == s]) for s in names}
    flat = [r for g in rollouts for r in g]
    return Row(name, group, kinds, sources, operator_mix(flat))


def score(groups: Sequence[Sequence[Rollout]]) -> Score:
    """The score of some problems, each a group of attempts. Unscored attempts take no part in an
    accuracy, as in training; a problem with none left does not count."""
    gold, gold_low, gold_high = bootstrap([[gold_of(r) for r in g] for g in groups])
    judge, judge_low, judge_high = bootstrap([[_judged(r) for r in g] for g in groups])
    flat = [r for g in groups for r in g]
    executions = [r.execution for r in flat if r.execution]
    known = [float(is_valid(r)) for r in flat if not _is_lost(r)]
    return Score(
        len(groups),
        gold,
        gold_low,
        gold_high,
        judge,
        judge_low,
        judge_high,
        _mean(known) if known else None,
        _mean([float(r.reward.value is None) for r in flat]),
        _mean([float(e.usage.calls) for e in executions]),
        _mean([float(e.usage.tokens) for e in executions]),
        _mean([e.seconds for e in executions]),
    )


def _is_lost(rollout: Rollout) -> bool:
    """A failure of ours says nothing about the policy."""
    return rollout.failure is not None and rollout.failure.blame is Blame.INFRASTRUCTURE


def _judged(rollout: Rollout) -> float | None:
    if rollout.reward.value is None:
        return None
    return float(rollout.verdict is not None and bool(rollout.verdict.correct))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
