"""The client against a real server: whole and streamed replies, schemas, limits, refusals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from real_vllm import RealVllm

from flowright.config import LlmSection, ModelEntry
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient

pytestmark = pytest.mark.real


@asynccontextmanager
async def client(server: RealVllm, **entry: Any) -> AsyncIterator[ChatClient]:
    given = {"base_url": server.url, "model_name": server.name, **entry}
    opened = ChatClient("large", ModelEntry(**given), LlmSection())
    try:
        yield opened
    finally:
        await opened.aclose()


def asked(text: str, tokens: int = 16, **more: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), temperature=0.0, max_tokens=tokens, **more)


async def test_a_streamed_reply_is_the_whole_one(large: RealVllm) -> None:
    request = asked("What is the capital of France?")
    async with client(large) as whole, client(large, stream=True) as streamed:
        first, second = await whole.chat(request), await streamed.chat(request)
    assert "Paris" in first.text
    assert (first.text, first.finish_reason, first.usage) == (
        second.text,
        second.finish_reason,
        second.usage,
    )
    assert first.usage.prompt_tokens > 5 and first.usage.completion_tokens > 1
    assert first.model == second.model == large.name
