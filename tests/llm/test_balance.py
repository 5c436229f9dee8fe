"""Which server gets the next attempt, and how long one that failed is left alone."""

import asyncio
import itertools

import pytest

from flowright.llm.balance import REST_AFTER, REST_SECONDS, Balance, Window


def test_a_resting_server_gets_a_single_probe():
    now = 0.0
    balance = Balance({"a": Window(9), "b": Window(9)}, ("k",), clock=lambda: now)
    for _ in range(REST_AFTER):
        lease = balance.lease(avoid=balance.servers[1])
        assert lease.server.url == "a"
        balance.failed(lease)
    assert {balance.lease().server.url for _ in range(5)} == {"b"}
    now = REST_SECONDS + 0.1
    leases = [balance.lease() for _ in range(5)]
    probes = [lease for lease in leases if lease.server.url == "a"]
    assert len(probes) == 1
    assert probes[0].probe
    balance.succeeded(probes[0])
    assert "a" in {balance.lease().server.url for _ in range(5)}


def test_a_failed_probe_doubles_the_rest():
    now = 0.0
    balance = Balance({"a": Window(9), "b": Window(9)}, ("k",), clock=lambda: now)
    balance.failed(balance.lease(avoid=balance.servers[1]), at_once=True)
    now = REST_SECONDS + 0.1
    probe = next(lease for lease in (balance.lease() for _ in range(2)) if lease.probe)
    balance.failed(probe)
    now += REST_SECONDS + 0.1
    assert {balance.lease().server.url for _ in range(4)} == {"b"}
    now += REST_SECONDS
    assert "a" in {balance.lease().server.url for _ in range(4)}


def test_health_never_refuses_work():
    balance = Balance({"a": Window(9)}, ("k",), clock=lambda: 0.0)
    for _ in range(10):
        balance.failed(balance.lease(), at_once=True)
    assert balance.lease().server.url == "a"


async def test_the_server_that_failed_is_used_where_no_other_has_room():
    balance = Balance({"a": Window(2), "b": Window(1)}, ("k",))
    one, other = balance.servers
    held = [await balance.acquire() for _ in range(3)]
    assert balance.lease() is None
    assert (one.window.outstanding, other.window.outstanding) == (2, 1)
    avoiding = asyncio.create_task(balance.acquire(avoid=one))
    await asyncio.sleep(0)
    balance.succeeded(next(lease for lease in held if lease.server is one))
    assert (await avoiding).server is one


async def test_a_server_whose_rest_ends_is_used_while_the_other_is_stuck():
    now = 0.0
    balance = Balance({"a": Window(1), "b": Window(1)}, ("k",), clock=lambda: now)
    stuck = await balance.acquire()
    down = await balance.acquire()
    balance.failed(down, at_once=True)
    waiting = asyncio.create_task(balance.acquire(avoid=down.server))
    await asyncio.sleep(0)
    assert not waiting.done() and stuck.server is not down.server
    now = REST_SECONDS
    async with asyncio.timeout(30):
        assert (await waiting).probe


@pytest.mark.parametrize("opens", [0.5, 1.5, 2.5, 3.5, 4.5])
async def test_a_server_that_opens_while_a_request_is_refused_its_place_serves_it(opens: float):
    """The clock goes on between any two looks at it."""
    clock = itertools.count(1).__next__
    balance = Balance({"a": Window(9, clock=clock)}, ("k",), clock=clock)
    balance.servers[0].window.opens_at = opens
    async with asyncio.timeout(60):
        assert (await balance.acquire()).server.url == "a"
