"""Whose turn it is: how many executions go on at once, in the order in which they came.

Knows nothing of what an execution is.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Turns:
    """At most ``width`` turns at once; none beside one that is taken alone, and no new ones while
    somebody asks for quiet. ``taken`` are under way. For one event loop."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.taken = 0
        self._quiet = 0
        self._alone = False
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    async def take(self, alone: bool = False) -> None:
        """Wait for a turn; ``alone``: one without others. Give it back by :meth:`end`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, alone)
        self._waiting.append(entry)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end()
            else:
                with suppress(ValueError):
                    self._waiting.remove(entry)
                self._admit()
            raise

    def end(self) -> None:
        self.taken -= 1
        self._alone = False
        self._admit()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No new turn begins; those under way go on."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1
            self._admit()

    def _admit(self) -> None:
        while self._waiting and not (self._quiet or self._alone):
            turn, alone = self._waiting[0]
            if self.taken >= (1 if alone else self._width):
                return
            self._waiting.popleft()
            if not turn.cancelled():
                self.taken += 1
                self._alone = alone
                turn.set_result(None)
