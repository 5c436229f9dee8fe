"""All plots of a study, on its report's page and as SVG files beside its tables."""

import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from flowright.core.files import disk_errors, write_text
from flowright.core.formatting import Form, plain, points, short_percent, smooth
from flowright.core.report import GridCell, GridChart, LineChart, ReportChart, Series
from flowright.study.arm_comparison import CellSummary, differences, kaplan_meier, times_of
from flowright.study.collect import GAPS, SHARES, Collected, Row
from flowright.study.config import MEASURES, StudyConfig
from flowright.study.detectors import Detector
from flowright.study.runs import CLAIMS_FILE, StudyCell
from flowright.study.summary import Analysis
from flowright.viewer.rendering.charts import draw, picture
from flowright.viewer.rendering.svg import ChartDrawing

LARGEST = 3_000_000
"""Bytes up to which a table is kept."""
_DRAWS = 1000
_SHOWN = 12  # curves that differ by colour and dashes
_JOINED = ("learning", "doses", "errors")  # groups with one key, kept as one file

Plots = Mapping[str, Mapping[str, ReportChart]]
"""Charts by group and name; those without data are not drawn."""


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
        **{
            f"alarms{suffix}": {
                name: _roc([a for a in analysis.alarms if a.series.gold == gold], early)
                for name, early in (("warning", True), ("audit", False))
            }
            for suffix, gold in (("", False), ("_gold", True))
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


def _learning(cell: StudyCell, runs: Sequence[Sequence[Row]], found: Collected) -> LineChart:
    """Draw proxy and gold over steps with the interval of their mean over seeds, and the onsets."""
    shown = [_band(name, colour, runs) for name, colour in (("proxy", "c2"), ("gold", "c1"))]
    times = times_of(found, cell.name, cell.shortcut).values()
    marks = sorted(round(time.at) for time in times if time.seen)
    last = max((steps[-1]["step"] for steps in runs if steps), default=1)
    onsets = f", onset in {len(marks)} of {len(times)}" if times else ""
    title = f"{cell.name}: {len(runs)} run{'' if len(runs) == 1 else 's'}{onsets}"
    return LineChart(title, shown, short_percent, 0.0, 0.5, x_span=(0, last), strokes=marks)


def _band(name: str, colour: str, runs: Sequence[Sequence[Row]]) -> Series:
    """Average the steps that all runs have, with percentiles of 1,000 resamples of runs."""
    common = (
        set.intersection(*({row["step"] for row in steps} for steps in runs)) if runs else set()
    )
    chosen = [[row for row in steps if row["step"] in common] for steps in runs]
    known = [steps for steps in chosen if steps and all(row[name] is not None for row in steps)]
    if not known:
        return Series(name, colour, ())
    values = np.asarray([[row[name] for row in steps] for steps in known])
    count = len(values)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _DRAWS) / count
    low, high = np.quantile(weights @ values, [0.025, 0.975], axis=0)
    mean = [*zip((row["step"] for row in known[0]), map(float, values.mean(0)), strict=True)]
    return Series(name, colour, mean, low=low.tolist(), high=high.tolist())


def _gold_against_kl(cells: Sequence[StudyCell], runs: _ByCell) -> LineChart:
    """Draw gold against the square root of the KL (arXiv 2210.10760): medians over seeds, smoothed,
    since the estimate of the KL may be far off at a step."""
    rooted = [
        replace(s, points=[(math.sqrt(max(0.0, a)), b) for a, b in s.points])
        for s in _paths(cells, runs, "kl", "gold", median)
    ]
    across = "sqrt of the KL to the base, nats per token"
    return _curves("Gold against sqrt(KL)", rooted, across, plain)


def _gap_and_share(cells: Sequence[StudyCell], runs: _ByCell) -> LineChart:
    """Draw the gap to gold of attempts with a full reward against their shortcut's share."""
    shown: list[Series] = []
    for cell in cells:
        if cell.shortcut:
            column = f"high_share_{cell.shortcut}"
            shown += _paths([cell], runs, column, "high_gap", fmean, len(shown))
    at, level = min(SHARES), min(GAPS)
    title = "Gap to gold against the shortcut's share, of attempts with a full reward"
    cross = (((at, -math.inf), (at, math.inf)), ((-math.inf, level), (math.inf, level)))
    return replace(_curves(title, shown, "share", short_percent), guides=cross)


def _curves(title: str, shown: Sequence[Series], across: str, form: Form) -> LineChart:
    """Draw shares over another value than the step."""
    return LineChart(
        title, shown, short_percent, 0.0, 0.5, x_label=across, x_form=form, x_span=(0.0,)
    )


def _style(place: int) -> tuple[str, bool]:
    """Return colour and dashes of the curve at this place."""
    return f"c{place % 6 + 1}", place // 6 % 2 == 1


_Average = Callable[[Iterable[float]], float]


def _paths(
    cells: Sequence[StudyCell],
    runs: _ByCell,
    across: str,
    upward: str,
    average: _Average,
    first: int = 0,
) -> list[Series]:
    shown: list[Series] = []
    for cell in cells:
        a, b = (_average_curve(runs[cell.name], name, average) for name in (across, upward))
        steps = [step for step in a if step in b]
        if len(steps) > 1:
            x = smooth([(step, a[step]) for step in steps], 5)
            y = smooth([(step, b[step]) for step in steps], 5)
            path = [(p, q) for (_, p), (_, q) in zip(x, y, strict=True)]
            colour, dashed = _style(first + len(shown))
            shown.append(Series(cell.name, colour, path, dashed))
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
) -> dict[str, ReportChart]:
    """Draw the share of runs without an onset over steps (Kaplan and Meier) of each arm about a
    shortcut beside the control, and of each arm that has remedies beside these."""
    control = [cell for cell in cells if cell.name == study.control]
    drawn: dict[str, ReportChart] = {}
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
) -> LineChart:
    """Draw cells beside those they are compared with; nothing if none of them has a run."""
    shown: list[Series] = []
    last = max((row["steps"] for c in (*against, *cells) for row in found.of(c.name)), default=1)
    present = any(found.of(cell.name) for cell in cells)
    for cell in [*against, *cells][:_SHOWN] if present else ():
        times = [*times_of(found, cell.name, shortcut).values()]
        if times:
            colour, dashed = _style(len(shown))
            course = [(0.0, 1.0), *kaplan_meier(times)]
            name = f"{cell.name}, onset in {sum(time.seen for time in times)} of {len(times)}"
            shown.append(Series(name, colour, course, dashed, stairs=True))
    title = f"Runs without an onset (Kaplan-Meier): {title}"
    return LineChart(title, shown, short_percent, 0.0, 1.0, x_span=(0, last))


_DOSED = (("final_gold", "c1"), ("exploitation", "c5"), ("max_share", "c2"))


def _dose_responses(analysis: Analysis) -> dict[str, ReportChart]:
    study = analysis.study
    control = next((s for s in analysis.summaries if s.cell.name == study.control), None)
    drawn: dict[str, ReportChart] = {}
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
) -> LineChart:
    """Draw measures against the dose with their intervals over seeds; nothing below two doses."""
    shown: list[Series] = []
    enough = sum(summary.finished > 0 for _, summary in dosed) > 1
    for measure, colour in _DOSED if enough else ():
        known = [
            (dose, e.value, e.low, e.high)
            for dose, summary in sorted(dosed, key=lambda each: each[0])
            if (e := summary.means[measure]).value is not None
        ]
        low, high = ([each[n] for each in known] for n in (2, 3))
        course = [(dose, value) for dose, value, _, _ in known]
        title = MEASURES[measure].title
        shown.append(Series(title, colour, course, marks=True, low=low, high=high))
    at = sorted({dose for series in shown for dose, _ in series.points})
    margin = (0.04 * (at[-1] - at[0]) or 0.5) if at else 0.0
    chart = _curves(f"{arm}: dose and response", shown, parameter.replace("_", " "), plain)
    return replace(chart, x_span=[d + m for d in at for m in (-margin, margin)], x_ticks=at)


def _two_parameters(
    arm: str, cells: Sequence[StudyCell], found: Collected, control: str, measure: str
) -> GridChart:
    """Draw the mean paired difference to the control by both parameters."""
    own = [cell for cell in cells if cell.arm == arm and len(cell.dose) == 2]
    across, down = own[0].dose
    values: dict[tuple[str, str], float] = {}
    for cell in own:
        pairs = [*differences(found, cell.name, control, measure).values()]
        if pairs:
            values[str(cell.dose[across]), str(cell.dose[down])] = fmean(pairs)
    columns, rows = ([*dict.fromkeys(str(c.dose[name]) for c in own)] for name in (across, down))
    title = f"{arm}: {MEASURES[measure].title}, points against {control}"
    names = (across.replace("_", " "), down.replace("_", " "))
    return heat_map(title, names, columns, rows, values, points, worse_above=measure in _WORSE)


_WORSE = ("exploitation",)  # measures of which more is worse


def heat_map(
    title: str,
    names: tuple[str, str],
    columns: Sequence[str],
    rows: Sequence[str],
    values: Mapping[tuple[str, str], float],
    form: Form,
    notes: Mapping[tuple[str, str], str] | None = None,
    shares: bool = False,
    worse_above: bool = False,
) -> GridChart:
    """Draw values by (column, row): the further from 0, the darker. Differences have one colour for
    worse and one for better; ``shares``, from 0 to 1, have one."""
    most = 1.0 if shares else max(map(abs, values.values()), default=0.0) or 1.0

    def cell(at: tuple[str, str]) -> GridCell | None:
        if (value := values.get(at)) is None:
            return None
        colour = "c1" if shares else "c5" if (value > 0) == worse_above else "c3"
        return GridCell(form(value), abs(value) / most, colour, (notes or {}).get(at, ""))

    shown = [(row, [cell((column, row)) for column in columns]) for row in rows]
    return GridChart(title, columns, shown, f"{names[0]} across, {names[1]} down")


def _roc(found: Sequence[Detector], early: bool) -> LineChart:
    """Draw caught against false alarms for each alarm, of whole runs or until the onset."""
    shown: list[Series] = []
    for detector in found:
        if detector.series.threshold is None:
            colour, dashed = _style(len(shown))
            auc = detector.early_auc if early else detector.auc
            course = detector.early_roc if early else detector.roc
            shown.append(Series(f"{detector.series.title}, {auc:.2f}", colour, course, dashed))
    title = "A warning: seen until the onset" if early else "An audit: seen to the end"
    chart = _curves(title, shown, "control runs that alarm", short_percent)
    return replace(chart, high=1.0, x_span=(0.0, 1.0), guides=(((0.0, 0.0), (1.0, 1.0)),))


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


def _files(analysis: Analysis) -> Iterable[tuple[str, Sequence[ChartDrawing]]]:
    for group, charts in plots_of(analysis).items():
        drawn = {name: found for name, chart in charts.items() if (found := draw(chart))}
        if group in _JOINED and drawn:
            yield group, [*drawn.values()]
        elif group != "learning_others":
            for name, drawing in drawn.items():
                yield re.sub(r"\W+", "_", f"{group} {name}"), [drawing]


def _picture(drawings: Sequence[ChartDrawing]) -> str:
    key: dict[tuple[str, str], None] = {}
    for classes, name in (entry for drawing in drawings for entry in drawing.key):
        colour, *dashed = classes.split()
        key[colour, f"{name} (dashed)" if dashed else name] = None
    return picture(drawings, [*key], min(3, len(drawings)))
