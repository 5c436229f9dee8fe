"""Group-relative advantages under law 1: what was not graded takes no part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["group", "batch", "none"]
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
    rewards: Sequence[Sequence[float | None]], scale: Scale = "group"
) -> list[GroupAdvantages]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6) over the scored rewards of each group.

    ``scale`` chooses the divisor: "group", the group's own standard deviation (DeepSeekMath,
    arXiv 2402.03300, section 4.1.2); "batch", that of all scored rewards in the call (REINFORCE++,
    arXiv 2501.03262); "none", 1 (Dr. GRPO, arXiv 2503.20783, section 3.2). Standard deviations are
    the sample's (n - 1). Rewards are compared for equality, not by a rounded deviation.
    """
    scored = [[r for r in group if r is not None] for group in rewards]
    for reward in (r for group in scored for r in group):
        if not math.isfinite(reward):
            raise ValueError(f"reward {reward}: an unscored sample is None, never NaN or infinite")
    batch_deviation = _deviation([r for group in scored for r in group])
    advantages = []
    for group, known in zip(rewards, scored, strict=True):
        signal = _signal(known)
        if signal != "ok":
            advantages.append(GroupAdvantages((0.0,) * len(group), signal))
            continue
        mean = math.fsum(known) / len(known)
        divisor = {
            "group": _deviation(known) + EPSILON,
            "batch": batch_deviation + EPSILON,
            "none": 1.0,
        }[scale]
        values = tuple(0.0 if r is None else (r - mean) / divisor for r in group)
        advantages.append(GroupAdvantages(values, signal))
    return advantages


def _signal(known: Sequence[float]) -> Signal:
    if len(known) < 2:
        return "too_few"
    return "zero_variance" if all(r == known[0] for r in known) else "ok"


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
