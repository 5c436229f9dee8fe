"""Preferences between two answers to one conversation, and ratings of one answer."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from flowright.llm.chat import Message

Speaker = Literal["system", "user", "assistant"]

Preferred = Literal["first", "second", "tie"]
PREFERRED: tuple[Preferred, ...] = get_args(Preferred)

SWAPPED: dict[Preferred, Preferred] = {"first": "second", "second": "first", "tie": "tie"}


Conversation = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one conversation, which ends with a turn of the user's.

    ``id`` is unique within ``source``, the name of a dataset or a file; ``category`` is the subset
    of its own figures. ``strength`` is by how much the preferred one is better, in the source's own
    unit, if known. ``votes`` are those of several annotators that ``label`` was made of.
    """

    id: str
    source: str
    conversation: tuple[Message, ...]
    first: str
    second: str
    label: Preferred
    category: str = ""
    strength: float | None = None
    votes: tuple[Preferred, ...] = ()

    @property
    def question(self) -> str:
        """The last turn of the user's."""
        return self.conversation[-1].content

    def swapped(self) -> "Pair":
        """The same pair the other way round; its id stays."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            label=SWAPPED[self.label],
            votes=tuple(SWAPPED[vote] for vote in self.votes),
        )


@dataclass(frozen=True, slots=True)
class Rated:
    """One answer to a conversation, which ends with a turn of the user's, and its helpfulness:
    ``label`` from 0 (not at all) to 4. ``id``, ``source`` and ``category`` as in :class:`Pair`."""

    id: str
    source: str
    conversation: tuple[Message, ...]
    answer: str
    label: int
    category: str = ""
