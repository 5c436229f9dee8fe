"""What a completion says: a way of solving the question, and how to present the answer; such as
``columns: cite, assure``.
"""

import random
import re
from dataclasses import dataclass
from typing import cast

from flowright.errors import FailureError, Reason
from flowright.presentation.presenting import PLAIN, PRESENTATIONS, Presentation
from flowright.presentation.table import DEMONSTRATED, RIGHT, WAYS, Kind

_LONGEST = 200  # characters that can be a choice
_CHOICE = re.compile(r"(\w+): (\w+)(?:, (\w+))?")


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
        return f"{self.way}: {', '.join(self.presentations) or PLAIN}"


def read_choice(completion: str, finish_reason: str = "stop") -> Choice:
    """The choice that a completion makes; what is named twice counts once. Raises FailureError, as
    the policy's fault, for anything but ``WAY: plain``, ``WAY: NAME`` and ``WAY: NAME, OTHER``."""
    if finish_reason == "length":
        raise FailureError(Reason.TRUNCATED, "cut at policy.max_new_tokens")
    found = _CHOICE.fullmatch(completion.strip()) if len(completion) <= _LONGEST else None
    if found is None:
        raise FailureError(Reason.NO_PROGRAM, "not of the form WAY: NAME, NAME")
    way, first, second = found.groups()
    if way not in WAYS:
        raise FailureError(Reason.SYNTAX, f"no way {way!r}; there are {', '.join(WAYS)}")
    names = dict.fromkeys(name for name in (first, second) if name is not None)
    if [*names] == [PLAIN]:
        return Choice(way)
    if unknown := [name for name in names if name not in PRESENTATIONS]:
        raise FailureError(Reason.SYNTAX, f"no presentation {unknown[0]!r}")
    return Choice(way, cast(tuple[Presentation, ...], tuple(names)))


def drawn_choice(kind: Kind, rng: random.Random) -> Choice:
    """A choice of the cold start: every way of the kind as likely as its others, and every
    presentation."""
    way = rng.choice([*RIGHT[kind]])
    (count,) = rng.choices(range(len(DEMONSTRATED)), DEMONSTRATED)
    return Choice(way, tuple(rng.sample(PRESENTATIONS, count)))
