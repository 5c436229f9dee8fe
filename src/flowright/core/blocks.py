"""What a record shows of itself, for any screen: facts, texts, programs, calls in time. No markup
and no layout here; texts are whole, and whoever draws them cuts and escapes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: its name and what there is to say. ``detail`` is said more quietly; ``alarm`` is a
    word or two that must be seen."""

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
    """Something that took time: when it ``started`` and how many ``seconds`` it lasted, counted
    from the start of the timeline; ``note`` stands beside it, ``blocks`` are what it holds."""

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
