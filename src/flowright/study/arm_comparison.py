"""Outcomes of claims and summaries of arms, paired by seed against another arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flowright.core.statistics import DIFFERENCE, Estimate, Resampler, holm, mean
from flowright.study.cells import StudyCell
from flowright.study.collect import Collected, Row
from flowright.study.config import ClaimSection, StudyConfig, column_of
from flowright.study.inference import EventTime, median, p_value, paired_log_rank

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """The outcome of a claim. ``pairs`` of ``wanted`` seeds have both values; ``estimate`` is the
    mean paired difference, for a family of doses the mean slope, for times the difference of the
    shares with an onset; ``medians`` are those of both arms' times, None below one half. ``holds``
    and ``holm`` are None while seeds are missing: a claim is decided once."""

    claim: ClaimSection
    pairs: int
    wanted: int
    estimate: Estimate
    p: float | None
    holm: float | None = None
    slope: bool = False
    medians: tuple[float | None, float | None] | None = None

    @property
    def is_complete(self) -> bool:
        """True if no seed is missing."""
        return self.pairs >= self.wanted

    @property
    def holds(self) -> bool | None:
        return None if self.holm is None else self.holm <= self.claim.alpha


def outcomes(
    study: StudyConfig, cells: Sequence[StudyCell], found: Collected
) -> list[ClaimOutcome]:
    """Decide all claims, their p-values adjusted together (Holm). A claim that lacks seeds counts
    with p = 1, its worst case: what holds now also holds with all seeds."""
    each = [_outcome(study, cells, claim, found) for claim in study.claims]
    known = [o.p if o.is_complete else None for o in each]
    adjusted = holm([1.0 if p is None else p for p in known])
    return [
        o if p is None else replace(o, holm=corrected)
        for o, p, corrected in zip(each, known, adjusted, strict=True)
    ]


def _outcome(
    study: StudyConfig, cells: Sequence[StudyCell], claim: ClaimSection, found: Collected
) -> ClaimOutcome:
    against = claim.against or study.control
    wanted = len(study.all_seeds)
    if claim.test == "log_rank":
        one, other = paired_times(cells, found, claim.arm, against, claim.measure)
        early, late = (one, other) if claim.direction == "less" else (other, one)
        shares = [float(a.seen) - float(b.seen) for a, b in zip(one, other, strict=True)]
        p = paired_log_rank(early, late)
        medians = median(one), median(other)
        return ClaimOutcome(
            claim, len(one), wanted, interval(shares, DIFFERENCE), p, medians=medians
        )
    values = [*claim_values(study, cells, claim, found).values()]
    p = p_value(claim.test, np.asarray(values), claim.direction, claim.threshold)
    slope = claim.arm not in {cell.name for cell in cells}
    return ClaimOutcome(claim, len(values), wanted, interval(values), p, slope=slope)


def claim_values(
    study: StudyConfig, cells: Sequence[StudyCell], claim: ClaimSection, found: Collected
) -> dict[int, float]:
    """Return what a claim tests by seed, unless it is about times: differences, or slopes over
    doses."""
    against = claim.against or study.control
    if claim.arm in {cell.name for cell in cells}:
        column = column_of(claim.measure, shortcut_of(cells, claim.arm, against))
        return differences(found, claim.arm, against, column)
    family = [cell for cell in cells if cell.arm == claim.arm]
    at = next(arm.control_at for arm in study.arms if arm.name == claim.arm)
    column = column_of(claim.measure, family[0].shortcut)
    return slopes(family, found, column, None if at is None else (at, against))


def interval(values: Sequence[float], within: tuple[float, float] | None = None) -> Estimate:
    """Return the mean with the percentile interval at 95 % of 2,000 resamples of the seeds. Equal
    values have none, unless they are 0 or 1 or differences of such, ``within`` these bounds."""
    seeds = [str(number) for number in range(len(values))]
    rows = [(value, 1.0) for value in values]
    return Resampler(seeds, RESAMPLES, 0).estimate(seeds, rows, mean, within)


def values_of(found: Collected, cell: str, column: str) -> dict[int, float]:
    """Return a column's values in a cell's finished runs, by seed."""
    return {row["seed"]: float(row[column]) for row in found.of(cell) if row[column] is not None}


def differences(found: Collected, cell: str, against: str, column: str) -> dict[int, float]:
    """Return the cell's value minus the other's by seed, where both have one."""
    ours, theirs = values_of(found, cell, column), values_of(found, against, column)
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def slopes(
    family: Sequence[StudyCell],
    found: Collected,
    column: str,
    control: tuple[float, str] | None = None,
) -> dict[int, float]:
    """Return the least-squares slope of the column over the doses by seed; ``control`` adds the
    control at its dose. Seeds that lack any dose are left out."""
    doses = [(cell.dose_value, cell.name) for cell in family]
    points = [*([control] if control else []), *doses]
    values = [(dose, values_of(found, name, column)) for dose, name in points if dose is not None]
    seeds = set.intersection(*({*by_seed} for _, by_seed in values)) if len(values) > 1 else set()
    x = np.asarray([dose for dose, _ in values])
    return {
        seed: float(np.polyfit(x, [by_seed[seed] for _, by_seed in values], 1)[0])
        for seed in sorted(seeds)
    }


def paired_times(
    cells: Sequence[StudyCell], found: Collected, cell: str, against: str, measure: str
) -> tuple[list[EventTime], list[EventTime]]:
    """Return times to the onset (or severe point) in both cells' runs of the same seeds, of the
    first cell's shortcut, or the other's if it has none."""
    shortcut = shortcut_of(cells, cell, against)
    ours = times_of(found, cell, shortcut, measure)
    theirs = times_of(found, against, shortcut, measure)
    seeds = [seed for seed in ours if seed in theirs]
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def shortcut_of(cells: Sequence[StudyCell], *names: str) -> str | None:
    """Return the first shortcut among these cells."""
    by_name = {cell.name: cell.shortcut for cell in cells}
    return next((by_name[name] for name in names if by_name.get(name)), None)


def times_of(
    found: Collected, cell: str, shortcut: str | None, measure: str = "onset"
) -> dict[int, EventTime]:
    """Return known times by seed in finished runs; a censored one is the last step."""
    times: dict[int, EventTime] = {}
    for row in found.of(cell):
        onset = found.onsets.get(row["run"], {}).get(shortcut or "")
        if onset is None:
            continue
        step = onset.step if measure == "onset" else onset.severe
        times[row["seed"]] = EventTime(onset.last if step is None else step, step is not None)
    return times


@dataclass(frozen=True, slots=True)
class CellSummary:
    """Runs of a cell, each measure's mean with its interval over seeds (``means``), and its paired
    difference to the control (``gained``)."""

    cell: StudyCell
    runs: int
    finished: int
    failures: int
    means: Mapping[str, Estimate]
    gained: Mapping[str, Estimate]
    p: Mapping[str, float | None]
    times: Sequence[EventTime]


def summaries(
    study: StudyConfig, cells: Sequence[StudyCell], found: Collected, measures: Sequence[str]
) -> list[CellSummary]:
    """Summarise all cells. P-values are two-sided, of exact sign flips, and not adjusted: they
    describe; :func:`outcomes` decides the claims."""
    return [_summary(study, cell, found, measures) for cell in cells]


def _summary(
    study: StudyConfig, cell: StudyCell, found: Collected, measures: Sequence[str]
) -> CellSummary:
    rows: list[Row] = [row for row in found.rows if row["cell"] == cell.name]
    means: dict[str, Estimate] = {}
    gained: dict[str, Estimate] = {}
    p: dict[str, float | None] = {}
    for measure in measures:
        own = values_of(found, cell.name, measure)
        means[measure] = interval([*own.values()])
        if cell.name != study.control:
            column = column_of(measure, cell.shortcut)
            pairs = [*differences(found, cell.name, study.control, column).values()]
            gained[measure] = interval(pairs)
            p[measure] = two_sided(pairs)
    return CellSummary(
        cell=cell,
        runs=len(rows),
        finished=sum(row["finished"] for row in rows),
        failures=sum(row["failures"] for row in rows),
        means=means,
        gained=gained,
        p=p,
        times=[*times_of(found, cell.name, cell.shortcut).values()],
    )


def two_sided(pairs: Sequence[float]) -> float | None:
    """Return twice the smaller of both sides' exact sign-flip p-values, at most 1."""
    sides: list[Any] = [
        p_value("permutation", np.asarray(pairs), d, 0) for d in ("greater", "less")
    ]
    return None if None in sides else min(1.0, 2 * min(sides))
