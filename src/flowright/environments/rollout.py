"""One attempt at a task, from completion to reward, and how it is recorded. What else there is to
know of it is its environment's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from flowright.core.errors import Blame, Failure
from flowright.data.task import Task
from flowright.environments.reward import Reward
from flowright.grading import Gold
from flowright.judging.verdict import Verdict
from flowright.policy.sampling import Sample

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


SCHEMA = 1
"""Of a rollout's record, as docs/viewing.md tells it; the one before had no such field."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion to be rolled out. ``key`` names it within the run, as ``step/task/index``:
    every seed that its rollout needs is derived from it, never from the order of arrival."""

    task: Task
    sample: Sample
    key: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What an attempt took beside its judging: calls and tokens of large models, and seconds."""

    calls: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one task.

    ``reward.value`` is None when the failure is ours (law 1). ``verdict`` and ``gold`` are None
    where an environment has none, or where a failure cut them off. ``details`` is what only its
    environment knows of it, in a type of its own.
    """

    task: Task
    sample: Sample
    reward: Reward
    failure: Failure | None = None
    verdict: Verdict | None = None
    gold: Gold | None = None
    spent: Spent | None = None
    details: object = None

    @property
    def lost(self) -> bool:
        """Whether a failure of ours ended it, which says nothing about the policy."""
        return self.failure is not None and self.failure.blame is Blame.INFRASTRUCTURE

    @property
    def gold_score(self) -> float | None:
        """1 or 0 by the gold check, 0 for the policy's failures; None where gold has no opinion. An
        answer that the judge failed on keeps the gold that it has."""
        if self._failed:
            return 0.0
        if self.gold is None or self.gold.correct is None:
            return None
        return float(self.gold.correct)

    @property
    def f1_score(self) -> float | None:
        """As :attr:`gold_score`, the token F1 of an answer in words (:class:`Gold`)."""
        if self._failed:
            return 0.0
        return None if self.gold is None else self.gold.f1

    @property
    def _failed(self) -> bool:
        return self.failure is not None and self.failure.blame is Blame.POLICY

    def rewarded(self, reward: Reward) -> "Rollout":
        """The same rollout with another reward."""
        return replace(self, reward=reward)


def to_record(
    rollout: Rollout,
    own: Mapping[str, Any],
    step: int,
    group: int,
    index: int,
    advantage: float | None,
) -> dict[str, Any]:
    """A rollout as it is kept in ``rollouts/``: what the viewer and the report read. ``own`` are
    the environment's fields. Values are plain JSON; long texts were cut where they were made."""
    task, sample = rollout.task, rollout.sample
    return {
        "schema": SCHEMA,
        "step": step,
        "group": group,
        "index": index,
        "task": {
            "id": task.id,
            "kind": task.kind,
            "source": task.source,
            "problem": task.problem[:4000],
            "reference": task.reference[:2000],
        },
        "completion": sample.text,
        "tokens": len(sample.token_ids),
        "finish_reason": sample.finish_reason,
        "policy_version": sample.version,
        **own,
        "verdict": plain(rollout.verdict),
        "gold": plain(rollout.gold),
        "reward": _reward(rollout.reward),
        "advantage": advantage,
        "failure": rollout.failure.record() if rollout.failure else None,
    }


def plain(value: "DataclassInstance | None") -> dict[str, Any] | None:
    """A dataclass as a mapping."""
    return None if value is None else asdict(value)


def _reward(reward: Reward) -> dict[str, Any]:
    kept: dict[str, Any] = {"value": reward.value, "parts": dict(reward.parts)}
    return kept if reward.task is None else kept | {"unpenalised": reward.task}
