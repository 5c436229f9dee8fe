"""A window of requests in flight that adapts to the server.

Additive increase, multiplicative decrease (Chiu and Jain 1989, "Analysis of the increase and
decrease algorithms for congestion avoidance", section 3), with TCP's slow start before the first
refusal (RFC 5681, section 3.1): callers that share a server this way converge to equal shares.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from flowright.llm.retries import Call
from flowright.llm.transport import RequestError

# Seconds after a refusal that names none: about as long as a request takes, which makes room.
FIRST_PAUSE = 0.05  # while that is not known; doubles as long as nobody is served
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 5.0


@dataclass(eq=False)
class Window:
    """Slots (:class:`flowright.llm.retries.Slots`) whose number changes, for one event loop.

    At most ``requests`` calls are on the wire, and of their weights ``width``, which is at most
    ``ceiling``. A call that is heavier than the width is granted less than its weight. Whoever has
    the lowest ``order`` goes first. After the first refusal a round of answers adds ``step``, and
    1 in the last step before the width that was refused.
    """

    requests: int
    width: float
    ceiling: float
    step: float = 4.0
    clock: Callable[[], float] = time.monotonic
    held: int = field(default=0, init=False)
    answered_at: float = field(default=float("-inf"), init=False)
    _on_wire: int = field(default=0, init=False)
    _waiting: list[tuple[int, int, int, "asyncio.Future[int]"]] = field(
        default_factory=list, init=False
    )
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count, init=False)
    _cut_at: float = field(default=float("-inf"), init=False)
    _closed_until: float = field(default=float("-inf"), init=False)
    _opening: asyncio.TimerHandle | None = field(default=None, init=False)
    _refused_at: float = field(default=float("inf"), init=False)
    _pace: float = field(default=FIRST_PAUSE, init=False)
    _refusals: int = field(default=0, init=False)  # in a row

    def set_limits(self, width: float, ceiling: float) -> None:
        """Take over the limits that the server announces."""
        self.ceiling = ceiling
        if self._cut_at == float("-inf"):
            self.width = min(width, ceiling)

    @asynccontextmanager
    async def hold(self, call: Call) -> AsyncIterator[None]:
        turn = asyncio.get_running_loop().create_future()
        entry = (call.order, next(self._numbers), call.weight, turn)
        heapq.heappush(self._waiting, entry)
        self._let_in()
        try:
            call.granted = await turn
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(turn.result())  # it was let in and cancelled in the same moment
            raise
        try:
            yield
        finally:
            self._leave(call.granted)

    def answered(self, weight: int, seconds: float, grows: bool = True) -> None:
        """Count a served call of this weight and latency; the width ``grows`` unless that was too
        slow."""
        self.answered_at = self.clock()
        self._refusals = 0
        self._pace += (seconds - self._pace) / 4
        if not grows:
            return
        if self.width >= self._refused_at:
            self._refused_at = float("inf")  # it takes more by now
        is_slow_start = self._cut_at == float("-inf")
        is_near = self.width + self.step >= self._refused_at
        added = weight if is_slow_start else (1 if is_near else self.step) * weight / self.width
        self.width = min(self.ceiling, self.width + added)

    def congested(self, began: float) -> None:
        """Halve the width for a call, sent at ``began``, that an overloaded server did not serve.
        Calls that were in flight together count once."""
        if began < self._cut_at:
            return
        self._refused_at = min(self.width, self.held)
        self.width = max(1.0, self._refused_at / 2)
        self._cut_at = self.clock()

    def refused(self, began: float, seconds: float | None) -> float:
        """As :meth:`congested`, for a server that asks to wait; no call starts meanwhile. Returns
        the seconds of the pause."""
        self._refusals += began >= self._cut_at  # calls in flight together count once
        self.congested(began)
        if not seconds:
            seconds = max(self._pace, SHORTEST_PAUSE) * 2.0 ** min(self._refusals - 1, 20)
            seconds = min(seconds, LONGEST_PAUSE)
        self._closed_until = max(self._closed_until, self.clock() + seconds)
        return seconds

    def give_up(self, error: RequestError) -> None:
        """Fail all waiting calls with the error."""
        waiting, self._waiting = self._waiting, []
        for *_, turn in waiting:
            if not turn.done():
                turn.set_exception(replace(error, final=True))

    def close(self) -> None:
        """Cancel the pending timer."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _leave(self, weight: int) -> None:
        self.held -= weight
        self._on_wire -= 1
        self._let_in()

    def _let_in(self) -> None:
        closed = self._closed_until - self.clock()
        if self._waiting and closed > 0:
            if self._opening is None:
                loop = asyncio.get_running_loop()
                self._opening = loop.call_later(closed, self._open)
            return
        while self._waiting and self._on_wire < self.requests:
            _, _, weight, turn = self._waiting[0]
            granted = min(weight, max(1, int(self.width)))
            if self.held and self.held + granted > self.width:
                return
            heapq.heappop(self._waiting)
            if not turn.done():
                self.held += granted
                self._on_wire += 1
                turn.set_result(granted)

    def _open(self) -> None:
        self._opening = None
        self._let_in()
