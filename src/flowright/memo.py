"""Work done once for equal questions, those that are asked at the same time included.

Knows nothing of what the work is.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Entry(Generic[Answer]):
    task: "asyncio.Task[Answer]"
    waiting: int = 0


class Memo(Generic[Answer]):
    """The answers to the latest ``capacity`` questions. A failure is not kept: the next who asks
    tries again. Work that nobody waits for any more is cancelled."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: dict[Hashable, _Entry[Answer]] = {}  # the one asked for last at the end

    async def get(
        self, question: Hashable, work: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> Answer:
        entry = self._entries.pop(question, None)
        if entry is None:
            entry = _Entry(asyncio.create_task(work()))
        self._entries[question] = entry
        if len(self._entries) > self._capacity:
            self._forget_oldest()
        entry.waiting += 1
        try:
            return await asyncio.shield(entry.task)
        except BaseException:
            if self._entries.get(question) is entry and (entry.task.done() or entry.waiting == 1):
                del self._entries[question]
            if entry.waiting == 1:
                entry.task.cancel()
            raise
        finally:
            entry.waiting -= 1

    def _forget_oldest(self) -> None:
        oldest = next((q for q, entry in self._entries.items() if entry.task.done()), None)
        if oldest is not None:
            del self._entries[oldest]
