"""Intervals of repeated measurements, a randomization test, and its correction.

Whole questions (problems, tasks) are resampled, not the answers to them: answers to one question
are correlated, and intervals that ignore it are too narrow.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From sums, shape (..., columns), to values, shape (...); nan where it is undefined."""

RESAMPLES = 2000
"""Resamples of :func:`bootstrap`."""
SHARE = (0.0, 1.0)
DIFFERENCE = (-1.0, 1.0)
TAIL = 0.025
_EQUAL = 1e-9
_FITS = 1000  # resamples that a model is fitted to
_AT_ONCE = 1 << 18  # weights of rows
_Z = 1.959964  # of the normal distribution at 1 - TAIL


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval. None where there is nothing to compute it from: never 0."""

    value: float | None
    low: float | None = None
    high: float | None = None


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """The score interval at 95 % of a share (E. B. Wilson 1927, "Probable inference, the law of
    succession, and statistical inference"): ``(0, z^2 / (n + z^2))`` for 0 of n. All of [0, 1] for
    no trials."""
    if not trials:
        return SHARE
    share, square = successes / trials, _Z**2
    centre = share + square / (2 * trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    low, high = ((centre + side * half) / (1 + square / trials) for side in (-1, 1))
    return (low if successes > 0 else 0.0), (high if successes < trials else 1.0)


def unanimous(value: float, count: int, within: tuple[float, float]) -> tuple[float, float]:
    """Return the interval of a mean of ``count`` equal values that lie ``within`` these bounds. All
    resamples are equal, too, which is weak evidence for a small count.

    A differing value was seen in 0 of ``count``, and has by :func:`wilson` at most a certain
    probability; one that differs is taken to be 1 apart. For 0 of n and n of n right that is
    Wilson's own interval; for paired differences of shares that are all 0 it is the upper bound of
    the discordant pairs either way, as squaring and adding the bounds of gains and losses gives it
    (R. G. Newcombe 1998, "Improved confidence intervals for the difference between binomial
    proportions based on paired data").
    """
    _, most = wilson(0, count)
    return max(within[0], value - most), min(within[1], value + most)


def bootstrap(
    groups: Sequence[Sequence[float | None]], within: tuple[float, float] = SHARE
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Mean over groups (the attempts at one problem) of the mean within each, with the 2.5th and
    97.5th percentile of 2,000 resamples of the groups (B. Efron, 1979, the percentile method);
    where all groups say the same, :func:`unanimous`. Values lie ``within`` these bounds:
    :data:`DIFFERENCE` for paired ones. None where nothing is known."""
    means = [
        float(np.mean(known)) for group in groups if (known := [v for v in group if v is not None])
    ]
    if not means:
        return None, None, None
    values = np.asarray(means)
    if np.ptp(values) < _EQUAL:
        return float(values[0]), *unanimous(float(values[0]), len(values), within)
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [TAIL, 1 - TAIL])
    return float(values.mean()), float(low), float(high)


class Resampler:
    """An interval around any statistic that is a function of sums.

    Draws whole questions with replacement (Efron 1979; for clusters: Davison and Hinkley 1997,
    section 3.8); the same draws for every statistic. ``questions`` names every question once or
    more.
    """

    def __init__(self, questions: Iterable[str], resamples: int, seed: int) -> None:
        self._place = {name: place for place, name in enumerate(dict.fromkeys(questions))}
        self._seed = seed
        count = len(self._place)
        draws = np.random.default_rng(seed)
        drawn = np.zeros((resamples, 0))
        if count:
            drawn = draws.multinomial(count, np.full(count, 1 / count), size=resamples)
        self._weights = drawn.astype(np.float32)

    def estimate(
        self,
        questions: Sequence[str],
        rows: Sequence[Sequence[float]],
        statistic: Statistic,
        within: tuple[float, float] | None = None,
    ) -> Estimate:
        """The statistic of the sums of ``rows`` (one an answer, to the question of the same
        place), with its percentile interval at 95 %. One question alone has no interval.

        Where all questions say the same, a mean that lies ``within`` these bounds has the interval
        of :func:`unanimous`; others have none.
        """
        if not rows:
            return Estimate(None)
        sums, resampled = self.sums(questions, rows)
        value = _number(statistic(sums.sum(axis=0)))
        if value is None or len(sums) < 2:
            return Estimate(value)
        count = int(np.isfinite(statistic(sums)).sum())
        return _with_interval(value, statistic(resampled), count, within)

    def fitted(self, questions: Sequence[str], statistic: Statistic) -> Estimate:
        """Return a share that is no function of sums, such as one of a fitted model, with its
        percentile interval (at most 1,000 resamples). ``statistic`` maps weights of the rows,
        (draws, rows), to values, (draws)."""
        every = [self._place[question] for question in questions]
        value = _number(statistic(np.ones((1, len(every))))[0]) if every else None
        count = len(set(every))
        if value is None or count < 2:
            return Estimate(value)
        weights = self._weights[:_FITS]
        parts = np.array_split(weights, -(-len(weights) * len(every) // _AT_ONCE))
        drawn = [statistic(part[:, every].astype(np.float64)) for part in parts]
        return _with_interval(value, np.concatenate(drawn), count, SHARE)

    def p_value(self, questions: Sequence[str], differences: Sequence[float]) -> float | None:
        """P(a mean difference at least as far from 0 by chance alone): every question's sum gets a
        sign by the toss of a coin, as it might where the two sides of a pair differ in nothing
        (Fisher's randomization test). None without differences."""
        if not differences:
            return None
        columns, _ = self.sums(questions, [(value,) for value in differences])
        sums = columns[columns != 0]
        resamples = len(self._weights)
        signs = np.random.default_rng(self._seed).integers(0, 2, (resamples, len(sums))) * 2 - 1
        as_far = np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9
        return float((1 + as_far.sum()) / (1 + resamples))

    def sums(
        self, questions: Sequence[str], rows: Sequence[Sequence[float]]
    ) -> tuple[Array, Array]:
        """Return the sums of the rows of each question that has any, (questions, columns), and
        those of every resample, (resamples, columns)."""
        values = np.asarray(rows, dtype=np.float64)
        every = [self._place[question] for question in questions]
        places, inverse = np.unique(every, return_inverse=True)
        sums = np.zeros((len(places), values.shape[1]))
        np.add.at(sums, inverse, values)
        return sums, np.asarray(self._weights[:, places] @ sums)


def pass_at(outcomes: Sequence[float | None], k: int) -> float | None:
    """Unbiased estimate, from the attempts at one problem, of the chance that one of ``k`` is right
    (M. Chen et al. 2021, "Evaluating large language models trained on code"). None with fewer than
    ``k`` scored attempts."""
    known = [value for value in outcomes if value is not None]
    if len(known) < k:
        return None
    wrong = sum(value < 1 for value in known)
    return 1.0 - math.comb(wrong, k) / math.comb(len(known), k)


def ratio(above: Array, below: Array) -> Array:
    """Division that gives nan where there is nothing to divide by."""
    safe = np.where(below == 0, np.nan, below)
    return np.asarray(above / safe)


def mean(sums: Array) -> Array:
    """Return the mean of rows (value, 1)."""
    return ratio(sums[..., 0], sums[..., 1])


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for their number (Holm 1979): acting on those up to 5 % is wrong
    about any of them once in twenty times. None stays out."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[place] = largest
    return adjusted


def sign_test(above: int, below: int) -> float:
    """Return the exact two-sided p-value of so many differences above and below 0, if either side
    is equally likely: twice the smaller binomial tail. On the pairs that only one of two judges has
    right it is McNemar's test (Q. McNemar 1947, "Note on the sampling error of the difference
    between correlated proportions or percentages")."""
    count, term, tail = above + below, 1, 0
    for number in range(min(above, below) + 1):
        tail += term
        term = term * (count - number) // (number + 1)
    return min(1.0, 2 * tail / 2**count)


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0.0, -values))


def _number(value: Array) -> float | None:
    return float(value) if np.isfinite(value) else None


def _with_interval(
    value: float, drawn: Array, count: int, within: tuple[float, float] | None
) -> Estimate:
    """Return the value with the percentiles of its resamples; if they are equal, :func:`unanimous`
    of ``count`` questions, none without bounds."""
    drawn = drawn[np.isfinite(drawn)]  # a draw may hold no question that the statistic is of
    if not len(drawn):
        return Estimate(value)
    low, high = np.quantile(drawn, [TAIL, 1 - TAIL])
    if high - low > _EQUAL:
        return Estimate(value, float(low), float(high))
    return Estimate(value) if within is None else Estimate(value, *unanimous(value, count, within))
