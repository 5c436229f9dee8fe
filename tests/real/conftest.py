"""The real servers of these tests: each started once, when the first test asks for it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_vllm import RealVllm

ROOT = Path(__file__).parents[2]
LARGE = "smollm2-135m"
POLICY = "tiny"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers and runs leave what they say: ``FLOWRIGHT_REAL_LOGS``, which stays."""
    kept = os.environ.get("FLOWRIGHT_REAL_LOGS")
    path = Path(kept).absolute() if kept else tmp_path_factory.mktemp("logs")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def large(logs: Path) -> Iterator[RealVllm]:
    """SmolLM2-135M-Instruct, which answers operators and judges."""
    folder = Path(os.environ["FLOWRIGHT_SMOLLM2"])
    server = RealVllm(LARGE, folder, logs, "--max-model-len", "4096", "--dtype", "bfloat16")
    try:
        server.start()
        yield server
    finally:
        server.stop()
