"""The plots of a study's report, from what was collected."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from flowright.rendering import svg
from flowright.rendering.markup import Html
from flowright.rendering.series import Point, points, smooth
from flowright.study.cells import Cell
from flowright.study.collect import Collected, Row
from flowright.study.compare import Summary, differences, times_of
from flowright.study.config import StudyConfig
from flowright.study.detectors import Detector
from flowright.study.drawings import Band, Curve, Whisker, bands, curves, doses, heat_map, style_of
from flowright.study.onset import GAPS, SHARES
from flowright.study.survival import kaplan_meier

_DRAWS = 1000
_SHOWN = 12  # curves that can be told apart

ByCell = Mapping[str, Sequence[Sequence[Row]]]
"""The steps of each finished run, by cell."""


def by_cell(cells: Sequence[Cell], found: Collected) -> dict[str, list[list[Row]]]:
    """The training steps of all finished runs."""
    steps = found.training_steps()
    return {
        cell.name: [steps[row["run"]] for row in found.of(cell.name) if row["run"] in steps]
        for cell in cells
    }


def strongest(study: StudyConfig, cells: Sequence[Cell]) -> list[Cell]:
    """The control, and of every arm the last of its doses: those that one chart can hold."""
    last = {cell.arm: cell for cell in cells}
    control = [cell for cell in cells if cell.name == study.control]
    return [*control, *(c for c in last.values() if c.name != study.control)][:_SHOWN]


def learning(cell: Cell, runs: Sequence[Sequence[Row]], found: Collected) -> Html | None:
    """Proxy and gold over steps with the interval of their mean over seeds, and the onsets."""
    shown = [_band(name, colour, runs) for name, colour in (("proxy", "c2"), ("gold", "c1"))]
    times = times_of(found, cell.name, cell.shortcut).values()
    marks = sorted(round(time.at) for time in times if time.seen)
    last = max((steps[-1]["step"] for steps in runs if steps), default=1)
    censored = sum(not time.seen for time in times)
    told = f", onset in {len(marks)} of {len(marks) + censored}" if times else ""
    return bands(f"{cell.name}: {len(runs)} runs{told}", shown, marks, last)


def _band(name: str, colour: str, runs: Sequence[Sequence[Row]]) -> Band:
    """The mean over those runs that have the step, with percentiles of 1,000 resamples of runs."""
    common = (
        set.intersection(*({row["step"] for row in steps} for steps in runs)) if runs else set()
    )
    chosen = [[row for row in steps if row["step"] in common] for steps in runs]
    known = [steps for steps in chosen if steps and all(row[name] is not None for row in steps)]
    if not known:
        return Band(name, colour, (), (), ())
    values = np.asarray([[row[name] for row in steps] for steps in known])
    count = len(values)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _DRAWS) / count
    low, high = np.quantile(weights @ values, [0.025, 0.975], axis=0)
    mean = [*zip((row["step"] for row in known[0]), map(float, values.mean(0)), strict=True)]
    return Band(name, colour, mean, low.tolist(), high.tolist())


def gold_against_kl(cells: Sequence[Cell], runs: ByCell) -> Html | None:
    """Gold against the square root of the KL (arXiv 2210.10760), means over seeds, smoothed."""
    shown = _paths(cells, runs, "kl", "gold")
    rooted = [
        Curve(c.name, c.colour, [(math.sqrt(max(0.0, a)), b) for a, b in c.points], c.dashed)
        for c in shown
    ]
    return curves("Gold against sqrt(KL)", rooted, "sqrt of the KL to the base, nats per token")


def gap_and_share(cells: Sequence[Cell], runs: ByCell) -> Html | None:
    """Where attempts with a full reward move: their gap to gold against the shortcut's share."""
    shown: list[Curve] = []
    for cell in cells:
        if cell.shortcut:
            column = f"high_share_{cell.shortcut}"
            shown += _paths([cell], runs, column, "high_gap", len(shown))
    cross = (min(SHARES), min(GAPS))
    title = "Gap to gold against the shortcut's share, of attempts with a full reward"
    return curves(title, shown, "share", svg.short_percent, cross=cross)


def _paths(
    cells: Sequence[Cell], runs: ByCell, across: str, upward: str, first: int = 0
) -> list[Curve]:
    shown: list[Curve] = []
    for cell in cells:
        a, b = _mean_curve(runs[cell.name], across), _mean_curve(runs[cell.name], upward)
        steps = [step for step in a if step in b]
        if len(steps) > 1:
            x = smooth([(step, a[step]) for step in steps], 5)
            y = smooth([(step, b[step]) for step in steps], 5)
            colour, dashed = style_of(first + len(shown))
            path = [(p, q) for (_, p), (_, q) in zip(x, y, strict=True)]
            shown.append(Curve(cell.name, colour, path, dashed))
    return shown


def _mean_curve(runs: Sequence[Sequence[Row]], name: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for steps in runs:
        for row in steps:
            if row[name] is not None:
                values.setdefault(row["step"], []).append(row[name])
    return {step: fmean(each) for step, each in sorted(values.items())}


def survival(cells: Sequence[Cell], found: Collected) -> Html | None:
    """The share of runs without an onset over steps, by Kaplan and Meier."""
    shown: list[Curve] = []
    last = 1.0
    for cell in cells:
        times = [*times_of(found, cell.name, cell.shortcut).values()]
        if times:
            colour, dashed = style_of(len(shown))
            stairs: list[Point] = [(0.0, 1.0), *((p.at, p.share) for p in kaplan_meier(times))]
            shown.append(Curve(cell.name, colour, stairs, dashed))
            last = max(last, *(time.at for time in times))
    ended = [Curve(c.name, c.colour, [*c.points, (last, c.points[-1][1])], c.dashed) for c in shown]
    return curves("Runs without an onset (Kaplan-Meier)", ended[:_SHOWN], "step", stairs=True)


_DOSED = (("final_gold", "c1"), ("exploitation", "c5"), ("max_share", "c2"))


def dose_response(
    arm: str, summaries: Sequence[Summary], control: tuple[float, Summary] | None
) -> Html | None:
    """Measures against the dose with their intervals over seeds, the control at its own dose."""
    own = [(s.cell.dose_value, s) for s in summaries if s.cell.arm == arm]
    dosed = [(dose, s) for dose, s in [*([control] if control else []), *own] if dose is not None]
    if len(dosed) < 2:
        return None
    shown = []
    for measure, colour in _DOSED:
        known = [
            Whisker(dose, e.value, e.low, e.high)
            for dose, summary in sorted(dosed, key=lambda each: each[0])
            if (e := summary.means[measure]).value is not None
        ]
        shown.append((measure.replace("_", " "), colour, known))
    (name,) = own[0][1].cell.dose
    return doses(f"{arm}: dose and response", shown, name.replace("_", " "))


def two_parameters(
    arm: str, cells: Sequence[Cell], found: Collected, control: str, measure: str
) -> Html | None:
    """The mean paired difference to the control by both parameters; None for arms without two."""
    own = [cell for cell in cells if cell.arm == arm and len(cell.dose) == 2]
    if not own:
        return None
    across, down = own[0].dose
    values: dict[tuple[str, str], float] = {}
    for cell in own:
        pairs = [*differences(found, cell.name, control, measure).values()]
        if pairs:
            values[str(cell.dose[across]), str(cell.dose[down])] = fmean(pairs)
    columns, rows = ([*dict.fromkeys(str(c.dose[name]) for c in own)] for name in (across, down))
    title = f"{arm}: {measure.replace('_', ' ')}, points against {control}"
    return heat_map(title, (across, down), columns, rows, values, points)


def roc(found: Sequence[Detector], early: bool) -> Html | None:
    """Caught against false alarms, for each alarm: of whole runs, or until the onset."""
    shown = []
    for place, detector in enumerate(found):
        colour, dashed = style_of(place)
        auc = detector.early_auc if early else detector.auc
        points = detector.early_roc if early else detector.roc
        shown.append(Curve(f"{detector.series.title}, {auc:.2f}", colour, points, dashed))
    title = "A warning: seen until the onset" if early else "An audit: seen to the end"
    return curves(title, shown, "control runs that alarm", svg.short_percent, square=True)
