"""Settings shared by all tests."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from flowright.sandbox import Limits, Sandbox

# A command in the background of a shell script has SIGINT ignored, and so have its children: those
# that are sent one here would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is slow, not wrong. The examples of a property are the same at every start, so
# that a failure is about what was changed and not about luck; CONTRIBUTING.md says how to look for
# others.
settings.register_profile("flowright", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("all", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="also the slow tests, with all examples, as in CI"
    )


@pytest.hookimpl(
    tryfirst=True
)  # hypothesis loads the profile that --hypothesis-profile names after
def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "flowright")


REAL = Path(__file__).parent / "real"
LEFT_OUT = "left out: the tests against a real vLLM; to run them: bash scripts/test_real.sh"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests marked ``real`` run only where ``-m`` asks for them; else they are not imported."""
    return True if collection_path == REAL and not _asks_for_real(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = [] if _asks_for_real(config) else ["real"]  # named by their path
    marks += [] if config.getoption("--all") else ["slow"]
    left_out = {item for item in items for mark in marks if item.get_closest_marker(mark)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    named = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    asked = any(REAL.is_relative_to(path) or path.is_relative_to(REAL) for path in named)
    if asked and not _asks_for_real(config):
        terminalreporter.write_line(LEFT_OUT)


def _asks_for_real(config: pytest.Config) -> bool:
    return "real" in config.option.markexpr


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of train.py. Modules that override it test on the standard library's."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    """One for the tests of a file; those that need other limits make their own."""
    async with Sandbox(Limits(cpu_seconds=3.0, wall_seconds=30.0), workers=2) as sandbox:
        yield sandbox
