"""What a verdict earns: pure functions of what was said and what is true.

Where OpenJudge's rules differ (read at its commit 344e45d, grpo/pointwise/reward_fn.py and
grpo/pairwise/reward_fn.py): a completion without a score counts there as score 0, which earns 1
where the label is 0 and 1 - label/4 above 1; of a score the first digits count, so that -3 is 3;
without a tag its last lines are searched for words such as "response A", and a missing preference
is a tie. Here what cannot be read earns less than any verdict.
"""

from collections.abc import Sequence

from flowright.data.preferences import Preferred
from flowright.environments.judging.rows import TOP_LABEL
from flowright.environments.reward import Reward


def of_score(said: int, label: int) -> float:
    """For the labels 0 and 1 whether they are said, 1 or 0; above them 1 - |said - label| / 4."""
    if label <= 1:
        return float(said == label)
    return 1 - abs(said - label) / TOP_LABEL


def of_preference(
    said: Preferred,
    preferred: Preferred,
    strength: float | None = None,
    full_strength: float | None = None,
) -> float:
    """1 for the right one of A, B and tie, else 0. With a ``full_strength`` a right one earns
    ``strength / full_strength``, at most 1; a tie, and a pair whose strength nobody knows, earn 1.

    The weight tells pairs apart in what their groups weigh only where advantages are not divided by
    the group's standard deviation, which takes any scale out.
    """
    if said != preferred:
        return 0.0
    if full_strength is None or strength is None or preferred == "tie":
        return 1.0
    return min(1.0, strength / full_strength)


def brier(confidence: float, correct: bool) -> float:
    """1 - (confidence - correct)^2 (Brier 1950): a proper scoring rule, so that in expectation
    nothing beats the true probability of being right.

    By itself it pays a judge that is sure to be wrong and says so as much as one that is right; see
    :func:`judged`.
    """
    return 1 - (confidence - correct) ** 2


def judged(
    correctness: float, confidence: float | None = None, correct: bool = False, weight: float = 0.0
) -> Reward:
    """The reward of a verdict that was read. A stated confidence pays ``weight`` times its squared
    error, as the part ``calibration`` (0 or below). With a correctness of 0 or 1 and a weight of at
    most 1 the two together are highest for the verdict most likely to be right, stated with its
    probability p: p - weight p (1 - p) rises with p (arXiv 2507.16806)."""
    parts = {"validity": 0.0, "correctness": correctness}
    if confidence is not None:
        parts["calibration"] = weight * (brier(confidence, correct) - 1)
    return Reward(sum(parts.values()), parts)


def unread(value: float) -> Reward:
    """The reward of a completion that cannot be read (``judging.unreadable``)."""
    return Reward(value, {"validity": value, "correctness": 0.0})


def consistency(
    one: Sequence[bool], other: Sequence[bool]
) -> tuple[list[float], list[float]] | None:
    """The verdict-consistency reward of J1 (arXiv 2505.10320): 1 for a verdict that is right and
    whose counterpart in the other order is right, too, else 0.

    ``one`` and ``other`` say which attempts at the two orders of a pair are right; the counterpart
    is that of the same place, and the shorter list goes round. None where an order has no attempt.
    """
    if not one or not other:
        return None

    def against(mine: Sequence[bool], theirs: Sequence[bool]) -> list[float]:
        return [float(right and theirs[i % len(theirs)]) for i, right in enumerate(mine)]

    return against(one, other), against(other, one)
