"""Charts as inline SVG: lines over steps, a scatter with intervals, before/after marks; some small
enough for a table cell; and a file that stands by itself, for papers, slides and documentation.

Numbers go into ``data-`` attributes for the pointer read-out.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowright.core.formatting import Form, Point, smooth
from flowright.core.report import Series
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.markup import Html, asset, el

FADED = "c6"  # the colour of what stands behind: smaller, and drawn first


@dataclass(frozen=True, slots=True)
class Dot:
    """One row of a scatter: a value with its interval against its cost."""

    name: str
    colour: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    form: Form = svg.short_percent,
    low: float | None = None,
    high: float | None = None,
    zero_line: bool = False,
    address: Callable[[int], str | None] | None = None,
) -> Html | None:
    """Curves over the training step, None where no series has a point. ``low`` and ``high`` are
    the least that the axis spans. ``address`` is where a click on a step leads."""
    series = [replace(s, points=svg.thinned(s.points)) for s in series if s.points]
    if not series:
        return None
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    x = svg.across(min(xs), max(max(xs), min(xs) + 1))
    y = svg.upward(
        min(ys) if low is None else min(low, *ys), max(ys) if high is None else max(high, *ys)
    )
    drawn = [svg.axes(x, y, form, "step")]
    if zero_line and y.low < 0 < y.high:
        drawn.append(svg.rule(y(0), "zero"))
    drawn += [curve(s, x, y) for s in series]
    drawn.append(el("line", class_="cross", y1=svg.TOP, y2=svg.HEIGHT - svg.BOTTOM))
    if address is not None:
        drawn += _steps(sorted(set(xs)), x, address)
    data = {
        "x": [x.low, x.high, svg.LEFT, svg.WIDTH - svg.RIGHT],
        "series": [
            {"n": s.name, "c": s.colour, "p": [[px, form(py)] for px, py in s.points]}
            for s in series
        ],
    }
    legend = svg.key([(s.swatch, s.name) for s in series]) if len(series) > 1 else None
    return svg.figure(title, drawn, legend, json.dumps(data, separators=(",", ":")))


def curve(series: Series, x: svg.Scale, y: svg.Scale) -> Html:
    """One series."""
    dots = [(x(a), y(b)) for a, b in series.points]
    if series.marks:
        thin = el("path", class_=f"curve thin {series.colour}", d=svg.path(dots))
        return el("g", thin, [svg.dot(f"dot {series.colour}", a, b, 3.6) for a, b in dots])
    style = f"curve {series.swatch}"
    if not series.smoothed or len(dots) < 8:
        return el("path", class_=style, d=svg.path(dots))
    mean = [(x(a), y(b)) for a, b in smooth(series.points, svg.window(len(dots)))]
    raw = el("path", class_=f"curve raw {series.colour}", d=svg.path(dots))
    return el("g", raw, el("path", class_=style, d=svg.path(mean)))


def _steps(
    steps: Sequence[float], x: svg.Scale, address: Callable[[int], str | None]
) -> list[Html]:
    """A strip of the drawing for each step, which leads to it."""
    middles = [(a + b) / 2 for a, b in pairwise(steps)]
    ends = zip([x.low, *middles], [*middles, x.high], strict=True)
    found: list[Html] = []
    for step, (left, right) in zip(steps, ends, strict=True):
        start, width = x(left), max(1.0, round(x(right) - x(left), 1))
        title = el("title", f"attempts of step {step:.0f}")
        strip = el("rect", title, class_="hit", x=start, y=0, width=width, height=svg.HEIGHT)
        to = address(round(step))
        found.append(el("a", strip, href=to, tabindex=-1) if to else strip)
    return found


def scatter(title: str, dots: Sequence[Dot], x_label: str) -> Html | None:
    """Shares with their intervals against a cost, the dots numbered; None without dots."""
    if not dots:
        return None
    x = svg.across(0, max(d.x for d in dots) * 1.12 or 1)
    y = dots_scale(dots)
    drawn = [svg.axes(x, y, svg.short_percent, x_label), *numbered_dots(dots, x, y, x_label)]
    return svg.figure(title, drawn)


def dots_scale(dots: Sequence[Dot]) -> svg.Scale:
    """A scale upward that has room for all intervals."""
    lows = [d.y if d.low is None else d.low for d in dots]
    highs = [d.y if d.high is None else d.high for d in dots]
    return svg.upward(min(lows), max(highs))


def numbered_dots(dots: Sequence[Dot], x: svg.Scale, y: svg.Scale, x_label: str) -> list[Html]:
    """The marks of a scatter, those that stand behind drawn first."""
    drawn: list[Html] = []
    for number, d in sorted(enumerate(dots, start=1), key=lambda item: item[1].colour != FADED):
        if d.low is not None and d.high is not None:
            drawn.append(svg.line(f"whisker {d.colour}", x(d.x), x(d.x), y(d.low), y(d.high)))
        told = f"{d.name}: {svg.short_percent(d.y)} at {svg.plain(d.x)} {x_label}"
        drawn.append(
            svg.dot(f"dot {d.colour}", x(d.x), y(d.y), 6.5 if d.colour == FADED else 8, told)
        )
        drawn.append(svg.word(str(number), x(d.x), y(d.y) + 3.6, class_=f"tag {d.colour}"))
    return drawn


def numbered_key(dots: Sequence[Dot]) -> Html:
    """The names behind a scatter's numbers."""
    items = [el("li", el("b", n, class_=f"ball {d.colour}"), d.name) for n, d in enumerate(dots, 1)]
    return el("ul", items, class_="key")


def before_after(
    title: str, rows: Sequence[tuple[str, float, float]], form: Form = svg.plain
) -> Html | None:
    """For each name a hollow mark (before) and a full one (after) on one scale from zero."""
    if not rows:
        return None
    step = 24
    height = svg.TOP + step * len(rows) + svg.BOTTOM
    x = svg.Scale(
        0, max(max(a, b) for _, a, b in rows) * 1.06 or 1, svg.LABELS, svg.WIDTH - svg.RIGHT
    )
    drawn: list[Html] = []
    for tick in x.ticks():
        drawn.append(svg.line("grid", x(tick), x(tick), svg.TOP, height - svg.BOTTOM))
        drawn.append(svg.word(form(tick), x(tick), height - svg.BOTTOM + 16))
    for i, (name, before, after) in enumerate(rows):
        y = svg.TOP + step * (i + 0.5)
        told = f"{name}: {form(before)} before, {form(after)} after"
        drawn.append(svg.word(name, svg.LABELS - 10, y + 4, "end", "label"))
        drawn.append(svg.line("span", x(before), x(after), y, y))
        drawn.append(svg.dot("mark before", x(before), y, 5, told))
        drawn.append(svg.dot("mark after", x(after), y, 5, told))
    return svg.figure(title, drawn, height=height)


def interval(low: float, value: float, high: float, colour: str) -> Html:
    """A value and its interval on a scale from 0 to 1, small enough for a table cell."""
    return el(
        "svg",
        svg.line("rail", 2, 98, 5, 5),
        svg.line(f"whisker {colour}", _cell(low), _cell(high), 5, 5),
        svg.dot(f"dot {colour}", _cell(value), 5, 3.2),
        class_="interval",
        viewBox="0 0 100 10",
        aria_hidden="true",
    )


def spark(points: Sequence[Point], colour: str) -> Html:
    """A curve without axes, from zero to its maximum, for a table cell."""
    points = svg.thinned(points)
    if len(points) < 2:
        return Html("")
    top = max(value for _, value in points) or 1.0
    steps = [step for step, _ in points]
    x, y = svg.Scale(steps[0], steps[-1], 1, 119), svg.Scale(0, top, 19, 1)
    mean = svg.path([(x(a), y(b)) for a, b in smooth(points, svg.window(len(points)))])
    return el(
        "svg",
        el("path", class_=f"curve {colour}", d=mean),
        class_="spark",
        viewBox="0 0 120 20",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _cell(share: float) -> float:
    return round(2 + 96 * min(1.0, max(0.0, share)), 1)


FONT = "svg { font-family: system-ui, sans-serif; } .title { fill: var(--ink); font-weight: 600; }"
GAP, HEAD, LINE = 20, 22, 18


@dataclass(frozen=True, slots=True)
class Panel:
    """A title above drawings on the units of :mod:`flowright.viewer.rendering.svg`."""

    title: str
    drawn: Sequence[Html]


def picture(panels: Sequence[Panel], key: Sequence[tuple[str, str]], columns: int = 1) -> str:
    """An SVG file: panels beside and below each other above the key of their colours, on light and
    on dark ground. ``key`` are colours by class, and their names."""
    wide, tall = svg.WIDTH + GAP, svg.HEIGHT + HEAD + GAP
    width = columns * wide + GAP
    drawn: list[Html] = []
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        move = f"translate({GAP + column * wide} {GAP + row * tall + HEAD})"
        title = svg.word(panel.title, 0, -8, "start", "title")
        drawn.append(el("g", title, panel.drawn, transform=move))
    bottom = GAP + -(-len(panels) // columns) * tall
    for number, (colour, name) in enumerate(key):
        y = bottom + LINE * number
        drawn.append(svg.dot(f"dot {colour}", GAP + 6, y - 4, 6))
        drawn.append(svg.word(name, GAP + 20, y, "start"))
    box = f"0 0 {width} {bottom + LINE * len(key)}"
    ground = el("rect", width="100%", height="100%", style="fill:var(--ground)")
    style = el("style", Html(asset("charts.css") + FONT))
    shown = el("svg", style, ground, drawn, xmlns="http://www.w3.org/2000/svg", viewBox=box)
    return f"{shown}\n"
