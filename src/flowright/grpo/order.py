"""Groups that a step takes as they end: which, and a record of them.

A group is sampled one step ahead and may wait until it is as stale as ``pipeline.max_staleness``
allows. So a slow group holds no other, and a step waits for it only when it is due.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowright.core.journal import Journal, read_journal

FILE = "order.jsonl"

GroupPlace = tuple[int, int]
"""The number of a group's batch, and its place there."""


class Order:
    """The groups of each step in a run directory, so that a resumed run takes the same ones."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        records = read_journal(self._path).records
        self._steps = {r["step"]: {(n, place) for n, place in r["groups"]} for _, r in records}

    def recorded(self, step: int) -> set[GroupPlace]:
        """Return the groups that the step took before the run was interrupted; empty if none."""
        return self._steps.get(step, set())

    def keep(self, step: int, places: Sequence[GroupPlace]) -> None:
        """Record the groups of a step. Raises RunError (a full disk)."""
        if self.recorded(step) != set(places):
            with Journal(self._path) as journal:
                journal.append({"step": step, "groups": sorted(places)})


async def first_ended(
    running: Sequence[asyncio.Task[Any]], due: Sequence[int], step: int, size: int
) -> list[int]:
    """Return the numbers of the ``size`` groups that end first, of those whose absence leaves all
    others time: ``due`` is the last step that may take each, and each step takes ``size``."""
    left, ended = set(range(len(running))), list[int]()
    while len(running) - len(left) < size:
        now = size - (len(running) - len(left)) - 1
        free = [n for n in ended if can_wait([due[m] for m in left - {n}], step, now, size)]
        if free:
            left.remove(free[0])
            ended.remove(free[0])
            continue
        numbers = {running[n]: n for n in left.difference(ended)}
        done, _ = await asyncio.wait(numbers, return_when=asyncio.FIRST_COMPLETED)
        ended += sorted(numbers[task] for task in done)
    return sorted(set(range(len(running))) - left)


def can_wait(due: Sequence[int], step: int, now: int, size: int) -> bool:
    """Return whether groups can all be taken by the steps at which they are ``due``: ``now`` of
    them at this step, and ``size`` at each later one."""
    return all(n < now + size * (last - step) for n, last in enumerate(sorted(due)))
