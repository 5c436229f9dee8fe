"""How long a batch of attempts waits for large models: their requests put through the run's request
slots again. A queue on paper; nothing is asked.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowright.app.plan.attempts import Attempt, Request, Wave, requests_of

DRAWS = 8
"""Batches that are drawn for one figure."""


@dataclass(slots=True)
class _Running:
    """An attempt under way: its waves to come, and the chains of this one that are not done."""

    waves: Iterator[Wave]
    chains: int = 0


def replayed(attempts: Sequence[Attempt], slots: Mapping[str, int], seed: int = 0) -> float:
    """Seconds until the last of the attempts is done, when all begin at once, at most ``slots`` of
    a pool's requests are with its servers, and the others wait in the order in which they came.

    ``slots`` has a role's number; roles that share a pool (one model that answers and judges) are
    one key, joined by ``+``. Our own computing takes no time here. ``seed`` draws the order.
    """
    pool_of = {role: pool for pool in slots for role in pool.split("+")}
    free = dict(slots)
    waiting: dict[str, deque[tuple[Request, _Running, Iterator[Request]]]] = {
        pool: deque() for pool in slots
    }
    ends: list[tuple[float, int, str, _Running, Iterator[Request]]] = []
    now, begun = 0.0, 0

    def go_on(running: _Running, chain: Iterator[Request]) -> None:
        request = next(chain, None)
        if request is not None:
            waiting[pool_of[request.role]].append((request, running, chain))
            return
        running.chains -= 1
        if running.chains <= 0:
            next_wave(running)

    def next_wave(running: _Running) -> None:
        wave = next(running.waves, ())
        running.chains = len(wave)
        for chain in wave:
            go_on(running, iter(chain))

    for attempt in random.Random(seed).sample(attempts, len(attempts)):
        next_wave(_Running(iter(attempt)))
    while True:
        for pool, queue in waiting.items():
            while queue and free[pool]:
                request, running, chain = queue.popleft()
                free[pool] -= 1
                begun += 1
                heapq.heappush(ends, (now + request.seconds, begun, pool, running, chain))
        if not ends:
            return now
        now, _, pool, running, chain = heapq.heappop(ends)
        free[pool] += 1
        go_on(running, chain)


def batch_seconds(attempts: Sequence[Attempt], count: int, slots: Mapping[str, int]) -> float:
    """Mean of :func:`replayed` over DRAWS batches of ``count`` attempts like these."""
    each = [replayed(drawn(attempts, count, seed), slots, seed) for seed in range(DRAWS)]
    return sum(each) / len(each)


def busy_seconds(attempts: Sequence[Attempt], count: int, slots: Mapping[str, int]) -> float:
    """Seconds for which ``count`` attempts like these keep all slots of the busiest pool: calls x
    mean seconds / slots. No schedule is faster."""
    work = {
        pool: sum(r.seconds for role in pool.split("+") for r in requests_of(attempts, role))
        for pool in slots
    }
    return max(work[pool] * count / len(attempts) / slots[pool] for pool in slots)


def drawn(attempts: Sequence[Attempt], count: int, seed: int) -> list[Attempt]:
    """``count`` of them, with replacement."""
    return random.Random(seed).choices(attempts, k=count)
