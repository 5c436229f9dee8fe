"""Limits of a judge service: those announced by /health, and those learned from its refusals.

The window is additive increase, multiplicative decrease (Chiu and Jain 1989, "Analysis of the
increase and decrease algorithms for congestion avoidance", section 3), with TCP's slow start before
the first refusal (RFC 5681, section 3.1): clients of one server converge to equal shares.
"""

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from flowright.config.judge import JudgeServiceSection
from flowright.judging.payloads import OVERHEAD, SEPARATOR, ServiceLimits, read_limits
from flowright.llm.retries import RetriedCall
from flowright.llm.transport import Connection, RequestError

_LIMITS_SECONDS = 3.0  # for /health, before the first question
_MOST_BYTES = 1 << 20  # of a batch, if the service announces no limit: that of many proxies
_FEW_BYTES = 1 << 16  # a smaller body that is refused as too large has too many questions
_FIRST_BATCHES = 4  # at a time, if the service announces no limit

# Seconds of a pause after a refusal that names none, about the time of a request.
FIRST_PAUSE = 0.05  # before that is known; doubles until a request is served
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 5.0

_log = logging.getLogger("JudgeReward")


class _HasBody(Protocol):
    @property
    def body(self) -> bytes: ...


Sized = TypeVar("Sized", bound=_HasBody)


class Reach:
    """Size of batches (``most`` questions), and the ``window`` of questions in flight, at one
    service."""

    def __init__(
        self, section: JudgeServiceSection, connection: Connection, key: str, name: str
    ) -> None:
        self._section = section
        self._connection = connection
        self._key = key
        self._name = name
        most = section.max_concurrent_requests * section.max_batch_size
        first = min(most, _FIRST_BATCHES * section.max_batch_size)
        self.window = AdaptiveSlots(section.max_concurrent_requests, first, most)
        self.most = section.max_batch_size
        self._most_bytes = _MOST_BYTES
        self._limits: asyncio.Task[ServiceLimits | None] | None = None

    async def aclose(self) -> None:
        if self._limits is not None:
            self._limits.cancel()
            await asyncio.gather(self._limits, return_exceptions=True)
        self.window.close()

    async def learn(self) -> None:
        """Ask the service for its limits, once; again if it was unreachable."""
        if self._limits is None:
            self._limits = asyncio.create_task(self._ask_limits())
        limits = await asyncio.shield(self._limits)
        if limits is None:
            self._limits = None

    async def _ask_limits(self) -> ServiceLimits | None:
        try:
            response = await self._connection.ask("/health", self._key, _LIMITS_SECONDS)
        except RequestError as error:
            return ServiceLimits() if error.kind == "timeout" else None
        limits = read_limits(response.content)
        _log.debug("%s announces %s", self._name, limits)
        self.obey(limits)
        return limits

    def obey(self, limits: ServiceLimits) -> None:
        section = self._section
        if limits.batch is not None:
            self.most = min(section.max_batch_size, limits.batch)
        if limits.body_bytes is not None:
            self._most_bytes = limits.body_bytes
        if limits.in_flight is not None:
            # All of its slots and as many places in its queue, so that it never waits for us; more
            # of the queue while no other client needs it.
            room = limits.in_flight + (limits.queue or 0)
            most = min(room, section.max_concurrent_requests * section.max_batch_size)
            self.window.set_limits(2 * limits.in_flight, most)

    def batches(self, waiting: Sequence[Sized]) -> Iterator[list[Sized]]:
        """Yield batches in order, none larger than the service accepts unless a single question
        is."""
        batch: list[Sized] = []
        size = OVERHEAD
        for asked in waiting:
            added = len(asked.body) + len(SEPARATOR)
            if batch and (len(batch) >= self.most or size + added > self._most_bytes):
                yield batch
                batch, size = [], OVERHEAD
            batch.append(asked)
            size += added
        if batch:
            yield batch

    def learn_from(
        self, error: RequestError, call: RetriedCall, count: int, size: int, began: float
    ) -> None:
        if error.is_overload:
            seconds = self.window.refused(began, error.retry_after)
            if not error.retry_after:  # it did not ask to wait beyond the deadline
                error.retry_after = min(seconds, max(0.0, call.left - 0.001))
        elif error.kind == "timeout":
            self.window.congested(began)
        elif error.kind == "http_413" and count > 1 and size <= _FEW_BYTES:
            self.most = min(self.most, count // 2)
        elif error.kind == "http_413" and count > 1:
            self._most_bytes = min(self._most_bytes, max(_FEW_BYTES, size // 2))


@dataclass(eq=False)
class AdaptiveSlots:
    """Slots (:class:`flowright.llm.retries.Slots`) of an adaptive number, for one event loop.

    At most ``requests`` calls are in flight, with a total weight of ``width``, which is at most
    ``ceiling``. A call heavier than the width is granted less than its weight. The lowest ``order``
    goes first. After the first refusal a round of responses adds ``step``, or 1 in the last step
    before the width that was refused.
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
    async def hold(self, call: RetriedCall) -> AsyncIterator[None]:
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
            self._refused_at = float("inf")  # the server accepts more by now
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
        """Do as :meth:`congested`, for a server that asks to wait; no call starts meanwhile.
        Returns the seconds of the pause."""
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
