"""What a judge behind HTTP takes at once: by its own word in /health, and by what it refuses.
Sends no questions.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from flowright.config.judge import JudgeServiceSection
from flowright.judging.remote_wire import OVERHEAD, SEPARATOR, Limits, read_limits
from flowright.llm.retries import Call
from flowright.llm.transport import Connection, RequestError
from flowright.llm.window import Window

_LIMITS_SECONDS = 3.0  # for /health, before the first question
_MOST_BYTES = 1 << 20  # of a batch, at a service that does not say: many proxies' limit
_FEW_BYTES = 1 << 16  # a body that is refused as too large and is no larger has too many questions
_FIRST_BATCHES = 4  # at a time, at a service that does not say how many it takes

_log = logging.getLogger("JudgeReward")


class _HasBody(Protocol):
    @property
    def body(self) -> bytes: ...


Sized = TypeVar("Sized", bound=_HasBody)


class Reach:
    """The size of batches (``most`` questions), and the ``window`` of questions on their way, at
    one service."""

    def __init__(
        self, section: JudgeServiceSection, connection: Connection, key: str, name: str
    ) -> None:
        self._section = section
        self._connection = connection
        self._key = key
        self._name = name
        most = section.max_concurrent_requests * section.max_batch_size
        first = min(most, _FIRST_BATCHES * section.max_batch_size)
        self.window = Window(section.max_concurrent_requests, first, most)
        self.most = section.max_batch_size
        self._most_bytes = _MOST_BYTES
        self._limits: asyncio.Task[Limits | None] | None = None

    async def aclose(self) -> None:
        if self._limits is not None:
            self._limits.cancel()
            await asyncio.gather(self._limits, return_exceptions=True)
        self.window.close()

    async def learn(self) -> None:
        """Ask the service once what it takes; one that cannot be reached is asked again."""
        if self._limits is None:
            self._limits = asyncio.create_task(self._ask_limits())
        limits = await asyncio.shield(self._limits)
        if limits is None:
            self._limits = None

    async def _ask_limits(self) -> Limits | None:
        try:
            response = await self._connection.ask("/health", self._key, _LIMITS_SECONDS)
        except RequestError as error:
            return Limits() if error.kind == "timeout" else None
        limits = read_limits(response.content)
        _log.debug("%s says that it takes %s", self._name, limits)
        self.obey(limits)
        return limits

    def obey(self, limits: Limits) -> None:
        section = self._section
        if limits.batch is not None:
            self.most = min(section.max_batch_size, limits.batch)
        if limits.body_bytes is not None:
            self._most_bytes = limits.body_bytes
        if limits.in_flight is not None:
            # All of its places and as many in its queue, so that it never waits for us; more of
            # the queue as long as nobody else needs it.
            room = limits.in_flight + (limits.queue or 0)
            most = min(room, section.max_concurrent_requests * section.max_batch_size)
            self.window.set_limits(2 * limits.in_flight, most)

    def batches(self, waiting: Sequence[Sized]) -> Iterator[list[Sized]]:
        """In order, none larger than the service takes, but for a question that is so by itself."""
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
        self, error: RequestError, call: Call, count: int, size: int, began: float
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
