"""Alarms for the onset of exploitation, and the gain and cost of remedies.

An alarm is the smoothed change of one curve since the run's beginning, in the suspicious direction.
The control's runs set the threshold; a run of a treated arm is caught or missed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from flowright.config.judge import AlarmSection
from flowright.core.statistics import Estimate
from flowright.runs.alarm import trailing_means
from flowright.study.arm_comparison import differences, interval, times_of, values_of
from flowright.study.collect import Collected, Row
from flowright.study.config import StudyConfig, column_of
from flowright.study.runs import StudyCell

WINDOW = 5
"""Steps of the trailing mean."""


@dataclass(frozen=True, slots=True)
class AlarmSeries:
    """``sign`` is 1 if a rise is suspicious, -1 if a fall is; ``level`` series are compared as they
    are, not as the change since the beginning; ``gold`` ones need known answers in training.
    ``threshold`` replaces the one that the control's runs set."""

    title: str
    column: str
    sign: int = 1
    level: bool = False
    gold: bool = False
    threshold: float | None = None


SERIES: Mapping[str, AlarmSeries] = {
    "gap": AlarmSeries("audit: proxy minus gold", "gap", level=True, gold=True),
    "shipped": AlarmSeries(
        "judge.alarm as shipped", "drift", level=True, gold=True, threshold=AlarmSection().gap
    ),
    "agreement": AlarmSeries("audit: agreement with gold", "agreement", -1, level=True, gold=True),
    "length": AlarmSeries("length", "length"),
    "kl": AlarmSeries("KL to the base", "kl"),
    "entropy": AlarmSeries("entropy", "entropy", -1),
    "disagreement": AlarmSeries("disagreement of the judges", "disagreement"),
    "proxy": AlarmSeries("proxy", "proxy"),
}


@dataclass(frozen=True, slots=True)
class Detector:
    """The performance of one series. ``auc`` is that of an audit: P(a treated run with an onset
    rises higher than a control's run, both seen whole), ties half, and ``roc`` its curve as (false
    alarms, caught). ``early_auc`` and ``early_roc`` are those of a warning: both seen until the
    treated run's onset. At the ``threshold`` that the control's whole runs set, of ``onsets`` runs
    ``early`` alarmed by the onset and ``late`` after it, and of ``controls`` runs ``false``
    alarmed; ``leads`` are the steps from alarm to onset, below 0 for late ones."""

    name: str
    series: AlarmSeries
    auc: float
    roc: Sequence[tuple[float, float]]
    early_auc: float
    early_roc: Sequence[tuple[float, float]]
    threshold: float
    onsets: int
    early: int
    late: int
    controls: int
    false: int
    leads: Sequence[int]


def detectors(study: StudyConfig, cells: Sequence[StudyCell], found: Collected) -> list[Detector]:
    """Evaluate every series that the runs have, the best first; empty without control runs or
    without an onset in a treated one."""
    curves = found.training_steps()
    control = [curves[row["run"]] for row in found.of(study.control)]
    treated = [
        (curves[row["run"]], row["onset"])
        for cell in cells
        if cell.name != study.control and cell.shortcut
        for row in found.of(cell.name)
        if row["onset"] is not None
    ]
    made = [_detector(name, control, treated, study.false_alarms) for name in SERIES]
    return sorted((d for d in made if d is not None), key=lambda d: (-d.early_auc, -d.auc))


def alarm_values(steps: Sequence[Row], series: AlarmSeries) -> list[tuple[int, float]]:
    """Return the alarm's values from the first step with a whole window on. Changes are relative
    to that first window."""
    known = [(row["step"], row[series.column]) for row in steps if row[series.column] is not None]
    means = trailing_means([value for _, value in known], WINDOW)
    base = 0.0 if series.level or not means else means[0]
    at = (step for step, _ in known[WINDOW - 1 :])
    return [(step, series.sign * (value - base)) for step, value in zip(at, means, strict=True)]


def _detector(
    name: str,
    control: Sequence[Sequence[Row]],
    treated: Sequence[tuple[Sequence[Row], int]],
    false_alarms: float,
) -> Detector | None:
    series = SERIES[name]
    quiet = [values for steps in control if (values := alarm_values(steps, series))]
    loud = [(values, at) for steps, at in treated if (values := alarm_values(steps, series))]
    if not quiet or not loud:
        return None
    highest = sorted((_highest(values) for values in quiet), reverse=True)
    whole = [(_highest(values), each) for values, _ in loud for each in highest]
    early = [
        (_highest(values, at), _highest(others, at)) for values, at in loud for others in quiet
    ]
    threshold = series.threshold
    if threshold is None:  # this share of the control's runs may lie above it
        threshold = highest[min(int(false_alarms * len(highest)), len(highest) - 1)]
    leads: list[int] = []
    for values, at in loud:
        first = next((step for step, value in values if value > threshold), None)
        if first is not None:
            leads.append(at - first)
    return Detector(
        name=name,
        series=series,
        auc=_auc(whole),
        roc=_roc(whole),
        early_auc=_auc(early),
        early_roc=_roc(early),
        threshold=threshold,
        onsets=len(loud),
        early=sum(lead >= 0 for lead in leads),
        late=sum(lead < 0 for lead in leads),
        controls=len(quiet),
        false=sum(value > threshold for value in highest),
        leads=leads,
    )


def _highest(values: Sequence[tuple[int, float]], until: float = math.inf) -> float:
    return max((value for step, value in values if step <= until), default=-math.inf)


_Pairs = Sequence[tuple[float, float]]  # highest values of a treated run and a control's


def _auc(pairs: _Pairs) -> float:
    return sum((one > other) + 0.5 * (one == other) for one, other in pairs) / len(pairs)


def _roc(pairs: _Pairs) -> list[tuple[float, float]]:
    treated, control = (np.asarray(side) for side in zip(*pairs, strict=True))
    thresholds = sorted({*treated.tolist(), *control.tolist()}, reverse=True)
    points = [(float((control >= t).mean()), float((treated >= t).mean())) for t in thresholds]
    return [(0.0, 0.0), *points]


_NONE = Estimate(None)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Gain and cost of a mitigation arm over the arm that it is ``against``: paired differences, or
    for that arm itself (``name == against``) its own values. ``onsets`` of ``runs`` had one; None
    for arms without a shortcut or stopped ones. ``calls`` and ``audits`` are means per run."""

    name: str
    against: str
    last_gold: Estimate
    gold_area: Estimate
    last_share: Estimate
    onsets: int | None
    runs: int
    calls: float | None
    audits: float | None

    @property
    def is_target(self) -> bool:
        """True for the arm to be improved."""
        return self.name == self.against


def remedies(
    cells: Sequence[StudyCell], found: Collected, alarms: Sequence[Detector]
) -> list[Remedy]:
    """List each arm that has remedies, its remedies, and stopping its own runs at the best alarm
    with and without known answers, among those whose threshold the control's runs set. ``alarms``
    are sorted, the best first."""
    rows: list[Remedy] = []
    for target in (cell for cell in cells if cell.name in {c.remedy_for for c in cells}):
        own = [target, *(cell for cell in cells if cell.remedy_for == target.name)]
        rows += [_remedy(cell, target, found) for cell in own if found.of(cell.name)]
        if target.shortcut and found.of(target.name):
            rows += _stops(target, found, alarms)
    return rows


def _remedy(cell: StudyCell, target: StudyCell, found: Collected) -> Remedy:
    def estimate(measure: str) -> Estimate:
        column = column_of(measure, target.shortcut)
        if cell is target:
            return interval([*values_of(found, cell.name, column).values()])
        return interval([*differences(found, cell.name, target.name, column).values()])

    times = times_of(found, cell.name, target.shortcut).values()
    return Remedy(
        name=cell.name,
        against=target.name,
        last_gold=estimate("last_gold"),
        gold_area=estimate("gold_area"),
        last_share=estimate("last_share") if target.shortcut else _NONE,
        onsets=sum(time.seen for time in times) if times else None,
        runs=len(found.of(cell.name)),
        calls=_average(values_of(found, cell.name, "calls").values()),
        audits=_average(values_of(found, cell.name, "audits").values()),
    )


def _stops(target: StudyCell, found: Collected, alarms: Sequence[Detector]) -> Iterator[Remedy]:
    known = found.training_steps()
    curves = [known[row["run"]] for row in found.of(target.name) if row["run"] in known]
    share = f"share_{target.shortcut}"
    for gold in (False, True):
        alarm = next(
            (a for a in alarms if a.series.gold == gold and a.series.threshold is None), None
        )
        if alarm is None or not curves:
            continue
        seen = [_until(steps, alarm) for steps in curves]
        both = [*zip(curves, seen, strict=True)]
        gained = {
            column: interval([_change(steps, part, column) for steps, part in both])
            for column in ("gold", share)
        }
        yield Remedy(
            name=f"stop at the alarm ({alarm.series.title})",
            against=target.name,
            last_gold=gained["gold"],
            gold_area=_NONE,
            last_share=gained[share],
            onsets=None,
            runs=len(curves),
            calls=fmean(sum(step["calls"] or 0 for step in part) for part in seen),
            audits=fmean(sum(step["attempts"] for step in part) if gold else 0 for part in seen),
        )


def _until(steps: Sequence[Row], alarm: Detector) -> Sequence[Row]:
    """Return the steps up to the alarm, all of them without one."""
    values = alarm_values(steps, alarm.series)
    at = next((step for step, value in values if value > alarm.threshold), None)
    return [step for step in steps if at is None or step["step"] <= at]


def _change(steps: Sequence[Row], seen: Sequence[Row], name: str) -> float:
    """Return the change from the run's end to its stop, of means over the last steps."""
    ends = [[row[name] for row in part if row[name] is not None] for part in (steps, seen)]
    whole, stopped = (fmean(values[-WINDOW:]) for values in ends)
    return stopped - whole


def _average(values: Iterable[float]) -> float | None:
    known = [*values]
    return fmean(known) if known else None
