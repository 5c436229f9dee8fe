"""Work on a model's text: short texts on the event loop, long ones in a thread; calls of a user's
functions.

Such work is linear in the text (benchmarks/hostile_text.py), so its length bounds its time. A
thread still shares the interpreter's lock; it keeps one text from delaying all other replies,
deadlines and health checks, and makes nothing faster.
"""

import asyncio
import inspect
from asyncio import AbstractEventLoop, Semaphore
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar
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


async def call_user_function(
    method: Callable[..., Any], threads: Callable[[], Executor], *arguments: Any
) -> Any:
    """Call a user's function: a coroutine function on the loop, a plain one on a thread, where it
    may block."""
    if inspect.iscoroutinefunction(method):
        return await method(*arguments)
    loop = asyncio.get_running_loop()
    value = await loop.run_in_executor(threads(), method, *arguments)
    return await value if inspect.isawaitable(value) else value


def plain_numbers(value: Any) -> Any:
    """Convert numbers of numerical libraries, which have ``item``, in what a user's function
    returned."""
    if isinstance(value, Mapping):
        return {name: plain_numbers(each) for name, each in value.items()}
    return value.item() if hasattr(value, "item") else value
