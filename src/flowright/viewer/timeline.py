"""A trace as a timeline: which calls ran when, those in parallel on lanes of their own, and below
it what each said and was told.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowright.core.blocks import Block, Call, Fact, Program, Text, Timeline
from flowright.core.formatting import duration
from flowright.core.untrusted import one_line
from flowright.viewer.rendering.markup import Child, Html, el, facts
from flowright.viewer.rendering.svg import Scale
from flowright.viewer.texts import program, text

WIDTH, LANE, TOP, PAD = 1000, 20, 16, 3
MOST_CALLS = 400
"""Calls of one trace that are shown; the record holds the rest, and the page says so."""
LETTER = 6.2  # units of a letter of the drawing's text


@dataclass(frozen=True, slots=True)
class _Bar:
    call: Call
    lane: int
    number: int
    inner: bool


def timeline(block: Timeline) -> Html:
    """The drawing and its calls."""
    bars = _bars(block.calls[:MOST_CALLS])
    more = len(block.calls) - MOST_CALLS
    outer = [bar for bar in bars if not bar.inner]
    return el(
        "section",
        el("h3", block.title),
        _drawing(bars, block.seconds) if block.seconds > 0 else None,
        [_call(bar.call, bar.number) for bar in outer],
        el("p", f"and {more:,} more calls", class_="soft") if more > 0 else None,
    )


def _bars(calls: Sequence[Call]) -> list[_Bar]:
    """Each call on the first lane that is free when it starts, what it caused below it."""
    free: list[float] = []  # when each lane ends
    placed: list[_Bar] = []
    for number, call in sorted(enumerate(calls, start=1), key=lambda item: item[1].started):
        depth = _depth(call)
        end = max(inner.started + inner.seconds for inner in _all(call))
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


def _all(call: Call) -> Iterator[Call]:
    yield call
    for child in call.children:
        yield from _all(child)


def _depth(call: Call) -> int:
    return 1 + max((_depth(child) for child in call.children), default=0)


def _drawing(bars: Sequence[_Bar], seconds: float) -> Html:
    lanes = 1 + max((bar.lane for bar in bars), default=0)
    height = TOP + LANE * lanes + PAD
    x = Scale(0.0, seconds, 0, WIDTH)
    drawn: list[Html] = []
    for tick in x.ticks(6):
        drawn.append(el("line", class_="hair", x1=x(tick), x2=x(tick), y1=0, y2=height))
        anchor = "start" if tick < seconds / 2 else "end"
        at = x(tick) + (3 if anchor == "start" else -3)
        drawn.append(el("text", f"{tick:g} s", x=at, y=11, text_anchor=anchor))
    for bar in bars:
        drawn.append(_bar(bar, x))
    return el(
        "svg",
        drawn,
        class_="lanes",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label="When each call ran; the same calls are listed below",
    )


def _bar(bar: _Bar, x: Scale) -> Html:
    call, top = bar.call, TOP + LANE * bar.lane
    left = min(x(call.started), WIDTH - 2)
    width = max(2.0, min(x(call.started + call.seconds), WIDTH) - left)
    told = f"{bar.number}. {call.name}: {call.note}, from {call.started:.2f} s"
    name = one_line(f"{bar.number} {call.name}", max(1, int(width / LETTER)))
    box = el(
        "rect",
        el("title", told),
        class_="error" if call.failed else "inner" if bar.inner else None,
        x=left,
        y=top + 1,
        width=width,
        height=LANE - 10 if width > 3 * LETTER else LANE - 4,
        rx=2,
    )
    word = el("text", name, x=left, y=top + LANE - 1) if width > 3 * LETTER else None
    return el("a", box, word, href=f"#call-{bar.number}")


def _call(call: Call, number: int | None) -> Html:
    """One call with what it holds; opened by its bar or by hand."""
    name = f"{number}. {call.name}" if number is not None else call.name
    failed = el("span", " failed", class_="chip alarm") if call.failed else None
    summary = el(
        "summary",
        el("code", name),
        el("span", failed, f" {call.note}, from {duration(call.started)}", class_="soft"),
    )
    inside = [_blocks(call.blocks), [_call(child, None) for child in call.children]]
    anchor = f"call-{number}" if number is not None else None
    return el("details", summary, inside, class_="call", id=anchor, open=number is not None)


def _blocks(blocks: Sequence[Block]) -> list[Html]:
    """What a call holds: arguments and results in a list, exchanges under each other."""
    rows: list[tuple[Child, Child]] = []
    told: list[Html] = []
    for block in blocks:
        if isinstance(block, Fact):
            rows.append((block.name, text(block.text, 12)))
        elif isinstance(block, Program):
            told.append(program(block))
        elif isinstance(block, Text) and block.short:
            told.append(facts([(block.title, text(block.text, 12))]))
        elif isinstance(block, Text):
            told += [el("p", block.title, class_="who"), text(block.text)]
        else:
            told.append(timeline(block))
    arguments = [el("details", el("summary", "Arguments"), facts(rows))] if rows else []
    return [*arguments, *told]
