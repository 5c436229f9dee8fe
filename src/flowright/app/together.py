"""Requests that wait together are computed together: single questions in, batches out. What is
computed is the caller's, in a thread beside the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from flowright.core.errors import FailureError, UserError, boundary
from flowright.policy.model_thread import on_model_thread

Q = TypeVar("Q")
A = TypeVar("A")

GATHER = 0.005
"""Seconds that the first of a batch waits for others, where nothing is being computed."""


class Together(Generic[Q, A]):
    """``compute`` gives the answers to at most ``most`` questions, in their order; it is called
    from one thread at a time. Meanwhile the next questions gather. A batch that fails is computed
    one by one, so that nobody fails for a neighbour; a question that fails by itself raises
    FailureError.
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
                live = [one for one in batch if not one[1].done()]  # who hung up is not computed
                if live and not await self._settled(live):
                    for one in live:
                        await self._settled([one])
        finally:
            self._working = None

    async def _settled(self, batch: Sequence[tuple[Q, "asyncio.Future[A]"]]) -> bool:
        """Whether all of the batch have their answers; a single one has at least its failure."""
        self.batches += 1
        answers: Sequence[A] = ()
        try:
            with boundary("judge") as attribution:
                answers = await on_model_thread(self._compute, [asked for asked, _ in batch])
        except UserError as error:  # what a boundary lets through: nobody is left waiting
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
