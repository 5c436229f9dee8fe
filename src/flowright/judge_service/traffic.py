"""How much the judge service takes on at once, and how it stops. Counts and tasks; no HTTP.

Nothing waits without a bound: what does not fit into the slots and the queue is refused at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

Slot = Callable[[], AbstractAsyncContextManager[None]]

_PACE_WEIGHT = 0.05  # of the latest verdict in the moving mean
_LAST_WORDS_SECONDS = 1.0  # for what is cancelled at the end of a drain


class Overloaded(Exception):
    """Neither a slot nor room in the queue is left."""


class Admission:
    """Slots for ``max_in_flight`` verdicts and a first-come queue of ``max_queue``.

    ``pace`` is how long a slot was held lately, in seconds (a moving mean); 0 at first.
    """

    def __init__(self, max_in_flight: int, max_queue: int) -> None:
        self._slots = asyncio.Semaphore(max_in_flight)
        self._room = max_in_flight + max_queue
        self._slot_count = max_in_flight
        self._held = 0
        self._running = 0
        self.pace = 0.0

    @property
    def running(self) -> int:
        return self._running

    @property
    def queued(self) -> int:
        return self._held - self._running

    @property
    def seconds_to_room(self) -> float:
        """About how long until half of the queue has been let in."""
        return self.pace * max(1.0, self.queued / 2 / self._slot_count)

    @contextmanager
    def admit(self, count: int) -> Iterator[Slot]:
        """Hold room for ``count`` verdicts. Each waits for a slot and holds it by what is yielded,
        and gives its room back when it ends. Raises Overloaded where there is not enough."""
        if self._held + count > self._room:
            raise Overloaded
        self._held += count
        left = count

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            nonlocal left
            async with self._slots:
                left -= 1
                self._running += 1
                began = time.monotonic()
                try:
                    yield
                finally:
                    took = time.monotonic() - began
                    self.pace += (took - self.pace) * (_PACE_WEIGHT if self.pace else 1.0)
                    self._running -= 1
                    self._held -= 1

        try:
            yield slot
        finally:
            self._held -= left  # of verdicts that were cancelled before they began


class Traffic:
    """The requests that are being answered. ``drain`` lets them finish and lets no more in."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = False
        self._running: set[asyncio.Task[None]] = set()

    def add(self, task: "asyncio.Task[None]") -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self, seconds: float) -> int:
        """Wait for the running requests, ``seconds`` at most; then cancel them. Returns how many
        had to be cancelled."""
        self.draining = True
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        self.expired = True
        left = list(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_LAST_WORDS_SECONDS)
        return len(left)
