"""One sandbox for the tests of a file, on the standard library's event loop."""

from collections.abc import AsyncIterator

import pytest

from flowright.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(Limits(cpu_seconds=3.0, wall_seconds=30.0), workers=2) as sandbox:
        yield sandbox
