"""Settings shared by all tests."""

import pytest
from hypothesis import settings

# A loaded machine is slow, not wrong.
settings.register_profile("flowright", deadline=None)
settings.load_profile("flowright")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of train.py. Modules that override it test on the standard library's."""
    return "asyncio", {"use_uvloop": True}
