"""From what happened to a reward with named parts. No judging, no statistics of groups of samples.

Law 1 is kept here: a failure of ours, or a judge that did not say right or wrong, is no reward at
all (``value is None``), whatever else is known about the sample. An answer that keeps every judge
from judging it comes here as a verdict "wrong" (``source="floor"``) and earns what any other does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flowright.config.workflow import RewardSection
from flowright.core.errors import Blame, Failure, Reason
from flowright.judging.verdict import Verdict

INVALID = frozenset(
    {
        Reason.TRUNCATED,
        Reason.NO_PROGRAM,
        Reason.SYNTAX,
        Reason.UNSUPPORTED,
        Reason.TYPE,
    }
)
"""The policy's failures before its program ran. Its other failures count as crashes."""


@dataclass(frozen=True, slots=True)
class Reward:
    """``value`` is the sum of ``parts``, or None for a sample that could not be scored, which has
    no parts. The parts of a scored sample are always ``validity`` (0 unless the program failed),
    ``correctness`` (0 if it failed) and, where costs count, ``cost`` (0 or below); penalties of the
    training (:func:`with_penalty`) are ``kl`` and ``overlong``, and ``task`` is the value without
    them, None where there are none."""

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    task: float | None = None

    @property
    def unpenalised(self) -> float | None:
        """What the task itself gave."""
        return self.value if self.task is None else self.task

    def __post_init__(self) -> None:
        if self.value is None:
            if self.parts:
                raise ValueError(f"an unscored sample has no parts, not {dict(self.parts)}")
        elif not math.isclose(self.value, sum(self.parts.values()), abs_tol=1e-9):
            raise ValueError(f"parts {dict(self.parts)} do not sum to {self.value}")


UNSCORED = Reward(None)


def reward_of(failure: Failure | None, verdict: Verdict | None, section: RewardSection) -> Reward:
    """The reward of one sample, before costs.

    ``failure`` is that of the completion or of its execution; ``verdict`` is None when the sample
    failed before it could be judged. Raises ValueError when neither is given.
    """
    if failure is not None:
        if failure.blame is Blame.INFRASTRUCTURE:
            return UNSCORED
        validity = section.invalid if failure.reason in INVALID else section.crashed
        return _scored(validity, 0.0)
    if verdict is None:
        raise ValueError("a sample without a failure needs a verdict")
    if verdict.status != "ok":
        return UNSCORED
    return _scored(0.0, section.right if verdict.correct else section.wrong)


def with_cost(
    rewards: Sequence[Reward], tokens: Sequence[int], section: RewardSection
) -> list[Reward]:
    """The rewards of one group with the cost part, which ranks only the answers judged right.

    For right answers ``cost = -w (right - wrong) (t - t_min) / t_max``, where t is the tokens that
    the sample's workflow spent, ``t_min`` and ``t_max`` are taken over the group's right answers
    and w is ``section.cost_weight`` <= 0.5: the cheapest right answer pays nothing, and the dearest
    stays above a wrong one by at least half the distance. All others pay nothing. ``tokens`` of
    samples that are not right are not read. With w = 0 the rewards come back unchanged.
    """
    if len(rewards) != len(tokens):
        raise ValueError(f"{len(rewards)} rewards with {len(tokens)} token counts")
    if section.cost_weight == 0:
        return list(rewards)
    right = [reward.value == section.right for reward in rewards]
    spent = [count for count, counts in zip(tokens, right, strict=True) if counts]
    least, most = min(spent, default=0), max(spent, default=0)
    scale = section.cost_weight * (section.right - section.wrong)

    def costed(reward: Reward, count: int, is_right: bool) -> Reward:
        if reward.value is None:
            return reward
        cost = scale * (least - count) / most if is_right and most > 0 else 0.0
        return Reward(reward.value + cost, {**reward.parts, "cost": cost})

    return [costed(*each) for each in zip(rewards, tokens, right, strict=True)]


def with_penalty(reward: Reward, part: Literal["kl", "overlong"], penalty: float) -> Reward:
    """The reward with a part of minus the penalty: what the policy's distance from the base model
    costs it (``grpo.kl_in: reward``), or its length (``grpo.overlong: soft``). An unscored sample
    stays unscored."""
    if reward.value is None:
        return reward
    parts = {**reward.parts, part: -penalty}
    return Reward(reward.value - penalty, parts, reward.unpenalised)


def _scored(validity: float, correctness: float) -> Reward:
    return Reward(validity + correctness, {"validity": validity, "correctness": correctness})
