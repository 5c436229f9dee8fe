"""What arms that would mend another gain over it and cost, and what stopping early would have done:
that is worked out from the runs that were not stopped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from flowright.core.statistics import Estimate
from flowright.study.cells import Cell
from flowright.study.collect import Collected
from flowright.study.compare import differences, interval, times_of, values_of
from flowright.study.detectors import WINDOW, Detector, alarm_values
from flowright.study.measures import column_of
from flowright.study.steps import Row

_NONE = Estimate(None)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Gains are paired differences to the arm that it is ``against``; of that arm itself
    (``name == against``) they are its own values. ``onsets`` of ``runs`` had one; None where the
    arm is about no shortcut, or was stopped. ``calls`` and ``audits`` are means of a run."""

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
        """Whether it is the arm that is to be mended."""
        return self.name == self.against


def remedies(cells: Sequence[Cell], found: Collected, alarms: Sequence[Detector]) -> list[Remedy]:
    """Of each arm that is to be mended: itself, its remedies, and a stop at the best alarm that
    needs known answers and at the best that does not, among those whose threshold the control's
    runs set. ``alarms``: the best first."""
    rows: list[Remedy] = []
    for target in (cell for cell in cells if cell.name in {c.remedy_for for c in cells}):
        own = [target, *(cell for cell in cells if cell.remedy_for == target.name)]
        rows += [_remedy(cell, target, found) for cell in own if found.of(cell.name)]
        if target.shortcut and found.of(target.name):
            rows += _stops(target, found, alarms)
    return rows


def _remedy(cell: Cell, target: Cell, found: Collected) -> Remedy:
    def told(measure: str) -> Estimate:
        column = column_of(measure, target.shortcut)
        if cell is target:
            return interval([*values_of(found, cell.name, column).values()])
        return interval([*differences(found, cell.name, target.name, column).values()])

    times = times_of(found, cell.name, target.shortcut).values()
    return Remedy(
        name=cell.name,
        against=target.name,
        last_gold=told("last_gold"),
        gold_area=told("gold_area"),
        last_share=told("last_share") if target.shortcut else _NONE,
        onsets=sum(time.seen for time in times) if times else None,
        runs=len(found.of(cell.name)),
        calls=_average(values_of(found, cell.name, "calls").values()),
        audits=_average(values_of(found, cell.name, "audits").values()),
    )


def _stops(target: Cell, found: Collected, alarms: Sequence[Detector]) -> Iterator[Remedy]:
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
    """The steps to the alarm; all where there is none."""
    values = alarm_values(steps, alarm.series)
    at = next((step for step, value in values if value > alarm.threshold), None)
    return [step for step in steps if at is None or step["step"] <= at]


def _change(steps: Sequence[Row], seen: Sequence[Row], name: str) -> float:
    """From the end of the run to where it would have been stopped: means of the last steps."""
    ends = [[row[name] for row in part if row[name] is not None] for part in (steps, seen)]
    whole, stopped = (fmean(values[-WINDOW:]) for values in ends)
    return stopped - whole


def _average(values: Iterable[float]) -> float | None:
    known = [*values]
    return fmean(known) if known else None
