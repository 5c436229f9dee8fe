"""The real servers of these tests: each started once, when the first test asks for it."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest
from real_vllm import (
    ADAPTERS,
    ALL_WEIGHTS,
    FIGURES,
    POLICY,
    ROOT,
    RealVllm,
    interrupt_once,
    quickstart,
)

from flowright.app.open_policies import open_policy
from flowright.config.llm import LlmSection, ModelEntry
from flowright.environments.base import make_environment
from flowright.llm.client import ChatClient

LARGE = "smollm2-135m"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers and runs leave what they say: ``FLOWRIGHT_REAL_LOGS``, which stays."""
    kept = os.environ.get("FLOWRIGHT_REAL_LOGS")
    path = Path(kept).absolute() if kept else tmp_path_factory.mktemp("logs")
    path.mkdir(parents=True, exist_ok=True)
    interrupt_once()  # whoever leaves something there may have a server to end
    return path


@pytest.fixture(scope="session")
def large_folder() -> str:
    """SmolLM2-135M-Instruct's folder: ``FLOWRIGHT_SMOLLM2``, or where `smollm2-135m` comes from."""
    if given := os.environ.get("FLOWRIGHT_SMOLLM2"):
        return given
    from flowright.policy.base_models import smollm2

    return smollm2(ROOT / "data/cache")


@pytest.fixture(scope="session")
def large(logs: Path, large_folder: str, figure: Callable[[str], None]) -> Iterator[RealVllm]:
    """SmolLM2-135M-Instruct, which answers operators and judges."""
    more = ("--max-model-len", "4096", "--dtype", "bfloat16")
    with _served(RealVllm(LARGE, large_folder, logs, *more), figure) as server:
        yield server


@pytest.fixture(scope="module")
async def model(large: RealVllm) -> AsyncIterator[ChatClient]:
    """What asks it."""
    entry = ModelEntry(base_url=large.url, model_name=large.name)
    async with aclosing(ChatClient("large", entry, LlmSection(max_concurrency=16))) as client:
        yield client


@pytest.fixture(scope="session")
def policy_folder() -> str:
    """The embedded policy, with a cold start that is short and kept."""
    config = quickstart()
    environment = make_environment(config)
    policy = open_policy(config, environment, environment.tasks().train)
    return str(Path(policy.causal_lm.config._name_or_path).absolute())


@pytest.fixture(scope="session")
def policy_server(
    logs: Path, policy_folder: str, figure: Callable[[str], None]
) -> Iterator[RealVllm]:
    """The embedded policy in float32, with adapters that come and go."""
    more = ("--max-model-len", "1024", "--dtype", "float32")
    with _served(RealVllm(POLICY, policy_folder, logs, *more, *ADAPTERS), figure) as server:
        yield server


@pytest.fixture
def exchanging(logs: Path, large_folder: str, figure: Callable[[str], None]) -> Iterator[RealVllm]:
    """SmolLM2-135M-Instruct in float32, whose weights are all exchanged."""
    more = ("--max-model-len", "512", "--dtype", "float32", *ALL_WEIGHTS)
    with _served(RealVllm("exchanged", large_folder, logs, *more), figure) as server:
        yield server


@contextmanager
def _served(server: RealVllm, figure: Callable[[str], None]) -> Iterator[RealVllm]:
    try:
        server.start()
        figure(f"{server.name} is served after {server.seconds:.0f} s")
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def figure(logs: Path) -> Callable[[str], None]:
    """Keep a line of measurements for the summary of scripts/test_real.sh."""

    def keep(line: str) -> None:
        with (logs / FIGURES).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    return keep
