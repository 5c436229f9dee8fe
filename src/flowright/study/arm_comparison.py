"""Outcomes of claims and summaries of arms, paired by seed against another arm; the exact tests of
paired differences, their power, and survival estimates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flowright.core.formatting import Point
from flowright.core.statistics import DIFFERENCE, RESAMPLES, Array, Estimate, Resampler, holm, mean
from flowright.study.collect import Collected, Row
from flowright.study.config import ClaimSection, StudyConfig, column_of
from flowright.study.runs import StudyCell

# Exact tests, one pair a seed. P-values are one-sided, of "the differences tend to be above 0";
# turn the sign for the other side. They run over thousands of samples at once, for the power.

_Mask = npt.NDArray[np.bool_]

EXACT = 16
"""Pairs up to which all 2^n signs are counted; beyond, DRAWS of them."""
DRAWS = 20_000
_EQUAL = 1e-9


def signs_of(count: int) -> Array:
    """Return all combinations of signs of ``count`` pairs, shape (2^count, count), all + first;
    beyond EXACT a sample of them with a fixed seed."""
    if count <= EXACT:
        bits = np.arange(2**count)[:, None] >> np.arange(count)[None, :] & 1
        return np.asarray(1 - 2 * bits, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(0, 2, (DRAWS, count)) * 2.0 - 1.0
    return np.concatenate([np.ones((1, count)), drawn]).astype(np.float64)


def permutation(differences: Array) -> Array:
    """Fisher's randomization test (R. A. Fisher 1935, "The design of experiments", section 21):
    the share of all sign flips whose sum is at least the observed one. Shape (..., pairs) to
    (...)."""
    signs = signs_of(differences.shape[-1])
    sums = differences @ signs.T
    return (sums >= sums[..., :1] - _EQUAL).mean(-1)


def wilcoxon(differences: Array) -> Array:
    """The signed-rank test (F. Wilcoxon 1945) by its exact distribution: zeros are left out
    (they keep no rank), ties share their mean rank."""
    size = np.abs(differences)
    size = np.where(size < _EQUAL, 0.0, size)
    below = (size[..., None, :] < size[..., :, None] - _EQUAL) & (size[..., None, :] > 0)
    equal = np.abs(size[..., None, :] - size[..., :, None]) <= _EQUAL
    ranks = below.sum(-1) + (equal.sum(-1) + 1) / 2
    return permutation(np.where(size > 0, ranks * np.sign(differences), 0.0))


def sign(differences: Array) -> Array:
    """The sign test: the upper binomial tail of the number above 0 among those that are not 0."""
    count = differences.shape[-1]
    above = (differences > _EQUAL).sum(-1)
    trials = above + (differences < -_EQUAL).sum(-1)
    chances = [[math.comb(n, k) / 2**n for k in range(count + 1)] for n in range(count + 1)]
    tails = np.cumsum(np.asarray(chances)[:, ::-1], axis=1)[:, ::-1]
    return tails[trials, above]


def student(differences: Array) -> Array:
    """Student's paired t-test; if all differences are equal, the sign test: 0.5 to the power of
    their number above 0, else 1."""
    count = differences.shape[-1]
    if count < 2:
        return np.ones(differences.shape[:-1])
    mean = differences.mean(-1)
    error = differences.std(-1, ddof=1) / math.sqrt(count)
    sure = np.where(mean > _EQUAL, 0.5**count, 1.0)
    ratio = np.divide(mean, error, out=np.zeros_like(mean), where=error > _EQUAL)
    return np.where(error > _EQUAL, upper_tail(ratio, count - 1), sure)


def upper_tail(t: Array, freedom: int) -> Array:
    """Return P(T > t) of Student's distribution with whole degrees of freedom, in closed form
    (M. Abramowitz and I. Stegun 1964, "Handbook of mathematical functions", 26.7.3 and 26.7.4)."""
    angle = np.arctan(np.asarray(t) / math.sqrt(freedom))
    cosine, sine = np.cos(angle), np.sin(angle)
    odd = freedom % 2
    term = cosine if odd else np.ones_like(cosine)
    total = np.zeros_like(cosine)
    for order in range(1 if odd else 0, freedom - 1, 2):
        total = total + term
        term = term * cosine**2 * (order + 1) / (order + 2)
    between = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return (1 - between) / 2


PAIRED: Mapping[str, Callable[[Array], Array]] = {
    "permutation": permutation,
    "wilcoxon": wilcoxon,
    "t": student,
    "sign": sign,
}
"""Tests by their name in a claim."""


def p_value(test: str, differences: Array, direction: str, threshold: float) -> float | None:
    """Return the p-value of a claim: paired differences ``greater`` than the threshold, ``less``
    than its negative, or ``none``: within it, by both one-sided tests (D. J. Schuirmann 1987). None
    without two pairs."""
    if len(differences) < 2:
        return None
    test_of = PAIRED[test]
    if direction == "none":
        return float(max(test_of(differences + threshold), test_of(threshold - differences)))
    return float(test_of((differences if direction == "greater" else -differences) - threshold))


LEAST_SEEDS = 5
"""Fewest pairs of which a t-test decides anything: it assumes that differences are normal, which
fewer cannot contradict, and their signs alone do not reach 5 %. (Colas, Sigaud and Oudeyer 2018,
"How many random seeds?", arXiv 1806.08295.)"""


def least_p(test: str, pairs: int) -> float:
    """Return the smallest p-value that ``pairs`` pairs can give; 0 if there is none. A t-test of
    fewer than :data:`LEAST_SEEDS` counts as the sign test."""
    if pairs < 2:
        return 1.0
    return 0.0 if test == "t" and pairs >= LEAST_SEEDS else 0.5**pairs


SIMULATED = 2000
POWER = 0.8


def least_effect(test: str, pairs: int, alpha: float, margin: bool = False) -> float | None:
    """Return the smallest mean difference, in standard deviations of the differences, that the test
    finds with 80 % power at this level; with ``margin`` the narrowest margin within which it
    confirms that there is none. By simulation of normal differences (2,000, a fixed seed), to 0.01.
    None if no effect is found with so few pairs."""
    if least_p(test, pairs) > alpha or pairs < 2:
        return None
    draws = np.random.default_rng(0).standard_normal((SIMULATED, pairs))
    if pairs > 12 and test != "sign":  # all flips of all draws take minutes, and t is as good
        test = "t"
    low, high = 0.0, 20.0
    if _power(test, draws, high, alpha, margin) < POWER:
        return None
    while high - low > 0.01:
        middle = (low + high) / 2
        if _power(test, draws, middle, alpha, margin) < POWER:
            low = middle
        else:
            high = middle
    return high


def _power(test: str, draws: Array, effect: float, alpha: float, margin: bool) -> float:
    found = []
    for part in np.array_split(draws, 20):  # all flips of all draws at once take much memory
        inside = PAIRED[test](effect + part) <= alpha
        if margin:
            inside &= PAIRED[test](effect - part) <= alpha
        found.append(inside)
    return float(np.concatenate(found).mean())


@dataclass(frozen=True, slots=True)
class EventTime:
    """The time of an event if it was ``seen``, else the last time without it."""

    at: float
    seen: bool


def kaplan_meier(times: Sequence[EventTime]) -> list[Point]:
    """Return the share without the event from each time of one on, by the product-limit estimate
    (E. L. Kaplan and P. Meier 1958, "Nonparametric estimation from incomplete observations")."""
    share = 1.0
    found: list[Point] = []
    for at in sorted({time.at for time in times if time.seen}):
        risk = sum(time.at >= at for time in times)
        share *= 1 - sum(time.at == at and time.seen for time in times) / risk
        found.append((at, share))
    return found


def median(times: Sequence[EventTime]) -> float | None:
    """Return the first time by which half have had the event; None if fewer had."""
    return next((at for at, share in kaplan_meier(times) if share <= 0.5 + 1e-9), None)


def log_rank(at: Array, seen: _Mask, first: _Mask) -> Array:
    """Return observed minus expected events of the first group (N. Mantel 1966, "Evaluation of
    survival data and two new rank order statistics"), above 0 if it has them earlier, for groupings
    ``first`` of shape (groupings, times)."""
    difference = np.zeros(len(first))
    for time in np.unique(at[seen]):
        risk, events = at >= time, (at == time) & seen
        difference += (first & events).sum(1) - events.sum() * (first & risk).sum(1) / risk.sum()
    return difference


def paired_log_rank(one: Sequence[EventTime], other: Sequence[EventTime]) -> float | None:
    """Return the p-value of "the first group has its events earlier": the log-rank difference over
    all exchanges of the two within each pair, exact up to 16 pairs. None without two pairs."""
    if len(one) < 2 or len(one) != len(other):
        return None
    at = np.asarray([time.at for time in (*one, *other)], dtype=np.float64)
    seen = np.asarray([time.seen for time in (*one, *other)])
    kept = signs_of(len(one)) > 0
    difference = log_rank(at, seen, np.concatenate([kept, ~kept], axis=1))
    return float((difference >= difference[0] - 1e-9).mean())


# Arms.


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """The outcome of a claim. ``pairs`` of ``wanted`` seeds have both values; ``estimate`` is the
    mean paired difference, for a family of doses the mean slope, for times the difference of the
    shares with an onset; ``medians`` are those of both arms' times, None below one half. ``holds``
    and ``holm`` are None while seeds are missing: a claim is decided once. None holds whose seeds
    are ``too_few`` for its level, whatever its p-value."""

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
    def too_few(self) -> bool:
        return least_p(self.claim.test, self.wanted) > self.claim.alpha

    @property
    def holds(self) -> bool | None:
        return None if self.holm is None else self.holm <= self.claim.alpha and not self.too_few


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
