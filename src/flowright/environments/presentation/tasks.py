"""Small questions with a known answer, made on the spot: the same for every seed of a run."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from flowright.data.task import Task

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


SOURCE = "presentation"
_SEED = "flowright/environments/presentation"

WORDS = (
    *("anchor", "basket", "candle", "drum", "engine", "feather", "garden", "hammer", "island"),
    *("jacket", "kettle", "lemon", "mirror", "needle", "onion", "pencil", "quilt", "ribbon"),
    *("saddle", "tunnel", "umbrella", "violin", "window", "yarn"),
)


@dataclass(frozen=True, slots=True)
class SmallQuestion(Task):
    """A question and what it is answered by who gets it wrong."""

    kind: Kind
    wrong: tuple[str, ...] = ()


def small_questions(count: int) -> list[SmallQuestion]:
    """Return ``count`` different questions, equally many of each kind; the first are the same for
    every ``count``."""
    rng = random.Random(_SEED)
    found: dict[str, SmallQuestion] = {}
    while len(found) < count:
        made = _question(KINDS[len(found) % len(KINDS)], rng, len(found))
        found.setdefault(made.question, made)
    return [*found.values()]


def _question(kind: Kind, rng: random.Random, number: int) -> SmallQuestion:
    name = f"{kind}:{number}"
    if kind == "sum":
        one, other = rng.randrange(10, 100), rng.randrange(10, 100)
        right = one + other
        wrong = tuple(str(right + off) for off in (-10, -1, 1, 10))
        return SmallQuestion(name, kind, SOURCE, f"Add {one} and {other}.", str(right), wrong)
    words = rng.sample(WORDS, 3)
    if kind == "order":
        first, *others = sorted(words)
        asked = f"Which is first by the alphabet: {', '.join(words)}?"
        return SmallQuestion(name, kind, SOURCE, asked, first, tuple(others))
    letters = sum(map(len, words))
    asked = f"Count the letters of {', '.join(words)}."
    wrong = tuple(str(letters + off) for off in (-2, -1, 1, 2))
    return SmallQuestion(name, kind, SOURCE, asked, str(letters), wrong)
