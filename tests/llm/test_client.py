"""The LLM client against a server that misbehaves in every way that it should survive."""

import asyncio
import email.utils
import gzip
import json
import pickle
import socket
import time
from contextlib import ExitStack

import pytest
from hypothesis import given, strategies as st
from llm_standin import DROP, HANG, StandIn, delta, good, http, problem, stream

from flowright.config.llm import LlmSection, ModelEntry
from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.llm.balance import balance_of
from flowright.llm.chat import (
    REFUSAL,
    ChatReply,
    ChatRequest,
    Message,
    NoCompletion,
    RequestRefused,
    ServerMisconfigured,
    Usage,
)
from flowright.llm.client import ChatClient
from flowright.llm.transport import MOST_BYTES, proxy_for
from flowright.llm.wire import MalformedReply, decode_reply

FAST = LlmSection(
    backoff_seconds=0.01, request_seconds=2.0, deadline_seconds=5.0, reconnect_seconds=0.0
)
ASK = ChatRequest((Message("user", "What is six times seven?"),), seed=5)


async def ask(
    *servers: StandIn,
    request: ChatRequest = ASK,
    section: LlmSection = FAST,
    deadline: float | None = None,
    **entry: object,
) -> ChatReply:
    client = client_for(*servers, section=section, **entry)
    try:
        return await client.chat(request, deadline)
    finally:
        await client.aclose()


def client_for(*servers: StandIn, section: LlmSection = FAST, **entry: object) -> ChatClient:
    urls = tuple(server.url for server in servers)
    fields = {"base_url": urls, "model_name": "standin-7b", **entry}
    return ChatClient("big", ModelEntry.model_validate(fields), section)


async def refusal(*servers: StandIn, **options: object) -> str:
    """The message of the failure that a call ends in."""
    with pytest.raises(FailureError) as caught:
        await ask(*servers, **options)  # pyright: ignore[reportArgumentType]
    assert caught.value.failure.reason is Reason.LLM_UNAVAILABLE
    return caught.value.failure.message


def dead_url() -> str:
    return dead_urls(1)[0]


def dead_urls(count: int) -> list[str]:
    """Different addresses at which no server is."""
    with ExitStack() as unused:
        sockets = [unused.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"http://127.0.0.1:{each.getsockname()[1]}/v1" for each in sockets]


# What is sent and what comes back.


async def test_a_reply_with_its_usage():
    async with StandIn() as server:
        reply = await ask(server)
    assert (reply.text, reply.finish_reason, reply.model) == ("fine", "stop", "standin-7b")
    assert reply.usage == Usage(1, 11, 7)
    assert reply.attempts == 1


async def test_the_request_decides_and_the_entry_fills_in():
    async with StandIn() as server:
        await ask(
            server,
            request=ChatRequest(ASK.messages, temperature=0.0, seed=7),
            temperature=0.9,
            top_p=0.5,
            max_tokens=99,
            api_key="sk-test",
        )
    (seen,) = server.seen
    assert seen.json == {
        "model": "standin-7b",
        "messages": [{"role": "user", "content": "What is six times seven?"}],
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 99,
        "seed": 7,
    }
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == "Bearer sk-test"


async def test_empty_content_is_a_reply():
    async with StandIn(rest=good(None, "length", reasoning="hmm, six")) as server:
        reply = await ask(server)
    assert (reply.text, reply.finish_reason, reply.reasoning) == ("", "length", "hmm, six")
    assert reply.usage.completion_tokens == 7
    assert len(server.seen) == 1


async def test_reasoning_content_is_the_older_name():
    async with StandIn(rest=good("42", reasoning_content="six sevens")) as server:
        assert (await ask(server)).reasoning == "six sevens"


async def test_a_streamed_reply_is_assembled():
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    events = (
        delta("", role="assistant"),
        delta(reasoning="hm"),
        delta("for"),
        delta("ty-two"),
        delta(finish="stop"),
        usage,
    )
    async with StandIn(rest=stream(*events)) as server:
        reply = await ask(server, stream=True)
    assert (reply.text, reply.finish_reason, reply.reasoning) == ("forty-two", "stop", "hm")
    assert reply.usage == Usage(1, 3, 2)
    assert server.seen[0].json["stream_options"] == {"include_usage": True}


async def test_a_refusal_is_told_by_its_finish_reason():
    async with StandIn(rest=good(None, "stop", refusal="I will not.")) as server:
        whole = await ask(server)
    events = (delta(role="assistant"), delta(refusal="I will"), delta(refusal=" not."))
    async with StandIn(rest=stream(*events, delta(finish="stop"))) as server:
        streamed = await ask(server, stream=True)
    for reply in (whole, streamed):
        assert (reply.text, reply.finish_reason) == ("I will not.", REFUSAL)
    async with StandIn(rest=good("42", "stop", refusal=None)) as server:
        assert (await ask(server)).finish_reason == "stop"


async def test_a_lone_surrogate_can_be_sent():
    async with StandIn() as server:
        await ask(server, request=ChatRequest((Message("user", "a\ud800b"),)))
    assert server.seen[0].json["messages"][0]["content"] == "a?b"


# Failures that pass.


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (problem(500, "HarmonyError"), "http_500"),
        (problem(503, "overloaded"), "http_503"),
        (problem(408, "slow"), "http_408"),
        (problem(409, "conflict"), "http_409"),
        (http(200, b"<html>a proxy</html>"), "malformed"),
        (http(200, b'{"choices": []}'), "malformed"),
        (http(200, b'{"error": {"message": "no"}}'), "malformed"),
        (http(200, b""), "malformed"),
        (http(200, b'{"choices": [', length=500), "connection"),
        (stream(delta("half"), done=False), "malformed"),
        (stream(delta("half"), {"error": {"message": "boom"}}), "malformed"),
        (DROP, "connection"),
    ],
)
async def test_a_passing_failure_is_tried_again_with_the_same_body(bad: object, kind: str):
    async with StandIn([bad, bad]) as server:
        client = client_for(server)
        reply = await client.chat(ASK)
        counts = client.counters.role("executor")
        await client.aclose()
    assert reply.text == "fine"
    assert reply.attempts == 3
    assert len({seen.body for seen in server.seen}) == 1
    assert server.seen[0].json["seed"] == 5
    assert counts["failures"] == counts[kind] == 2
    assert (counts["calls"], counts["attempts"]) == (1, 3)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (11, 7)


async def test_a_hanging_attempt_is_given_up_and_repeated():
    section = FAST.model_copy(update={"request_seconds": 0.15})
    async with StandIn([HANG]) as server:
        reply = await ask(server, section=section)
    assert reply.attempts == 2
    assert reply.seconds >= 0.15


async def test_retry_after_is_obeyed():
    async with StandIn([problem(429, "slow down", "retry-after: 0.3")]) as server:
        reply = await ask(server)
    assert reply.seconds >= 0.3
    date = email.utils.formatdate(time.time() + 2, usegmt=True)
    async with StandIn([problem(429, "slow down", f"Retry-After: {date}")]) as server:
        message = await refusal(server, deadline=0.5)
    assert "asks to wait" in message


async def test_a_retry_after_beyond_the_deadline_ends_the_call_at_once():
    async with StandIn(rest=problem(429, "come back tomorrow", "retry-after: 3600")) as server:
        message = await refusal(server)
    assert len(server.seen) == 1
    assert "asks to wait 3.6e+03 s" in message
    assert "come back tomorrow" in message


async def test_attempts_end():
    async with StandIn(rest=problem(500, "out of order")) as server:
        message = await refusal(server, section=FAST.model_copy(update={"attempts": 3}))
    assert len(server.seen) == 3
    assert "no usable reply after 3 attempts" in message
    assert "3 x http_500" in message
    assert "out of order" in message


async def test_the_deadline_covers_all_attempts():
    section = FAST.model_copy(update={"request_seconds": 10.0, "attempts": 50})
    began = time.monotonic()
    async with StandIn(rest=HANG) as server:
        message = await refusal(server, section=section, deadline=0.3)
    assert 0.25 < time.monotonic() - began < 8.0
    assert "timeout" in message


# Failures that stay.


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "check api_key"), (403, "check that api_key"), (404, "check model_name")],
)
async def test_a_final_status_is_not_repeated(status: int, hint: str):
    async with StandIn(rest=problem(status, "the server's\nown words")) as server:
        message = await refusal(server)
    assert len(server.seen) == 1
    assert f"answered {status}: the server's own words" in message
    assert hint in message
    assert "aflow_llm.yaml" in message


async def test_a_redirect_is_not_followed():
    moved = http(307, b"", "location: https://elsewhere.example/v1/chat/completions")
    async with StandIn(rest=moved) as server:
        message = await refusal(server)
    assert "answered 307: see https://elsewhere.example" in message
    assert "base_url" in message


async def test_a_server_that_only_streams_is_answered_with_the_key():
    refused = problem(
        400, "This model only support stream mode, please enable the stream parameter"
    )
    async with StandIn([refused]) as server:
        with pytest.raises(RequestRefused, match=r"\(set stream: true for this model; "):
            await ask(server)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refused_request_can_be_told_apart(status: int):
    async with StandIn(rest=problem(status, "response_format is not supported")) as server:
        with pytest.raises(RequestRefused, match="response_format is not supported"):
            await ask(server)
    assert len(server.seen) == 1


async def test_a_refused_request_is_no_reason_to_leave_a_server_alone():
    steps = [problem(400, "too long")] * 10
    async with StandIn(steps) as one, StandIn(steps) as two:
        client = client_for(one, two)
        for _ in range(20):
            with pytest.raises(RequestRefused):
                await client.chat(ASK)
        for _ in range(4):
            await client.chat(ASK)
        assert (len(one.seen), len(two.seen)) == (12, 12), "neither rests"
        await client.aclose()


async def test_replies_without_content_are_counted():
    async with StandIn([good(""), good(None), good(" "), good("fine")]) as server:
        client = client_for(server)
        for _ in range(4):
            await client.chat(ASK)
        assert client.counters.role("executor")["empty"] == 3
        await client.aclose()


async def test_connection_refused():
    message = await refusal(base_url=dead_url(), section=FAST.model_copy(update={"attempts": 2}))
    assert "2 x unreachable" in message


async def test_a_server_that_restarts_is_waited_for():
    section = FAST.model_copy(update={"attempts": 1, "reconnect_seconds": 5.0})
    url = dead_url()
    client = client_for(base_url=url, section=section)
    asked = asyncio.create_task(client.chat(ASK))
    await asyncio.sleep(0.1)
    assert not asked.done()
    async with StandIn(port=int(url.split(":")[2].removesuffix("/v1"))):
        assert (await asked).text == "fine"
    counts = client.counters.role("executor")
    assert counts["unreachable"] == counts["attempts"] - 1 >= 1
    assert counts["wait_seconds"] > 0
    await client.aclose()


async def test_a_server_is_waited_for_no_longer_than_configured():
    section = FAST.model_copy(update={"attempts": 1, "reconnect_seconds": 0.1})
    assert "unreachable" in await refusal(base_url=dead_url(), section=section)
    section = FAST.model_copy(update={"attempts": 1, "reconnect_seconds": 60.0})
    message = await refusal(base_url=dead_url(), section=section, deadline=0.1)
    assert "unreachable" in message, "the deadline comes first"


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_what_only_the_configuration_can_mend_is_told_apart(status: int):
    async with StandIn(rest=problem(status, "no such model")) as server:
        with pytest.raises(ServerMisconfigured, match="no such model"):
            await ask(server)
    assert len(server.seen) == 1


def test_a_base_url_without_a_scheme_is_a_mistake():
    not_one = r"models\.big\.base_url: not the address of a server"
    for url in ("localhost:8002/v1", "http://a b/v1", "http://a..b/v1", "http:///v1", "http://h:x"):
        with pytest.raises(ConfigError, match=not_one):
            client_for(base_url=url)


def test_a_password_in_a_base_url_is_refused_and_not_repeated():
    for url in ("http://me:secret@host/v1", "https://secret@host", "me:secret@host:80/v1"):
        with pytest.raises(ConfigError, match="a user or password in an address") as caught:
            client_for(base_url=url)
        assert "secret" not in str(caught.value)


# Several servers, several keys.


async def test_a_dead_server_is_left_alone():
    async with StandIn() as server:
        client = client_for(base_url=(dead_url(), server.url))
        replies = await asyncio.gather(*(client.chat(ASK) for _ in range(20)))
        failures = client.counters.role("executor")["unreachable"]
        await client.aclose()
    assert [reply.text for reply in replies] == ["fine"] * 20
    assert failures <= 20


async def test_requests_go_where_fewest_are_outstanding():
    async with StandIn(delay=0.2) as slow, StandIn() as quick:
        client = client_for(slow, quick, section=FAST.model_copy(update={"max_concurrency": 4}))
        await asyncio.gather(*(client.chat(ASK) for _ in range(40)))
        await client.aclose()
    assert len(slow.seen) + len(quick.seen) == 40
    assert len(quick.seen) > 2 * len(slow.seen)


async def test_the_first_retry_goes_to_another_server_without_a_pause():
    section = FAST.model_copy(update={"backoff_seconds": 10.0})
    async with StandIn(rest=problem(500, "no")) as bad, StandIn() as fine:
        client = client_for(bad, fine, section=section)
        replies = [await client.chat(ASK, 2.0) for _ in range(4)]
        await client.aclose()
    assert all(reply.text == "fine" for reply in replies)
    assert 1 <= len(bad.seen) <= 4


async def test_keys_take_turns_and_a_refused_one_is_dropped():
    def by_key(seen: object) -> bytes:
        key = seen.headers["authorization"]  # pyright: ignore[reportAttributeAccessIssue]
        return problem(401, "revoked") if key == "Bearer old" else good()

    async with StandIn(choose=by_key) as server:
        client = client_for(server, api_key=("old", "one", "two"))
        for _ in range(6):
            assert (await client.chat(ASK)).text == "fine"
        await client.aclose()
    keys = [seen.headers["authorization"] for seen in server.seen]
    assert keys.count("Bearer old") == 1
    assert keys.count("Bearer one") >= 2
    assert keys.count("Bearer two") >= 2


async def test_a_limited_key_rests_while_another_works():
    def by_key(seen: object) -> bytes:
        key = seen.headers["authorization"]  # pyright: ignore[reportAttributeAccessIssue]
        return problem(429, "wait", "retry-after: 60") if key == "Bearer busy" else good()

    async with StandIn(choose=by_key) as server:
        client = client_for(server, api_key=("busy", "free"))
        replies = [await client.chat(ASK) for _ in range(5)]
        await client.aclose()
    assert [reply.text for reply in replies] == ["fine"] * 5
    assert len(server.seen) == 6


# Concurrency and cancellation.


async def test_concurrency_is_bounded_and_the_queue_does_not_eat_the_deadline():
    section = FAST.model_copy(update={"max_concurrency": 2})
    async with StandIn(delay=0.1) as server:
        client = client_for(server, section=section)
        replies = await asyncio.gather(*(client.chat(ASK, deadline=0.8) for _ in range(24)))
        await client.aclose()
    assert server.most_at_once == 2
    assert len(replies) == 24  # the last one waited for more than a second


async def test_a_server_that_takes_four_at_a_time_is_not_overrun():
    async with StandIn(delay=0.02, takes=4) as server:
        client = client_for(server, section=FAST.model_copy(update={"deadline_seconds": 60.0}))
        replies = await asyncio.gather(*(client.chat(ASK) for _ in range(200)))
        refused, server.refused = server.refused, 0
        await asyncio.gather(*(client.chat(ASK) for _ in range(200)))
        await client.aclose()
    assert {reply.text for reply in replies} == {"fine"}
    assert server.most_at_once <= 16, "the first window"
    assert 0 < refused < 100 and server.refused < 100


async def test_each_server_has_its_own_bound_and_a_stuck_one_holds_no_other():
    section = FAST.model_copy(update={"max_concurrency_per_server": 3, "request_seconds": 30.0})
    async with StandIn(rest=HANG) as stuck, StandIn(delay=0.02) as fine:
        client = client_for(stuck, fine, section=section)
        calls = [asyncio.create_task(client.chat(ASK, 30.0)) for _ in range(60)]
        while sum(call.done() for call in calls) < 57:
            await asyncio.sleep(0.01)
        assert (stuck.most_at_once, fine.most_at_once) == (3, 3)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.aclose()


@pytest.mark.parametrize(
    ("keys", "each", "total"),
    [
        ({}, 64, 512),
        ({"max_concurrency": 4}, 4, 4),
        ({"max_concurrency": 256}, 256, 256),
        ({"max_concurrency_per_server": 128}, 128, 1024),
        ({"max_concurrency_per_server": 8, "max_concurrency": 20}, 8, 20),
    ],
)
def test_a_bound_over_all_servers_is_kept_whatever_their_number(
    keys: dict[str, int], each: int, total: int
):
    section = LlmSection.model_validate(keys)
    assert (section.in_flight(1), section.in_flight(8)) == (each, total)
    assert client_for(base_url=dead_urls(8), section=section).concurrency == total


@pytest.mark.parametrize(
    ("processes", "each", "total"), [(1, 8, 20), (2, 4, 10), (3, 2, 6), (5, 1, 4), (100, 1, 1)]
)
def test_processes_that_ask_the_same_servers_share_their_bounds(
    processes: int, each: int, total: int
):
    section = LlmSection(max_concurrency_per_server=8, max_concurrency=20).shared_by(processes)
    section = pickle.loads(pickle.dumps(section))  # as it goes to a worker
    balance = balance_of([f"http://{n}" for n in range(8)], ("k",), section)
    assert {server.window.ceiling for server in balance.servers} == {each}
    assert balance.total == section.in_flight(8) == total
    assert section.model_dump() == section.shared_by(1).model_dump()


async def test_a_cancelled_call_leaves_nothing_behind():
    async with StandIn([HANG]) as server:
        client = client_for(server, section=FAST.model_copy(update={"max_concurrency": 1}))
        call = asyncio.create_task(client.chat(ASK))
        while not server.seen:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.chat(ASK)).text == "fine"
        await client.aclose()


# Checking before a run.


async def test_check_is_silent_when_all_is_well():
    async with StandIn(models=["other", "standin-7b"]) as server:
        client = client_for(server)
        assert await client.check() == []
        await client.aclose()


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["standin-8b", "b"], "serves standin-8b, b, not standin-7b; set model_name; did you mean"),
        (http(200, b"<html>hello</html>"), "not an OpenAI-compatible server; check base_url"),
        (problem(401, "who?"), "answered 401 to /models; check api_key"),
    ],
)
async def test_check_says_what_to_do(models: list[str] | bytes, expected: str):
    async with StandIn(models=models) as server:
        client = client_for(server)
        (line,) = await client.check()
        await client.aclose()
    assert expected in line
    assert line.startswith(f"config/aflow_llm.yaml: models.big: {server.url}: ")
    assert "\n" not in line


async def test_check_names_every_unreachable_server():
    client = client_for(base_url=tuple(dead_urls(2)))
    lines = await client.check()
    await client.aclose()
    assert len(lines) == 2
    assert all("cannot be reached" in line and "start the server" in line for line in lines)


async def test_a_server_without_a_list_of_models_passes():
    async with StandIn(models=problem(404, "not here")) as server:
        client = client_for(server)
        assert await client.check() == []
        await client.aclose()


# Proxies. The environment is set for the process: these read it when the client is made.


def test_this_machine_is_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert proxy_for("http://localhost:8002/v1", None) is None
    assert proxy_for("http://127.0.0.1:8002/v1", None) is None
    assert proxy_for("http://[::1]:8002/v1", None) is None
    assert proxy_for("http://gpu-1:8002/v1", None) == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("gpu-1.cluster", True),
        ("cluster", True),
        (".cluster", True),
        ("*.cluster", True),
        ("*", True),
        ("gpu-1.cluster:8002", True),
        ("gpu-1.cluster:9999", False),
        ("gpu-2.cluster, other", False),
        ("pu-1.cluster", False),
        ("", False),
    ],
)
def test_no_proxy(monkeypatch: pytest.MonkeyPatch, no_proxy: str, direct: bool):
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    url = "http://gpu-1.cluster:8002/v1"
    expected = None if direct else "http://proxy.example:3128"
    assert proxy_for(url, no_proxy) == expected
    monkeypatch.setenv("no_proxy", no_proxy)
    assert proxy_for(url, None) == expected


def test_no_proxy_knows_networks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert proxy_for("http://10.1.2.3:8000/v1", "10.0.0.0/8") is None
    assert proxy_for("http://11.1.2.3:8000/v1", "10.0.0.0/8") is not None


async def test_the_proxy_is_used_unless_no_proxy_names_the_host(monkeypatch: pytest.MonkeyPatch):
    async with StandIn() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        reply = await ask(base_url="http://model.invalid/v1")
        assert reply.text == "fine"
        assert proxy.seen[0].path == "http://model.invalid/v1/chat/completions"
        one_try = FAST.model_copy(update={"attempts": 1})
        await refusal(base_url="http://model.invalid/v1", no_proxy="model.invalid", section=one_try)
        assert len(proxy.seen) == 1


async def test_a_text_that_every_key_is_refused_for_costs_no_key():
    def choose(seen):
        key = seen.headers["authorization"]
        is_refused = "flagged" in seen.body.decode() or key == "Bearer a"
        return problem(403, "not with this") if is_refused else good()

    async with StandIn(choose=choose) as server:
        client = client_for(server, api_key=("a", "b", "c"))
        flagged = ChatRequest((Message("user", "flagged"),))
        for _ in range(3):
            with pytest.raises(ServerMisconfigured):
                await client.chat(flagged)
            assert (await client.chat(ASK)).text == "fine"
        asked = len(server.seen)
        for _ in range(4):
            assert (await client.chat(ASK)).attempts == 1, "a is known to be bad"
        await client.aclose()
    assert len({seen.headers["authorization"] for seen in server.seen[asked:]}) == 2


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http(200, b"<html>blocked</html>"), NoCompletion),
        (problem(500, "unexpected tokens remaining in message header"), NoCompletion),
        (problem(409, "no"), NoCompletion),
        (problem(451, "no"), ServerMisconfigured),
        (problem(400, "no"), RequestRefused),
        (problem(503, "no"), FailureError),
        (DROP, FailureError),
    ],
)
async def test_a_server_that_answers_is_told_from_one_that_is_down(reply: object, kind: type):
    async with StandIn(rest=reply) as server:
        with pytest.raises(FailureError) as caught:
            await ask(server)
    assert type(caught.value) is kind


# Reading bodies.


async def test_a_body_without_end_is_given_up_at_64_mib():
    bomb = http(200, gzip.compress(b" " * (MOST_BYTES + 1)), "content-encoding: gzip")
    assert len(bomb) < 100_000
    one_try = FAST.model_copy(update={"attempts": 1, "request_seconds": 60, "deadline_seconds": 60})
    for body in (bomb, http(200, b":" * (MOST_BYTES + 1)), http(500, b"x" * (MOST_BYTES + 1))):
        async with StandIn(rest=body) as server:
            message = await refusal(server, section=one_try)
        assert "1 x oversized" in message and "a body above 64 MiB" in message
    async with StandIn(
        [http(200, gzip.compress(b'{"choices":'), "content-encoding: gzip")]
    ) as server:
        assert (await ask(server)).text == "fine"


def event(**fields: object) -> str:
    return f"data: {json.dumps({'model': 'm', **fields})}"


def said(text: str | None, finish: str | None = None, **fields: object) -> str:
    change = None if text is None else {"content": text}
    choice = {"index": 0, "delta": change, "finish_reason": finish}
    return event(choices=[choice], **fields)


def test_streams_are_read_as_the_standard_has_them():
    four, two, stop = said("4"), said("2"), said("", "stop")
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    cut = said("2", "stop").partition(', "choices"')
    rows: dict[str, list[str]] = {
        "comments and other fields": [": hello", four, "id: 7\nretry: 5\n" + two, ": ", stop],
        "an event of two lines": [four, cut[0] + "\ndata: " + "".join(cut[1:])],
        "values that keep the connection alive": [four, "data:", "data: ", "data: null", two, stop],
        "a ping": [event(type="ping"), four, "event: ping\ndata: {}", two, stop],
        "null where there is nothing": [
            said("4", error=None), two, said(None, "stop"), event(choices=None, usage=usage),
        ],
        "no choices beside the usage": [four, two, stop, event(usage=usage)],
        "other choices": [
            event(choices=[{"index": 1, "delta": {"content": "no"}}]), four, two, stop,
        ],
        "an index of null": [
            four, event(choices=[{"index": None, "delta": {"content": "2"}}]), stop,
        ],
        "no space behind the colon": [x.replace("data: ", "data:") for x in (four, two, stop)],
        "no blank lines between": ["\n".join([four, two, stop, "data: [DONE]"])],
        "line separators inside of JSON": [
            four.replace('"m"', '"\u2028\x85"'), two, stop, "data: [DONE]", "data: {behind the end",
        ],
    }  # fmt: skip
    for name, events in rows.items():
        for end in ("\n", "\r\n", "\r"):
            for start, done in (("", "data: [DONE]"), ("\ufeff" + end * 2000, "")):
                text = start + "\n\n".join([*events, done]).replace("\n", end)
                reply = decode_reply(text.encode())
                assert (reply.text, reply.finish_reason) == ("42", "stop"), name
                assert reply.completion_tokens == (2 if '"usage"' in text else 0), name
    broken = {"engine gone": [four, event(error={"message": "engine gone"}), stop],
              "as its kind says": [four, 'event: error\ndata: {"x": "as its kind says"}', stop],
              "late": [four, event(choices=[{"finish_reason": "error", "error": "late"}])],
              "busy": [four, event(object="error", message="busy"), "data: [DONE]"],
              "not JSON": [four, "data: {", stop]}  # fmt: skip
    for why, events in broken.items():
        with pytest.raises(MalformedReply, match=why):
            decode_reply("\n\n".join(events).encode())


def test_blank_lines_before_a_body_are_skipped():
    whole = good("42").partition(b"\r\n\r\n")[2]
    for before in (b"", b"\n" * 40, b"\r\n" * 50_000, b"\xef\xbb\xbf \t\n"):
        assert decode_reply(before + whole).text == "42"
    for body in (b"\n" * 99, b"\n<html>", b'{"choices": null}', b"null", b"[1]",
                 b'{"error": "no", "choices": [{"message": {"content": "42"}}]}'):  # fmt: skip
        with pytest.raises(MalformedReply):
            decode_reply(body)


def test_a_long_stream_takes_linear_time():
    lines = "\n".join(said("4") for _ in range(100_000))
    assert len(decode_reply(f"{lines}\n{said('', 'stop')}".encode()).text) == 100_000


@given(st.binary(max_size=200))
def test_any_bytes_are_a_completion_or_malformed(data: bytes):
    with pytest.raises(MalformedReply):
        decode_reply(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "choices": st.lists(
                st.fixed_dictionaries(
                    {}, optional={"message": JSON, "delta": JSON, "finish_reason": JSON}
                )
                | JSON
            ),
            "usage": JSON,
            "model": JSON,
        },
    ),
    st.booleans(),
)
def test_any_json_is_a_completion_or_malformed(body: dict[str, object], streamed: bool):
    data = json.dumps(body).encode()
    try:
        completion = decode_reply(b"data: " + data + b"\n\n" if streamed else data)
    except MalformedReply:
        return
    assert isinstance(completion.text, str)
    assert completion.prompt_tokens >= 0


@given(st.text(max_size=60), st.lists(st.integers(1, 10), max_size=6))
def test_a_stream_says_what_the_whole_reply_says(text: str, cuts: list[int]):
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pieces.append(rest)
    events = [*(delta(piece) for piece in pieces), delta(finish="stop")]
    lines = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
    streamed = decode_reply(lines.encode("utf-8"))
    whole = decode_reply(good(text).partition(b"\r\n\r\n")[2])
    assert streamed.text == whole.text == text
