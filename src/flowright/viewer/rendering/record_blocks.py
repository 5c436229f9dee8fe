"""The blocks of a record as HTML: facts, texts, programs and calls in time, cut to a page's
limits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token

from flowright.core.formatting import duration
from flowright.core.report import Block, Call, Fact, Program, Text, Timeline
from flowright.core.untrusted import cut, one_line, visible
from flowright.viewer.rendering.markup import Child, Html, el, facts, folded
from flowright.viewer.rendering.svg import Scale


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Bounds of what a page shows of a record: characters of one text, and calls of one trace.
    ``linked``: the page is about this record alone, so that its calls are open and have anchors."""

    text: int
    calls: int
    linked: bool = False


REPORT = TextLimits(1500, 16)
WHOLE = TextLimits(40_000, 400, linked=True)
ONE_LINE = 160  # characters of a short text that need no frame of its own


def blocks_html(blocks: Iterable[Block], limits: TextLimits = REPORT) -> list[Html]:
    """The blocks below each other, neighbouring facts and texts of one line as one list."""
    found: list[Html] = []
    for listed, some in groupby(blocks, _is_listed):
        if listed:
            found.append(facts([_listed(block, limits) for block in some]))
        else:
            found += [_whole(block, limits) for block in some]
    return found


def text_block(text: object, limits: TextLimits = WHOLE, short: bool = False) -> Html:
    """A text in a frame of its own; a low frame for a ``short`` one."""
    return el("pre", cut(text, limits.text), class_="short" if short else None, tabindex=0)


def _is_listed(block: Block) -> bool:
    if isinstance(block, Text):
        return block.short and "\n" not in block.text and len(block.text) <= ONE_LINE
    return isinstance(block, Fact)


def _listed(block: Block, limits: TextLimits) -> tuple[str, Child]:
    if isinstance(block, Text):
        return block.title, block.text
    assert isinstance(block, Fact)
    value: list[Child] = [cut(block.text, limits.text)]
    if block.alarm:
        value += [" ", el("span", block.alarm, class_="chip alarm")]
    if block.detail:
        value += ["\n", el("span", cut(block.detail, limits.text), class_="soft")]
    return block.name, value


def _whole(block: Block, limits: TextLimits) -> Html:
    if isinstance(block, Timeline):
        return timeline_html(block, limits)
    if isinstance(block, Program):
        shown = code_block(block.source, block.bad_line, block.calls)
    else:
        assert isinstance(block, Text)
        shown = text_block(block.text, limits, block.short)
    return el("div", el("p", block.title, class_="cap"), shown)


# --- a trace --------------------------------------------------------------------------------------

_WIDTH, _LANE, _TOP = 1000, 20, 16
_LETTER = 6.2  # units of a letter of the drawing's text


@dataclass(frozen=True, slots=True)
class _Bar:
    call: Call
    lane: int
    number: int
    inner: bool


def timeline_html(block: Timeline, limits: TextLimits = WHOLE) -> Html:
    """A drawing of the calls in time, those in parallel on lanes of their own, above the calls."""
    calls = block.calls[: limits.calls]
    title = el("h3", block.title) if limits.linked else el("p", block.title, class_="cap")
    return el(
        "section",
        title,
        _drawing(_bars(calls), block.seconds, limits) if block.seconds > 0 else None,
        [_call(call, number, limits) for number, call in enumerate(calls, start=1)],
        _more(len(block.calls) - limits.calls),
    )


def _more(count: int) -> Html | None:
    return el("p", f"and {count:,} more calls", class_="soft") if count > 0 else None


def _bars(calls: Sequence[Call]) -> list[_Bar]:
    """Place each call on the first lane that is free when it starts, its children below it."""
    free: list[float] = []  # when each lane ends
    placed: list[_Bar] = []
    for number, call in sorted(enumerate(calls, start=1), key=lambda item: item[1].started):
        depth, end = _extent(call)
        lane = 0
        while any(ends > call.started for ends in free[lane : lane + depth]):
            lane += 1
        free += [0.0] * (lane + depth - len(free))
        free[lane : lane + depth] = [end] * depth
        placed += _placed(call, lane, number, False)
    return sorted(placed, key=lambda bar: bar.number)


def _placed(call: Call, lane: int, number: int, inner: bool) -> Iterator[_Bar]:
    yield _Bar(call, lane, number, inner)
    for child in call.children:
        yield from _placed(child, lane + 1, number, True)


def _extent(call: Call) -> tuple[int, float]:
    """Lanes of a call with its children, and the time at which the last of them ends."""
    inner = [_extent(child) for child in call.children]
    depth = 1 + max((depth for depth, _ in inner), default=0)
    return depth, max([call.started + call.seconds, *(end for _, end in inner)])


def _drawing(bars: Sequence[_Bar], seconds: float, limits: TextLimits) -> Html:
    height = _TOP + _LANE * (1 + max((bar.lane for bar in bars), default=0)) + 3
    x = Scale(0.0, seconds, 0, _WIDTH)
    drawn: list[Html] = []
    for tick in x.ticks(6):
        drawn.append(el("line", class_="hair", x1=x(tick), x2=x(tick), y1=0, y2=height))
        anchor, shift = ("start", 3) if tick < seconds / 2 else ("end", -3)
        drawn.append(el("text", f"{tick:g} s", x=x(tick) + shift, y=11, text_anchor=anchor))
    for bar in bars:
        call, top = bar.call, _TOP + _LANE * bar.lane
        left = min(x(call.started), _WIDTH - 2)
        width = max(2.0, min(x(call.started + call.seconds), _WIDTH) - left)
        named = width > 3 * _LETTER
        name = one_line(f"{bar.number} {call.name}", max(1, int(width / _LETTER)))
        box = el(
            "rect",
            el("title", f"{bar.number}. {call.name}: {call.note}, from {call.started:.2f} s"),
            class_="error" if call.failed else "inner" if bar.inner else None,
            x=left,
            y=top + 1,
            width=width,
            height=_LANE - 10 if named else _LANE - 4,
            rx=2,
        )
        both = [box, el("text", name, x=left, y=top + _LANE - 1) if named else None]
        drawn.append(el("a", both, href=f"#call-{bar.number}") if limits.linked else el("g", both))
    label = "When each call ran; the same calls are listed below"
    box = f"0 0 {_WIDTH} {height}"
    return el("svg", drawn, class_="lanes", viewBox=box, role="img", aria_label=label)


def _call(call: Call, number: int | None, limits: TextLimits) -> Html:
    """A call with its arguments, blocks and children."""
    failed = el("span", "failed", class_="chip alarm") if call.failed else None
    note = f" {call.note}, from {duration(call.started)}"
    arguments = [block for block in call.blocks if isinstance(block, Fact)]
    others = [block for block in call.blocks if not isinstance(block, Fact)]
    return el(
        "details",
        el(
            "summary",
            el("code", f"{number}. {call.name}" if number else call.name),
            el("span", failed, note, class_="soft"),
        ),
        folded("Arguments", blocks_html(arguments, limits)) if arguments else None,
        blocks_html(others, limits),
        [_call(child, None, limits) for child in call.children[: limits.calls]],
        _more(len(call.children) - limits.calls),
        class_="call",
        id=f"call-{number}" if limits.linked and number else None,
        open=limits.linked and bool(number),
    )


# --- a program ------------------------------------------------------------------------------------

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
    """``source`` with line numbers, highlighted without being parsed: a policy's text need not be
    Python. Names in ``operators`` stand out like functions."""
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
        el("span", line, class_="bad" if number == bad_line else None)
        for number, line in enumerate(rows, start=1)
    ]
    return el("pre", numbered, class_="code")
