"""Rows of rubric files and of VerIF's, as types. No file is opened here, and nothing is graded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowright.data.preferences import Conversation


@dataclass(frozen=True, slots=True)
class WordCount:
    """Met by an answer of so many words between white space; both ends count."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class MathAnswer:
    """Met by an answer whose final value is this one."""

    reference: str


Rule = WordCount | MathAnswer
"""A criterion that code decides."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a rubric: a statement about the answer, and what it is worth where it holds;
    ``points`` below 0 are for what an answer must not do. The judge decides it where there is no
    ``rule``. ``tags`` are the row's own labels, such as axis and level."""

    criterion: str
    points: float
    rule: Rule | None = None
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class RubricRow:
    """A conversation that ends with the user, and the rubric of its answer, of which at least one
    item has points above 0. ``id`` is the place in its file, file:row."""

    conversation: Conversation
    items: tuple[Item, ...]
    source: str = ""
    ability: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One of VerIF's: ``soft`` ones are the judge's, a ``rule`` has a ``function``, the source of
    Python that a model wrote and that runs in the sandbox alone."""

    text: str
    kind: Literal["soft", "rule"]
    function: str = ""


@dataclass(frozen=True, slots=True)
class VerifRow:
    """A conversation that ends with the user, and the constraints on its answer, one or more."""

    conversation: Conversation
    constraints: tuple[Constraint, ...]
    source: str = ""
    ability: str = ""
    id: str = ""

    @property
    def instruction(self) -> str:
        """What the user asked for last, with the constraints in it."""
        return self.conversation[-1].content
