"""What servers say of their context, in refusals and lists of models, and how it is learned."""

import json

import pytest
from llm_standin import StandIn, good, http

from flowright.config.llm import LlmSection, ModelEntry
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.llm.context import TooLong, context_of, too_long

ASK = ChatRequest((Message("user", "What is six times seven?!!"),), seed=5)


def client_for(server: StandIn) -> ChatClient:
    entry = ModelEntry(base_url=server.url, model_name="standin-7b")
    return ChatClient("big", entry, LlmSection(backoff_seconds=0.01))


REFUSALS = {
    "vLLM, OpenAI": (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
        "(1000 in the messages, 4000 in the completion).",
        TooLong(4096, 1000),
    ),
    "vLLM, the reply alone": (
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context "
        "length is 2048 tokens and your request has 34 input tokens (8192 > 2048 - 34).",
        TooLong(2048, 34),
    ),
    "vLLM, the prompt cut for counting": (
        "You passed 101 input tokens and requested 1948 output tokens. However, the model's "
        "context length is only 2048 tokens, resulting in a maximum input length of 100 tokens.",
        TooLong(2048, None),
    ),
    "vLLM, at least": (
        "This model's maximum context length is 2048 tokens. However, you requested 1948 output "
        "tokens and your prompt contains at least 101 input tokens.",
        TooLong(2048, None),
    ),
    "vLLM, before counting": (
        "max_tokens=8192 cannot be greater than max_model_len=max_total_tokens=2048.",
        TooLong(2048, None),
    ),
    "SGLang": (
        "Requested token count exceeds the model's maximum context length of 8192 tokens. You "
        "requested a total of 9000 tokens: 1000 tokens from the input messages and 8000 tokens",
        TooLong(8192, 1000),
    ),
    "TGI": (
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1000 `inputs` tokens and 4096",
        TooLong(4096, 1000),
    ),
    "llama.cpp": (
        "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        TooLong(4096, 9000),
    ),
    "a limit of the reply": (
        "max_tokens is too large: 8192. This model supports at most 4096 completion tokens.",
        TooLong(4096, 0),
    ),
    "about something else": ("response_format json_schema is not supported", None),
}


@pytest.mark.parametrize(("message", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_says_what_the_server_takes(message: str, expected: TooLong | None) -> None:
    assert too_long(message) == expected


def test_what_is_left_for_a_reply() -> None:
    """The server's count, else the caller's, else half of the prompt's 26 bytes."""
    assert TooLong(100, 30).room(ASK.messages, 50) == 70
    assert TooLong(100, None).room(ASK.messages, 50) == 50
    assert TooLong(100, None).room(ASK.messages) == 87
    assert TooLong(100, 0).room(ASK.messages, 50) == 100


def test_a_list_of_models_says_it_of_each() -> None:
    cards = [{"id": "a", "max_model_len": 4096}, {"id": "b", "context_length": 8192}, {"id": "c"}]
    assert [context_of(cards, name) for name in "abcd"] == [4096, 8192, None, None]
    assert context_of(cards[:1], "an alias") == 4096
    assert context_of([], "a") is None


CARD = {"id": "standin-7b", "max_model_len": 2048}


@pytest.mark.parametrize("checked", [True, False])
async def test_a_cut_reply_comes_with_the_room_that_its_server_has(checked: bool) -> None:
    """Known from the check before a run, else asked for once, at the first reply that was cut."""
    models = http(200, json.dumps({"data": [CARD]}).encode())
    async with StandIn(script=[good()], rest=good("It is", "length"), models=models) as server:
        client = client_for(server)
        try:
            if checked:
                assert await client.check() == []
            first = await client.chat(ASK)
            second = await client.as_role("judge").chat(ASK)
            server.models = http(500, b"")
            third = await client.chat(ASK)
        finally:
            await client.aclose()
    assert first.context == (2048 if checked else None)
    assert [second.context, third.context] == [2048, 2048]
    assert second.room == 2048 - 11, "the stand-in counts 11 tokens of every prompt"


@pytest.mark.parametrize("models", [http(500, b"?"), http(200, b"[]"), ["standin-7b"]])
async def test_a_server_that_does_not_tell_leaves_the_reply_as_it_is(models: object) -> None:
    async with StandIn(rest=good("It is", "length"), models=models) as server:  # pyright: ignore
        client = client_for(server)
        try:
            reply = await client.chat(ASK)
        finally:
            await client.aclose()
    assert (reply.text, reply.context, reply.room) == ("It is", None, float("inf"))
