"""Charts of a report as inline SVG, in the classes and on the scale of
:mod:`flowright.viewer.rendering.charts`.
"""

from flowright.core.formatting import points
from flowright.core.report import (
    ConfusionChart,
    ForestChart,
    ForestMark,
    HistogramChart,
    LineChart,
    ReliabilityChart,
    ReportChart,
)
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import line_chart
from flowright.viewer.rendering.markup import Html, el

_ROW = 30


def chart_html(chart: ReportChart) -> Html | None:
    """Draw a chart; None where it has no data."""
    if isinstance(chart, LineChart):
        curves, form = chart.series, chart.form
        return line_chart(chart.title, curves, form, chart.low, chart.high, chart.zero_line)
    if isinstance(chart, ForestChart):
        return _forest(chart)
    if isinstance(chart, ConfusionChart):
        return _confusion(chart)
    return _histogram(chart) if isinstance(chart, HistogramChart) else _reliability(chart)


def _forest(chart: ForestChart) -> Html | None:
    every = [mark for _, marks in chart.rows for mark in marks]
    if not every:
        return None
    height = svg.TOP + _ROW * len(chart.rows) + svg.BOTTOM
    low = min(-0.05, *(mark.low for mark in every))
    high = max(0.05, *(mark.high for mark in every))
    margin = 0.04 * (high - low)
    x = svg.Scale(low - margin, high + margin, svg.LABELS, svg.WIDTH - svg.RIGHT)
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
    return svg.figure(chart.title, drawn, svg.key(chart.key, chart.note), height=height)


def _whisker(mark: ForestMark, x: svg.Scale, y: float) -> Html:
    tip = f"{mark.name}: {points(mark.value)} points ({points(mark.low)} to {points(mark.high)})"
    class_ = f"dot {mark.colour}" if mark.filled else f"dot hollow {mark.colour}"
    reach = svg.line(f"whisker {mark.colour}", x(mark.low), x(mark.high), y, y)
    return el("g", reach, svg.dot(class_, x(mark.value), y, 4.2, tip))


def _confusion(chart: ConfusionChart) -> Html | None:
    """Cells are the darker, the larger their share of the row."""
    if not any(sum(counts) for _, counts in chart.rows):
        return None
    left, top, width, height = 60, 34, 108, 68
    drawn = [
        svg.word(name, left + width * (place + 0.5), top - 10, "middle", "label")
        for place, name in enumerate(chart.columns)
    ]
    for row, (label, counts) in enumerate(chart.rows):
        total = sum(counts)
        middle = top + height * (row + 0.5)
        drawn.append(svg.word(label, left - 10, middle + 4, "end", "label"))
        for column, count in enumerate(counts):
            share = count / total if total else 0.0
            colour = "c3" if column == row else "c6" if column == len(counts) - 1 else "c5"
            cell = {"x": left + width * column + 2, "y": top + height * row + 2}
            size = {"width": width - 4, "height": height - 4, "rx": 6}
            opacity = round(0.06 + 0.5 * share, 3)
            drawn.append(
                el("rect", class_=f"dot {colour}", style=f"opacity:{opacity}", **cell, **size)
            )
            x = left + width * (column + 0.5)
            drawn.append(svg.word(f"{count:,}", x, middle + 1, "middle", "label"))
            drawn.append(svg.word(svg.short_percent(share) if total else "-", x, middle + 18))
    return svg.figure(chart.title, drawn, height=top + len(chart.rows) * height + 12)


def _histogram(chart: HistogramChart) -> Html | None:
    if not sum(chart.counts):
        return None
    edges = chart.edges
    x = svg.across(0.0, edges[-1])
    y = svg.Scale(0.0, max(chart.counts) * 1.05, svg.HEIGHT - svg.BOTTOM, svg.TOP)
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
    return svg.figure(chart.title, drawn)


def _reliability(chart: ReliabilityChart) -> Html | None:
    """A calibrated judge lies on the diagonal."""
    if not chart.bins:
        return None
    x, y = svg.across(0.5, 1.0), svg.Scale(0.0, 1.0, svg.HEIGHT - svg.BOTTOM, svg.TOP)
    drawn = svg.y_axis((0.0, 0.25, 0.5, 0.75, 1.0), y, svg.short_percent)
    drawn += svg.x_axis((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), x, svg.short_percent, "confidence")
    drawn.append(svg.line("zero", x(0.5), x(1.0), y(0.5), y(1.0)))
    most = max(row["verdicts"] for row in chart.bins)
    for row in chart.bins:
        tip = (
            f"{row['verdicts']} verdicts of {100 * row['confidence']:.0f} % confidence, "
            f"{100 * row['accuracy']:.0f} % of them right"
        )
        radius = round(3 + 7 * (row["verdicts"] / most) ** 0.5, 1)
        drawn.append(svg.dot("dot c1", x(row["confidence"]), y(row["accuracy"]), radius, tip))
    return svg.figure(chart.title, drawn)
