"""HTML that no text can break out of: elements, parts of a page, and blocks of a record.

Everything on a page is made by :func:`el`, which escapes every child that is not :class:`Html`. A page
loads nothing and its policy admits one script, by hash.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token

from flowright.core.blocks import Block, Call, Fact, Program, Text, Timeline
from flowright.core.untrusted import cut, visible

_VOID = frozenset({"meta", "br", "hr", "img", "link", "input", "wbr", "col"})


class Html(str):
    """Markup that is complete and safe as it stands."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """An element. In attribute names a last ``_`` is dropped (``class_``) and others become ``-``
    (``stroke_width``); None and False leave an attribute out, True writes it bare."""
    opening = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.removesuffix("_").replace("_", "-")
        opening.append(key if value is True else f'{key}="{_text(value)}"')
    start = Html(f"<{' '.join(opening)}>")
    return start if tag in _VOID else Html(f"{start}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Children one after the other: markup as it is, everything else escaped."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str | int | float):
            parts.append(_text(child))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def _text(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(visible(value))


def asset(name: str) -> str:
    """A style sheet or script of this folder."""
    return (files("flowright.viewer.rendering") / name).read_text(encoding="utf-8")


def page(title: str, body: Child) -> str:
    """A whole HTML document."""
    script = asset("charts.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Html(asset("charts.css") + asset("page.css"))),
    )
    read_out = el("div", id="told", role="status")
    content = el("body", body, read_out, el("script", Html(script)))
    return f"<!doctype html>\n{el('html', head, content, lang='en')}\n"


def section(anchor: str, title: str, lead: str, *content: Child) -> Html:
    """A section of the page under a heading that links can reach."""
    told = el("p", lead, class_="lead") if lead else None
    return el("section", el("h2", title, id=anchor), told, content)


def grid(figures: Sequence[Html | None], class_: str = "charts") -> Html | None:
    """Figures beside and below each other, None without any."""
    drawn = [figure for figure in figures if figure is not None]
    return el("div", drawn, class_=class_) if drawn else None


def strip(label: str, text: str, alarm: bool = False) -> Html:
    """What must be known before a number is believed; the first one stays in sight."""
    told = [el("b", label) if label else None, " " if label else None, text]
    return el("div", el("div", told), class_="strip alarm" if alarm else "strip")


def header(eyebrow: str, title: str, chips: Sequence[Child], note: str) -> Html:
    """The head of a page. ``chips`` are texts, or elements of a list."""
    items = [chip if isinstance(chip, Html) else el("li", chip) for chip in chips]
    return el(
        "header",
        el("p", eyebrow, class_="eyebrow"),
        el("h1", title),
        el("ul", items, class_="chips"),
        el("p", note, class_="eyebrow"),
    )


def tile(title: str, big: str, note: str, style: str | None = None) -> Html:
    """A number of the first screen; ``style`` is good, warn or alarm."""
    class_ = f"tile {style}" if style else "tile"
    return el("div", el("span", title), el("b", big), el("span", note), class_=class_)


def table(head: Sequence[str], body: Sequence[Html]) -> Html:
    """Rows under their heads, which scroll where the page is narrow. Heads may be elements."""
    heads = [name if isinstance(name, Html) else el("th", name) for name in head]
    top = el("thead", el("tr", heads)) if heads else None
    return el("div", el("table", top, el("tbody", body)), class_="wide")


def facts(rows: Sequence[tuple[Child, Child]]) -> Html:
    """Names and what there is to say of each."""
    return el("dl", [[el("dt", name), el("dd", value)] for name, value in rows])


def folded(title: str, *content: Child, open: bool = False) -> Html:
    """Something that is shown when a reader asks for it."""
    return el("details", el("summary", title), content, open=open)


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
