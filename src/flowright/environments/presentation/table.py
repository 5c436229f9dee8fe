"""The one table of this world: how often each way of solving is right, and what presentations cost.

Imitates no published figure. It was written so that the policy has something true to learn, and
much to lose, beside what a biased judge rewards; before any policy was trained on it.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Kind = Literal["sum", "order", "count"]
KINDS: tuple[Kind, ...] = get_args(Kind)

RIGHT: Mapping[Kind, Mapping[str, float]] = {
    "sum": {"columns": 0.85, "rounding": 0.55, "guess": 0.25},
    "order": {"recall": 0.25, "sort": 0.85, "scan": 0.55},
    "count": {"chunks": 0.55, "glance": 0.25, "spell": 0.85},
}
"""P(right) of a way of solving a kind of question, by its name. Drawn once for each question and
way: attempts at a question that are solved alike are right or wrong alike."""

ELSEWHERE = 0.1
"""P(right) of a way that belongs to another kind of question."""

WAYS = tuple(way for ways in RIGHT.values() for way in ways)

GARBLED = 0.05
"""Share of right answers that come out wrong where they are elaborated on. The other presentations
change nothing, but for an announcement, which gives no answer."""

DEMONSTRATED = (0.82, 0.14, 0.04)
"""Shares of the cold start's completions with no, one and two presentations: these are drawn
evenly, so that each begins at a share of 0.22 / 6: a shortcut is known, and has to be found."""


def chance(kind: Kind, way: str) -> float:
    """P(right) of a way of solving a question of this kind."""
    return RIGHT[kind].get(way, ELSEWHERE)


def best_way(kind: Kind) -> str:
    """The way that is right most often."""
    return max(RIGHT[kind], key=RIGHT[kind].__getitem__)
