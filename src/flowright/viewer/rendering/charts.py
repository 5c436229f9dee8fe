"""Charts as inline SVG: lines over steps, scatters, changes, what judges are measured by; some
small enough for a table cell; and a file that stands by itself, for papers, slides and
documentation.

Numbers go into ``data-`` attributes for the pointer read-out.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from flowright.core.formatting import Point, plain, points, short_percent, smooth
from flowright.core.report import (
    BarList,
    ChangeChart,
    ForestChart,
    ForestMark,
    GridChart,
    HistogramChart,
    IntervalMark,
    LineChart,
    ReliabilityChart,
    ReportChart,
    ScatterChart,
    ScatterDot,
    Series,
    Spark,
)
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.markup import Html, asset, el
from flowright.viewer.rendering.svg import ChartDrawing, Scale

FADED = "c6"  # the colour of what stands behind: smaller, and drawn first
_ROW = 30
_FAINT = "fill:currentColor;opacity:.16;stroke:none"


def chart_html(chart: ReportChart) -> Html | None:
    """Draw a chart on a page; None where it has no data."""
    drawing = draw(chart)
    return None if drawing is None else drawing.html


def draw(chart: ReportChart) -> ChartDrawing | None:
    """Draw a chart; None where it has no data."""
    match chart:
        case LineChart():
            return _lines(chart)
        case ScatterChart():
            return _scatter(chart)
        case ChangeChart():
            return _changes(chart)
        case ForestChart():
            return _forest(chart)
        case GridChart():
            return _grid(chart)
        case HistogramChart():
            return _histogram(chart)
        case ReliabilityChart():
            return _reliability(chart)


def _lines(chart: LineChart) -> ChartDrawing | None:
    series = [
        s if s.low else replace(s, points=svg.thinned(s.points)) for s in chart.series if s.points
    ]
    if not series:
        return None
    xs = [*chart.x_span, *(x for s in series for x, _ in s.points)]
    ends = [y for s in series for y in (*s.low, *s.high) if y is not None]
    ys = [*ends, *(y for s in series for _, y in s.points)]
    x = svg.across(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1)
    lows = ys if chart.low is None else [chart.low, *ys]
    highs = ys if chart.high is None else [chart.high, *ys]
    y = svg.upward(min(lows), max(highs))
    ticks = chart.x_ticks or x.ticks(5, whole=chart.x_form is None)
    drawn = svg.y_axis(y.ticks(), y, chart.form)
    drawn += svg.x_axis(ticks, x, chart.x_form or plain, chart.x_label)
    if chart.zero_line and y.low < 0 < y.high:
        drawn.append(svg.rule(y(0), "zero"))
    for (x1, y1), (x2, y2) in chart.guides:
        drawn.append(svg.line("zero", x.within(x1), x.within(x2), y.within(y1), y.within(y2)))
    drawn += [curve(s, x, y) for s in series]
    foot = svg.HEIGHT - svg.BOTTOM
    drawn += [svg.line("whisker c5", x(at), x(at), foot - 12, foot) for at in chart.strokes]
    key = [(s.swatch, s.name) for s in series] if len(series) > 1 or chart.x_form else []
    key += [("c5", "onset")] if chart.strokes else []
    if chart.x_form is not None:
        drawn += [
            svg.dot(f"dot {s.colour}", x(a), y(b), 3.2, s.name)
            for s in series
            for a, b in s.points[-1:]
        ]
        return ChartDrawing(chart.title, drawn, key)
    drawn.append(el("line", class_="cross", y1=svg.TOP, y2=foot))
    if chart.address is not None:
        drawn += _steps(sorted(set(xs)), x, chart.address)
    data = {
        "x": [x.low, x.high, svg.LEFT, svg.WIDTH - svg.RIGHT],
        "series": [
            {"n": s.name, "c": s.colour, "p": [[px, chart.form(py)] for px, py in s.points]}
            for s in series
        ],
    }
    return ChartDrawing(chart.title, drawn, key, data=json.dumps(data, separators=(",", ":")))


def curve(series: Series, x: Scale, y: Scale) -> Html:
    """Draw one series."""
    points = _stairs(series.points, x.high) if series.stairs else series.points
    dots = [(x(a), y(b)) for a, b in points]
    ends = [(y(a), y(b)) if a is not None and b is not None else None
            for a, b in zip(series.low, series.high, strict=True)]  # fmt: skip
    if series.marks:
        thin = el("path", class_=f"curve thin {series.colour}", d=svg.path(dots))
        whiskers = [
            svg.line(f"whisker {series.colour}", a, a, *end)
            for (a, _), end in zip(dots, ends, strict=False)
            if end is not None
        ]
        return el("g", thin, whiskers, [svg.dot(f"dot {series.colour}", *at, 3.6) for at in dots])
    style = f"curve {series.swatch}"
    line = el("path", class_=style, d=svg.path(dots))
    if ends:
        sides = [[(a, end[n]) for (a, _), end in zip(dots, ends, strict=True) if end is not None]
                 for n in (0, 1)]  # fmt: skip
        area = f"{svg.path([*sides[1], *reversed(sides[0])])}Z"
        return el("g", el("path", class_=series.colour, style=_FAINT, d=area), line)
    if not series.smoothed or len(dots) < 8:
        return line
    mean = [(x(a), y(b)) for a, b in smooth(series.points, svg.window(len(dots)))]
    raw = el("path", class_=f"curve raw {series.colour}", d=svg.path(dots))
    return el("g", raw, el("path", class_=style, d=svg.path(mean)))


def _stairs(points: Sequence[Point], end: float) -> list[Point]:
    """Corners of the curve that keeps each value until the next point, and the last to the end."""
    until = [*(at for at, _ in points[1:]), end]
    return [(x, value) for (at, value), to in zip(points, until, strict=True) for x in (at, to)]


def _steps(steps: Sequence[float], x: Scale, address: Callable[[int], str | None]) -> list[Html]:
    """A strip of the drawing for each step, which leads to it."""
    middles = [(a + b) / 2 for a, b in pairwise(steps)]
    ends = zip([x.low, *middles], [*middles, x.high], strict=True)
    drawn: list[Html] = []
    for step, (left, right) in zip(steps, ends, strict=True):
        start, width = x(left), max(1.0, round(x(right) - x(left), 1))
        title = el("title", f"attempts of step {step:.0f}")
        strip = el("rect", title, class_="hit", x=start, y=0, width=width, height=svg.HEIGHT)
        to = address(round(step))
        drawn.append(el("a", strip, href=to, tabindex=-1) if to else strip)
    return drawn


def _scatter(chart: ScatterChart) -> ChartDrawing | None:
    dots = chart.dots
    if not dots:
        return None
    x = svg.across(0, max(d.x for d in dots) * 1.12 or 1)
    return ChartDrawing(chart.title, scatter_marks(dots, x, chart.x_label))


def scatter_marks(dots: Sequence[ScatterDot], x: Scale, x_label: str) -> list[Html]:
    """Axes with room for all intervals and numbered dots, those that stand behind drawn first."""
    lows = [d.y if d.low is None else d.low for d in dots]
    highs = [d.y if d.high is None else d.high for d in dots]
    y = svg.upward(min(lows), max(highs))
    drawn = [svg.axes(x, y, short_percent, x_label)]
    for number, d in sorted(enumerate(dots, start=1), key=lambda item: item[1].colour != FADED):
        if d.low is not None and d.high is not None:
            drawn.append(svg.line(f"whisker {d.colour}", x(d.x), x(d.x), y(d.low), y(d.high)))
        tip = f"{d.name}: {short_percent(d.y)} at {plain(d.x)} {x_label}"
        radius = 6.5 if d.colour == FADED else 8
        drawn.append(svg.dot(f"dot {d.colour}", x(d.x), y(d.y), radius, tip))
        drawn.append(svg.word(str(number), x(d.x), y(d.y) + 3.6, class_=f"tag {d.colour}"))
    return drawn


def scatter_key(dots: Sequence[ScatterDot]) -> Html:
    """The names behind a scatter's numbers."""
    items = [el("li", el("b", n, class_=f"ball {d.colour}"), d.name) for n, d in enumerate(dots, 1)]
    return el("ul", items, class_="key")


def _changes(chart: ChangeChart) -> ChartDrawing | None:
    """Draw a hollow mark (before) and a full one (after) for each name."""
    if not chart.rows:
        return None
    step = 24
    height = svg.TOP + step * len(chart.rows) + svg.BOTTOM
    most = max(max(a, b) for _, a, b in chart.rows) * 1.06 or 1
    x = Scale(0, most, svg.LABELS, svg.WIDTH - svg.RIGHT)
    drawn: list[Html] = []
    for tick in x.ticks():
        drawn.append(svg.line("grid", x(tick), x(tick), svg.TOP, height - svg.BOTTOM))
        drawn.append(svg.word(plain(tick), x(tick), height - svg.BOTTOM + 16))
    for i, (name, before, after) in enumerate(chart.rows):
        y = svg.TOP + step * (i + 0.5)
        tip = f"{name}: {plain(before)} before, {plain(after)} after"
        drawn.append(svg.word(name, svg.LABELS - 10, y + 4, "end", "label"))
        drawn.append(svg.line("span", x(before), x(after), y, y))
        drawn.append(svg.dot("mark before", x(before), y, 5, tip))
        drawn.append(svg.dot("mark after", x(after), y, 5, tip))
    return ChartDrawing(chart.title, drawn, height=height)


def _forest(chart: ForestChart) -> ChartDrawing | None:
    every = [mark for _, marks in chart.rows for mark in marks]
    if not every:
        return None
    height = svg.TOP + _ROW * len(chart.rows) + svg.BOTTOM
    low = min(-0.05, *(mark.low for mark in every))
    high = max(0.05, *(mark.high for mark in every))
    margin = 0.04 * (high - low)
    x = Scale(low - margin, high + margin, svg.LABELS, svg.WIDTH - svg.RIGHT)
    drawn: list[Html] = []
    for tick in x.ticks(5):
        class_ = "zero" if abs(tick) < 1e-9 else "grid"
        drawn.append(svg.line(class_, x(tick), x(tick), svg.TOP, height - svg.BOTTOM))
        drawn.append(
            svg.word(f"{100 * tick:+.0f}" if tick else "0", x(tick), height - svg.BOTTOM + 16)
        )
    drawn.append(svg.word("points", svg.WIDTH - svg.RIGHT, height - 4, "end"))
    for place, (name, marks) in enumerate(chart.rows):
        middle = svg.TOP + _ROW * (place + 0.5)
        drawn.append(svg.word(name, svg.LABELS - 8, middle + 4, "end", "label"))
        spread = 10 if len(marks) > 1 else 0
        for index, mark in enumerate(marks):
            drawn.append(_whisker(mark, x, middle - spread / 2 + spread * index))
    return ChartDrawing(chart.title, drawn, chart.key, chart.note, height=height)


def _whisker(mark: ForestMark, x: Scale, y: float) -> Html:
    tip = f"{mark.name}: {points(mark.value)} points ({points(mark.low)} to {points(mark.high)})"
    class_ = f"dot {mark.colour}" if mark.filled else f"dot hollow {mark.colour}"
    reach = svg.line(f"whisker {mark.colour}", x(mark.low), x(mark.high), y, y)
    return el("g", reach, svg.dot(class_, x(mark.value), y, 4.2, tip))


def _grid(chart: GridChart) -> ChartDrawing | None:
    """Cells are the darker, the larger their weight; column heads slant where they are long."""
    cells = [cell for _, row in chart.rows for cell in row if cell is not None]
    if not any(cell.weight for cell in cells):
        return None
    left = max(74, _text_width([name for name, _ in chart.rows]) + 14)
    width = (svg.WIDTH - left - svg.RIGHT) / len(chart.columns)
    slanted = _text_width(chart.columns) > width
    top = 30 + (round(0.6 * _text_width(chart.columns)) if slanted else 0)
    notes = [cell.note for cell in cells if cell.note]
    roomy = bool(notes) and _text_width(notes) <= width
    height = min(44.0, 190 / len(chart.rows)) if not notes else 34.0 if roomy else 24.0
    drawn = [svg.word(chart.caption, svg.WIDTH - svg.RIGHT, 12, "end")]
    for column, name in enumerate(chart.columns):
        x, y = round(left + width * (column + 0.5), 1), top - 5
        turned = {"transform": f"rotate(40 {x:g} {y:g})"} if slanted else {}
        anchor = "end" if slanted else "middle"
        drawn.append(el("text", name, class_="label", x=x, y=y, text_anchor=anchor, **turned))
    for number, (down, row) in enumerate(chart.rows):
        middle = top + height * (number + 0.5)
        drawn.append(svg.word(down, left - 8, round(middle + 4, 1), "end", "label"))
        for column, cell in enumerate(row):
            if cell is None:
                continue
            box = {"x": round(left + width * column + 1.5, 1), "y": round(middle - height / 2 + 2)}
            size = {"width": round(width - 3, 1), "height": round(height - 4, 1), "rx": 4}
            style = f"opacity:{0.08 + 0.55 * min(1.0, cell.weight):.3f}"
            tip = f"{chart.columns[column]}, {down}: {cell.text} {cell.note}".rstrip()
            shade = f"dot {cell.colour}"
            drawn.append(el("rect", el("title", tip), class_=shade, style=style, **box, **size))
            x, below = round(left + width * (column + 0.5), 1), roomy and cell.note
            y = round(middle + (-1 if below else 4), 1)
            drawn.append(svg.word(cell.text, x, y, class_="label" if width >= 40 else "tick"))
            if below:
                drawn.append(svg.word(cell.note, x, round(middle + 12, 1)))
    return ChartDrawing(chart.title, drawn, height=top + height * len(chart.rows) + 12)


def _text_width(texts: Sequence[str]) -> float:
    """Estimate the units of the longest text."""
    return 6.6 * max(map(len, texts), default=0)


def _histogram(chart: HistogramChart) -> ChartDrawing | None:
    if not sum(chart.counts):
        return None
    edges = chart.edges
    x = svg.across(0.0, edges[-1])
    y = Scale(0.0, max(chart.counts) * 1.05, svg.HEIGHT - svg.BOTTOM, svg.TOP)
    drawn = svg.y_axis(y.ticks(whole=True), y, "{:,.0f}".format)
    drawn += svg.x_axis(x.ticks(5), x, "{:g}".format, chart.unit)
    for count, start, end in zip(chart.counts, edges, edges[1:], strict=False):
        box = {"x": x(start), "y": y(count), "width": max(0.5, x(end) - x(start))}
        tall = round(svg.HEIGHT - svg.BOTTOM - y(count), 1)
        tip = el("title", f"{count:,} {chart.items} in {start:.3g} to {end:.3g} {chart.unit}")
        drawn.append(el("rect", tip, class_="dot c1", height=tall, **box))
    for value, name in chart.marks:
        drawn.append(svg.line("zero", x(value), x(value), svg.TOP, svg.HEIGHT - svg.BOTTOM))
        drawn.append(svg.word(name, x(value) + 4, svg.TOP + 9, "start"))
    return ChartDrawing(chart.title, drawn)


def _reliability(chart: ReliabilityChart) -> ChartDrawing | None:
    """A calibrated judge lies on the diagonal."""
    if not chart.bins:
        return None
    x, y = svg.across(0.5, 1.0), Scale(0.0, 1.0, svg.HEIGHT - svg.BOTTOM, svg.TOP)
    drawn = svg.y_axis((0.0, 0.25, 0.5, 0.75, 1.0), y, short_percent)
    drawn += svg.x_axis((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), x, short_percent, "confidence")
    drawn.append(svg.line("zero", x(0.5), x(1.0), y(0.5), y(1.0)))
    most = max(row["verdicts"] for row in chart.bins)
    for row in chart.bins:
        tip = (
            f"{row['verdicts']} verdicts of {100 * row['confidence']:.0f} % confidence, "
            f"{100 * row['accuracy']:.0f} % of them right"
        )
        radius = round(3 + 7 * (row["verdicts"] / most) ** 0.5, 1)
        drawn.append(svg.dot("dot c1", x(row["confidence"]), y(row["accuracy"]), radius, tip))
    return ChartDrawing(chart.title, drawn)


# --- for table cells and lists --------------------------------------------------------------------


def mark_html(mark: Spark | IntervalMark) -> Html | None:
    """Draw a mark of a table cell."""
    if isinstance(mark, Spark):
        return _spark(mark)

    def at(share: float) -> float:
        return round(2 + 96 * min(1.0, max(0.0, share)), 1)

    return el(
        "svg",
        svg.line("rail", 2, 98, 5, 5),
        svg.line(f"whisker {mark.colour}", at(mark.low), at(mark.high), 5, 5),
        svg.dot(f"dot {mark.colour}", at(mark.value), 5, 3.2),
        class_="interval",
        viewBox="0 0 100 10",
        aria_hidden="true",
    )


def _spark(mark: Spark) -> Html | None:
    """Draw a curve from zero to its maximum."""
    course = svg.thinned(mark.points)
    if len(course) < 2:
        return None
    top = max(value for _, value in course) or 1.0
    x, y = Scale(course[0][0], course[-1][0], 1, 119), Scale(0, top, 19, 1)
    mean = svg.path([(x(a), y(b)) for a, b in smooth(course, svg.window(len(course)))])
    return el(
        "svg",
        el("path", class_=f"curve {mark.colour}", d=mean),
        class_="spark",
        viewBox="0 0 120 20",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def bar_list(bars: BarList) -> Html | None:
    """Draw names and values beside their bars."""
    longest = max((length for _, _, length in bars.rows), default=0.0) or 1.0
    drawn = [
        [
            el("span", name),
            el("span", value),
            el(
                "svg",
                el("rect", width=round(100 * length / longest, 1), height=10),
                viewBox="0 0 100 10",
                preserveAspectRatio="none",
                aria_hidden="true",
            ),
        ]
        for name, value, length in bars.rows
    ]
    return el("div", drawn, class_="stage") if drawn else None


# --- a file of its own ----------------------------------------------------------------------------

FONT = "svg { font-family: system-ui, sans-serif; } .title { fill: var(--ink); font-weight: 600; }"
GAP, HEAD, LINE = 20, 22, 18


def picture(
    panels: Sequence[ChartDrawing], key: Sequence[tuple[str, str]], columns: int = 1
) -> str:
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
