"""Replies of vLLM: read whole and right, or refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from flowright.policy.sampling import Sampling
from flowright.policy.vllm.requests import (
    BadReply,
    Drawn,
    ModelCard,
    draw_body,
    read_alternatives,
    read_drawn,
    read_models,
    read_scores,
)

# As vLLM's /v1/completions answers, shortened.
REPLY = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "step-1",
    "choices": [
        {
            "index": 0,
            "text": "ab",
            "finish_reason": "stop",
            "stop_reason": 2,
            "token_ids": [70, 71, 2],
            "prompt_token_ids": [5, 6],
            "logprobs": {"token_logprobs": [-0.5, -1.5, 0.0], "top_logprobs": [{"a": -0.5}]},
            "prompt_logprobs": None,
        }
    ],
}
ENDS = {2}


def changed(**fields: Any) -> bytes:
    return json.dumps(REPLY | {"choices": [REPLY["choices"][0] | fields]}).encode()  # type: ignore[operator]


def read(content: bytes, longest: int = 9) -> Drawn:
    return read_drawn(content, "step-1", [5, 6], longest, ENDS)


def test_a_whole_reply() -> None:
    assert read(changed()) == Drawn((70, 71, 2), (-0.5, -1.5, 0.0), "stop")


def test_an_end_token_at_the_limit_is_an_end() -> None:
    """vLLM looks at the length first and calls this a cut."""
    assert read(changed(finish_reason="length"), longest=3).finish_reason == "stop"


def test_cut_at_the_limit() -> None:
    table = {"token_logprobs": [-0.5, -1.5]}
    reply = changed(finish_reason="length", token_ids=[70, 71], logprobs=table)
    assert read(reply, longest=2) == Drawn((70, 71), (-0.5, -1.5), "length")
    with pytest.raises(BadReply, match="--max-model-len"):
        read(reply, longest=3)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (json.dumps(REPLY | {"model": "base"}).encode(), "from model 'base', not 'step-1'"),
        (json.dumps(REPLY | {"choices": []}).encode(), "not exactly one choice"),
        (changed(logprobs=None), "3 tokens with no log-probabilities"),
        (changed(logprobs={"token_logprobs": [-1.0, None, -1.0]}), "a log-probability is None"),
        (changed(logprobs={"token_logprobs": [-1.0, 3.5, -1.0]}), "gives logits"),
        (changed(token_ids=[]), "0 tokens with 3"),
        (changed(token_ids=["70", "71", "2"]), "no token_ids"),
        (changed(finish_reason=None), "finish_reason None"),
        (changed(prompt_token_ids=None), "no prompt_token_ids"),
        (changed(prompt_token_ids=[1]), "not the one that was sent"),
    ],
)
def test_what_is_refused(content: bytes, told: str) -> None:
    with pytest.raises(BadReply, match=told):
        read(content)


def test_scores_are_of_the_prompts_own_tokens() -> None:
    """Each row may also hold the likeliest token."""
    rows = [None, {"6": {"logprob": -2.0, "rank": 3}, "9": {"logprob": -0.1, "rank": 1}}]
    assert read_scores(changed(prompt_logprobs=rows), "step-1", [5, 6]) == [-2.0]
    for broken in (None, [None], [None, {"9": {"logprob": -0.1}}], [None, {"6": -2.0}]):
        with pytest.raises(BadReply):
            read_scores(changed(prompt_logprobs=broken), "step-1", [5, 6])


def test_alternatives_descend() -> None:
    table = {"top_logprobs": [{"token_id:3": -2.0, "token_id:1": -0.5, "token_id:2": -1.0}]}
    assert read_alternatives(changed(logprobs=table), "step-1") == [-0.5, -1.0, -2.0]
    with pytest.raises(BadReply, match="no top_logprobs"):
        read_alternatives(changed(logprobs={"top_logprobs": []}), "step-1")


def test_models_and_adapters() -> None:
    rows = [
        {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 4096},
        {"id": "step-1", "root": "/adapters/1", "parent": "base"},
    ]
    assert read_models(json.dumps({"data": rows}).encode()) == {
        "base": ModelCard("base", "/models/base", None, 4096),
        "step-1": ModelCard("step-1", "/adapters/1", "base", None),
    }
    with pytest.raises(BadReply, match="OpenAI-compatible"):
        read_models(b'{"data": [1]}')


def test_the_request_leaves_nothing_to_the_models_generation_config() -> None:
    body = json.loads(draw_body("step-1", [5], Sampling(0.7, 0.9, 4, 11), {7, 2}))
    assert body == {
        "model": "step-1",
        "prompt": [5],
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 11,
        "logprobs": 0,
        "return_token_ids": True,
        "stop_token_ids": [2, 7],
        "skip_special_tokens": False,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n": 1,
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*REPLY, *REPLY["choices"][0], "data"]), inner, max_size=4
        )
    ),  # type: ignore[index]
    max_leaves=12,
)


@given(JSON, st.binary(max_size=20))
def test_any_reply_is_good_or_bad(value: Any, junk: bytes) -> None:
    """Nothing else comes of it, whatever is in the place of a field."""
    bodies = [junk, json.dumps(value).encode()]
    bodies += [changed(**{name: value}) for name in REPLY["choices"][0]]  # type: ignore[index]
    for body in bodies:
        for attempt in (
            lambda body=body: read(body),
            lambda body=body: read_scores(body, "step-1", [5, 6]),
            lambda body=body: read_alternatives(body, "step-1"),
            lambda body=body: read_models(body),
        ):
            with contextlib.suppress(BadReply):
                attempt()
