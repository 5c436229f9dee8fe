"""The ranks of a run in one event loop, which exchange what real ones send over gloo."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from flowright.grpo.ranks import Ranks


@dataclass(frozen=True, slots=True)
class LoopRanks(Ranks):
    """``items``: by rank, of the exchange in progress."""

    items: list[Any] = field(default_factory=list)
    all_here: Any = None

    async def all_gather(self, item: Any) -> list[Any]:
        self.items[self.rank] = item
        await self.all_here.wait()
        found = [*self.items]
        await self.all_here.wait()
        return found


def loop_ranks(size: int) -> list[LoopRanks]:
    items, barrier = [None] * size, asyncio.Barrier(size)
    return [LoopRanks(rank, size, None, None, items, barrier) for rank in range(size)]
