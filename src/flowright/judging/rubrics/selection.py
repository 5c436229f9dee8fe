"""Choice of criteria by labelled pairs, and the share of held-out labels that a judge predicts.

A pair is predicted by the answer that earns more; no difference, and no verdict, count half.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import sub
from typing import Any

from flowright.core.statistics import DIFFERENCE, SHARE, Estimate, bootstrap
from flowright.criteria.rubrics.points import Met, points_share
from flowright.criteria.rubrics.rows import Item
from flowright.data.task import Pair
from flowright.judging.measuring.measured_judges import Games
from flowright.judging.measuring.pair_figures import prompt_of
from flowright.judging.rubrics.proposals import better_and_worse

Graded = tuple[Met, Met]
"""Criteria met by the better and by the worse answer of a pair."""


@dataclass(frozen=True, slots=True)
class CriterionCounts:
    """Training pairs in which one answer alone meets a criterion; ``points`` are 0 if it is not
    chosen."""

    criterion: str
    better_only: int
    worse_only: int
    points: float = 0.0


def rubric_share(items: Sequence[Item], graded: Graded) -> float:
    """Return 1 if the rubric prefers the better answer, 0 for the worse one, else a half. Only
    criteria that are graded of both count."""
    both = [place for place in range(len(items)) if None not in (met[place] for met in graded)]
    if not both:
        return 0.5
    shares = (points_share([items[n] for n in both], [met[n] for n in both]) for met in graded)
    better, worse = (share or 0.0 for share in shares)
    return 0.5 if math.isclose(better, worse, abs_tol=1e-9) else float(better > worse)


def games_share(pair: Pair, games: Games) -> float:
    """Return the share of the two games won by the better answer; ties and unreadable replies count
    half."""
    won = [0.5 if g.preferred in ("tie", None) else g.preferred == pair.label for g in games.both]
    return sum(won) / len(won)


def select(
    items: Sequence[Item], graded: Sequence[Graded], most: int
) -> tuple[tuple[Item, ...], list[CriterionCounts]]:
    """Return at most ``most`` of the items, with learned points, and the counts of all.

    Only criteria that agree with more labels than they contradict are eligible (the consistency
    filter of OpenRubrics, arXiv 2510.07743). Their points are log((better_only + 1) / (worse_only +
    1)), the weights of a naive Bayes classifier with one pair added to each count. They are added
    greedily, while the training pairs are predicted no worse, to a small core set (Auto-Rubric,
    arXiv 2510.17314, maximises a coding rate instead). Without any eligible criterion the first
    ``most`` items keep their own points.
    """
    counts: list[CriterionCounts] = []
    weighed: list[Item] = []
    for place, item in enumerate(items):
        alone = [(better[place], worse[place]) for better, worse in graded]
        better_only, worse_only = alone.count((True, False)), alone.count((False, True))
        counts.append(CriterionCounts(item.criterion, better_only, worse_only))
        log_odds = math.log((better_only + 1) / (worse_only + 1))
        weighed.append(Item(item.criterion, round(log_odds, 2)))
    left = {place for place, item in enumerate(weighed) if item.points > 0}
    chosen: list[int] = []
    best = 0.5 * len(graded)

    def predicted(place: int) -> tuple[float, float, int]:
        places = [*chosen, place]
        some = [weighed[n] for n in places]
        pairs = (([b[n] for n in places], [w[n] for n in places]) for b, w in graded)
        return sum(rubric_share(some, pair) for pair in pairs), weighed[place].points, -place

    while left and len(chosen) < most:
        total, _, negated = max(map(predicted, left))
        if total < best:
            break
        best = total
        chosen.append(-negated)
        left.remove(-negated)
    for place in chosen:
        counts[place] = replace(counts[place], points=weighed[place].points)
    return tuple(weighed[place] for place in chosen) or tuple(items[:most]), counts


def check_labels(
    pairs: Sequence[tuple[Pair, Sequence[Item]]], graded: Sequence[Graded], plain: Sequence[float]
) -> dict[str, Any]:
    """Return, as JSON, the agreement of each judge with the labels of held-out pairs, and the lead
    of the rubric over each baseline on the same pairs, with bootstrap intervals over prompts at
    95 %. ``plain`` are the shares of the same judge without a rubric."""
    shares = {
        "rubric": [rubric_share(items, g) for (_, items), g in zip(pairs, graded, strict=True)],
        "judge, no rubric": plain,
        "length": [longer_share(pair) for pair, _ in pairs],
    }

    def estimate(values: Iterable[float], within: tuple[float, float]) -> dict[str, float | None]:
        groups: dict[str, list[float | None]] = {}
        for (pair, _), value in zip(pairs, values, strict=True):
            groups.setdefault(prompt_of(pair), []).append(value)
        return asdict(Estimate(*bootstrap([*groups.values()], within)))

    figures: dict[str, dict[str, Any]] = {
        name: {"agreement": estimate(values, SHARE), "undecided": values.count(0.5)}
        for name, values in shares.items()
    }
    for name in ("judge, no rubric", "length"):
        figures[name]["lead"] = estimate(map(sub, shares["rubric"], shares[name]), DIFFERENCE)
    low = figures["rubric"]["agreement"]["low"]
    return {"pairs": len(pairs), "figures": figures, "predicts": low is not None and low > 0.5}


def longer_share(pair: Pair) -> float:
    """Return 1 if the better answer is the longer one, in characters, 0 if the worse one is."""
    better, worse = map(len, better_and_worse(pair))
    return 0.5 if better == worse else float(better > worse)
