"""Settings shared by all tests."""

import signal
from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from flowright.sandbox import Limits, Sandbox

# A command in the background of a shell script has SIGINT ignored, and so have its children: those
# that are sent one here would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is slow, not wrong.
settings.register_profile("flowright", deadline=None)
settings.load_profile("flowright")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of train.py. Modules that override it test on the standard library's."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    """One for the tests of a file; those that need other limits make their own."""
    async with Sandbox(Limits(cpu_seconds=3.0, wall_seconds=30.0), workers=2) as sandbox:
        yield sandbox
