"""Elements of charts: scales, axes, lines and words in SVG, on 400 units of width.

Colours come from the style sheet by class (``c1`` to ``c6``), so that one drawing serves light and
dark. A chart scales with its column: text stays legible at phone width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flowright.core.formatting import Form, Point, plain
from flowright.viewer.rendering.markup import Html, el

WIDTH, HEIGHT = 400, 214
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 34
LABELS = 104  # width of the names before rows
MOST_POINTS = 300  # of one curve: more than a column of a screen can tell apart


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to a stretch of the drawing, linearly or by their logarithms, with round
    ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(number) for number in (value, low, high))
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def within(self, value: float) -> float:
        """The place of a value, or of the end that it is beyond."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, count: int = 4, whole: bool = False) -> list[float]:
        """Round values within the scale, about ``count`` of them; of a logarithmic one 1, 3, 10,
        30 and so on."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = [float(f"{m}e{power}") for power in powers for m in (1, 3)]
            return [tick for tick in steps if self.low <= tick <= self.high]
        step = _round_step((self.high - self.low) / count)
        step = float(math.ceil(step)) if whole else step
        index = math.ceil(self.low / step - 1e-9)
        found: list[float] = []
        while index * step <= self.high + 1e-9 * step:
            found.append(index * step)
            index += 1
        return found


def across(low: float, high: float, log: bool = False) -> Scale:
    """From left to right, over exactly these values."""
    return Scale(low, high, LEFT, WIDTH - RIGHT, log)


def upward(low: float, high: float) -> Scale:
    """From the bottom to the top, over these values at least: both ends are round."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) * 0.1 or 0.01
        low, high = (low - margin if low else 0.0), high + margin
    step = _round_step((high - low) / 4)
    bottom = math.floor(low / step + 1e-9) * step
    top = math.ceil(high / step - 1e-9) * step
    return Scale(bottom, top, HEIGHT - BOTTOM, TOP)


def line(class_: str, x1: float, x2: float, y1: float, y2: float) -> Html:
    """A straight one."""
    return el("line", class_=class_, x1=x1, x2=x2, y1=y1, y2=y2)


def word(text: str, x: float, y: float, anchor: str = "middle", class_: str = "tick") -> Html:
    """A text whose ``anchor`` (start, middle, end) is at ``x``."""
    return el("text", text, class_=class_, x=x, y=y, text_anchor=anchor)


def dot(class_: str, x: float, y: float, radius: float, tip: str | None = None) -> Html:
    """A circle; the pointer shows its ``tip``."""
    title = el("title", tip) if tip else None
    return el("circle", title, class_=class_, cx=x, cy=y, r=radius)


def rule(y: float, class_: str) -> Html:
    """A line across the drawing."""
    return line(class_, LEFT, WIDTH - RIGHT, y, y)


def y_axis(ticks: Sequence[float], y: Scale, form: Form) -> list[Html]:
    """Rules and their values, at the left."""
    return [
        part
        for tick in ticks
        for part in (rule(y(tick), "grid"), word(form(tick), LEFT - 6, y(tick) + 4, "end"))
    ]


def x_axis(ticks: Sequence[float], x: Scale, form: Form, label: str) -> list[Html]:
    """Values below the drawing, and what they are."""
    drawn: list[Html] = []
    for tick in ticks:
        anchor = "end" if x(tick) > WIDTH - 24 else "middle"
        drawn.append(word(form(tick), x(tick), HEIGHT - 19, anchor))
    return [*drawn, word(label, WIDTH - RIGHT, HEIGHT - 4, "end")]


def axes(x: Scale, y: Scale, form: Form, x_label: str) -> Html:
    """Both axes of a chart, with round ticks."""
    across = x_axis(x.ticks(5, whole=not x.log), x, plain, x_label)
    return el("g", y_axis(y.ticks(), y, form), across)


@dataclass(frozen=True, slots=True)
class ChartDrawing:
    """A chart on these units, under its title. ``key`` are colours by class with their names,
    ``note`` one more line of it; the page's script reads out ``data`` at the pointer."""

    title: str
    drawn: Sequence[Html]
    key: Sequence[tuple[str, str]] = ()
    note: str = ""
    data: str | None = None
    height: float = HEIGHT

    @property
    def html(self) -> Html:
        """The figure on a page."""
        items = [el("li", el("i", class_=f"swatch {style}"), name) for style, name in self.key]
        items += [el("li", self.note)] if self.note else []
        box = f"0 0 {WIDTH} {self.height:g}"
        about = {"role": "img", "aria_label": self.title, "data_chart": self.data}
        shown = el("svg", self.drawn, viewBox=box, **about)
        legend = el("ul", items, class_="key") if items else None
        return el("figure", el("figcaption", self.title), legend, shown)


def _round_step(rough: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most ``MOST_POINTS``: stretches of a long run become their means."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return points
    stretches = [points[i : i + size] for i in range(0, len(points), size)]
    return [(round(fmean(x for x, _ in s)), fmean(y for _, y in s)) for s in stretches]


def window(count: int) -> int:
    """The odd number of points in a moving mean: a twelfth of all."""
    return max(1, count // 12) | 1


def path(dots: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the dots."""
    return "M" + "L".join(f"{a:g} {b:g}" for a, b in dots)
