"""Figures of a judge on labelled pairs, by subset, with intervals, in two readings.

``published``: an unreadable reply counts as no agreement, as the benchmarks count it, but half
for a judge that rates each answer. ``answered``: it is left out. A pair with a failed game is in
neither (law 1). Intervals are at 95 %, from a bootstrap over prompts, since pairs of one prompt are
not independent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from flowright.core.statistics import (
    SHARE,
    Array,
    Estimate,
    Resampler,
    Statistic,
    mean,
    ratio,
    unanimous,
)
from flowright.data.task import PREFERRED, Pair, Preferred
from flowright.judging.audit import kappa_of_table
from flowright.judging.measuring.measured_judges import GameOutcome, Games
from flowright.judging.measuring.win_rates import length_controlled

Reading = Literal["published", "answered"]
READINGS: tuple[Reading, ...] = get_args(Reading)


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair and its two games, neither of which failed."""

    pair: Pair
    games: Games


Counted = tuple[float, float]
"""Numerator and denominator that a pair adds to a share."""
Count = Callable[[Judged, Reading], Counted | None]
"""Returns None for a pair that the measure does not apply to."""


def _agreement(judged: Judged, reading: Reading) -> Counted | None:
    games = [g for g in judged.games.both if reading == "published" or g.status == "ok"]
    right = sum(_agreed(judged, game) for game in games)
    return (right, len(games)) if games else None


def _agreed(judged: Judged, game: GameOutcome) -> float:
    """Equal or unreadable ratings of two answers, one of which is better, count half: LLMBar's
    program (princeton-nlp/LLMBar, ``LLMEvaluator/evaluate.py``) gives the win to the one in one
    order and to the other in the other."""
    if judged.games.rated and judged.pair.label != "tie" and game.preferred in ("tie", None):
        return 0.5
    return float(game.preferred == judged.pair.label)


def _without_ties(judged: Judged, reading: Reading) -> Counted | None:
    return None if judged.pair.label == "tie" else _agreement(judged, reading)


def _both_right(judged: Judged, reading: Reading) -> Counted | None:
    if reading == "answered" and not is_read(judged):
        return None
    return float(all(g.preferred == judged.pair.label for g in judged.games.both)), 1


def _two_games(judged: Judged, reading: Reading) -> Counted | None:
    """JudgeBench's rule (Tan et al. 2024, arXiv 2410.12784): +1 for a game that agrees with the
    label, -1 for one of the opposite verdict, 0 for a tie and for no verdict; right above 0."""
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
    """A half is no bias: over both orders, differences in quality cancel out."""
    straight, swapped = (game.preferred for game in judged.games.both)
    first = (straight == "first") + (swapped == "second")
    second = (straight == "second") + (swapped == "first")
    return (first, first + second) if first + second else None


def _longer(judged: Judged, reading: Reading) -> Counted | None:
    """For pairs whose answers differ in length."""
    first, second = len(judged.pair.first), len(judged.pair.second)
    if first == second:
        return None
    longer = "first" if first > second else "second"
    won = [g.preferred == longer for g in judged.games.both if g.preferred in ("first", "second")]
    return (sum(won), len(won)) if won else None


def _win(judged: Judged, reading: Reading) -> Counted | None:
    """The share that the first answer won of the games that can be read; a tie is half."""
    won = [_WON[g.preferred] for g in judged.games.both if g.preferred is not None]
    return (sum(won) / len(won), 1) if won else None


_WON: Mapping[Preferred, float] = {"first": 1.0, "tie": 0.5, "second": 0.0}

MEASURES: Mapping[str, Count] = {
    "win_rate": _win,
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
LENGTH_CONTROLLED = "length_controlled"
"""See :func:`flowright.judging.measuring.win_rates.length_controlled`."""


def verdict_of(games: Games) -> Preferred | None:
    """Return the verdict of two games: a tie if they contradict each other, None if one cannot be
    read."""
    straight, swapped = games.straight.preferred, games.swapped.preferred
    if straight is None or swapped is None:
        return None
    tie: Preferred = "tie"
    return straight if straight == swapped else tie


def is_read(judged: Judged) -> bool:
    return all(game.status == "ok" for game in judged.games.both)


FINDINGS: tuple[Preferred | None, ...] = (*PREFERRED, None)


def confusion(found: Preferred | None, label: Preferred) -> list[float]:
    """Return the counts of one verdict, flat: labels by row, findings by column, the last column
    for an unreadable one."""
    counts = np.zeros((len(PREFERRED), len(FINDINGS)))
    counts[PREFERRED.index(label), FINDINGS.index(found)] = 1
    return counts.ravel().tolist()


def kappa(sums: Array) -> Array:
    """Return the kappa of three classes, from sums of :func:`confusion`, shape (..., 12)."""
    return kappa_of_table(sums.reshape(*sums.shape[:-1], len(PREFERRED), len(FINDINGS)))


def mean_of_shares(sums: Array) -> Array:
    """Return the mean share from columns (numerator, denominator) of each subset; subsets missing
    from a resample are left out."""
    shares = ratio(sums[..., 0::2], sums[..., 1::2])
    known = np.isfinite(shares)
    return ratio(np.where(known, shares, 0.0).sum(axis=-1), known.sum(axis=-1).astype(float))


ALL = "all"
_NOT_AVERAGED = (KAPPA, LENGTH_CONTROLLED, "win_rate", "consistency", "first_place", "longer")
"""Measures without a mean of subsets."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, from ``rows`` pairs (in RewardBench 2: prompts)."""

    measure: str
    group: str
    reading: Reading
    estimate: Estimate
    rows: int


def prompt_of(pair: Pair) -> str:
    """Return the key of a pair's prompt: pairs with the same conversation are resampled
    together."""
    return "\0".join(f"{turn.role} {' '.join(turn.content.split())}" for turn in pair.conversation)


@dataclass(frozen=True, slots=True)
class Macro:
    """An unweighted mean of subsets' shares. ``categories`` None are all subsets."""

    name: str
    categories: tuple[str, ...] | None = None


class Figures:
    """The figures of one judge on some pairs, with the same resamples for each. ``difficulty``:
    that of each prompt (:func:`prompt_of`), if known."""

    def __init__(
        self,
        rows: Sequence[Judged],
        resamples: int,
        seed: int,
        difficulty: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._rows = rows
        self._difficulty = difficulty
        self._resampler = Resampler((prompt_of(row.pair) for row in rows), resamples, seed)

    def shares(self, measures: Iterable[str], macros: Sequence[Macro] = ()) -> list[Figure]:
        """Return each measure of all pairs, of each subset, and the means of subsets."""
        found: list[Figure] = []
        for measure in measures:
            for reading in READINGS:
                for group, rows in groups_of(self._rows).items():
                    if measure == KAPPA:
                        found.append(self._kappa(group, rows, reading))
                    elif measure != LENGTH_CONTROLLED:
                        found.append(self._share(measure, group, rows, reading))
                    elif reading == "published":  # it leaves out unreadable replies by itself
                        found.append(self._length_controlled(group, rows))
                for macro in macros if measure not in _NOT_AVERAGED else ():
                    found += self._macro(measure, macro, reading)
        return found

    def annotators(self) -> list[Figure]:
        """Return the agreement of the verdict with each annotator, and of the annotators with each
        other, both as means: the latter is the level of one more annotator."""
        rows = [row for row in self._rows if len(row.pair.votes) > 1]
        sums = [
            [
                sum(verdict_of(row.games) == vote for vote in row.pair.votes),
                len(row.pair.votes),
                *_agreeing(row.pair.votes),
            ]
            for row in rows
        ]
        judge = self._estimate(rows, [s[:2] for s in sums], mean, SHARE)
        people = self._estimate(rows, [s[2:] for s in sums], mean, SHARE)
        kappas = self._estimate(rows, [_kappa_columns(row) for row in rows], _mean_kappa)
        named = {"annotators": judge, "annotators_kappa": kappas, "among_annotators": people}
        return [Figure(name, ALL, "published", e, len(rows)) for name, e in named.items() if rows]

    def _share(self, measure: str, group: str, rows: Sequence[Judged], reading: Reading) -> Figure:
        kept, counts = _counted(measure, rows, reading)
        return Figure(measure, group, reading, self._estimate(kept, counts, mean, SHARE), len(kept))

    def _kappa(self, group: str, rows: Sequence[Judged], reading: Reading) -> Figure:
        kept = [row for row in rows if reading == "published" or is_read(row)]
        counts = [confusion(verdict_of(row.games), row.pair.label) for row in kept]
        return Figure(KAPPA, group, reading, self._estimate(kept, counts, kappa), len(kept))

    def _length_controlled(self, group: str, rows: Sequence[Judged]) -> Figure:
        kept, counts = _counted("win_rate", rows, "published")
        prompts = [prompt_of(row.pair) for row in kept]
        estimate = length_controlled(
            self._resampler,
            prompts,
            [won for won, _ in counts],
            [len(row.pair.first) - len(row.pair.second) for row in kept],
            [self._difficulty[prompt] for prompt in prompts] if self._difficulty else (),
        )
        return Figure(LENGTH_CONTROLLED, group, "published", estimate, len(kept))

    def _macro(self, measure: str, macro: Macro, reading: Reading) -> list[Figure]:
        """For each set of at least two subsets (all, or those of one prefix)."""
        found: list[Figure] = []
        for prefix, categories in _sets(self._rows).items():
            taken = [
                c for c in categories if macro.categories is None or _leaf(c) in macro.categories
            ]
            rows = [row for row in self._rows if row.pair.category in taken]
            kept, counts = _counted(measure, rows, reading)
            if len({row.pair.category for row in kept}) < 2:
                continue
            columns = []
            for row, (above, below) in zip(kept, counts, strict=True):
                values = np.zeros((len(taken), 2))
                values[taken.index(row.pair.category)] = above, below
                columns.append(values.ravel().tolist())
            estimate = self._estimate(kept, columns, mean_of_shares, SHARE)
            name = f"{prefix}/{macro.name}" if prefix else macro.name
            found.append(Figure(measure, name, reading, estimate, len(kept)))
        return found

    def _estimate(
        self,
        rows: Sequence[Judged],
        sums: Sequence[Sequence[float]],
        statistic: Statistic,
        within: tuple[float, float] | None = None,
    ) -> Estimate:
        questions = [prompt_of(row.pair) for row in rows]
        return estimated(self._resampler, questions, sums, statistic, within)


def estimated(
    resampler: Resampler,
    questions: Sequence[str],
    sums: Sequence[Sequence[float]],
    statistic: Statistic,
    within: tuple[float, float] | None = None,
) -> Estimate:
    """Return the resampler's estimate, with Wilson's interval for a share of 0 or 1; a single
    prompt has none."""
    found = resampler.estimate(questions, sums, statistic, within)
    prompts = len(set(questions))
    if within is None or prompts < 2 or found.value is None or found.value not in within:
        return found
    return Estimate(found.value, *unanimous(found.value, prompts, within))


def groups_of(rows: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Group pairs: all, and each category; those of ``set/subset`` belong to ``set``, too."""
    groups: dict[str, list[Judged]] = {ALL: list(rows)}
    for row in rows:
        parts = row.pair.category.split("/") if row.pair.category else []
        for depth in range(1, len(parts) + 1):
            groups.setdefault("/".join(parts[:depth]), []).append(row)
    return groups


def _sets(rows: Sequence[Judged]) -> dict[str, list[str]]:
    """The categories below each prefix, in the order of the rows."""
    found: dict[str, list[str]] = {}
    for category in dict.fromkeys(row.pair.category for row in rows):
        if category:
            found.setdefault(category.rpartition("/")[0], []).append(category)
    return found


def _leaf(category: str) -> str:
    return category.rpartition("/")[2]


def _counted(
    measure: str, rows: Sequence[Judged], reading: Reading
) -> tuple[list[Judged], list[Counted]]:
    """The pairs that a measure applies to, and their counts."""
    both = [(row, counted) for row in rows if (counted := MEASURES[measure](row, reading))]
    return [row for row, _ in both], [counted for _, counted in both]


def _agreeing(votes: Sequence[Preferred]) -> tuple[int, int]:
    """Number of agreeing pairs of annotators, and of all pairs of annotators."""
    couples = [(a, b) for place, a in enumerate(votes) for b in votes[place + 1 :]]
    return sum(a == b for a, b in couples), len(couples)


def _kappa_columns(row: Judged) -> list[float]:
    found = verdict_of(row.games)
    return [count for vote in row.pair.votes for count in confusion(found, vote)]


def _mean_kappa(sums: Array) -> Array:
    """The mean of the kappas with each annotator."""
    size = len(PREFERRED) * len(FINDINGS)
    each = [kappa(sums[..., at : at + size]) for at in range(0, sums.shape[-1], size)]
    return np.mean(each, axis=0)
