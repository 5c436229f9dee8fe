"""What the trainer knows of the world: environments that turn completions into rewards.

The trainer sees prompts, completions and rewards; what a completion means is the environment's.
Workflow writing is one environment (:mod:`flowright.environments.workflow`); judging and
instruction following are others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from flowright.data.task import Task
from flowright.environments.reward import Reward
from flowright.errors import Failure
from flowright.grading import Gold
from flowright.judge.verdict import Verdict
from flowright.llm.chat import Message
from flowright.policy.sampler import Sample
from flowright.workflows.executor import Execution
from flowright.workflows.source import Workflow

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion to play. ``key`` names it within the run, as ``step/task/index``: every seed
    that playing needs is derived from it, never from the order of arrival."""

    task: Task
    sample: Sample
    key: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one task, from completion to reward.

    ``reward.value`` is None when the failure is ours (law 1). Fields that an environment does not
    have, or that a failure cut off, are None.
    """

    task: Task
    sample: Sample
    reward: Reward
    failure: Failure | None = None
    workflow: Workflow | None = None
    execution: Execution | None = None
    verdict: Verdict | None = None
    gold: Gold | None = None

    def rewarded(self, reward: Reward) -> "Rollout":
        """The same rollout with another reward."""
        return replace(self, reward=reward)


class Environment(Protocol):
    """A world to act in: builds prompts, plays completions, sums up what happened."""

    def messages(self, task: Task) -> list[Message]:
        """The prompt for a task, before the chat template."""
        ...

    async def play(self, groups: Sequence[Sequence[Completion]]) -> list[list[Rollout]]:
        """Play all groups of a step at once; rollouts in the order of the completions. Whole
        groups, because some rewards compare the attempts of a group."""
        ...

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics of a step under the field's names; those without a value are left out."""
        ...


def to_record(
    rollout: Rollout, step: int, group: int, index: int, advantage: float | None
) -> dict[str, Any]:
    """A rollout as it is kept in ``rollouts/``: what the viewer and the report read. Values are
    plain JSON; long texts were cut where they were made."""
    task, sample = rollout.task, rollout.sample
    return {
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
        "workflow": _plain(rollout.workflow),
        "execution": _plain(rollout.execution),
        "verdict": _plain(rollout.verdict),
        "gold": _plain(rollout.gold),
        "reward": {"value": rollout.reward.value, "parts": dict(rollout.reward.parts)},
        "advantage": advantage,
        "failure": _failure(rollout.failure),
    }


def _plain(value: "DataclassInstance | None") -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def _failure(failure: Failure | None) -> Mapping[str, Any] | None:
    if failure is None:
        return None
    return {
        "reason": failure.reason.value,
        "blame": failure.blame.value,
        "message": failure.message,
        "line": failure.line,
    }
