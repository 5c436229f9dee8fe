"""Small questions with a known answer, made on the spot: the same for every seed of a run."""

import random
from dataclasses import dataclass

from flowright.data.task import Task
from flowright.environments.presentation.table import KINDS, Kind

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
    """So many questions, of each kind as many, none twice; the first are the same whatever
    ``count`` is."""
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
