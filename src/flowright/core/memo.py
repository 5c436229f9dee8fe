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
    task: "asyncio.Future[Answer]"
    waiting: int = 0


class Memo(Generic[Answer]):
    """Results by key, the latest ``capacity`` of them. A failure is not kept: the next caller tries
    again. Work that no caller waits for any more is cancelled."""

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

    def answers(self) -> list[tuple[Hashable, Answer]]:
        """Finished results with their keys, the latest used one last."""
        done = [(q, e.task) for q, e in self._entries.items() if e.task.done()]
        return [(q, t.result()) for q, t in done if not t.cancelled() and t.exception() is None]

    def put(self, question: Hashable, answer: Answer) -> None:
        """Store a result as if it had just been computed."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        future.set_result(answer)
        self._entries.pop(question, None)
        self._entries[question] = _Entry(future)
        if len(self._entries) > self._capacity:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = next((q for q, entry in self._entries.items() if entry.task.done()), None)
        if oldest is not None:
            del self._entries[oldest]
