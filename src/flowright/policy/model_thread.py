"""The one thread on which models compute, beside the event loop, and batches of requests to it.

On a CPU each thread allocates tensors from an arena of its own, which keeps freed memory (glibc's
malloc; figures in docs/lab_notebook.md): a second thread would double the memory of an update or of
a batch of samples. asyncio's executor has several threads, and gives work to any of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from flowright.core.errors import FailureError, UserError, boundary

P = ParamSpec("P")
R = TypeVar("R")

_thread = ThreadPoolExecutor(1, "model")


async def on_model_thread(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Return the result of ``work``, run after all earlier work. It must not wait for more such
    work. A cancelled caller does not wait for running work."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, partial(work, *args, **named))


Q = TypeVar("Q")
A = TypeVar("A")

GATHER = 0.005
"""Seconds that the first request of a batch waits for others, unless a batch is being computed."""


class RequestBatcher(Generic[Q, A]):
    """Computes requests in batches of at most ``most``, one batch at a time.

    ``compute`` returns the results in the order of the requests. A batch that fails is computed one
    by one; a request that fails by itself raises FailureError.
    """

    def __init__(self, compute: Callable[[Sequence[Q]], Sequence[A]], most: int) -> None:
        self._compute = compute
        self._most = most
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._working: asyncio.Task[None] | None = None
        self.batches = 0

    async def ask(self, question: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
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

    async def _settled(self, batch: Sequence[tuple[Q, "asyncio.Future[A]"]]) -> bool:
        """Compute a batch; return False if it failed. A single request gets its failure."""
        self.batches += 1
        answers: Sequence[A] = ()
        try:
            with boundary("judge") as attribution:
                answers = await on_model_thread(self._compute, [request for request, _ in batch])
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
