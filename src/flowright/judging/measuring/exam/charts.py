"""The drawings of a judge's exam: effects with their intervals, confusion, latency.

Inline SVG in the classes and on the scale of :mod:`flowright.viewer.rendering.charts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowright.core.formatting import Record, points
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.markup import Html, el

_ROW = 30


@dataclass(frozen=True, slots=True)
class Whisker:
    """One estimate of a forest: ``found`` is drawn full, the others hollow."""

    name: str
    colour: str
    value: float
    low: float
    high: float
    found: bool


def forest(title: str, rows: Sequence[tuple[str, Sequence[Whisker]]], key: Html) -> Html | None:
    """Estimates with intervals beside each name, around a line at 0; None without any."""
    every = [whisker for _, whiskers in rows for whisker in whiskers]
    if not every:
        return None
    height = svg.TOP + _ROW * len(rows) + svg.BOTTOM
    low = min(-0.05, *(w.low for w in every))
    high = max(0.05, *(w.high for w in every))
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
    for place, (name, whiskers) in enumerate(rows):
        middle = svg.TOP + _ROW * (place + 0.5)
        drawn.append(svg.word(name, svg.LABELS - 8, middle + 4, "end", "label"))
        spread = 10 if len(whiskers) > 1 else 0
        for index, whisker in enumerate(whiskers):
            drawn.append(_whisker(whisker, x, middle - spread / 2 + spread * index))
    return svg.figure(title, drawn, key, height=height)


def _whisker(whisker: Whisker, x: svg.Scale, y: float) -> Html:
    told = (
        f"{whisker.name}: {points(whisker.value)} points "
        f"({points(whisker.low)} to {points(whisker.high)})"
    )
    class_ = f"dot {whisker.colour}" if whisker.found else f"dot hollow {whisker.colour}"
    reach = svg.line(f"whisker {whisker.colour}", x(whisker.low), x(whisker.high), y, y)
    return el("g", reach, svg.dot(class_, x(whisker.value), y, 4.2, told))


def confusion_chart(title: str, counts: Mapping[str, int]) -> Html | None:
    """Labels against findings; the darker, the larger the share of its label."""
    columns = ("called right", "called wrong", "no verdict")
    rows = (
        ("right", ("right_called_right", "right_called_wrong", "right_unscored")),
        ("wrong", ("wrong_called_right", "wrong_called_wrong", "wrong_unscored")),
    )
    if not sum(counts.values()):
        return None
    left, top, width, height = 60, 34, 108, 68
    drawn = [
        svg.word(name, left + width * (place + 0.5), top - 10, "middle", "label")
        for place, name in enumerate(columns)
    ]
    for row, (label, keys) in enumerate(rows):
        total = sum(counts[key] for key in keys)
        middle = top + height * (row + 0.5)
        drawn.append(svg.word(label, left - 10, middle + 4, "end", "label"))
        for column, key in enumerate(keys):
            share = counts[key] / total if total else 0.0
            agrees = column == row
            colour = "c3" if agrees else "c6" if column == 2 else "c5"
            cell = {"x": left + width * column + 2, "y": top + height * row + 2}
            size = {"width": width - 4, "height": height - 4, "rx": 6}
            opacity = round(0.06 + 0.5 * share, 3)
            drawn.append(
                el("rect", class_=f"dot {colour}", style=f"opacity:{opacity}", **cell, **size)
            )
            x = left + width * (column + 0.5)
            drawn.append(svg.word(f"{counts[key]:,}", x, middle + 1, "middle", "label"))
            drawn.append(svg.word(svg.short_percent(share) if total else "-", x, middle + 18))
    return svg.figure(title, drawn, height=top + 2 * height + 12)


def histogram(title: str, seconds: Record | None) -> Html | None:
    """How long verdicts took, the slowest hundredth left out; median and 95th percentile."""
    counts: Sequence[int] = (seconds or {}).get("bins") or []
    if not seconds or not sum(counts):
        return None
    edges = seconds["edges"]
    x = svg.across(0.0, edges[-1])
    y = svg.Scale(0.0, max(counts) * 1.05, svg.HEIGHT - svg.BOTTOM, svg.TOP)
    drawn = svg.y_axis(y.ticks(whole=True), y, "{:,.0f}".format)
    drawn += svg.x_axis(x.ticks(5), x, "{:g}".format, "seconds")
    for count, start, end in zip(counts, edges, edges[1:], strict=False):
        box = {"x": x(start), "y": y(count), "width": max(0.5, x(end) - x(start))}
        tall = round(svg.HEIGHT - svg.BOTTOM - y(count), 1)
        told = el("title", f"{count:,} verdicts in {start:.3g} to {end:.3g} s")
        drawn.append(el("rect", told, class_="dot c1", height=tall, **box))
    for value, name in ((seconds["p50"], "median"), (seconds["p95"], "95 %")):
        drawn.append(svg.line("zero", x(value), x(value), svg.TOP, svg.HEIGHT - svg.BOTTOM))
        drawn.append(svg.word(name, x(value) + 4, svg.TOP + 9, "start"))
    return svg.figure(title, drawn)
