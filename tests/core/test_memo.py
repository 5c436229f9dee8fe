"""Work that is asked for several times: done once, kept, not kept when it fails."""

import asyncio

import pytest

from flowright.core.batch_calls import Memo


class Worker:
    """Counts what it is asked to do; ``go`` lets it finish."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def work(self) -> int:
        self.calls += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return self.calls


async def asked(memo: Memo[int], worker: Worker, times: int) -> "list[asyncio.Task[int]]":
    tasks = [asyncio.create_task(memo.get("q", worker.work)) for _ in range(times)]
    await asyncio.sleep(0.01)
    return tasks


async def test_askers_at_the_same_time_share_the_work() -> None:
    memo, worker = Memo[int](4), Worker()
    tasks = await asked(memo, worker, 3)
    worker.go.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]
    assert await memo.get("q", worker.work) == 1
    assert await memo.get("other", worker.work) == 2


async def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    memo, worker = Memo[int](4), Worker()
    worker.error = OSError("lost")
    tasks = await asked(memo, worker, 2)
    worker.go.set()
    assert [type(e) for e in await asyncio.gather(*tasks, return_exceptions=True)] == [OSError] * 2
    worker.error = None
    assert await memo.get("q", worker.work) == 2


async def test_work_goes_on_while_somebody_waits_and_ends_with_the_last() -> None:
    memo, worker = Memo[int](4), Worker()
    first, second = await asked(memo, worker, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert worker.cancelled == 0
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await asyncio.sleep(0)
    assert worker.cancelled == 1
    worker.go.set()
    assert await memo.get("q", worker.work) == 2


async def test_the_oldest_answers_are_forgotten() -> None:
    memo, worker = Memo[int](2), Worker()
    worker.go.set()
    for question in ("a", "b", "a", "c"):  # asking for a again keeps it
        await memo.get(question, worker.work)
    assert worker.calls == 3
    await memo.get("a", worker.work)
    assert worker.calls == 3
    await memo.get("b", worker.work)
    assert worker.calls == 4
