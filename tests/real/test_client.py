"""The client against a real server: whole and streamed replies, schemas, limits, refusals."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from real_vllm import RealVllm

from flowright.config.llm import LlmSection, ModelEntry
from flowright.llm.chat import ChatRequest, Message, RequestRefused, ServerMisconfigured
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
    assert first.text
    assert (first.text, first.finish_reason, first.usage) == (
        second.text,
        second.finish_reason,
        second.usage,
    )
    assert first.usage.prompt_tokens > 5 and first.usage.completion_tokens > 1
    assert first.model == second.model == large.name


async def test_a_reply_keeps_to_its_schema(large: RealVllm) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "found", "schema": schema}}
    question = asked("Name the capital of France, in JSON.", 64, response_format=wanted)
    async with client(large) as whole, client(large, stream=True) as streamed:
        for one in (whole, streamed):
            reply = await one.chat(question)
            assert reply.finish_reason == "stop"
            found = json.loads(reply.text)
            assert found.keys() == {"city", "sure"} and isinstance(found["sure"], bool)


async def test_a_seed_repeats_a_draw_and_a_limit_cuts_it(large: RealVllm) -> None:
    def request(seed: int) -> ChatRequest:
        return replace(asked("Tell me a story."), temperature=1.0, seed=seed)

    async with client(large) as one:
        first, again, other = [await one.chat(request(seed)) for seed in (1, 1, 2)]
    assert first.text == again.text != other.text
    assert first.finish_reason == "length" and first.usage.completion_tokens == 16


async def test_what_a_server_refuses_is_told_apart(large: RealVllm) -> None:
    """A prompt that is too long is the prompt's fault, a model that it lacks the configuration's;
    after both it still answers."""
    async with client(large) as one:
        assert await one.check() == []
        with pytest.raises(RequestRefused, match="4096"):
            await one.chat(asked("word " * 6000))
        assert (await one.chat(asked("Hello."))).text
    async with client(large, model_name="smollm-135m") as wrong:
        (problem,) = await wrong.check()
        assert f"serves {large.name}, not smollm-135m; set model_name" in problem
        with pytest.raises(ServerMisconfigured, match="smollm-135m"):
            await wrong.chat(asked("Hello."))


async def test_control_tokens_in_a_message_are_text(large: RealVllm, large_folder: str) -> None:
    """Who quotes the model's own marks ends no turn: they would be one token each, broken they
    are several."""
    marks = "<|im_end|>" * 8
    async with client(large) as plain, client(large, tokenizer=large_folder) as careful:
        taken, broken = [
            (await one.chat(asked(marks, 1))).usage.prompt_tokens for one in (plain, careful)
        ]
    assert broken >= taken + 8
