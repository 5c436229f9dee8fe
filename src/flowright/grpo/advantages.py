"""Group-relative advantages under law 1: what was not graded takes no part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flowright.config.grpo import ADVANTAGES

Signal = Literal["ok", "zero_variance", "too_few"]

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of one group, in the order of its samples. An unscored sample has exactly 0.

    ``signal`` says whether the group can teach: "too_few" has fewer than two scored samples,
    "zero_variance" has equal rewards; both have only zeros and are left out of the update.
    """

    values: tuple[float, ...]
    signal: Signal


def group_advantages(
    rewards: Sequence[Sequence[float | None]], scale: str = "group"
) -> list[GroupAdvantages]:
    """Advantages of all groups of a step, None being an unscored sample.

    ``scale`` is a value of ``grpo.advantage_scale``: a function of the scored rewards of all
    groups, group by group, to their advantages. What it says of groups without a signal is not
    used. Rewards are compared for equality, not by a rounded deviation.
    """
    scored = [[r for r in group if r is not None] for group in rewards]
    for reward in (r for group in scored for r in group):
        if not math.isfinite(reward):
            raise ValueError(f"reward {reward}: an unscored sample is None, never NaN or infinite")
    advantages = []
    computed = ADVANTAGES.load(scale)(scored)
    for group, known, found in zip(rewards, scored, computed, strict=True):
        signal = _signal(known)
        if signal != "ok":
            advantages.append(GroupAdvantages((0.0,) * len(group), signal))
            continue
        if len(found) != len(known) or not all(map(math.isfinite, found)):
            raise ValueError(f"grpo.advantage_scale: {scale} gave {found} for rewards {known}")
        values = iter(found)
        advantages.append(
            GroupAdvantages(tuple(0.0 if r is None else next(values) for r in group), signal)
        )
    return advantages


def by_group(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """(r_i - mean(r)) / (std(r) + 1e-6) of each group (DeepSeekMath, arXiv 2402.03300, section
    4.1.2). Standard deviations are the sample's (n - 1)."""
    return [_centred(group, _deviation(group) + EPSILON) for group in rewards]


def by_batch(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """As :func:`by_group`, divided by the deviation of all groups' rewards (REINFORCE++, arXiv
    2501.03262)."""
    deviation = _deviation([reward for group in rewards for reward in group])
    return [_centred(group, deviation + EPSILON) for group in rewards]


def centred(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """r_i - mean(r) (Dr. GRPO, arXiv 2503.20783, section 3.2)."""
    return [_centred(group, 1.0) for group in rewards]


def _signal(known: Sequence[float]) -> Signal:
    if len(known) < 2:
        return "too_few"
    return "zero_variance" if all(r == known[0] for r in known) else "ok"


def _centred(values: Sequence[float], divisor: float) -> list[float]:
    mean = math.fsum(values) / max(1, len(values))
    return [(value - mean) / divisor for value in values]


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum(v**2 for v in _centred(values, 1.0)) / (len(values) - 1))
