"""Blocks as HTML, their texts cut to the lengths below; the record holds them whole. Programs are
highlighted with the line that failed marked, and not parsed: a policy's text need not be Python.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token

from flowright.core.blocks import Block, Call, Fact, Program, Text, Timeline
from flowright.core.untrusted import cut, visible
from flowright.viewer.rendering.markup import Child, Html, el
from flowright.viewer.rendering.page import facts

DOCUMENT, DETAIL, SHORT, FACT = 1200, 1200, 1000, 400
CALLS, CHILDREN = 16, 8
ONE_LINE = 160  # characters of a short text that need no frame of its own


def blocks_html(blocks: Iterable[Block]) -> list[Html]:
    """The blocks below each other, neighbouring facts and short texts as one list."""
    found: list[Html] = []
    for listed, some in groupby(blocks, _is_listed):
        if listed:
            found.append(facts([_listed(block) for block in some]))
        else:
            found += [_whole(block) for block in some]
    return found


def document(text: object, limit: int = DOCUMENT) -> Html:
    """A text in a frame of its own."""
    return el("pre", cut(text, limit))


def _is_listed(block: Block) -> bool:
    return isinstance(block, Fact) or (isinstance(block, Text) and block.short)


def _listed(block: Block) -> tuple[str, Child]:
    if isinstance(block, Text):
        text = cut(block.text, SHORT)
        framed = "\n" in text or len(text) > ONE_LINE
        return block.title, el("pre", text, class_="short") if framed else text
    assert isinstance(block, Fact)
    told: list[Child] = [cut(block.text, FACT)]
    if block.alarm:
        told += [" ", el("span", block.alarm, class_="chip alarm")]
    if block.detail:
        told += ["\n", el("span", cut(block.detail, DETAIL), class_="soft")]
    return block.name, told


def _whole(block: Block) -> Html:
    if isinstance(block, Timeline):
        return _timeline(block)
    if isinstance(block, Program):
        shown = code_block(block.source, block.bad_line, block.calls)
        return el("div", el("p", block.title, class_="cap"), shown)
    assert isinstance(block, Text)
    return el("div", el("p", block.title, class_="cap"), document(block.text))


def _timeline(timeline: Timeline) -> Html:
    more = len(timeline.calls) - CALLS
    return el(
        "div",
        el("p", timeline.title, class_="cap"),
        _calls(timeline.calls[:CALLS], timeline.seconds),
        el("p", f"and {more} more", class_="cap") if more > 0 else None,
    )


def _calls(calls: Sequence[Call], total: float) -> list[Html]:
    """Calls and what they caused; the lane shows when each ran within ``total`` seconds."""
    drawn: list[Html] = []
    for call in calls:
        left, width = min(100, 100 * call.started / total), min(100, 100 * call.seconds / total)
        style = f"left:{left:.1f}%;width:{min(width, 100 - left):.1f}%"
        lane = el("i", class_="error" if call.failed else None, style=style)
        summary = el(
            "summary",
            el("code", call.name),
            el("span", lane, class_="lane"),
            el("span", call.note, class_="soft"),
        )
        inside = [blocks_html(call.blocks), _calls(call.children[:CHILDREN], total)]
        drawn.append(el("details", summary, inside, class_="call"))
    return drawn


LONGEST, MOST_LINES = 4000, 400  # characters and lines of one program

_CLASSES = (
    (Comment, "tc"),
    (Keyword, "tk"),
    (String, "ts"),
    (Number, "tn"),
    (Name.Function, "tf"),
    (Name.Class, "tf"),
    (Name.Builtin, "tf"),
)


def code_block(source: str, bad_line: int | None = None, operators: tuple[str, ...] = ()) -> Html:
    """``source`` with line numbers; names in ``operators`` stand out like functions."""
    rows: list[list[Html | str]] = [[]]
    shown = visible(source)
    lines = cut(shown, LONGEST).rstrip("\n").split("\n")
    more = len(lines) - MOST_LINES
    text = "\n".join(lines[:MOST_LINES])
    bad_line = bad_line if len(shown) <= LONGEST else None  # a cut moves the lines
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        style = next((name for token, name in _CLASSES if kind in token), None)
        if kind in Token.Name and value in operators:
            style = "tf"
        for number, piece in enumerate(value.split("\n")):
            if number:
                rows.append([])
            if piece:
                rows[-1].append(el("span", piece, class_=style) if style else piece)
    if more > 0:
        rows.append([f"[… {more:,} lines left out here …]"])
    numbered = [
        el("span", row, class_="bad" if number == bad_line else None)
        for number, row in enumerate(rows, start=1)
    ]
    return el("pre", numbered, class_="code")
