"""The blocks that show a record on any screen: facts, texts, programs, calls in time.

Texts are whole and may be hostile: renderers cut and escape them.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """A name with its value. ``detail`` is printed fainter; ``alarm`` is a word or two that must be
    seen."""

    name: str
    text: str
    detail: str = ""
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text under its title. A ``short`` one is a value rather than a document."""

    title: str
    text: str
    short: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program; ``bad_line`` (from 1) is where it failed, ``calls`` are names to mark."""

    title: str
    source: str
    bad_line: int | None = None
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A step of a trace that ``started`` and lasted some ``seconds``, counted from the start of the
    timeline; ``blocks`` are its contents, ``note`` stands beside it."""

    name: str
    started: float
    seconds: float
    note: str = ""
    failed: bool = False
    blocks: Sequence["Block"] = ()
    children: Sequence["Call"] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Calls in time, over ``seconds`` in all."""

    title: str
    seconds: float
    calls: Sequence[Call]


Block = Fact | Text | Program | Timeline
