"""Texts and programs that somebody wrote, whole as far as a browser can bear it.

The record holds what is left out of the longest, and the page says how much that is.
"""

from flowright.rendering.block_markup import code_block
from flowright.rendering.blocks import Program
from flowright.rendering.markup import Html, el
from flowright.rendering.untrusted import cut

LONGEST = 40_000
"""Characters of one text on a page."""


def text(value: object, lines: int | None = None) -> Html:
    """A text in a frame; a ``short`` frame where it is expected to have few ``lines``."""
    return el("pre", cut(value, LONGEST), class_="short" if lines else None, tabindex=0)


def program(block: Program) -> Html:
    """A program with its lines numbered, the one that failed marked."""
    return code_block(block.source, block.bad_line, block.calls)
