"""What a pair adds to each figure: games against labels, in two readings. No intervals here.

``published``: an unreadable reply counts as the benchmarks count it, as no agreement. ``answered``:
it is left out. A pair of which a game failed is in neither (law 1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from flowright.core.statistics import Array, ratio
from flowright.data.preferences import PREFERRED, Pair, Preferred
from flowright.judging.measuring.benchmarks.outcomes import Games

Reading = Literal["published", "answered"]
READINGS: tuple[Reading, ...] = get_args(Reading)


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair and what was said of it, no game of which failed."""

    pair: Pair
    games: Games


Counted = tuple[float, float]
"""What a pair adds above and below the line of a share."""
Count = Callable[[Judged, Reading], Counted | None]
"""None for a pair that the measure is not of."""


def _agreement(judged: Judged, reading: Reading) -> Counted | None:
    games = [g for g in judged.games.both if reading == "published" or g.status == "ok"]
    right = sum(game.preferred == judged.pair.label for game in games)
    return (right, len(games)) if games else None


def _without_ties(judged: Judged, reading: Reading) -> Counted | None:
    return None if judged.pair.label == "tie" else _agreement(judged, reading)


def _both_right(judged: Judged, reading: Reading) -> Counted | None:
    if reading == "answered" and not is_read(judged):
        return None
    return float(all(g.preferred == judged.pair.label for g in judged.games.both)), 1


def _two_games(judged: Judged, reading: Reading) -> Counted | None:
    """JudgeBench's rule (Tan et al. 2024, arXiv 2410.12784): +1 for a game that agrees with the
    label, -1 for one that says the opposite, 0 for a tie and for no verdict; right above 0."""
    label = judged.pair.label
    if label == "tie" or (reading == "answered" and not is_read(judged)):
        return None
    won = [g.preferred == label for g in judged.games.both]
    lost = [g.preferred not in (label, "tie", None) for g in judged.games.both]
    return float(sum(won) > sum(lost)), 1


def _three_class(judged: Judged, reading: Reading) -> Counted | None:
    if reading == "answered" and not is_read(judged):
        return None
    return float(verdict_of(judged.games) == judged.pair.label), 1


def _consistency(judged: Judged, reading: Reading) -> Counted | None:
    if not is_read(judged):
        return None
    straight, swapped = judged.games.both
    return float(straight.preferred == swapped.preferred), 1


def _first_place(judged: Judged, reading: Reading) -> Counted | None:
    """A half is no bias: over both orders, what one answer has of quality cancels out."""
    straight, swapped = (game.preferred for game in judged.games.both)
    first = (straight == "first") + (swapped == "second")
    second = (straight == "second") + (swapped == "first")
    return (first, first + second) if first + second else None


def _longer(judged: Judged, reading: Reading) -> Counted | None:
    """Of pairs whose answers differ in length. What the labels say of them is the agreement of a
    judge that goes by length."""
    first, second = len(judged.pair.first), len(judged.pair.second)
    if first == second:
        return None
    longer = "first" if first > second else "second"
    won = [g.preferred == longer for g in judged.games.both if g.preferred in ("first", "second")]
    return (sum(won), len(won)) if won else None


MEASURES: Mapping[str, Count] = {
    "two_games": _two_games,
    "three_class": _three_class,
    "agreement": _agreement,
    "agreement_without_ties": _without_ties,
    "both_right": _both_right,
    "consistency": _consistency,
    "first_place": _first_place,
    "longer": _longer,
}
KAPPA = "kappa"
"""Not a share: see :func:`kappa`."""


def verdict_of(games: Games) -> Preferred | None:
    """One verdict of two games: what both say, a tie where they contradict each other; None where
    one cannot be read."""
    straight, swapped = games.straight.preferred, games.swapped.preferred
    if straight is None or swapped is None:
        return None
    tie: Preferred = "tie"
    return straight if straight == swapped else tie


def is_read(judged: Judged) -> bool:
    return all(game.status == "ok" for game in judged.games.both)


SAID: tuple[Preferred | None, ...] = (*PREFERRED, None)


def confusion(said: Preferred | None, label: Preferred) -> list[float]:
    """The counts of one verdict: label by row, what was said by column, the last column for
    nothing that can be read; flat."""
    counts = np.zeros((len(PREFERRED), len(SAID)))
    counts[PREFERRED.index(label), SAID.index(said)] = 1
    return counts.ravel().tolist()


def kappa(sums: Array) -> Array:
    """(observed - expected) / (1 - expected) agreement over three classes (Cohen 1960), of sums of
    :func:`confusion`, shape (..., 12); nan where both sides only ever say the same one thing."""
    table = sums.reshape(*sums.shape[:-1], len(PREFERRED), len(SAID))
    count = table.sum(axis=(-1, -2))
    observed = ratio(np.trace(table, axis1=-2, axis2=-1), count)
    labelled, said = table.sum(axis=-1), table.sum(axis=-2)[..., : len(PREFERRED)]
    expected = ratio((labelled * said).sum(axis=-1), count**2)
    return ratio(observed - expected, 1 - expected)


def mean_of_shares(sums: Array) -> Array:
    """Of columns (above, below) for each subset; subsets that a draw does not hold are left out."""
    shares = ratio(sums[..., 0::2], sums[..., 1::2])
    known = np.isfinite(shares)
    return ratio(np.where(known, shares, 0.0).sum(axis=-1), known.sum(axis=-1).astype(float))
