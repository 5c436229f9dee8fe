"""Many calls at once: of a server, bounded, resumed, and stopped when it is down; of a model, in
batches; and one call for equal questions, those that are asked at the same time included."""

import asyncio
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from flowright.core.errors import FailureError, UserError, boundary

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

Outcome = Literal["reached", "down", "neutral"]
"""The server replied, even if the reply is of no use; failed to (timeout, unavailable); or was not
needed, or refused what the text asked for: such a result neither adds to a row of failures nor ends
it."""

PATIENCE = 20
"""Failures in a row after which a server counts as down."""

_REMEDY = "start its server, or check its address; the same command continues"


class ServerDown(UserError):
    """A server is down before or during calls. ``results`` holds all results by key, those of
    failed calls included; ``not_asked`` counts the items without any."""

    exit_code = 1

    def __init__(
        self,
        *problems: str,
        results: Mapping[Any, Any] | None = None,
        answered: int = 0,
        failed: int = 0,
        not_asked: int = 0,
    ) -> None:
        super().__init__(*problems)
        self.results = results or {}
        self.answered = answered
        self.failed = failed
        self.not_asked = not_asked


async def call_all(
    items: Iterable[tuple[K, T]],
    call: Callable[[T], Awaitable[R]],
    *,
    concurrency: int,
    outcome: Callable[[R], Outcome],
    why: Callable[[R], str],
    kept: Mapping[K, R] | None = None,
    keep: Callable[[K, R], None] = lambda key, result: None,
    progress: Callable[[], None] = lambda: None,
    name: str = "the server",
    remedy: str = _REMEDY,
    patience: int = PATIENCE,
) -> dict[K, R]:
    """Return the results by key, in the order of ``items``, whose keys differ.

    ``call`` returns a result for a failure, too; ``outcome`` classifies it and ``why`` describes a
    failure. Items in ``kept`` are not called. ``keep`` gets every other result at once, before
    anything can be cancelled, and chooses which of them a later call need not repeat; ``progress``
    is called after it. ``items`` is read as calls begin, so that a large file can be streamed.

    Raises ServerDown after ``patience`` failures in a row, however many calls succeeded before, or
    if every item failed and there are fewer: at most ``patience + concurrency`` calls are made of a
    dead server. Calls under way are cancelled. Any other exception of ``call`` or ``keep`` stops
    the calls and is raised as it is.
    """
    kept = {} if kept is None else kept
    results: dict[K, R] = {}
    order: list[K] = []
    failures: list[R] = []  # of the current row
    failed = 0

    def left() -> Iterator[tuple[K, T]]:
        for key, item in items:
            order.append(key)
            if key in kept:
                results[key] = kept[key]
            else:
                yield key, item

    waiting = left()

    def down() -> ServerDown:
        cancelled = sum(key not in results for key in order)
        not_asked = cancelled + sum(1 for _ in waiting)
        found = {key: results[key] for key in order if key in results}
        (reason, _), *_ = Counter(map(why, failures)).most_common(1)
        answered = len(found) - failed
        counts = f"{answered:,} answered, {failed:,} failed, {not_asked:,} not asked"
        return ServerDown(
            f"{name} is down: {len(failures)} calls in a row failed ({reason[:300]})",
            f"{counts}; {remedy}",
            results=found,
            answered=answered,
            failed=failed,
            not_asked=not_asked,
        )

    async def work() -> None:
        nonlocal failed
        for key, item in waiting:
            result = await call(item)
            results[key] = result
            keep(key, result)
            progress()
            verdict = outcome(result)
            if verdict == "down":
                failed += 1
                failures.append(result)
            if len(failures) >= patience:  # also for workers that come after the one that stopped
                raise _Stopped
            if verdict == "reached":
                failures.clear()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as several:
        others = [error for error in several.exceptions if not isinstance(error, _Stopped)]
        raise (others[0] if others else down()) from None
    if failed and failed == len(order):
        raise down()
    return {key: results[key] for key in order}


class _Stopped(Exception):
    """Ends the workers of a batch."""


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run work concurrently and return its results; the first UserError ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* UserError as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


GATHER = 0.005
"""Seconds that the first request of a batch waits for others, unless a batch is being computed."""


class RequestBatcher(Generic[T, R]):
    """Computes requests in batches of at most ``most``, one batch at a time.

    ``compute`` returns the results in the order of the requests. A batch that fails is computed one
    by one; a request that fails by itself raises FailureError.
    """

    def __init__(self, compute: Callable[[Sequence[T]], Awaitable[Sequence[R]]], most: int) -> None:
        self._compute = compute
        self._most = most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._working: asyncio.Task[None] | None = None
        self.batches = 0

    async def ask(self, question: T) -> R:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        try:
            await asyncio.sleep(GATHER)
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                live = [one for one in batch if not one[1].done()]  # without cancelled requests
                if live and not await self._settled(live):
                    for one in live:
                        await self._settled([one])
        finally:
            self._working = None

    async def _settled(self, batch: Sequence[tuple[T, "asyncio.Future[R]"]]) -> bool:
        """Compute a batch; return False if it failed. A single request gets its failure."""
        self.batches += 1
        answers: Sequence[R] = ()
        try:
            with boundary("judge") as attribution:
                answers = await self._compute([request for request, _ in batch])
                if len(answers) != len(batch):
                    raise ValueError(f"{len(answers)} results of {len(batch)} requests")
        except UserError as error:  # a boundary lets it through
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return True
        failure = attribution.failure
        if failure is None:
            for (_, answer), found in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)
        elif len(batch) == 1 and not batch[0][1].done():
            batch[0][1].set_exception(FailureError(failure.reason, failure.message))
        return failure is None


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
