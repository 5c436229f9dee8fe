"""Accuracy against money: mixtures and choices of baselines at the money that a policy spends.

A mixture takes one of two baselines for each problem by chance, so that every point on the hull of
(money, accuracy) can be had (RouterBench, arXiv 2403.12031: its "zero router"). An oracle knows the
class of a problem and takes the baseline that is worth its money there; a router by nearest
neighbours (same paper) takes the one that was worth it on problems of similar text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from zlib import crc32

import numpy as np

from flowright.core.statistics import Array
from flowright.data.task import Task
from flowright.evaluation.evaluator import TableRow

WORTHS = tuple(2.0 ** (n / 4) for n in range(-80, 81))
"""Worths of money in accuracy that choices are made for, over the mean money of a baseline."""

NEIGHBOURS = 10
"""Known problems that decide for another."""
_GRAMS = range(2, 5)  # characters
_BUCKETS = 4096


@dataclass(frozen=True, slots=True)
class Point:
    """A choice of a baseline for each class of problem, each problem by its id, or for "all", with
    its mean money and accuracy on the problems that it was made on."""

    choice: Mapping[str, str]
    money: float
    accuracy: float


Mixture = Sequence[tuple[float, Mapping[str, str]]]
"""Choices with their shares of the problems, which sum to 1."""


def hull(points: Iterable[Point]) -> list[Point]:
    """Return the points of the upper hull from the cheapest to the most accurate, none of which a
    mixture of others beats; accuracies rise."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.money, -p.accuracy)):
        if kept and point.accuracy <= kept[-1].accuracy:
            continue
        while len(kept) > 1 and not _turns_down(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _turns_down(a: Point, b: Point, c: Point) -> bool:
    return (b.accuracy - a.accuracy) * (c.money - b.money) > (c.accuracy - b.accuracy) * (
        b.money - a.money
    )


def at_money(points: Sequence[Point], money: float) -> Mixture:
    """Return the mixture of two neighbours of a :func:`hull` that costs ``money``, or comes nearest
    to it."""
    pairs = [*pairwise(points)] or [(points[0], points[0])]
    pair = next((pair for pair in pairs if money < pair[1].money), pairs[-1])
    shares = shares_at([point.money for point in pair], money)
    return [(share, one.choice) for share, one in zip(shares, pair, strict=True)]


def shares_at(spent: Sequence[float], money: float) -> tuple[float, float]:
    """Return the shares of two choices that cost ``spent``, the cheaper first, with which they cost
    ``money`` together, or as near to it as they come."""
    cheap, dear = spent
    share = (money - cheap) / (dear - cheap) if dear > cheap else 1.0
    share = min(1.0, max(0.0, share))
    return 1 - share, share


def area(points: Sequence[Point], low: float, high: float) -> float:
    """Return the mean accuracy of a :func:`hull` over money from ``low`` to ``high`` (AIQ of
    RouterBench's paper, section 3.2, which divides by the range; its program divides by the
    maximum): 0 below its cheapest point, and flat behind the last."""
    if high <= low:
        return points[-1].accuracy
    corners = [(p.money, p.accuracy) for p in points]
    corners.append((max(high, corners[-1][0]), corners[-1][1]))
    total = 0.0
    for (x, y), (far, top) in pairwise(corners):
        begin, end = max(x, low), min(far, high)
        if end > begin:
            slope = (top - y) / (far - x)
            total += (end - begin) * (y + slope * ((begin + end) / 2 - x))
    return total / (high - low)


def single_points(rows: Sequence[TableRow]) -> list[Point]:
    """Return a point for each baseline that was measured."""
    return [Point({"all": row.name}, *_measured(row, range(len(row.money)))) for row in rows]


def oracle_points(rows: Sequence[TableRow], classes: Sequence[str]) -> list[Point]:
    """Return the points of choices by class, one for each worth of money: where accuracy minus
    money times its worth is largest."""
    places = {name: [i for i, c in enumerate(classes) if c == name] for name in {*classes}}
    found = {
        name: {row.name: _measured(row, some) for row in rows} for name, some in places.items()
    }
    spent = fmean([money for each in found.values() for money, _ in each.values()])
    points = dict[tuple[str, ...], Point]()
    for worth in _worths(spent):
        choice = {
            name: max(each, key=lambda b: (each[b][1] - worth * each[b][0], -each[b][0]))
            for name, each in found.items()
        }
        chosen = [found[name][choice[name]] for name in classes]
        money, accuracy = (fmean(values) for values in zip(*chosen, strict=True))
        points[tuple(choice.values())] = Point(choice, money, accuracy)
    return [*points.values()]


def _worths(spent: float) -> Iterator[float]:
    yield 0.0
    if spent:
        yield from (worth / spent for worth in WORTHS)


def nearest_points(
    rows: Sequence[TableRow], known: Sequence[Task], tasks: Sequence[Task]
) -> list[Point]:
    """Return the points of k-NN routers, one for each worth of money. A router takes for each of
    ``tasks`` the baseline with the largest mean accuracy minus worth times money over its
    :data:`NEIGHBOURS` among the problems ``known``, on which ``rows`` were measured. A point's
    money and accuracy are those on the known problems, each routed without itself."""
    rows = sorted(rows, key=lambda row: fmean(row.money))  # of equal ones the cheapest
    count = len(known)
    money = np.array([row.money for row in rows]).T
    right = np.array([[_measured(row, [n])[1] for n in range(count)] for row in rows]).T
    vectors = _embed([task.question for task in (*known, *tasks)])
    likeness = vectors @ vectors[:count].T
    np.fill_diagonal(likeness, -1.0)
    near = np.argsort(-likeness, axis=1, kind="stable")[:, : max(1, min(NEIGHBOURS, count - 1))]
    gains, costs = right[near].mean(axis=1), money[near].mean(axis=1)
    points: dict[bytes, Point] = {}
    for worth in _worths(float(money.mean())):
        best = (gains - worth * costs).argmax(axis=1)
        own = np.arange(count), best[:count]
        names = [rows[place].name for place in best[count:]]
        choice = {task.id: name for task, name in zip(tasks, names, strict=True)}
        point = Point(choice, float(money[own].mean()), float(right[own].mean()))
        points[best[:count].tobytes()] = point
    return [*points.values()]


def _embed(texts: Sequence[str]) -> Array:
    """Return unit vectors of the texts' hashed n-grams of characters, weighted by rarity."""
    counts = np.zeros((len(texts), _BUCKETS))
    for row, text in zip(counts, texts, strict=True):
        data = f" {text.lower()} ".encode()
        for size in _GRAMS:
            for start in range(len(data) - size + 1):
                row[crc32(data[start : start + size]) % _BUCKETS] += 1
    rarity = np.log(len(texts) / np.maximum(1, (counts > 0).sum(axis=0)))
    vectors = np.log1p(counts) * rarity
    return vectors / np.maximum(1e-12, np.linalg.norm(vectors, axis=1, keepdims=True))


def _measured(row: TableRow, places: Sequence[int]) -> tuple[float, float]:
    """Return mean money and accuracy on the problems at ``places``."""
    scored = [[value for value in row.outcomes[i] if value is not None] for i in places]
    outcomes = [fmean(known) for known in scored if known]
    return fmean(row.money[i] for i in places), fmean(outcomes) if outcomes else 0.0
