"""Drawings small enough for a table cell: an interval, the course of a value."""

from collections.abc import Sequence

from flowright.rendering import svg
from flowright.rendering.markup import Html, el
from flowright.rendering.series import Point, smooth


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
