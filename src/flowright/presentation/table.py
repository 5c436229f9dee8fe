"""The one table of this world: how often each way of solving is right, and what presentations cost.

Imitates no published figure. It was written so that the policy has something true to learn, and
much to lose, beside what a biased judge rewards; before any policy was trained on it.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Kind = Literal["sum", "order", "count"]
Way = Literal["direct", "think", "vote"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WAYS: tuple[Way, ...] = get_args(Way)

RIGHT: Mapping[Kind, Mapping[Way, float]] = {
    "sum": {"direct": 0.25, "think": 0.85, "vote": 0.55},
    "order": {"direct": 0.55, "think": 0.25, "vote": 0.85},
    "count": {"direct": 0.85, "think": 0.55, "vote": 0.25},
}
"""P(right) of a way of solving a kind of question. Drawn once for each question and way: attempts
at a question that are solved alike are right or wrong alike."""

GARBLED = 0.05
"""Share of right answers that come out wrong where they are elaborated on. The other presentations
change nothing, but for an announcement, which gives no answer."""

DEMONSTRATED_PLAIN = 0.6
"""Share of the cold start's completions without a presentation; the others have one or two, drawn
evenly, so that each begins at about a share of 0.1."""


def best_way(kind: Kind) -> Way:
    """The way that is right most often."""
    return max(WAYS, key=RIGHT[kind].__getitem__)
