"""Shares of a mixture: the problems of step k, and the places of each source. Pure functions.

A batch depends on the tasks, the seed and the step alone, so that a resumed run continues with the
batches of the uninterrupted one and nothing has to be saved.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Generic, TypeVar

from flowright.core.errors import DataError
from flowright.data.task import KINDS, Task

Name = TypeVar("Name", bound=str)
Item = TypeVar("Item")
T = TypeVar("T", bound=Task)

_SLOTS = 1000  # resolution of the kinds' shares


class Mixture(Generic[T]):
    """Batches in which every kind keeps its share.

    ``shares`` are weights per kind; by default all kinds that occur weigh the same, whatever their
    number of tasks. Each kind is gone through in epochs of its own: every task once, in a new
    seeded order each time, so a kind with few tasks comes round more often. A batch that crosses
    the end of a kind's epoch may hold one of its tasks twice.
    """

    def __init__(
        self, tasks: Sequence[T], seed: int | str, shares: Mapping[str, float] | None = None
    ) -> None:
        self._tasks = tasks_by_kind(tasks)
        if not self._tasks:
            raise DataError("no task to train on")
        weights = dict.fromkeys(self._tasks, 1.0) if shares is None else shares
        if not any(weight > 0 for weight in weights.values()):
            raise DataError("no kind has a share above 0")
        lacking = [kind for kind in weights if weights[kind] > 0 and kind not in self._tasks]
        if lacking:
            raise DataError(f"a share is given for {', '.join(lacking)}, but there is no such task")
        self._seed = seed
        self._pattern = _pattern(weights)
        self._order = lru_cache(maxsize=2 * len(self._tasks))(self._permutation)

    def batch(self, step: int, size: int) -> list[T]:
        """The ``size`` tasks of step ``step`` (from 0). Keep ``size`` the same in a run: the batch
        is the window [step * size, (step + 1) * size) of one endless sequence."""
        return [self._task(position) for position in range(step * size, (step + 1) * size)]

    def distinct(self, size: int) -> list[T]:
        """Up to ``size`` different tasks with the kinds in their shares, for an evaluation: fewer
        where a kind runs out first."""
        return list({task.id: task for task in self.batch(0, size)}.values())

    def _task(self, position: int) -> T:
        rounds, slot = divmod(position, len(self._pattern))
        kind = self._pattern[slot]
        nth = rounds * self._pattern.count(kind) + self._pattern[:slot].count(kind)
        epoch, index = divmod(nth, len(self._tasks[kind]))
        return self._tasks[kind][self._order(kind, epoch)[index]]

    def _permutation(self, kind: str, epoch: int) -> list[int]:
        order = list(range(len(self._tasks[kind])))
        random.Random(f"{self._seed}/{kind}/{epoch}").shuffle(order)
        return order


def tasks_by_kind(tasks: Sequence[T]) -> dict[str, tuple[T, ...]]:
    """Tasks by kind: the kinds of problems in their usual order, then others as they come."""
    kinds = dict.fromkeys((*KINDS, *(task.kind for task in tasks)))
    by_kind = {kind: tuple(task for task in tasks if task.kind == kind) for kind in kinds}
    return {kind: found for kind, found in by_kind.items() if found}


def tasks_hash(tasks: Sequence[Task]) -> str:
    """Return a hash of the tasks in their order: ids, kinds, questions and references."""
    digest = hashlib.sha256()
    for task in tasks:
        row = (task.id, task.kind, task.problem, task.reference)
        digest.update(f"{row}\n".encode(errors="replace"))
    return digest.hexdigest()


def _pattern(weights: Mapping[str, float]) -> tuple[str, ...]:
    """One period of the sequence of kinds, in the proportions of the weights."""
    if len(set(weights.values())) == 1:
        slots = dict.fromkeys(weights, 1)
    else:
        slots = apportion(_SLOTS, weights, dict.fromkeys(weights, _SLOTS))
    divisor = math.gcd(*slots.values())
    return tuple(_spread([kind for kind, n in slots.items() for _ in range(n // divisor)], str))


def interleave(tasks: Sequence[T]) -> list[T]:
    """The tasks reordered so that every prefix has about the kinds' shares of the whole; the order
    within a kind stays."""
    return _spread(tasks, lambda task: task.kind)


def _spread(items: Sequence[Item], kind_of: Callable[[Item], str]) -> list[Item]:
    """Each kind spread evenly: the i-th of its n items at (i + 1/2) / n."""
    totals = Counter(kind_of(item) for item in items)
    met: Counter[str] = Counter()
    places: list[tuple[float, str, Item]] = []
    for item in items:
        kind = kind_of(item)
        places.append(((2 * met[kind] + 1) / (2 * totals[kind]), kind, item))
        met[kind] += 1
    return [item for *_, item in sorted(places, key=lambda place: place[:2])]


def apportion(
    total: int, weights: Mapping[Name, float], capacity: Mapping[Name, int]
) -> dict[Name, int]:
    """Split ``total`` in the proportions of ``weights``, none above its capacity.

    The excess of a name goes to the others in their proportions; the sum is ``total``, or the whole
    capacity. Fractions are rounded by largest remainder (Hamilton), ties by the given order.
    """
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    result = dict.fromkeys(weights, 0)
    names = [name for name in weights if exact[name] > 0 and capacity[name] > 0]
    left = total
    while names:
        scale = left / sum(exact[name] for name in names)
        full = [name for name in names if exact[name] * scale >= capacity[name]]
        if not full:
            break
        for name in full:
            result[name] = capacity[name]
            left -= capacity[name]
        names = [name for name in names if name not in full]
    else:
        return result
    quotas = {name: exact[name] * scale for name in names}
    result |= {name: math.floor(quota) for name, quota in quotas.items()}
    remainder = left - sum(result[name] for name in names)
    for name in sorted(names, key=lambda name: result[name] - quotas[name])[:remainder]:
        result[name] += 1
    return result
