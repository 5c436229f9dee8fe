"""Times to an event of which some are censored: how many are still without it, and whether two
groups differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowright.core.statistics import Array
from flowright.study.paired import signs_of

_Z = 1.959964
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Time:
    """``seen``: whether the event came then; else it had not come until then."""

    at: float
    seen: bool


@dataclass(frozen=True, slots=True)
class Point:
    """From this time on so many are without the event, with its interval at 95 % and the standard
    ``error`` on its own scale."""

    at: float
    share: float
    low: float
    high: float
    error: float


def kaplan_meier(times: Sequence[Time]) -> list[Point]:
    """The product-limit estimate (E. L. Kaplan and P. Meier 1958, "Nonparametric estimation from
    incomplete observations"), a point for each time at which an event came, with Greenwood's
    standard error (M. Greenwood 1926) on the scale of log(-log S), which stays within 0 and 1."""
    share, total, found = 1.0, 0.0, []
    for at in sorted({time.at for time in times if time.seen}):
        risk = sum(time.at >= at for time in times)
        events = sum(time.at == at and time.seen for time in times)
        share *= 1 - events / risk
        if events == risk:
            found.append(Point(at, 0.0, 0.0, 0.0, 0.0))
            break
        total += events / (risk * (risk - events))
        root = math.sqrt(total)
        far = _Z * root / abs(math.log(share))
        low, high = (share ** math.exp(side * far) for side in (1, -1))
        found.append(Point(at, share, low, high, share * root))
    return found


def median(times: Sequence[Time]) -> float | None:
    """The first time by which half have had the event; None where fewer had."""
    return next((point.at for point in kaplan_meier(times) if point.share <= 0.5 + 1e-9), None)


def log_rank(one: Sequence[Time], other: Sequence[Time]) -> tuple[float, float]:
    """Observed minus expected events of the first group, and their variance (N. Mantel 1966,
    "Evaluation of survival data and two new rank order statistics"); above 0 where the first has
    them earlier. The statistic of the usual test is the square of the one over the other."""
    at = np.asarray([time.at for time in (*one, *other)], dtype=np.float64)
    seen = np.asarray([time.seen for time in (*one, *other)])
    first = np.arange(len(at)) < len(one)
    difference, variance = _log_rank(at, seen, first[None, :])
    return float(difference[0]), float(variance[0])


def _log_rank(at: Array, seen: _Mask, first: _Mask) -> tuple[Array, Array]:
    """Of groupings, shape (groupings, times), true for the first group."""
    difference, variance = np.zeros(len(first)), np.zeros(len(first))
    for time in np.unique(at[seen]):
        risk, events = at >= time, (at == time) & seen
        n, d = risk.sum(), events.sum()
        n_first = (first & risk).sum(1)
        difference += (first & events).sum(1) - d * n_first / n
        if n > 1:
            variance += d * (n_first / n) * (1 - n_first / n) * (n - d) / (n - 1)
    return difference, variance


def paired_log_rank(one: Sequence[Time], other: Sequence[Time]) -> float | None:
    """P(the first group has its events earlier by so much by chance alone): the log-rank difference
    over all exchanges of the two within each pair, exact up to 16 pairs. None without two."""
    if len(one) < 2 or len(one) != len(other):
        return None
    at = np.asarray([time.at for time in (*one, *other)], dtype=np.float64)
    seen = np.asarray([time.seen for time in (*one, *other)])
    kept = signs_of(len(one)) > 0
    difference, _ = _log_rank(at, seen, np.concatenate([kept, ~kept], axis=1))
    return float((difference >= difference[0] - 1e-9).mean())
