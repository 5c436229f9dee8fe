"""What a completion says: a way of solving the question, and how to present the answer; such as
``columns carrying: cite sources, assure readers``.

Each choice is said in two words, of which the second follows from the first. Were it one, the
embedded policy would take all for synonyms: words that its cold start shows in the same places get
the same embedding, and no reward can tell them apart afterwards.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from flowright.core.errors import FailureError, Reason
from flowright.environments.presentation.presenting import PLAIN, PRESENTATIONS, Presentation
from flowright.environments.presentation.table import DEMONSTRATED, RIGHT, Kind

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

_PRESENTATION: Mapping[str, Presentation] = {said.split()[0]: name for name, said in SAID.items()}
_WAY = {said.split()[0]: name for name, said in SAID_WAYS.items()}
_WORD = re.compile(r"[a-z]+")


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
    """The choice that a completion makes, by the first words of what it says: the first way that it
    names, and the presentations in their order; what is named twice counts once, and where none is,
    it is plain. The rest is form: were a choice lost with it, a policy that garbles its form would
    have no attempt left to learn from. Raises FailureError, as the policy's fault, for what was
    cut, names no way, or more than two presentations.
    """
    if finish_reason == "length":
        raise FailureError(Reason.TRUNCATED, "cut at policy.max_new_tokens")
    words = _WORD.findall(completion) if len(completion) <= _LONGEST else []
    way = next((_WAY[word] for word in words if word in _WAY), None)
    if way is None:
        raise FailureError(Reason.NO_PROGRAM, f"names no way; there are {', '.join(_WAY)}")
    named: list[Presentation] = [_PRESENTATION[word] for word in words if word in _PRESENTATION]
    found = dict.fromkeys(named)
    if len(found) >= len(DEMONSTRATED):
        raise FailureError(Reason.SYNTAX, f"{len(found)} presentations; two at most")
    return Choice(way, tuple(found))


def drawn_choice(kind: Kind, rng: random.Random) -> Choice:
    """A choice of the cold start: every way of the kind as likely as its others, and every
    presentation."""
    way = rng.choice([*RIGHT[kind]])
    (count,) = rng.choices(range(len(DEMONSTRATED)), DEMONSTRATED)
    return Choice(way, tuple(rng.sample(PRESENTATIONS, count)))
