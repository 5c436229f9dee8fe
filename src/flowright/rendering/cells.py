"""Drawings small enough for a table cell: an interval, the course of a value."""

from collections.abc import Sequence

from flowright.rendering.charts import Scale, path, thinned, window
from flowright.rendering.markup import Html, el
from flowright.rendering.series import Point, smooth


def interval(low: float, value: float, high: float, colour: str) -> Html:
    """A value and its interval on a scale from 0 to 1, small enough for a table cell."""
    return el(
        "svg",
        el("line", class_="rail", x1=2, x2=98, y1=5, y2=5),
        el("line", class_=f"whisker {colour}", x1=_cell(low), x2=_cell(high), y1=5, y2=5),
        el("circle", class_=f"dot {colour}", cx=_cell(value), cy=5, r=3.2),
        class_="interval",
        viewBox="0 0 100 10",
        aria_hidden="true",
    )


def spark(points: Sequence[Point], colour: str) -> Html:
    """A curve without axes, from zero to its maximum, for a table cell."""
    points = thinned(points)
    if len(points) < 2:
        return Html("")
    top = max(value for _, value in points) or 1.0
    steps = [step for step, _ in points]
    x, y = Scale(steps[0], steps[-1], 1, 119), Scale(0, top, 19, 1)
    line = path([(x(a), y(b)) for a, b in smooth(points, window(len(points)))])
    return el(
        "svg",
        el("path", class_=f"curve {colour}", d=line),
        class_="spark",
        viewBox="0 0 120 20",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _cell(share: float) -> float:
    return round(2 + 96 * min(1.0, max(0.0, share)), 1)
