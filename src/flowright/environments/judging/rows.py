"""What judges are trained on, as types: a row for each way of training. No file is read here.

A row of the pairwise form is a :class:`flowright.data.preferences.Pair`; "A" is its first answer.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from flowright.data.preferences import Conversation, Pair

TOP_LABEL = 4
"""The highest label of an answer; the lowest is 0."""


@dataclass(frozen=True, slots=True)
class SftRow:
    """A conversation that ends with a turn of the assistant's; all of its turns are trained on."""

    messages: Conversation
    source: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two answers to a conversation that ends with the user, as the Bradley-Terry loss takes them.

    With a ``tie`` neither is better, whatever they are called. ``margin`` (0 or above) is by how
    much the chosen one is better, in the source's own unit; None where it says nothing.
    """

    conversation: Conversation
    chosen: str
    rejected: str
    tie: bool = False
    margin: float | None = None
    source: str = ""
    id: str = ""

    @classmethod
    def of(cls, pair: Pair) -> "PairRow":
        """A pair with its preferred answer as the chosen one."""
        answers = (pair.first, pair.second)
        chosen, rejected = answers[::-1] if pair.label == "second" else answers
        tie = pair.label == "tie"
        return cls(pair.conversation, chosen, rejected, tie, pair.strength, pair.source, pair.id)

    @property
    def pair(self) -> Pair:
        """The pair with the chosen answer first. Its place gives the label away: see
        :func:`flowright.environments.judging.splits.in_drawn_order`."""
        label = "tie" if self.tie else "first"
        return Pair(
            id=self.id,
            source=self.source,
            conversation=self.conversation,
            first=self.chosen,
            second=self.rejected,
            label=label,
            strength=self.margin,
        )


@dataclass(frozen=True, slots=True)
class PointwiseRow:
    """One answer to a conversation that ends with the user, and its label from 0 to 4."""

    conversation: Conversation
    answer: str
    label: int
    source: str = ""
    id: str = ""


JudgedRow = PointwiseRow | Pair
"""What a judge that writes its verdict is trained on."""

Row = SftRow | PairRow | JudgedRow
AnyRow = TypeVar("AnyRow", bound=Row)


def prompt_of(row: Row) -> Conversation:
    """The conversation that is answered."""
    return row.messages[:-1] if isinstance(row, SftRow) else row.conversation


def with_prompt(row: AnyRow, prompt: Conversation) -> AnyRow:
    """The row with another conversation before its answers."""
    if isinstance(row, SftRow):
        return replace(row, messages=(*prompt, row.messages[-1]))
    return replace(row, conversation=prompt)
