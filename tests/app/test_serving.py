"""A trained policy at work: which workflow counts, what is told of it, and the endpoint."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai
import pytest
from judge_serving import served, until
from served_policy import CRASHES, GOOD, NO_PROGRAM, author
from workflow_doubles import ScriptedModel

from flowright.app.ask_policy import (
    Draft,
    Event,
    PolicyDraws,
    answer_record,
    event_text,
    open_run,
    question_of,
)
from flowright.app.policy_service import PolicyApp, PolicyServiceSettings
from flowright.core.errors import Blame, FailureError, Reason, UserError
from flowright.llm.chat import ChatReply, ChatRequest, Usage

PROBLEM = question_of("What is six times seven?", "math")
ASKED: Any = {"model": "mine", "messages": [{"role": "user", "content": "What is 6 * 7?"}]}
DOWN = FailureError(Reason.LLM_UNAVAILABLE, "connection refused")


async def test_the_first_workflow_that_gives_an_answer_counts() -> None:
    told: list[Event] = []
    async with author([NO_PROGRAM, CRASHES, GOOD, GOOD]) as writes:
        outcome = await writes.answer(PROBLEM, PolicyDraws(seed=0, samples=4), told.append)
        known = answer_record(writes, "?", "math", outcome)
    assert (outcome.answer, outcome.failure) == ("42", None)
    reasons = [one.failure and one.failure.reason for one in outcome.attempts]
    assert reasons == [Reason.NO_PROGRAM, Reason.CRASHED, None]
    assert outcome.policy == Usage(4, 2, 12)  # drawn, though not looked at
    assert outcome.executor == Usage(3, 300, 30)  # of the one that crashed, too
    assert [event.number for event in told if isinstance(event, Draft)] == [1, 2]
    text = "".join(map(event_text, told))
    assert text.count("answer(What is six times seven?) -> ") == 3
    assert "the policy's fault, no_program" in text and "ensemble(" in text
    assert known["answer"] == "42" and len(known["trace"]) == 3
    json.dumps(known)


@pytest.mark.parametrize(
    ("completion", "model", "blame", "reason"),
    [
        (CRASHES, ScriptedModel(), Blame.POLICY, Reason.CRASHED),
        (GOOD, ScriptedModel(lambda _: DOWN), Blame.INFRASTRUCTURE, Reason.LLM_UNAVAILABLE),
    ],
)
async def test_a_failure_says_whose_fault_it_is(
    completion: str, model: ScriptedModel, blame: Blame, reason: Reason
) -> None:
    async with author([completion, completion], model) as writes:
        outcome = await writes.answer(PROBLEM, PolicyDraws(seed=0, samples=2))
    assert outcome.answer is None and outcome.failure is not None
    assert (outcome.failure.blame, outcome.failure.reason) == (blame, reason)
    # What is no fault of the workflow's would befall the next one, too.
    assert len(outcome.attempts) == (2 if blame is Blame.POLICY else 1)


def test_what_is_no_policy_of_workflows_is_told_before_torch_is_loaded(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="it is not in a run directory"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        open_run(tmp_path / "nothing")


@asynccontextmanager
async def served_policy(
    completions: Sequence[str], model: ScriptedModel | None = None, **settings: Any
) -> AsyncIterator[str]:
    """The endpoint of a policy that writes these completions; its URL."""
    async with author(completions, model) as writes:
        about = {"policy": "mine/step_000004"}
        app = PolicyApp(writes, PolicyServiceSettings(name="mine", **settings), about)
        async with served(app) as (url, _):
            yield url


@asynccontextmanager
async def client(url: str, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as made:
        yield made


async def test_the_openai_client_gets_answer_program_and_summed_usage() -> None:
    async with served_policy([GOOD]) as url, client(url) as asks:
        names = [card.id async for card in asks.models.list()]
        reply = await asks.chat.completions.create(**ASKED)
    assert names == ["mine", "mine:math", "mine:code", "mine:qa"]
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("42", "stop")
    extra: Any = choice.message.model_extra
    assert "ensemble(" in extra["reasoning_content"]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (202, 23)
    told: Any = reply.model_extra
    assert told["flowright"]["program"] == GOOD.strip()


async def test_a_stream_tells_program_and_calls_before_the_answer() -> None:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    async with served_policy([NO_PROGRAM, GOOD], samples=2) as url, client(url) as asks:
        stream = await asks.chat.completions.create(**ASKED, **options)
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoning = [text for d in deltas if (text := (d.model_extra or {}).get("reasoning_content"))]
    assert "no_program" in reasoning[0]
    assert GOOD.strip() in reasoning[1]
    assert [line.partition("(")[0] for line in reasoning[2:]] == [
        "- answer", "- answer", "- ensemble"
    ]  # fmt: skip
    assert "".join(d.content or "" for d in deltas) == "42"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 228
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_come_in_openais_form(stream: bool) -> None:
    for completion, model, code, told in (
        (CRASHES, ScriptedModel(), 422, "the policy's fault, crashed (line 3)"),
        (GOOD, ScriptedModel(lambda _: DOWN), 503, "not the policy's fault"),
    ):
        async with served_policy([completion], model) as url, client(url) as asks:
            with pytest.raises(openai.APIError) as caught:
                reply: Any = await asks.chat.completions.create(**ASKED, stream=stream)
                _ = [chunk async for chunk in reply]
        assert told in caught.value.message
        assert getattr(caught.value, "status_code", code) == code
        body: Any = caught.value.body
        assert body["code"] == ("crashed" if code == 422 else "llm_unavailable")


async def test_what_a_workflow_cannot_honour_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"model": "gpt"}, 404, "does not exist"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "the last one must be"),
        ({"n": 2}, 400, "n: one answer"),
        ({"stop": "x"}, 400, "stop"),
        ({"tools": [{}]}, 400, "tools"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"response_format": "json"}, 400, "response_format"),
        ({"stream": "yes"}, 400, "stream"),
        ({"messages": [{"role": "user", "content": [IMAGE, TEXT]}]}, 400, "reads text alone"),
        ({"messages": [{"role": "user", "content": "x" * 1500}]}, 413, "a workflow takes 1,000"),
        ({"temperature": 3}, 400, "temperature"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 413, "larger than 2000"),
    ]
    limits = {"max_body_bytes": 2000, "max_question_bytes": 1000}
    async with served_policy([GOOD], **limits) as url, httpx2.AsyncClient() as http:
        for change, status, told in wrong:
            reply = await http.post(f"{url}/v1/chat/completions", json=ASKED | change)
            assert reply.status_code == status, reply.text
            assert told in reply.json()["error"]["message"]
        chat = f"{url}/v1/chat/completions"
        half = json.dumps(ASKED | {"messages": [{"role": "user", "content": "a\ud800b"}]})
        reply = await http.post(chat, content=half, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        ), reply.text
        reply = await http.post(chat, content=json.dumps(ASKED))
        assert reply.status_code == 415 and "Content-Type" in reply.json()["error"]["message"]
        nothing = (await http.get(f"{url}/v1/nothing")).json()
    assert nothing["error"]["message"] == "GET /v1/nothing is not served here"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT = {"type": "text", "text": "What is this?"}


async def test_a_page_of_another_site_has_no_way_in() -> None:
    async with (
        served_policy([GOOD], hosts=("127.0.0.1",)) as url,
        httpx2.AsyncClient() as http,
    ):
        for host, status in (("127.0.0.1", 200), ("rebound.example", 400)):
            reply = await http.get(f"{url}/v1/models", headers={"host": host})
            assert reply.status_code == status


async def test_earlier_turns_are_the_questions_context() -> None:
    model = ScriptedModel()
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Take six."},
        {"role": "assistant", "content": "Taken."},
        {"role": "user", "content": "Times seven?"},
    ]
    async with served_policy([GOOD], model) as url, client(url) as asks:
        await asks.chat.completions.create(**{**ASKED, "messages": turns, "model": "mine:math"})
    context = "system: Be brief.\n\nuser: Take six.\n\nassistant: Taken.\n\nTimes seven?"
    assert all(context in prompt for prompt in model.prompts)


async def test_a_key_is_asked_for_and_health_is_open() -> None:
    async with served_policy([GOOD], api_key="right") as url:
        async with client(url, "wrong") as asks:
            with pytest.raises(openai.AuthenticationError, match="a key is needed"):
                await asks.models.list()
        async with client(url, "right") as asks:
            await asks.chat.completions.create(**ASKED)
        async with httpx2.AsyncClient() as http:
            health = (await http.get(f"{url}/health")).json()
    assert (health["status"], health["policy"]) == ("ready", "mine/step_000004")


@dataclass
class Waiting(ScriptedModel):
    """Answers once the gate is open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        await self.gate.wait()
        return await super().chat(request, deadline)


async def test_sixty_four_at_once_hold_and_the_next_one_is_told_when_to_come_back() -> None:
    model = Waiting()
    async with (
        served_policy([GOOD], model, max_in_flight=64, max_queue=0) as url,
        client(url) as asks,
        httpx2.AsyncClient() as http,
    ):
        some = [asyncio.create_task(asks.chat.completions.create(**ASKED)) for _ in range(64)]
        while (await http.get(f"{url}/health")).json()["in_flight"] < 64:
            assert not any(task.done() for task in some)
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="too many") as caught:
                await asks.chat.completions.create(**ASKED, stream=stream)
            assert caught.value.response.headers["retry-after"]
        model.gate.set()
        replies = await asyncio.gather(*some)
    assert {reply.choices[0].message.content for reply in replies} == {"42"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_workflow(stream: bool) -> None:
    model = ScriptedModel(delay=60.0)
    async with served_policy([GOOD], model) as url:
        async with httpx2.AsyncClient() as http:
            asked = asyncio.create_task(
                http.post(f"{url}/v1/chat/completions", json=ASKED | {"stream": stream})
            )
            await until(lambda: model.in_flight == 2)
            asked.cancel()
            await asyncio.wait({asked})
        await until(lambda: model.in_flight == 0)
        assert model.cancelled == 2


async def test_an_answer_has_a_time_limit() -> None:
    model = ScriptedModel(delay=60.0)
    async with served_policy([GOOD], model, seconds=0.05) as url, client(url) as asks:
        with pytest.raises(openai.APIStatusError, match=r"no answer within 0\.05") as caught:
            await asks.chat.completions.create(**ASKED)
        with pytest.raises(openai.APIError, match=r"no answer within 0\.05"):
            stream = await asks.chat.completions.create(**ASKED, stream=True)
            _ = [chunk async for chunk in stream]
    assert caught.value.status_code == 504
    assert model.in_flight == 0
