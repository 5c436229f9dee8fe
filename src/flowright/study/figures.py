"""All plots of a study, on its report's page and as SVG files beside its tables."""

import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np

from flowright.core.files import disk_errors, write_text
from flowright.core.formatting import Point, points, short_percent, smooth
from flowright.study.arm_comparison import CellSummary, differences, times_of
from flowright.study.cells import StudyCell
from flowright.study.collect import GAPS, SHARES, Collected, Row
from flowright.study.config import MEASURES, StudyConfig
from flowright.study.detectors import Detector
from flowright.study.drawings import (
    Band,
    Plot,
    PlotCurve,
    Whisker,
    bands,
    curves,
    doses,
    heat_map,
    style_of,
)
from flowright.study.inference import kaplan_meier
from flowright.study.study_records import CLAIMS_FILE
from flowright.study.summary import Analysis
from flowright.viewer.rendering.charts import ChartPanel, picture

LARGEST = 3_000_000
"""Bytes up to which a table is kept."""
_DRAWS = 1000
_SHOWN = 12  # distinguishable curves
_JOINED = ("learning", "doses", "errors")  # groups with one key, kept as one file

Plots = Mapping[str, Mapping[str, Plot | None]]
"""Plots by group and name; None without data."""


def plots_of(analysis: Analysis) -> Plots:
    """Draw ``learning`` of the strongest doses and ``learning_others``, ``paths`` of means over
    seeds, ``onsets``, ``doses``, ``errors`` (two parameters) and ``alarms``."""
    study, cells, found = analysis.study, analysis.cells, analysis.found
    steps = found.training_steps()
    runs = {
        cell.name: [steps[row["run"]] for row in found.of(cell.name) if row["run"] in steps]
        for cell in cells
    }
    learning = {cell.name: _learning(cell, runs[cell.name], found) for cell in cells}
    names = [cell.name for cell in _strongest(study, cells)]
    biased = _strongest(study, [c for c in cells if c.name == study.control or _is_biased(c)])
    return {
        "learning": {name: learning[name] for name in names},
        "learning_others": {n: chart for n, chart in learning.items() if n not in names},
        "paths": {
            "gold_against_kl": _gold_against_kl(biased, runs),
            "gap_and_share": _gap_and_share(biased, runs),
        },
        "onsets": _survivals(study, cells, found),
        "doses": _dose_responses(analysis),
        "errors": {
            f"{arm.name} {measure}": _two_parameters(arm.name, cells, found, study.control, measure)
            for arm in study.arms
            if len(arm.over) == 2
            for measure in ("gold_area", "final_gold", "exploitation")
        },
        "alarms": {
            "warning": _roc(analysis.alarms, early=True),
            "audit": _roc(analysis.alarms, early=False),
        },
    }


_ByCell = Mapping[str, Sequence[Sequence[Row]]]  # the steps of each finished run


def _is_biased(cell: StudyCell) -> bool:
    """Return whether the judge pays for a shortcut, and nothing else is changed."""
    is_dosed = not cell.dose or cell.dose_value is not None
    return bool(cell.shortcut) and not cell.remedy_for and is_dosed


def _strongest(study: StudyConfig, cells: Sequence[StudyCell]) -> list[StudyCell]:
    """Select what one chart can hold: the control, and the last dose of every arm."""
    last = {cell.arm: cell for cell in cells if cell.name != study.control}
    control = [cell for cell in cells if cell.name == study.control]
    return [*control, *last.values()][:_SHOWN]


def _learning(cell: StudyCell, runs: Sequence[Sequence[Row]], found: Collected) -> Plot | None:
    """Draw proxy and gold over steps with the interval of their mean over seeds, and the onsets."""
    shown = [_band(name, colour, runs) for name, colour in (("proxy", "c2"), ("gold", "c1"))]
    times = times_of(found, cell.name, cell.shortcut).values()
    marks = sorted(round(time.at) for time in times if time.seen)
    last = max((steps[-1]["step"] for steps in runs if steps), default=1)
    censored = sum(not time.seen for time in times)
    onsets = f", onset in {len(marks)} of {len(marks) + censored}" if times else ""
    title = f"{cell.name}: {len(runs)} run{'' if len(runs) == 1 else 's'}{onsets}"
    return bands(title, shown, marks, last)


def _band(name: str, colour: str, runs: Sequence[Sequence[Row]]) -> Band:
    """Average the steps that all runs have, with percentiles of 1,000 resamples of runs."""
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


def _gold_against_kl(cells: Sequence[StudyCell], runs: _ByCell) -> Plot | None:
    """Draw gold against the square root of the KL (arXiv 2210.10760): medians over seeds, smoothed,
    since the estimate of the KL may be far off at a step."""
    shown = _paths(cells, runs, "kl", "gold", median)
    rooted = [
        PlotCurve(c.name, c.colour, [(math.sqrt(max(0.0, a)), b) for a, b in c.points], c.dashed)
        for c in shown
    ]
    return curves("Gold against sqrt(KL)", rooted, "sqrt of the KL to the base, nats per token")


def _gap_and_share(cells: Sequence[StudyCell], runs: _ByCell) -> Plot | None:
    """Draw the gap to gold of attempts with a full reward against their shortcut's share."""
    shown: list[PlotCurve] = []
    for cell in cells:
        if cell.shortcut:
            column = f"high_share_{cell.shortcut}"
            shown += _paths([cell], runs, column, "high_gap", fmean, len(shown))
    cross = (min(SHARES), min(GAPS))
    title = "Gap to gold against the shortcut's share, of attempts with a full reward"
    return curves(title, shown, "share", short_percent, cross=cross)


_Average = Callable[[Iterable[float]], float]


def _paths(
    cells: Sequence[StudyCell],
    runs: _ByCell,
    across: str,
    upward: str,
    average: _Average,
    first: int = 0,
) -> list[PlotCurve]:
    shown: list[PlotCurve] = []
    for cell in cells:
        a, b = (_average_curve(runs[cell.name], name, average) for name in (across, upward))
        steps = [step for step in a if step in b]
        if len(steps) > 1:
            x = smooth([(step, a[step]) for step in steps], 5)
            y = smooth([(step, b[step]) for step in steps], 5)
            colour, dashed = style_of(first + len(shown))
            path = [(p, q) for (_, p), (_, q) in zip(x, y, strict=True)]
            shown.append(PlotCurve(cell.name, colour, path, dashed))
    return shown


def _average_curve(runs: Sequence[Sequence[Row]], name: str, average: _Average) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for steps in runs:
        for row in steps:
            if row[name] is not None:
                values.setdefault(row["step"], []).append(row[name])
    return {step: average(each) for step, each in sorted(values.items())}


def _survivals(
    study: StudyConfig, cells: Sequence[StudyCell], found: Collected
) -> dict[str, Plot | None]:
    """Draw the share of runs without an onset over steps (Kaplan and Meier) of each arm about a
    shortcut beside the control, and of each arm that has remedies beside these."""
    control = [cell for cell in cells if cell.name == study.control]
    drawn: dict[str, Plot | None] = {}
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
    title: str,
    against: Sequence[StudyCell],
    cells: Sequence[StudyCell],
    shortcut: str,
    found: Collected,
) -> Plot | None:
    """Draw cells beside those they are compared with; None if none of them has a run."""
    if not any(found.of(cell.name) for cell in cells):
        return None
    shown: list[PlotCurve] = []
    last = float(max(row["steps"] for cell in (*against, *cells) for row in found.of(cell.name)))
    for cell in [*against, *cells][:_SHOWN]:
        times = [*times_of(found, cell.name, shortcut).values()]
        if times:
            colour, dashed = style_of(len(shown))
            stairs: list[Point] = [(0.0, 1.0), *kaplan_meier(times)]
            name = f"{cell.name}, onset in {sum(time.seen for time in times)} of {len(times)}"
            shown.append(PlotCurve(name, colour, stairs, dashed))
    ended = [
        PlotCurve(c.name, c.colour, [*c.points, (last, c.points[-1][1])], c.dashed) for c in shown
    ]
    return curves(f"Runs without an onset (Kaplan-Meier): {title}", ended, "step", stairs=True)


_DOSED = (("final_gold", "c1"), ("exploitation", "c5"), ("max_share", "c2"))


def _dose_responses(analysis: Analysis) -> dict[str, Plot | None]:
    study = analysis.study
    control = next((s for s in analysis.summaries if s.cell.name == study.control), None)
    drawn: dict[str, Plot | None] = {}
    for arm in study.arms:
        if len(arm.over) == 1:
            own = [(s.cell.dose_value, s) for s in analysis.summaries if s.cell.arm == arm.name]
            if control is not None and arm.control_at is not None:
                own.insert(0, (arm.control_at, control))
            dosed = [(dose, summary) for dose, summary in own if dose is not None]
            drawn[arm.name] = _dose_response(arm.name, dosed, next(iter(arm.over)))
    return drawn


def _dose_response(
    arm: str, dosed: Sequence[tuple[float, CellSummary]], parameter: str
) -> Plot | None:
    """Draw measures against the dose with their intervals over seeds; None below two doses."""
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
    return doses(f"{arm}: dose and response", shown, parameter.replace("_", " "))


def _two_parameters(
    arm: str, cells: Sequence[StudyCell], found: Collected, control: str, measure: str
) -> Plot | None:
    """Draw the mean paired difference to the control by both parameters."""
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


def _roc(found: Sequence[Detector], early: bool) -> Plot | None:
    """Draw caught against false alarms for each alarm, of whole runs or until the onset."""
    shown = []
    drawn = [detector for detector in found if detector.series.threshold is None]
    for place, detector in enumerate(drawn):
        colour, dashed = style_of(place)
        auc = detector.early_auc if early else detector.auc
        points = detector.early_roc if early else detector.roc
        shown.append(PlotCurve(f"{detector.series.title}, {auc:.2f}", colour, points, dashed))
    title = "A warning: seen until the onset" if early else "An audit: seen to the end"
    return curves(title, shown, "control runs that alarm", short_percent, square=True)


def keep(analysis: Analysis, out: Path, folder: Path) -> list[str]:
    """Copy the claims and tables of a study for a repository, and draw its plots as SVG files that
    stand alone; return a line for each table that is too large."""
    left_out = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CLAIMS_FILE, "results.parquet", "curves.parquet"):
            size = (out / name).stat().st_size
            if size > LARGEST:
                left_out.append(f"{name}: {size:,} bytes, more than {LARGEST:,}")
                (folder / name).unlink(missing_ok=True)
                continue
            shutil.copyfile(out / name, folder / name)
        for name, drawn in _files(analysis):
            write_text(folder / f"{name}.svg", _picture(drawn))
    return left_out


def _files(analysis: Analysis) -> Iterable[tuple[str, Sequence[Plot]]]:
    for group, charts in plots_of(analysis).items():
        drawn = {name: chart for name, chart in charts.items() if chart is not None}
        if group in _JOINED and drawn:
            yield group, [*drawn.values()]
        elif group != "learning_others":
            for name, chart in drawn.items():
                yield re.sub(r"\W+", "_", f"{group} {name}"), [chart]


def _picture(charts: Sequence[Plot]) -> str:
    key: dict[tuple[str, str], None] = {}
    for chart in charts:
        for classes, name in chart.key:
            colour, *dashed = classes.split()
            key[colour, f"{name} (dashed)" if dashed else name] = None
    panels = [ChartPanel(chart.title, chart.drawn) for chart in charts]
    return picture(panels, [*key], min(3, len(panels)))
