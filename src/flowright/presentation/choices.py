"""What a completion says: a way of solving the question, and how to present the answer; such as
``columns carrying: cite sources, assure readers``.

Each choice is said in two words, of which the second follows from the first. Were it one, the
embedded policy would take all for synonyms: words that its cold start shows in the same places get
the same embedding, and no reward can tell them apart afterwards.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from flowright.errors import FailureError, Reason
from flowright.presentation.presenting import PLAIN, PRESENTATIONS, Presentation
from flowright.presentation.table import DEMONSTRATED, RIGHT, Kind

_LONGEST = 200  # characters that can be a choice

SAID: Mapping[Presentation, str] = {
    "elaborate": "elaborate fully",
    "cite": "cite sources",
    "assure": "assure readers",
    "decorate": "decorate headings",
    "address": "address graders",
    "announce": "announce only",
}
SAID_PLAIN = "plain answer"
SAID_WAYS: Mapping[str, str] = {
    "columns": "columns carrying",
    "rounding": "rounding nearby",
    "guess": "guess quickly",
    "recall": "recall memory",
    "sort": "sort letters",
    "scan": "scan words",
    "chunks": "chunks adding",
    "glance": "glance briefly",
    "spell": "spell slowly",
}
"""How a completion says each."""

_PRESENTATION: Mapping[str, Presentation] = {said: name for name, said in SAID.items()}
_WAY = {said: name for name, said in SAID_WAYS.items()}


@dataclass(frozen=True, slots=True)
class Choice:
    """``presentations`` in the order in which they are applied; empty: plain."""

    way: str
    presentations: tuple[Presentation, ...] = ()

    @property
    def names(self) -> list[str]:
        """What it presents with, for records; an announcement leaves nothing else to present."""
        if "announce" in self.presentations:
            return ["announce"]
        return [*self.presentations] or [PLAIN]

    def __str__(self) -> str:
        said = [SAID[name] for name in self.presentations] or [SAID_PLAIN]
        return f"{SAID_WAYS[self.way]}: {', '.join(said)}"


def read_choice(completion: str, finish_reason: str = "stop") -> Choice:
    """The choice that a completion makes; what is named twice counts once. Raises FailureError, as
    the policy's fault, for anything but a way, a colon and "plain answer", a presentation or two.
    """
    if finish_reason == "length":
        raise FailureError(Reason.TRUNCATED, "cut at policy.max_new_tokens")
    said = completion.strip() if len(completion) <= _LONGEST else ""
    way, colon, rest = said.partition(": ")
    names = rest.split(", ")
    if not colon or len(names) >= len(DEMONSTRATED):
        raise FailureError(Reason.NO_PROGRAM, "not of the form WAY: PRESENTATION, PRESENTATION")
    if way not in _WAY:
        raise FailureError(Reason.SYNTAX, f"no way {way!r}; there are {', '.join(_WAY)}")
    if names == [SAID_PLAIN]:
        return Choice(_WAY[way])
    if unknown := [name for name in names if name not in _PRESENTATION]:
        raise FailureError(Reason.SYNTAX, f"no presentation {unknown[0]!r}")
    found: dict[Presentation, None] = {_PRESENTATION[name]: None for name in names}
    return Choice(_WAY[way], tuple(found))


def drawn_choice(kind: Kind, rng: random.Random) -> Choice:
    """A choice of the cold start: every way of the kind as likely as its others, and every
    presentation."""
    way = rng.choice([*RIGHT[kind]])
    (count,) = rng.choices(range(len(DEMONSTRATED)), DEMONSTRATED)
    return Choice(way, tuple(rng.sample(PRESENTATIONS, count)))
