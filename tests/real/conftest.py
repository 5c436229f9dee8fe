"""The real servers of these tests: each started once, when the first test asks for it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_vllm import RealVllm

LARGE = "smollm2-135m"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers and runs leave what they say: ``FLOWRIGHT_REAL_LOGS``, which stays."""
    kept = os.environ.get("FLOWRIGHT_REAL_LOGS")
    path = Path(kept).absolute() if kept else tmp_path_factory.mktemp("logs")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def large_folder() -> str:
    """SmolLM2-135M-Instruct's folder: ``FLOWRIGHT_SMOLLM2``, or where `smollm2-135m` comes from."""
    if given := os.environ.get("FLOWRIGHT_SMOLLM2"):
        return given
    from flowright.policy.smollm2 import smollm2

    return smollm2(ROOT / "data/cache")


@pytest.fixture(scope="session")
def large(logs: Path, large_folder: str) -> Iterator[RealVllm]:
    """SmolLM2-135M-Instruct, which answers operators and judges."""
    if os.environ.get("DEV_LARGE"):
        s = RealVllm(LARGE, large_folder, logs)
        s.port = int(os.environ["DEV_LARGE"])
        yield s
        return
    server = RealVllm(LARGE, large_folder, logs, "--max-model-len", "4096", "--dtype", "bfloat16")
    try:
        server.start()
        yield server
    finally:
        server.stop()
