"""Texts and programs that somebody wrote, whole as far as a browser can bear it.

The record holds what is left out of the longest, and the page says how much that is.
"""

from flowright.core.blocks import Program
from flowright.core.untrusted import cut
from flowright.viewer.rendering.markup import Html, code_block, el

LONGEST = 40_000
"""Characters of one text on a page."""


def text(value: object, lines: int | None = None) -> Html:
    """A text in a frame; a ``short`` frame where it is expected to have few ``lines``."""
    return el("pre", cut(value, LONGEST), class_="short" if lines else None, tabindex=0)


def program(block: Program) -> Html:
    """A program with its lines numbered, the one that failed marked."""
    return code_block(block.source, block.bad_line, block.calls)
