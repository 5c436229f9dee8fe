"""The clustered bootstrap: an interval around any statistic that is a function of sums.

Questions are drawn, not answers: answers to one question stand or fall together, and intervals
that ignore it are too narrow. No metrics here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flowright.judge.agreement import Array, Statistic, ratio

SHARE = (0.0, 1.0)
DIFFERENCE = (-1.0, 1.0)
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval. None where there is nothing to compute it from: never 0."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Resampler:
    """Draws whole questions with replacement (Efron 1979; for clusters: Davison and Hinkley 1997,
    section 3.8); the same draws for every statistic. ``questions`` names every question once or
    more."""

    def __init__(self, questions: Iterable[str], resamples: int, seed: int) -> None:
        self._place = {name: place for place, name in enumerate(dict.fromkeys(questions))}
        self._seed = seed
        count = len(self._place)
        draws = np.random.default_rng(seed)
        shares = np.full(count, 1 / count) if count else np.zeros(0)
        self._weights = draws.multinomial(count, shares, size=resamples).astype(np.float32)

    def estimate(
        self,
        questions: Sequence[str],
        rows: Sequence[Sequence[float]],
        statistic: Statistic,
        within: tuple[float, float] | None = None,
    ) -> Estimate:
        """The statistic of the sums of ``rows`` (one an answer, to the question of the same
        place), with its percentile interval at 95 %. One question alone has no interval.

        Where all questions say the same, no draw differs, though that says little of few
        questions. There the interval of a mean that lies ``within`` these bounds is the one of
        Clopper and Pearson (1934) for an event that was never seen; others have none.
        """
        if not rows:
            return Estimate(None)
        sums = self._sums(questions, np.asarray(rows, dtype=np.float64))
        value = _number(statistic(sums.sum(axis=0)))
        if value is None or len(set(questions)) < 2:
            return Estimate(value)
        drawn = statistic(self._weights @ sums)
        drawn = drawn[np.isfinite(drawn)]  # a draw may hold no question that the statistic is of
        if not len(drawn):
            return Estimate(value)
        low, high = np.quantile(drawn, [_TAIL, 1 - _TAIL])
        if high - low > 1e-9:
            return Estimate(value, float(low), float(high))
        if within is None:
            return Estimate(value)
        margin = 1 - _TAIL ** (1 / np.isfinite(statistic(sums)).sum())
        return Estimate(
            value, max(within[0], value - float(margin)), min(within[1], value + float(margin))
        )

    def chance(self, questions: Sequence[str], differences: Sequence[float]) -> float | None:
        """P(a mean difference at least as far from 0 by chance alone): every question's sum gets a
        sign by the toss of a coin, as it might where the two sides of a pair differ in nothing
        (Fisher's randomization test). None without differences."""
        if not differences:
            return None
        sums = self._sums(questions, np.asarray(differences, dtype=np.float64)[:, None])[:, 0]
        sums = sums[sums != 0]
        resamples = len(self._weights)
        signs = np.random.default_rng(self._seed).integers(0, 2, (resamples, len(sums))) * 2 - 1
        as_far = np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9
        return float((1 + as_far.sum()) / (1 + resamples))

    def _sums(self, questions: Sequence[str], rows: Array) -> Array:
        sums = np.zeros((len(self._place), rows.shape[1]))
        np.add.at(sums, [self._place[question] for question in questions], rows)
        return sums


def mean(sums: Array) -> Array:
    """Of rows (value, 1)."""
    return ratio(sums[..., 0], sums[..., 1])


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Chances adjusted for their number (Holm 1979): whoever acts on those up to 5 % is wrong about
    any of them once in twenty times. None stays out."""
    known = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    adjusted: list[float | None] = [None] * len(chances)
    largest = 0.0
    for rank, (chance, place) in enumerate(known):
        largest = max(largest, min(1.0, chance * (len(known) - rank)))
        adjusted[place] = largest
    return adjusted


def _number(value: Array) -> float | None:
    return float(value) if np.isfinite(value) else None
