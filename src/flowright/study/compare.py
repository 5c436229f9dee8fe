"""What the runs say of each claim and of each arm: paired by seed against another arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flowright.core.statistics import DIFFERENCE, Estimate, Resampler, holm, mean
from flowright.study.cells import Cell
from flowright.study.collect import Collected
from flowright.study.config import ClaimSection, StudyConfig
from flowright.study.measures import column_of
from flowright.study.paired import p_value
from flowright.study.steps import Row
from flowright.study.survival import Time, median, paired_log_rank

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a claim. ``pairs`` of ``wanted`` seeds have both values; ``estimate`` is the mean paired
    difference, of a family of doses the mean slope, of times the difference of the shares with an
    onset; ``medians`` are those of both arms' times, None where fewer than half had one. ``holds``
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
    def whole(self) -> bool:
        """Whether no seed is missing."""
        return self.pairs >= self.wanted

    @property
    def holds(self) -> bool | None:
        return None if self.holm is None else self.holm <= self.claim.alpha


def outcomes(study: StudyConfig, cells: Sequence[Cell], found: Collected) -> list[Outcome]:
    """Of all claims, their p-values adjusted together (Holm). A claim that lacks seeds counts as
    one with p = 1, the worst that it can come to: what holds now then holds with all of them."""
    each = [_outcome(study, cells, claim, found) for claim in study.claims]
    adjusted = holm([o.p if o.whole and o.p is not None else 1.0 for o in each])
    return [
        replace(o, holm=p) if o.whole and o.p is not None else o
        for o, p in zip(each, adjusted, strict=True)
    ]


def _outcome(
    study: StudyConfig, cells: Sequence[Cell], claim: ClaimSection, found: Collected
) -> Outcome:
    against = claim.against or study.control
    wanted = len(study.all_seeds)
    if claim.test == "log_rank":
        one, other = paired_times(cells, found, claim.arm, against, claim.measure)
        early, late = (one, other) if claim.direction == "less" else (other, one)
        shares = [float(a.seen) - float(b.seen) for a, b in zip(one, other, strict=True)]
        p = paired_log_rank(early, late)
        medians = median(one), median(other)
        return Outcome(claim, len(one), wanted, interval(shares, DIFFERENCE), p, medians=medians)
    values = [*values_of_claim(study, cells, claim, found).values()]
    p = p_value(claim.test, np.asarray(values), claim.direction, claim.threshold)
    slope = claim.arm not in {cell.name for cell in cells}
    return Outcome(claim, len(values), wanted, interval(values), p, slope=slope)


def values_of_claim(
    study: StudyConfig, cells: Sequence[Cell], claim: ClaimSection, found: Collected
) -> dict[int, float]:
    """By seed, what a claim that is not about times tests: differences, or slopes over doses."""
    against = claim.against or study.control
    if claim.arm in {cell.name for cell in cells}:
        column = column_of(claim.measure, shortcut_of(cells, claim.arm, against))
        return differences(found, claim.arm, against, column)
    family = [cell for cell in cells if cell.arm == claim.arm]
    at = next(arm.control_at for arm in study.arms if arm.name == claim.arm)
    column = column_of(claim.measure, family[0].shortcut)
    return slopes(family, found, column, None if at is None else (at, against))


def interval(values: Sequence[float], within: tuple[float, float] | None = None) -> Estimate:
    """Their mean with the percentile interval at 95 % of 2,000 resamples of the seeds. Where all
    are equal there is none, but of what is 0 or 1 for each seed, and differences of such, which lie
    ``within`` these bounds."""
    seeds = [str(number) for number in range(len(values))]
    rows = [(value, 1.0) for value in values]
    return Resampler(seeds, RESAMPLES, 0).estimate(seeds, rows, mean, within)


def values_of(found: Collected, cell: str, column: str) -> dict[int, float]:
    """By seed, of a cell's finished runs, where the column has a value."""
    return {row["seed"]: float(row[column]) for row in found.of(cell) if row[column] is not None}


def differences(found: Collected, cell: str, against: str, column: str) -> dict[int, float]:
    """By seed: the cell's value minus the other's, where both have one."""
    ours, theirs = values_of(found, cell, column), values_of(found, against, column)
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def slopes(
    family: Sequence[Cell],
    found: Collected,
    column: str,
    control: tuple[float, str] | None = None,
) -> dict[int, float]:
    """By seed: the least-squares slope of the column over the doses, the control being one of
    them at its dose where it has one. Seeds that lack any dose are left out."""
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
    cells: Sequence[Cell], found: Collected, cell: str, against: str, measure: str
) -> tuple[list[Time], list[Time]]:
    """Times to the onset (or the severe point) of a cell's shortcut, in its runs and in the
    other's of the same seeds; where the cell is about none, of the other's."""
    shortcut = shortcut_of(cells, cell, against)
    ours = times_of(found, cell, shortcut, measure)
    theirs = times_of(found, against, shortcut, measure)
    seeds = [seed for seed in ours if seed in theirs]
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def shortcut_of(cells: Sequence[Cell], *names: str) -> str | None:
    """What the first of these cells that is about any shortcut is about."""
    by_name = {cell.name: cell.shortcut for cell in cells}
    return next((by_name[name] for name in names if by_name.get(name)), None)


def times_of(
    found: Collected, cell: str, shortcut: str | None, measure: str = "onset"
) -> dict[int, Time]:
    """By seed, of the finished runs of which it is known; a time that is censored is the last
    step's."""
    times: dict[int, Time] = {}
    for row in found.of(cell):
        onset = found.onsets.get(row["run"], {}).get(shortcut or "")
        if onset is None:
            continue
        step = onset.step if measure == "onset" else onset.severe
        times[row["seed"]] = Time(onset.last if step is None else step, step is not None)
    return times


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a cell: how many runs, each measure's mean with its interval over seeds, and its paired
    difference to the control."""

    cell: Cell
    runs: int
    finished: int
    failures: int
    means: Mapping[str, Estimate]
    gained: Mapping[str, Estimate]
    p: Mapping[str, float | None]
    times: Sequence[Time]


def summaries(
    study: StudyConfig, cells: Sequence[Cell], found: Collected, measures: Sequence[str]
) -> list[Summary]:
    """Of all cells. P-values are two-sided, of exact sign flips, and not adjusted: they describe;
    what was claimed beforehand is decided by :func:`outcomes`."""
    return [_summary(study, cell, found, measures) for cell in cells]


def _summary(study: StudyConfig, cell: Cell, found: Collected, measures: Sequence[str]) -> Summary:
    rows: list[Row] = [row for row in found.rows if row["cell"] == cell.name]
    means: dict[str, Estimate] = {}
    gained: dict[str, Estimate] = {}
    p: dict[str, float | None] = {}
    for measure in measures:
        own = values_of(found, cell.name, measure)
        means[measure] = interval([*own.values()])
        pairs = [
            *differences(
                found, cell.name, study.control, column_of(measure, cell.shortcut)
            ).values()
        ]
        if cell.name != study.control:
            gained[measure] = interval(pairs)
            p[measure] = two_sided(pairs)
    return Summary(
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
    """Twice the smaller of both sides' exact sign-flip p-values, at most 1."""
    sides: list[Any] = [
        p_value("permutation", np.asarray(pairs), d, 0) for d in ("greater", "less")
    ]
    return None if None in sides else min(1.0, 2 * min(sides))
