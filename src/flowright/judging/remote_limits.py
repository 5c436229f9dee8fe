"""Limits of a judge service: those announced by /health, and those learned from its refusals."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from flowright.config.judge import JudgeServiceSection
from flowright.judging.payloads import OVERHEAD, SEPARATOR, ServiceLimits, read_limits
from flowright.llm.balance import Window
from flowright.llm.retries import RetriedCall
from flowright.llm.transport import Connection, RequestError

_LIMITS_SECONDS = 3.0  # for /health, before the first question
_MOST_BYTES = 1 << 20  # of a batch, if the service announces no limit: that of many proxies
_FEW_BYTES = 1 << 16  # a smaller body that is refused as too large has too many questions
_FIRST_BATCHES = 4  # at a time, if the service announces no limit

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
        self.window = Window(most, first, section.max_concurrent_requests)
        self.most = section.max_batch_size
        self._most_bytes = _MOST_BYTES
        self._limits: asyncio.Task[ServiceLimits | None] | None = None

    async def aclose(self) -> None:
        if self._limits is not None:
            self._limits.cancel()
            await asyncio.gather(self._limits, return_exceptions=True)

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
