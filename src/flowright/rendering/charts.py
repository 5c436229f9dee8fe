"""Charts as inline SVG: lines over steps, a scatter with intervals, before/after marks, spans.

Colours come from the page's style sheet by class (``c1`` to ``c6``, ``faint``), so that one drawing
serves light and dark. Every chart is drawn on 400 units of width and scales with its column: text
stays legible at phone width. Numbers go into ``data-`` attributes for the pointer read-out.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from flowright.rendering.markup import Html, el
from flowright.rendering.series import Point, smooth

WIDTH, HEIGHT = 400, 214
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 34
FADED = "c6"  # the colour of what stands behind: smaller, and drawn first
MOST_POINTS = 300  # of one curve: more than a column of a screen can tell apart
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. ``marks`` draws points instead of a line; ``smoothed`` a bold moving mean over
    the faint values."""

    name: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False
    marks: bool = False
    smoothed: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """One row of a scatter: a value with its interval against its cost."""

    name: str
    colour: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values linearly to a stretch of the drawing, with round ticks."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int = 4, whole: bool = False) -> list[float]:
        step = _round_step((self.high - self.low) / count)
        step = max(1.0, step) if whole else step
        index = math.ceil(self.low / step - 1e-9)
        found: list[float] = []
        while index * step <= self.high + 1e-9 * step:
            found.append(index * step)
            index += 1
        return found


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if abs(value) >= 0.095 or not value else f"{100 * value:.1f} %"


def plain(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.001:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:.3g}"


def line_chart(
    title: str,
    series: Sequence[Series],
    form: Format = percent,
    low: float | None = None,
    high: float | None = None,
    zero_line: bool = False,
) -> Html | None:
    """Curves over the training step, None where no series has a point. ``low`` and ``high`` are
    the least that the axis spans."""
    series = [replace(s, points=thinned(s.points)) for s in series if s.points]
    if not series:
        return None
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    floor = min(ys) if low is None else min(low, *ys)
    top = max(ys) if high is None else max(high, *ys)
    x = Scale(min(xs), max(max(xs), min(xs) + 1), LEFT, WIDTH - RIGHT)
    y = _scale_y(floor, top)
    drawn = [_axes(x, y, form, "step")]
    if zero_line and y.low < 0 < y.high:
        drawn.append(_rule(y(0), "zero"))
    drawn += [_curve(s, x, y) for s in series]
    drawn.append(el("line", class_="cross", y1=TOP, y2=HEIGHT - BOTTOM))
    data = {
        "x": [x.low, x.high, LEFT, WIDTH - RIGHT],
        "series": [
            {"n": s.name, "c": s.colour, "p": [[px, form(py)] for px, py in s.points]}
            for s in series
        ],
    }
    return _figure(title, drawn, _legend(series), json.dumps(data, separators=(",", ":")))


def scatter(title: str, dots: Sequence[Dot], x_label: str) -> Html | None:
    """Shares with their intervals against a cost, the dots numbered; None without dots."""
    if not dots:
        return None
    xs = [d.x for d in dots]
    lows = [d.y if d.low is None else d.low for d in dots]
    highs = [d.y if d.high is None else d.high for d in dots]
    x = Scale(0, max(xs) * 1.12 or 1, LEFT, WIDTH - RIGHT)
    y = _scale_y(min(lows), max(highs))
    drawn = [_axes(x, y, percent, x_label)]
    for number, d in sorted(enumerate(dots, start=1), key=lambda item: item[1].colour != FADED):
        if d.low is not None and d.high is not None:
            ends = {"x1": x(d.x), "x2": x(d.x), "y1": y(d.low), "y2": y(d.high)}
            drawn.append(el("line", class_=f"whisker {d.colour}", **ends))
        told = f"{d.name}: {percent(d.y)} at {plain(d.x)} {x_label}"
        place = {"cx": x(d.x), "cy": y(d.y)}
        drawn.append(
            el(
                "circle",
                el("title", told),
                class_=f"dot {d.colour}",
                r=6.5 if d.colour == FADED else 8,
                **place,
            )
        )
        drawn.append(
            el(
                "text",
                number,
                class_=f"tag {d.colour}",
                x=x(d.x),
                y=y(d.y) + 3.6,
                text_anchor="middle",
            )
        )
    return _figure(title, drawn, None)


def numbered_key(dots: Sequence[Dot]) -> Html:
    """The names behind a scatter's numbers."""
    items = [el("li", el("b", n, class_=f"ball {d.colour}"), d.name) for n, d in enumerate(dots, 1)]
    return el("ul", items, class_="key")


def before_after(
    title: str, rows: Sequence[tuple[str, float, float]], form: Format = plain
) -> Html | None:
    """For each name a hollow mark (before) and a full one (after) on one scale from zero."""
    if not rows:
        return None
    label_width, step = 104, 24
    height = TOP + step * len(rows) + BOTTOM
    x = Scale(0, max(max(a, b) for _, a, b in rows) * 1.06 or 1, label_width, WIDTH - RIGHT)
    drawn: list[Html] = []
    for tick in x.ticks():
        bottom = height - BOTTOM
        drawn.append(el("line", class_="grid", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom))
        drawn.append(
            el("text", form(tick), class_="tick", x=x(tick), y=bottom + 16, text_anchor="middle")
        )
    for i, (name, before, after) in enumerate(rows):
        y = TOP + step * (i + 0.5)
        told = el("title", f"{name}: {form(before)} before, {form(after)} after")
        drawn.append(
            el("text", name, class_="label", x=label_width - 10, y=y + 4, text_anchor="end")
        )
        drawn.append(el("line", class_="span", x1=x(before), x2=x(after), y1=y, y2=y))
        drawn.append(el("circle", told, class_="mark before", cx=x(before), cy=y, r=5))
        drawn.append(el("circle", told, class_="mark after", cx=x(after), cy=y, r=5))
    return _figure(title, drawn, None, height=height)


def _figure(
    title: str,
    drawn: Sequence[Html],
    legend: Html | None,
    data: str | None = None,
    height: int = HEIGHT,
) -> Html:
    svg = el(
        "svg",
        drawn,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=title,
        data_chart=data,
    )
    return el("figure", el("figcaption", title), legend, svg)


def _axes(x: Scale, y: Scale, form: Format, x_label: str) -> Html:
    parts: list[Html] = []
    for tick in y.ticks():
        parts.append(_rule(y(tick), "grid"))
        parts.append(
            el("text", form(tick), class_="tick", x=LEFT - 6, y=y(tick) + 4, text_anchor="end")
        )
    for tick in x.ticks(5, whole=True):
        anchor = "end" if x(tick) > WIDTH - 24 else "middle"
        parts.append(
            el("text", plain(tick), class_="tick", x=x(tick), y=HEIGHT - 19, text_anchor=anchor)
        )
    parts.append(
        el("text", x_label, class_="tick", x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end")
    )
    return el("g", parts)


def _rule(y: float, class_: str) -> Html:
    return el("line", class_=class_, x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)


def _curve(series: Series, x: Scale, y: Scale) -> Html:
    dots = [(x(a), y(b)) for a, b in series.points]
    if series.marks:
        line = el("path", class_=f"curve thin {series.colour}", d=path(dots))
        marks = [el("circle", class_=f"dot {series.colour}", cx=a, cy=b, r=3.6) for a, b in dots]
        return el("g", line, marks)
    style = f"curve {series.colour}{' dashed' if series.dashed else ''}"
    if not series.smoothed or len(dots) < 8:
        return el("path", class_=style, d=path(dots))
    mean = [(x(a), y(b)) for a, b in smooth(series.points, window(len(dots)))]
    raw = el("path", class_=f"curve raw {series.colour}", d=path(dots))
    return el("g", raw, el("path", class_=style, d=path(mean)))


def _legend(series: Sequence[Series]) -> Html | None:
    if len(series) < 2:
        return None
    items = [
        el("li", el("i", class_=f"swatch {s.colour}{' dashed' if s.dashed else ''}"), s.name)
        for s in series
    ]
    return el("ul", items, class_="key")


def _scale_y(low: float, high: float) -> Scale:
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) * 0.1 or 0.01
        low, high = (low - margin if low else 0.0), high + margin
    step = _round_step((high - low) / 4)
    bottom = math.floor(low / step + 1e-9) * step
    top = math.ceil(high / step - 1e-9) * step
    return Scale(bottom, top, HEIGHT - BOTTOM, TOP)


def _round_step(rough: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most ``MOST_POINTS``: stretches of a long run become their means."""
    size = -(-len(points) // MOST_POINTS)
    if size == 1:
        return points
    stretches = [points[i : i + size] for i in range(0, len(points), size)]
    return [(round(fmean(x for x, _ in s)), fmean(y for _, y in s)) for s in stretches]


def window(count: int) -> int:
    """How many points a moving mean takes: a twelfth of them, an odd number."""
    return max(1, count // 12) | 1


def path(dots: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the dots."""
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in dots)
