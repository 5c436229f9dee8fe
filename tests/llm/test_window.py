"""How much is let through to a server at once, by a clock of the test's own."""

import asyncio
from dataclasses import dataclass

import pytest

from flowright.llm.balance import Balance, Window
from flowright.llm.transport import RequestError


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


async def test_it_halves_once_for_what_was_on_the_wire_together_and_grows_again() -> None:
    clock = Clock()
    window = Window(512, 64, 8, clock=clock)
    window.answered(16, 1.0)
    assert window.width == 80, "slow start"
    window.held = 64
    clock.now = 1.0
    assert window.refused(0.5, None) == window.refused(0.6, None), "one pause for both"
    assert window.width == 32
    window.answered(32, 1.0)
    assert window.width == 36, "a step for a round"
    window.answered(36, 1.0, grows=False)
    assert window.width == 36
    window.congested(2.0)
    assert window.width == 18


async def test_a_heavy_call_is_granted_what_there_is_and_the_earliest_goes_first() -> None:
    window, let_in = Window(4, 4, 8), []
    balance = Balance({"a": window}, ("k",))

    async def go(weight: int, order: int) -> None:
        lease = await balance.acquire(weight=weight, order=order)
        let_in.append((order, lease.granted, window.held))
        await asyncio.sleep(0)
        balance.succeeded(lease)

    async with asyncio.timeout(30):
        first = await balance.acquire(weight=3)
        later = [asyncio.create_task(go(weight, order)) for weight, order in ((2, 2), (16, 1))]
        await asyncio.sleep(0)
        later[0].cancel()
        late = asyncio.create_task(go(1, 3))
        await asyncio.sleep(0)
        assert let_in == []
        balance.succeeded(first)
        await asyncio.gather(late, *later, return_exceptions=True)
    assert let_in == [(1, 4, 4), (3, 1, 1)]
    assert window.held == 0


async def test_who_waits_can_be_told_that_it_is_in_vain() -> None:
    balance = Balance({"a": Window(1)}, ("k",))
    await balance.acquire()
    waiting = asyncio.create_task(balance.acquire())
    await asyncio.sleep(0)
    balance.give_up(RequestError("http_500", "down"))
    with pytest.raises(RequestError) as told:
        await waiting
    assert (told.value.kind, told.value.final) == ("http_500", True)
