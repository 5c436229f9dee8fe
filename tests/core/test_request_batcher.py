"""Questions that wait together are computed together, and none fails for another."""

import asyncio
from collections.abc import Sequence

import pytest

from flowright.core.batch_calls import RequestBatcher
from flowright.core.errors import ConfigError, FailureError


async def roots(numbers: Sequence[int]) -> list[float]:
    if min(numbers) < 0:
        raise ArithmeticError("of a negative number")
    return [number**0.5 for number in numbers]


async def test_what_waits_together_is_one_batch():
    together = RequestBatcher(roots, most=4)
    found = await asyncio.gather(*(together.ask(n * n) for n in range(10)))
    assert found == [float(n) for n in range(10)]
    assert together.batches == 3
    assert await together.ask(4) == 2.0


async def test_one_that_fails_fails_alone():
    together = RequestBatcher(roots, most=8)
    found = await asyncio.gather(*map(together.ask, (1, -1, 4)), return_exceptions=True)
    assert found[::2] == [1.0, 2.0]
    assert isinstance(found[1], FailureError)
    assert "of a negative number" in found[1].failure.message


async def test_a_mistake_of_the_users_reaches_all_and_hangs_nobody():
    async def refuse(numbers: Sequence[int]) -> list[int]:
        raise ConfigError("no such model")

    together = RequestBatcher(refuse, most=8)
    found = await asyncio.gather(*map(together.ask, (1, 2)), return_exceptions=True)
    assert [type(each) for each in found] == [ConfigError] * 2


async def test_who_hung_up_is_not_computed():
    seen: list[Sequence[int]] = []

    async def keep(numbers: Sequence[int]) -> list[int]:
        seen.append(list(numbers))
        return list(numbers)

    together = RequestBatcher(keep, most=8)
    gone = asyncio.create_task(together.ask(1))
    stays = asyncio.create_task(together.ask(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == 2
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert seen == [[2]]
