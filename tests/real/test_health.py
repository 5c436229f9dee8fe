"""The terminal view's row of servers, by a real vLLM's /metrics, idle and at work."""

import asyncio
import time

import pytest
from real_vllm import PATIENCE, RealVllm

from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.viewer.live import Health, ask

pytestmark = pytest.mark.real


async def test_a_server_says_how_busy_it_is(large: RealVllm, model: ChatClient) -> None:
    assert await reached(large, running=0) == Health(running=0, waiting=0, cache=0.0)
    question = Message("user", "Write a long story about a lighthouse.")
    work = [
        asyncio.create_task(model.chat(ChatRequest((question,), max_tokens=400, seed=seed)))
        for seed in range(3)
    ]
    try:
        busy = await reached(large, running=3)
        assert busy.waiting == 0 and busy.cache is not None and 0 < busy.cache < 1
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def reached(server: RealVllm, running: int) -> Health:
    """What it says once so many requests are at work."""
    began = time.monotonic()
    while (found := await asyncio.to_thread(ask, server.url)).running != running:
        assert not found.trouble and time.monotonic() - began < PATIENCE, found
        await asyncio.sleep(0.1)
    return found
