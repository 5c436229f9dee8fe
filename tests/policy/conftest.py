"""Fixtures of the policy's tests."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens vLLM doubles and a sampler over them."""
    from vllm_bench import open_bench  # imports torch

    async with open_bench(tmp_path / "adapters") as make:
        yield make
