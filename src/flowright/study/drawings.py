"""Charts of a study's page: bands over seeds, curves, stairs, whiskers, a heat map."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowright.core.formatting import Form, Point, plain, short_percent
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.markup import Html, el

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_FAINT = "fill:currentColor;opacity:.16;stroke:none"


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart under its title, with the key of its colours as (class, name)."""

    title: str
    drawn: Sequence[Html]
    key: Sequence[tuple[str, str]] = ()
    height: float = svg.HEIGHT

    @property
    def html(self) -> Html:
        key = svg.key(self.key) if self.key else None
        return svg.figure(self.title, self.drawn, key, height=self.height)


@dataclass(frozen=True, slots=True)
class Band:
    """A mean over steps with its interval: ``low`` and ``high`` have the mean's steps."""

    name: str
    colour: str
    mean: Sequence[Point]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """A line through points."""

    name: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False

    @property
    def classes(self) -> str:
        return f"{self.colour} dashed" if self.dashed else self.colour


def style_of(place: int) -> tuple[str, bool]:
    """Return colour and dashes of the curve at this place: twelve that differ."""
    return COLOURS[place % 6], place // 6 % 2 == 1


def bands(title: str, shown: Sequence[Band], marks: Sequence[int], last: int) -> Plot | None:
    """Draw shares over steps up to the ``last``; ``marks`` are steps of onsets, strokes at the
    bottom. None without points."""
    shown = [band for band in shown if band.mean]
    if not shown:
        return None
    x = svg.across(0, max(last, 1))
    lows = [value for band in shown for value in band.low]
    highs = [value for band in shown for value in band.high]
    y = svg.upward(min(0.0, *lows), max(0.5, *highs))
    drawn = [svg.axes(x, y, short_percent, "step")]
    for band in shown:
        at = [x(step) for step, _ in band.mean]
        drawn.append(_area(at, [y(v) for v in band.low], [y(v) for v in band.high], band.colour))
        line = svg.path([(x(step), y(value)) for step, value in band.mean])
        drawn.append(el("path", class_=f"curve {band.colour}", d=line))
    bottom = svg.HEIGHT - svg.BOTTOM
    for step in marks:
        tooltip = el("title", f"onset at step {step}")
        ends = {"x1": x(step), "x2": x(step), "y1": bottom, "y2": bottom - 12}
        drawn.append(el("line", tooltip, class_="whisker c5", **ends))
    key = [(band.colour, band.name) for band in shown]
    return Plot(title, drawn, [*key, *([("c5", "onset")] if marks else [])])


def _area(at: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> Html:
    outline = [*zip(at, high, strict=True), *reversed([*zip(at, low, strict=True)])]
    return el("path", class_=colour, style=_FAINT, d=f"{svg.path(outline)}Z")


def curves(
    title: str,
    shown: Sequence[PlotCurve],
    x_label: str,
    x_form: Form = plain,
    stairs: bool = False,
    cross: tuple[float, float] | None = None,
    square: bool = False,
) -> Plot | None:
    """Draw lines through points whose values are shares; ``stairs`` keeps each value until the next
    point, ``cross`` adds dotted lines at two values, ``square`` has both axes from 0 to 1 and the
    diagonal. None without points."""
    shown = [curve for curve in shown if curve.points]
    if not shown:
        return None
    xs = [a for curve in shown for a, _ in curve.points]
    ys = [b for curve in shown for _, b in curve.points]
    x = svg.across(0, 1) if square else svg.across(min(0.0, *xs), max(xs) * 1.02 or 1.0)
    whole = square or stairs
    y = svg.upward(0, 1) if whole else svg.upward(min(0.0, *ys), max(0.5, *ys))
    ticks = svg.x_axis(x.ticks(5), x, x_form, x_label)
    drawn = [el("g", svg.y_axis(y.ticks(), y, short_percent), ticks)]
    if square:
        drawn.append(svg.line("zero", x(0), x(1), y(0), y(1)))
    if cross is not None:
        at, level = cross
        drawn.append(svg.line("zero", x(at), x(at), y(y.low), y(y.high)))
        drawn.append(svg.rule(y(level), "zero"))
    for curve in shown:
        points = _stairs(curve.points, x.high) if stairs else curve.points
        dots = [(x(a), y(b)) for a, b in points]
        tooltip = el("title", curve.name)
        drawn.append(el("path", tooltip, class_=f"curve {curve.classes}", d=svg.path(dots)))
        drawn.append(svg.dot(f"dot {curve.colour}", *dots[-1], 3.2, curve.name))
    return Plot(title, drawn, [(curve.classes, curve.name) for curve in shown])


def _stairs(points: Sequence[Point], end: float) -> list[Point]:
    found: list[Point] = []
    for at, value in points:
        if found:
            found.append((at, found[-1][1]))
        found.append((at, value))
    return [*found, (end, found[-1][1])]


@dataclass(frozen=True, slots=True)
class Whisker:
    """A value at ``x`` with its interval, if it has one."""

    x: float
    value: float
    low: float | None
    high: float | None


def doses(
    title: str, shown: Sequence[tuple[str, str, Sequence[Whisker]]], x_label: str
) -> Plot | None:
    """Draw shares at doses: (name, colour, values) joined by a line. None without any."""
    shown = [each for each in shown if each[2]]
    every = [whisker for _, _, whiskers in shown for whisker in whiskers]
    if not every:
        return None
    xs = [whisker.x for whisker in every]
    margin = 0.04 * (max(xs) - min(xs)) or 0.5
    x = svg.across(min(xs) - margin, max(xs) + margin)
    lows = [w.value if w.low is None else w.low for w in every]
    highs = [w.value if w.high is None else w.high for w in every]
    y = svg.upward(min(0.0, *lows), max(0.5, *highs))
    ticks = svg.x_axis([*dict.fromkeys(xs)], x, plain, x_label)
    drawn = [el("g", svg.y_axis(y.ticks(), y, short_percent), ticks)]
    for _, colour, whiskers in shown:
        dots = [(x(w.x), y(w.value)) for w in whiskers]
        drawn.append(el("path", class_=f"curve thin {colour}", d=svg.path(dots)))
        for whisker, (a, b) in zip(whiskers, dots, strict=True):
            if whisker.low is not None and whisker.high is not None:
                drawn.append(svg.line(f"whisker {colour}", a, a, y(whisker.low), y(whisker.high)))
            tooltip = f"{plain(whisker.x)}: {short_percent(whisker.value)}"
            drawn.append(svg.dot(f"dot {colour}", a, b, 4, tooltip))
    return Plot(title, drawn, [(colour, name) for name, colour, _ in shown])


def heat_map(
    title: str,
    names: tuple[str, str],
    columns: Sequence[str],
    rows: Sequence[str],
    values: Mapping[tuple[str, str], float],
    form: Form,
    notes: Mapping[tuple[str, str], str] | None = None,
    shares: bool = False,
    more_is_better: bool = True,
) -> Plot | None:
    """Draw values by (column, row): the further from 0, the darker. Differences have one colour for
    worse and one for better; ``shares``, from 0 to 1, have one. ``notes``, such as intervals, are
    tooltips, and stand below the value if there is room. None without any value."""
    if not values:
        return None
    most = 1.0 if shares else max(abs(value) for value in values.values()) or 1.0
    left = max(74, _text_width(rows) + 14)
    width = (svg.WIDTH - left - svg.RIGHT) / len(columns)
    slanted = _text_width(columns) > width
    top = 30 + (round(0.6 * _text_width(columns)) if slanted else 0)
    roomy = notes is not None and _text_width([*notes.values()]) <= width
    height = min(44.0, 190 / len(rows)) if not notes else 34.0 if roomy else 24.0
    drawn = [svg.word(f"{names[0]} across, {names[1]} down", svg.WIDTH - svg.RIGHT, 12, "end")]
    for column, across in enumerate(columns):
        middle = round(left + width * (column + 0.5), 1)
        drawn.append(_across(across, middle, top - 5, slanted))
    for row, down in enumerate(rows):
        middle = top + height * (row + 0.5)
        drawn.append(svg.word(down, left - 8, round(middle + 4, 1), "end", "label"))
        for column, across in enumerate(columns):
            value = values.get((across, down))
            if value is None:
                continue
            box = {"x": round(left + width * column + 1.5, 1), "y": round(middle - height / 2 + 2)}
            size = {"width": round(width - 3, 1), "height": round(height - 4, 1), "rx": 4}
            style = f"opacity:{0.08 + 0.55 * min(1.0, abs(value) / most):.3f}"
            colour = "c1" if shares else "c3" if (value > 0) == more_is_better else "c5"
            note = notes.get((across, down), "") if notes else ""
            tooltip = el("title", f"{across}, {down}: {form(value)} {note}".rstrip())
            drawn.append(el("rect", tooltip, class_=f"dot {colour}", style=style, **box, **size))
            x = round(left + width * (column + 0.5), 1)
            y = round(middle + (-1 if roomy and note else 4), 1)
            drawn.append(svg.word(form(value), x, y, "middle", "label" if width >= 40 else "tick"))
            if roomy and note:
                drawn.append(svg.word(note, x, round(middle + 12, 1)))
    return Plot(title, drawn, height=top + height * len(rows) + 12)


def _text_width(texts: Sequence[str]) -> float:
    """Estimate the units of the longest text."""
    return 6.6 * max(map(len, texts), default=0)


def _across(name: str, x: float, y: float, slanted: bool) -> Html:
    if not slanted:
        return svg.word(name, x, y, "middle", "label")
    turn = f"rotate(40 {x:g} {y:g})"
    return el("text", name, class_="label", x=x, y=y, text_anchor="end", transform=turn)
