"""The plots of a study's report, from what was collected."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

import numpy as np

from flowright.core.formatting import Point, points, smooth
from flowright.study.cells import Cell
from flowright.study.collect import Collected
from flowright.study.compare import Summary, differences, times_of
from flowright.study.config import StudyConfig
from flowright.study.detectors import Detector
from flowright.study.drawings import (
    Band,
    Chart,
    Curve,
    Whisker,
    bands,
    curves,
    doses,
    heat_map,
    style_of,
)
from flowright.study.measures import MEASURES
from flowright.study.onset import GAPS, SHARES
from flowright.study.steps import Row
from flowright.study.survival import kaplan_meier
from flowright.viewer.rendering import svg

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


def biased(study: StudyConfig, cells: Sequence[Cell]) -> list[Cell]:
    """The control, and the last dose of each arm whose judge pays for something, but no remedy."""
    last = {
        cell.arm: cell
        for cell in cells
        if cell.shortcut and not cell.remedy_for and (not cell.dose or cell.dose_value is not None)
    }
    return [*(cell for cell in cells if cell.name == study.control), *last.values()][:_SHOWN]


def learning(cell: Cell, runs: Sequence[Sequence[Row]], found: Collected) -> Chart | None:
    """Proxy and gold over steps with the interval of their mean over seeds, and the onsets."""
    shown = [_band(name, colour, runs) for name, colour in (("proxy", "c2"), ("gold", "c1"))]
    times = times_of(found, cell.name, cell.shortcut).values()
    marks = sorted(round(time.at) for time in times if time.seen)
    last = max((steps[-1]["step"] for steps in runs if steps), default=1)
    censored = sum(not time.seen for time in times)
    told = f", onset in {len(marks)} of {len(marks) + censored}" if times else ""
    return bands(
        f"{cell.name}: {len(runs)} run{'' if len(runs) == 1 else 's'}{told}", shown, marks, last
    )


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


def gold_against_kl(cells: Sequence[Cell], runs: ByCell) -> Chart | None:
    """Gold against the square root of the KL (arXiv 2210.10760), medians over seeds, smoothed: an
    estimate of the KL may be far off for a step."""
    shown = _paths(cells, runs, "kl", "gold", median)
    rooted = [
        Curve(c.name, c.colour, [(math.sqrt(max(0.0, a)), b) for a, b in c.points], c.dashed)
        for c in shown
    ]
    return curves("Gold against sqrt(KL)", rooted, "sqrt of the KL to the base, nats per token")


def gap_and_share(cells: Sequence[Cell], runs: ByCell) -> Chart | None:
    """Where attempts with a full reward move: their gap to gold against the shortcut's share."""
    shown: list[Curve] = []
    for cell in cells:
        if cell.shortcut:
            column = f"high_share_{cell.shortcut}"
            shown += _paths([cell], runs, column, "high_gap", fmean, len(shown))
    cross = (min(SHARES), min(GAPS))
    title = "Gap to gold against the shortcut's share, of attempts with a full reward"
    return curves(title, shown, "share", svg.short_percent, cross=cross)


_Average = Callable[[Iterable[float]], float]


def _paths(
    cells: Sequence[Cell],
    runs: ByCell,
    across: str,
    upward: str,
    average: _Average,
    first: int = 0,
) -> list[Curve]:
    shown: list[Curve] = []
    for cell in cells:
        a, b = (_average_curve(runs[cell.name], name, average) for name in (across, upward))
        steps = [step for step in a if step in b]
        if len(steps) > 1:
            x = smooth([(step, a[step]) for step in steps], 5)
            y = smooth([(step, b[step]) for step in steps], 5)
            colour, dashed = style_of(first + len(shown))
            path = [(p, q) for (_, p), (_, q) in zip(x, y, strict=True)]
            shown.append(Curve(cell.name, colour, path, dashed))
    return shown


def _average_curve(runs: Sequence[Sequence[Row]], name: str, average: _Average) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for steps in runs:
        for row in steps:
            if row[name] is not None:
                values.setdefault(row["step"], []).append(row[name])
    return {step: average(each) for step, each in sorted(values.items())}


def survivals(
    study: StudyConfig, cells: Sequence[Cell], found: Collected
) -> dict[str, Chart | None]:
    """By name, the share of runs without an onset over steps (Kaplan and Meier): of each arm about
    a shortcut with the control, and of each arm that has remedies with these."""
    control = [cell for cell in cells if cell.name == study.control]
    drawn: dict[str, Chart | None] = {}
    for arm in study.arms:
        own = [cell for cell in cells if cell.arm == arm.name and not cell.remedy_for]
        if arm.shortcut and own:
            drawn[arm.name] = _survival(arm.name, control, own, arm.shortcut, found)
    for target in dict.fromkeys(cell.remedy_for for cell in cells):
        own = [cell for cell in cells if target in (cell.name, cell.remedy_for)]
        if target and own[0].shortcut:
            drawn[f"{target} remedies"] = _survival(
                f"remedies for {target}", own[:1], own[1:], own[0].shortcut, found
            )
    return drawn


def _survival(
    name: str,
    against: Sequence[Cell],
    cells: Sequence[Cell],
    shortcut: str,
    found: Collected,
) -> Chart | None:
    """Of cells beside those that they are held against; None where none of them has a run."""
    if not any(found.of(cell.name) for cell in cells):
        return None
    shown: list[Curve] = []
    last = float(max(row["steps"] for cell in (*against, *cells) for row in found.of(cell.name)))
    for cell in [*against, *cells][:_SHOWN]:
        times = [*times_of(found, cell.name, shortcut).values()]
        if times:
            colour, dashed = style_of(len(shown))
            stairs: list[Point] = [(0.0, 1.0), *((p.at, p.share) for p in kaplan_meier(times))]
            told = f"{cell.name}, onset in {sum(time.seen for time in times)} of {len(times)}"
            shown.append(Curve(told, colour, stairs, dashed))
    ended = [Curve(c.name, c.colour, [*c.points, (last, c.points[-1][1])], c.dashed) for c in shown]
    title = f"Runs without an onset (Kaplan-Meier): {name}"
    return curves(title, ended, "step", stairs=True)


_DOSED = (("final_gold", "c1"), ("exploitation", "c5"), ("max_share", "c2"))


def dose_response(
    arm: str, summaries: Sequence[Summary], control: tuple[float, Summary] | None
) -> Chart | None:
    """Measures against the dose with their intervals over seeds, the control at its own dose."""
    own = [(s.cell.dose_value, s) for s in summaries if s.cell.arm == arm]
    dosed = [(dose, s) for dose, s in [*([control] if control else []), *own] if dose is not None]
    if sum(summary.finished > 0 for _, summary in dosed) < 2:
        return None
    shown = []
    for measure, colour in _DOSED:
        known = [
            Whisker(dose, e.value, e.low, e.high)
            for dose, summary in sorted(dosed, key=lambda each: each[0])
            if (e := summary.means[measure]).value is not None
        ]
        shown.append((MEASURES[measure].title, colour, known))
    (name,) = own[0][1].cell.dose
    return doses(f"{arm}: dose and response", shown, name.replace("_", " "))


def two_parameters(
    arm: str, cells: Sequence[Cell], found: Collected, control: str, measure: str
) -> Chart | None:
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
    title = f"{arm}: {MEASURES[measure].title}, points against {control}"
    names = (across.replace("_", " "), down.replace("_", " "))
    better = measure != "exploitation"
    return heat_map(title, names, columns, rows, values, points, more_is_better=better)


def roc(found: Sequence[Detector], early: bool) -> Chart | None:
    """Caught against false alarms, for each alarm: of whole runs, or until the onset."""
    shown = []
    drawn = [detector for detector in found if detector.series.threshold is None]
    for place, detector in enumerate(drawn):
        colour, dashed = style_of(place)
        auc = detector.early_auc if early else detector.auc
        points = detector.early_roc if early else detector.roc
        shown.append(Curve(f"{detector.series.title}, {auc:.2f}", colour, points, dashed))
    title = "A warning: seen until the onset" if early else "An audit: seen to the end"
    return curves(title, shown, "control runs that alarm", svg.short_percent, square=True)
