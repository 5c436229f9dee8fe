"""Work on a model's text: short texts on the event loop, long ones in a thread.

Such work is linear in the text (benchmarks/hostile_text.py), so its length bounds its time. A
thread still shares the interpreter's lock; it keeps one text from delaying all other replies,
deadlines and health checks, and makes nothing faster.
"""

import asyncio
from asyncio import AbstractEventLoop, Semaphore
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

R = TypeVar("R")

MOST_CHARS = 800
"""Characters that every function of the benchmark processes in less than 5 ms."""

# A search through a text holds the interpreter's lock until it ends. Between two pieces of its own
# work the loop waits for those of all threads: a crowd of them would stop it, and ends no sooner.
_turns: WeakKeyDictionary[AbstractEventLoop, Semaphore] = WeakKeyDictionary()


async def off_loop(work: Callable[[], R], *texts: str) -> R:
    """Return the result of ``work`` on these texts; computed in a thread if they are long."""
    if sum(map(len, texts)) <= MOST_CHARS:
        return work()
    return await in_thread(work)


async def in_thread(work: Callable[[], R]) -> R:
    """Return the result of ``work``, computed in a thread, one at a time."""
    turn = _turns.setdefault(asyncio.get_running_loop(), Semaphore(1))
    async with turn:
        return await asyncio.to_thread(work)
