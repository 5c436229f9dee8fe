"""The retry policy on its own: what counts as an attempt, what is waited for, when a call ends."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import pytest

from flowright.llm.balance import Balance, Lease, Window
from flowright.llm.counters import Counters, RoleCounts, outages
from flowright.llm.retries import (
    LONGEST_PAUSE,
    RetriedCall,
    Retries,
    RetryPolicy,
    backoff,
)
from flowright.llm.transport import RequestError

QUICK = RetryPolicy(attempts=3, first_pause=0.001)


def retries(*urls: str, keys: tuple[str, ...] = ("k",), concurrency: int = 8) -> Retries:
    servers = {url: Window(concurrency) for url in urls or ("http://one",)}
    return Retries(Balance(servers, keys), in_time=60.0)


def call(policy: RetryPolicy = QUICK) -> RetriedCall:
    return RetriedCall(policy, b"body", RoleCounts())


def failing(*errors: RequestError) -> Callable[[Lease], Awaitable[str]]:
    """An attempt that raises these in turn, and then returns the server's URL."""
    left = iter(errors)

    async def attempt(lease: Lease) -> str:
        for error in left:
            raise error
        return lease.server.url

    return attempt


def many(kind: str, count: int = 99) -> Iterable[RequestError]:
    return (RequestError(kind, kind) for _ in range(count))


def test_pauses_double_and_are_the_same_in_every_run():
    pauses = [backoff(b"body", attempts, 0.5) for attempts in range(1, 12)]
    assert pauses == [backoff(b"body", attempts, 0.5) for attempts in range(1, 12)]
    for attempts, pause in enumerate(pauses, start=1):
        full = min(0.5 * 2 ** (attempts - 1), LONGEST_PAUSE)
        assert full / 2 <= pause < full
    assert len({backoff(str(n).encode(), 1, 0.5) for n in range(50)}) == 50


async def test_a_call_ends_with_its_last_error() -> None:
    asked = call()
    with pytest.raises(RequestError, match="http_500"):
        await retries().run(asked, failing(*many("http_500")))
    assert asked.attempts == asked.counted == 3
    assert asked.failures == {"http_500": 3}


async def test_a_server_that_says_that_it_has_no_room_is_not_away() -> None:
    away: list[int] = []
    counters = Counters(["http://one"])

    async def attempt(lease: Lease) -> str:
        away.append(len(outages([counters])))
        kinds = ("http_500", "http_429")
        if len(away) <= len(kinds):
            error = RequestError(kinds[len(away) - 1], "")
            error.blames_server = error.kind == "http_500"
            raise error
        return "served"

    asked = RetriedCall(QUICK, b"body", counters.role("judge"))
    assert await retries().run(asked, attempt) == "served"
    assert away == [0, 1, 0]


async def test_a_final_error_is_not_repeated() -> None:
    asked = call()
    with pytest.raises(RequestError, match="no such model"):
        await retries().run(asked, failing(RequestError("http_404", "no such model", final=True)))
    assert asked.attempts == 1


async def test_a_server_that_is_away_is_waited_for_without_counting() -> None:
    policy = replace(QUICK, attempts=1, away=frozenset({"unreachable"}), away_seconds=60.0)
    asked = call(policy)
    found = await retries().run(asked, failing(*many("unreachable", 5)))
    assert found == "http://one"
    assert (asked.attempts, asked.uncounted) == (6, 5)
    with pytest.raises(RequestError, match="http_500"):
        await retries().run(call(policy), failing(*many("http_500", 1)))


@pytest.mark.parametrize(("ends", "attempts"), [(True, 1), (False, 3)])
async def test_after_the_wait_a_call_ends_or_its_attempts_count(ends: bool, attempts: int) -> None:
    asked = call(replace(QUICK, away=frozenset({"unreachable"}), ends_away=ends))
    with pytest.raises(RequestError):
        await retries().run(asked, failing(*many("unreachable")))
    assert asked.attempts == attempts


async def test_without_a_deadline_a_servers_wish_is_cut_to_the_longest_pause() -> None:
    asked = call(replace(QUICK, longest_pause=0.01))
    busy = RequestError("http_429", "slow down", retry_after=3600.0)
    assert await retries().run(asked, failing(busy)) == "http://one"
    assert 0.01 <= asked.spent < 60


async def test_a_wish_beyond_the_deadline_ends_the_call_at_once() -> None:
    busy = RequestError("http_429", "slow down", retry_after=3600.0)
    with pytest.raises(RequestError) as caught:
        await retries().run(call(replace(QUICK, deadline=60.0)), failing(busy))
    assert caught.value.message == "slow down; the server asks to wait 3.6e+03 s"


async def test_the_first_retry_goes_elsewhere_at_once_and_the_next_one_pauses() -> None:
    it, asked = retries("http://one", "http://two"), call(replace(QUICK, first_pause=3600.0))
    assert await it.run(asked, failing(*many("http_500", 1))) == "http://two"
    asked = call(replace(QUICK, first_pause=3600.0, deadline=1.0))
    with pytest.raises(RequestError):
        await it.run(asked, failing(*many("http_500", 2)))
    assert (asked.attempts, asked.failovers) == (2, 1)


async def test_the_wait_for_a_slot_is_counted_but_not_spent() -> None:
    it = retries(concurrency=1)
    counts = RoleCounts()

    async def attempt(lease: Lease) -> float:
        await asyncio.sleep(0.02)
        return 0.0

    calls = [RetriedCall(QUICK, b"body", counts) for _ in range(4)]
    await asyncio.gather(*(it.run(one, attempt) for one in calls))
    assert counts["wait_seconds"] >= 0.02 + 0.04 + 0.06 - 0.01
    assert (counts["calls"], counts["attempts"]) == (4, 4)


@pytest.mark.parametrize(
    ("error", "keys", "halved"),
    [
        (RequestError("http_429", ""), 1, True),
        (RequestError("http_429", ""), 2, False),
        (RequestError("http_503", ""), 1, True),
        (RequestError("timeout", ""), 1, True),
        (RequestError("timeout", "", blames_server=False), 1, False),
        (RequestError("http_500", ""), 1, False),
    ],
)
async def test_an_overloaded_server_gets_half_and_no_other_failure_counts_as_overload(
    error: RequestError, keys: int, halved: bool
) -> None:
    it, started = retries(keys=("k", "l")[:keys]), itertools.count(1)

    async def attempt(lease: Lease) -> None:
        if next(started) == 8:
            raise error
        await asyncio.sleep(0.05)

    one = replace(QUICK, attempts=1)
    await asyncio.gather(*(it.run(call(one), attempt) for _ in range(8)), return_exceptions=True)
    (server,) = it.balance.servers
    assert server.window.width >= 4 and (server.window.width < 8) == halved


@pytest.mark.parametrize(("at_once", "in_time", "grows"), [(16, 60, 1), (9, 60, 0), (16, 0, 0)])
async def test_a_window_grows_while_it_is_full_and_replies_come_in_time(
    at_once: int, in_time: float, grows: bool
) -> None:
    window = Window(64)
    it = Retries(Balance({"http://one": window}, ("k",)), in_time)

    async def attempt(lease: Lease) -> None:
        await asyncio.sleep(0.01)

    await asyncio.gather(*(it.run(call(), attempt) for _ in range(at_once)))
    assert (window.width > 16) == grows


async def test_a_cancelled_attempt_gives_back_its_slot_and_its_server() -> None:
    it = retries(concurrency=1)
    began = asyncio.Event()

    async def endless(lease: Lease) -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(it.run(call(), endless))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (server,) = it.balance.servers
    assert (server.window.outstanding, server.failures) == (0, 0)
    assert await it.run(call(), failing()) == "http://one"
