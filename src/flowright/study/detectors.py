"""Alarms: series of a run that may tell that exploitation begins, before or after its onset.

Each is the smoothed change of one curve since the run's beginning, in the direction that would be
suspicious. The control's runs set the threshold; a run of a treated arm is caught or missed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowright.config.judge import AlarmSection
from flowright.core.statistics import Estimate, wilson
from flowright.runs.alarm import trailing_means
from flowright.study.cells import Cell
from flowright.study.collect import Collected
from flowright.study.config import StudyConfig
from flowright.study.steps import Row

WINDOW = 5
"""Steps of the trailing mean: an alarm knows nothing of what is to come."""


@dataclass(frozen=True, slots=True)
class Series:
    """``sign``: 1 where a rise is suspicious, -1 where a fall is. ``level``: taken as it is, not
    as the change since the beginning. ``gold``: whether it needs known answers while training.
    ``threshold``: one that is given, instead of the one that the control's runs set."""

    title: str
    column: str
    sign: int = 1
    level: bool = False
    gold: bool = False
    threshold: float | None = None


SERIES: Mapping[str, Series] = {
    "gap": Series("audit: proxy minus gold", "gap", level=True, gold=True),
    "shipped": Series(
        "judge.alarm as shipped", "drift", level=True, gold=True, threshold=AlarmSection().gap
    ),
    "agreement": Series("audit: agreement with gold", "agreement", -1, level=True, gold=True),
    "length": Series("length", "length"),
    "kl": Series("KL to the base", "kl"),
    "entropy": Series("entropy", "entropy", -1),
    "disagreement": Series("disagreement of the judges", "disagreement"),
    "proxy": Series("proxy", "proxy"),
}


@dataclass(frozen=True, slots=True)
class Detector:
    """How one series did. ``auc`` is that of an audit: P(a treated run with an onset rises higher
    than a control's run, both seen whole), ties half, and ``roc`` its curve as (false alarms,
    caught). ``early_auc`` and ``early_roc`` are those of a warning: both seen until the treated
    run's onset. At the ``threshold``, which the control's whole runs set, so many of ``onsets``
    runs were ``early`` (alarmed at the onset or before) or ``late``, and ``false`` of ``controls``
    alarmed; ``leads`` are the steps from the alarm to the onset of all that alarmed, below 0 where
    the alarm came after."""

    name: str
    series: Series
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

    @property
    def caught(self) -> Estimate:
        """The share that was alarmed in time, with Wilson's interval."""
        return Estimate(self.early / self.onsets, *wilson(self.early, self.onsets))

    @property
    def false_rate(self) -> Estimate:
        """The share of the control's runs that alarmed."""
        return Estimate(self.false / self.controls, *wilson(self.false, self.controls))


def detectors(study: StudyConfig, cells: Sequence[Cell], found: Collected) -> list[Detector]:
    """Of every series that the runs have, the best first; none without control runs, or where no
    treated run has an onset."""
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


def alarm_values(steps: Sequence[Row], series: Series) -> list[tuple[int, float]]:
    """What the alarm sees, at each step from the first that has a whole window on. A change is
    counted from the first window, which is 0 by that."""
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
    if threshold is None:  # so many of the control's runs may lie above it
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


_Pairs = Sequence[tuple[float, float]]
"""Of a treated run and a control's: the highest value of each."""


def _auc(pairs: _Pairs) -> float:
    return sum((one > other) + 0.5 * (one == other) for one, other in pairs) / len(pairs)


def _roc(pairs: _Pairs) -> list[tuple[float, float]]:
    treated, control = (np.asarray(side) for side in zip(*pairs, strict=True))
    thresholds = sorted({*treated.tolist(), *control.tolist()}, reverse=True)
    points = [(float((control >= t).mean()), float((treated >= t).mean())) for t in thresholds]
    return [(0.0, 0.0), *points]
