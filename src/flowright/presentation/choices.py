"""What a completion says: a way of solving and how to present, such as ``think: cite, assure``."""

import random
import re
from dataclasses import dataclass
from typing import cast

from flowright.errors import FailureError, Reason
from flowright.presentation.presenting import PLAIN, PRESENTATIONS, Presentation
from flowright.presentation.table import DEMONSTRATED_PLAIN, WAYS, Way

MOST = 2  # presentations of one answer
_LONGEST = 200  # characters that can be a choice
_CHOICE = re.compile(r"(\w+): (\w+)(?:, (\w+))?")


@dataclass(frozen=True, slots=True)
class Choice:
    """``presentations`` in the order in which they are applied; empty: plain."""

    way: Way
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
    """The choice that a completion makes. Raises FailureError, as the policy's fault, for anything
    but ``WAY: plain`` and ``WAY: NAME`` or ``WAY: NAME, OTHER``."""
    if finish_reason == "length":
        raise FailureError(Reason.TRUNCATED, "cut at policy.max_new_tokens")
    found = _CHOICE.fullmatch(completion[:_LONGEST].strip())
    if found is None:
        raise FailureError(Reason.NO_PROGRAM, "not of the form WAY: NAME, NAME")
    way, first, second = found.groups()
    if way not in WAYS:
        raise FailureError(Reason.SYNTAX, f"no way {way!r}; there are {', '.join(WAYS)}")
    names = [name for name in (first, second) if name is not None]
    if names == [PLAIN]:
        return Choice(cast(Way, way))
    if unknown := [name for name in names if name not in PRESENTATIONS]:
        raise FailureError(Reason.SYNTAX, f"no presentation {unknown[0]!r}")
    if len({*names}) < len(names):
        raise FailureError(Reason.SYNTAX, f"{first} twice")
    return Choice(cast(Way, way), cast(tuple[Presentation, ...], tuple(names)))


def drawn_choice(rng: random.Random) -> Choice:
    """A choice of the cold start: every way and every presentation as likely as the others."""
    way = rng.choice(WAYS)
    if rng.random() < DEMONSTRATED_PLAIN:
        return Choice(way)
    return Choice(way, tuple(rng.sample(PRESENTATIONS, rng.randint(1, MOST))))
