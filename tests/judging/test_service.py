"""The judge service over HTTP: verdicts, failures, limits, key, metrics, disconnects, drain."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from judge_doubles import ScriptedModel, in_form, reply, unavailable
from judge_serving import served, until

from flowright.config.judge import JudgeSection, JudgeServerSection
from flowright.config.llm import LlmSection
from flowright.config.loading import load_judge_server, load_models
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import ConfigError, UserError
from flowright.core.net import allowed_hosts
from flowright.judging.build import build_judge
from flowright.judging.llm_judge import LlmJudge
from flowright.judging.rules import RuleJudge
from flowright.judging.service.app import create_app
from flowright.judging.service.serve import open_backend
from flowright.judging.service.traffic import Admission, Overloaded, Slot
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Usage

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "config/judge_server.yaml"
RIGHT = {"prompt": "What is 6 * 7?", "completion": "It is 42.", "answer": "42"}


def verdict(correct: bool | None, status: str = "ok") -> Verdict:
    score = None if correct is None else float(correct)
    return Verdict(score, correct, "llm", status, "because", 2, "double", Usage(2, 30, 4))  # pyright: ignore[reportArgumentType]


@dataclass
class Double:
    """Calls right what repeats the reference; ``broken`` answers raise; keeps what it was asked."""

    name: str = "double"
    asked: list[JudgeQuery] = field(default_factory=list)

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.asked.append(query)
        if query.answer == "raise":
            raise RuntimeError("secret of the house")
        if query.answer == "user error":
            raise UserError("mend this")
        if query.answer == "half":
            return replace(verdict(False), reason="half \ud800")
        if query.answer == "down":
            return verdict(None, "unavailable")
        return verdict(query.reference in query.answer)


@dataclass
class Held:
    """Judges only once it is let go; counts what began, what was at once, what was cancelled."""

    name: str = "held"
    go: asyncio.Event = field(default_factory=asyncio.Event)
    began: int = 0
    now: int = 0
    most: int = 0
    cancelled: int = 0

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.began += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return verdict(True)


def client_of(app: FastAPI, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://judge", headers=headers)


async def metric(client: httpx2.AsyncClient, series: str) -> float:
    text = (await client.get("/metrics")).text
    found = re.search(rf"^flowright_judge_{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_a_loopback_service_answers_to_its_own_names_alone() -> None:
    """A page that rebinds its name to 127.0.0.1 gets nothing."""
    app = create_app(Double(), JudgeServerSection(), hosts=allowed_hosts("127.0.0.1"))
    async with client_of(app) as client:
        for host, code in (("evil.example", 400), ("localhost:8888", 200), ("127.0.0.1", 200)):
            assert (
                await client.post("/judge", json=RIGHT, headers={"Host": host})
            ).status_code == code


# Verdicts.


async def test_a_verdict_has_every_field() -> None:
    double = Double()
    async with client_of(create_app(double, JudgeServerSection())) as client:
        answer = await client.post("/judge", json={**RIGHT, "request_id": "a/1"})
    assert answer.status_code == 200
    body = answer.json()
    latency = body["metadata"].pop("latency")
    assert body == {
        "score": 1.0,
        "correct": True,
        "status": "ok",
        "source": "llm",
        "request_id": "a/1",
        "explanation": "because",
        "parts": {},
        "metadata": {
            "attempts": 2,
            "judge": "double",
            "prompt_tokens": 30,
            "completion_tokens": 4,
        },
    }
    assert 0 <= latency < 5
    assert double.asked == [JudgeQuery("What is 6 * 7?", "It is 42.", "42", "free_text", key="a/1")]


async def test_a_request_id_is_made_from_what_is_asked_and_is_the_key() -> None:
    double = Double()
    async with client_of(create_app(double, JudgeServerSection())) as client:
        first, again, other = [
            (await client.post("/judge", json={**RIGHT, "prompt": prompt})).json()["request_id"]
            for prompt in ("p", "p", "q")
        ]
    assert first == again != other and first
    assert [query.key for query in double.asked] == [first, again, other]


@pytest.mark.parametrize(
    ("answer_type", "known"),
    [
        ("number", "number"),
        ("math_expression", "math_expression"),
        ("code", "code"),
        ("multiple_choice", "multiple_choice"),
        ("span", "span"),
        ("free_text", "free_text"),
        ("Number", "number"),
        ("FREE_TEXT", "free_text"),
    ],
)
async def test_the_answer_type_is_handed_on_in_any_case(answer_type: str, known: str) -> None:
    double = Double()
    async with client_of(create_app(double, JudgeServerSection())) as client:
        answer = await client.post("/judge", json={**RIGHT, "answer_type": answer_type})
    assert answer.status_code == 200
    assert [query.answer_type for query in double.asked] == [known]


async def test_an_unknown_answer_type_is_told_the_choices() -> None:
    double = Double()
    async with client_of(create_app(double, JudgeServerSection())) as client:
        answer = await client.post("/judge", json={**RIGHT, "answer_type": "riddle"})
    assert answer.status_code == 422
    for choice in ("number", "math_expression", "multiple_choice", "code", "span", "free_text"):
        assert choice in answer.json()["error"]
    assert double.asked == []


@pytest.mark.parametrize("completion", ["down", "raise", "user error"])
async def test_a_failing_judge_has_no_score_and_is_counted(completion: str) -> None:
    async with client_of(create_app(Double(), JudgeServerSection())) as client:
        answer = await client.post("/judge", json={**RIGHT, "completion": completion})
        source = "llm" if completion == "down" else "none"
        counted = await metric(client, f'verdicts_total{{source="{source}",status="unavailable"}}')
    body = answer.json()
    assert answer.status_code == 200
    assert (body["score"], body["correct"], body["status"]) == (None, None, "unavailable")
    assert counted == 1
    assert "secret" not in answer.text and "mend" not in answer.text


async def test_a_real_judge_whose_server_is_down_has_no_score() -> None:
    judge = LlmJudge(ScriptedModel([unavailable()]), JudgeSection(max_attempts=2))
    async with client_of(create_app(judge, JudgeServerSection())) as client:
        body = (await client.post("/judge", json=RIGHT)).json()
    assert (body["score"], body["status"], body["metadata"]["attempts"]) == (None, "unavailable", 2)


async def test_any_configured_judge_is_served() -> None:
    model = ScriptedModel([lambda request: reply(in_form(request, True))])
    asked = build_judge(JudgeSection(model="any"), model)
    rules = build_judge(JudgeSection(mode="rules"), None)
    for judge, source in ((asked, "llm"), (rules, "rule")):
        async with client_of(create_app(judge, JudgeServerSection())) as client:
            body = (await client.post("/judge", json={**RIGHT, "answer_type": "number"})).json()
        assert (body["score"], body["source"]) == (1.0, source)


# Batches.


async def test_a_bad_member_never_fails_its_batch() -> None:
    members = [
        {**RIGHT, "request_id": "1"},
        {"prompt": "?", "request_id": "2"},
        17,
        {**RIGHT, "answer_type": "riddle"},
        {**RIGHT, "completion": "raise"},
        {**RIGHT, "completion": "user error"},
        {**RIGHT, "completion": "43"},
        {**RIGHT, "answer": " "},
        {**RIGHT, "prompt": "\ud800"},
        {**RIGHT, "\ud800": 1},
        {**RIGHT, "completion": "half"},
    ]
    async with client_of(create_app(Double(), JudgeServerSection())) as client:
        # Not json=: it would refuse half a surrogate pair itself.
        content = json.dumps({"requests": members})
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/batch_judge", content=content, headers=headers)
        invalid = await metric(client, 'verdicts_total{source="none",status="invalid"}')
    responses = answer.json()["responses"]
    assert answer.status_code == 200
    assert [(r["status"], r["score"]) for r in responses] == [
        ("ok", 1.0),
        ("invalid", None),
        ("invalid", None),
        ("invalid", None),
        ("unavailable", None),
        ("unavailable", None),
        ("ok", 0.0),
        ("ok", 1.0),
        ("invalid", None),
        ("invalid", None),
        ("ok", 0.0),
    ]
    assert [r["request_id"] for r in responses[:3]] == ["1", "2", None]
    assert "completion: Field required" in responses[1]["explanation"]
    assert "a JSON object is expected" in responses[2]["explanation"]
    assert "multiple_choice" in responses[3]["explanation"]
    assert "surrogate" in responses[8]["explanation"]
    assert invalid == 5


async def test_members_are_judged_at_once_within_the_limit_and_in_order() -> None:
    held = Held()
    settings = JudgeServerSection(max_in_flight=3, max_queue=5, max_batch=8)
    async with client_of(create_app(held, settings)) as client:
        members = [{**RIGHT, "request_id": str(n)} for n in range(8)]
        asking = asyncio.create_task(client.post("/batch_judge", json={"requests": members}))
        await until(lambda: held.now == 3)
        assert (await metric(client, "in_flight"), await metric(client, "queued")) == (3, 5)
        held.go.set()
        responses = (await asking).json()["responses"]
        assert (await metric(client, "in_flight"), await metric(client, "queued")) == (0, 0)
    assert [r["request_id"] for r in responses] == [str(n) for n in range(8)]
    assert held.most == 3


async def test_a_batch_has_a_limit() -> None:
    double = Double()
    async with client_of(create_app(double, JudgeServerSection(max_batch=2))) as client:
        answer = await client.post("/batch_judge", json={"requests": [RIGHT] * 3})
        empty = await client.post("/batch_judge", json={"requests": []})
    assert answer.status_code == 413
    assert answer.json() == {"error": "3 requests in one batch; at most 2 (server.max_batch)"}
    assert (empty.status_code, empty.json()) == (200, {"responses": []})
    assert double.asked == []


# Key.


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"X-API-Key": "wrong"},
        {"Authorization": "Bearer wrong", "X-API-Key": "wrong"},
        {"Authorization": "Basic right"},
        {"Authorization": "right"},
        {"X-API-Key": ""},
        {"X-API-Key": "rightright"},
        {"X-API-Key": "righ"},
    ],
)
async def test_without_the_key_there_is_no_verdict(headers: dict[str, str]) -> None:
    double = Double()
    app = create_app(double, JudgeServerSection(api_key="right"))
    async with client_of(app, **headers) as client:
        for path, body in (("/judge", RIGHT), ("/batch_judge", {"requests": [RIGHT]})):
            answer = await client.post(path, json=body)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert set(answer.json()) == {"error"}
        assert (await client.get("/elsewhere")).status_code == 401
        assert await metric(client, 'requests_total{code="401",endpoint="/judge"}') == 1
        for path in ("/health", "/metrics", "/docs", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
    assert double.asked == []


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer right"}, {"authorization": "bearer right"}, {"X-API-Key": "right"}],
)
async def test_with_the_key_there_is_one(headers: dict[str, str]) -> None:
    app = create_app(Double(), JudgeServerSection(api_key="right"))
    async with client_of(app, **headers) as client:
        assert (await client.post("/judge", json=RIGHT)).json()["score"] == 1.0


# Limits.


async def test_a_body_that_is_announced_too_large_is_not_read() -> None:
    app = create_app(Double(), JudgeServerSection(max_body_bytes=100))
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"x" * 101

    async with client_of(app) as client:
        answer = await client.post("/judge", content=body(), headers={"Content-Length": "101"})
    assert (answer.status_code, read) == (413, 0)
    assert answer.json() == {"error": "the body is larger than 100 bytes (server.max_body_bytes)"}


async def test_a_chunked_body_is_cut_off_while_it_is_read() -> None:
    double = Double()
    app = create_app(double, JudgeServerSection(max_body_bytes=1000))

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1000:
            sent += 1
            yield b" " * 100

    sent = 0
    async with client_of(app) as client:
        answer = await client.post("/judge", content=endless())
    assert (answer.status_code, sent) == (413, 11)

    async with served(app) as (url, _), httpx2.AsyncClient(base_url=url) as client:
        sent = 900
        answer = await client.post("/judge", content=endless())
        assert answer.status_code == 413 and "max_body_bytes" in answer.json()["error"]
        assert await metric(client, 'requests_total{code="413",endpoint="/judge"}') == 2
        assert (await client.post("/judge", json=RIGHT)).status_code == 200
    assert len(double.asked) == 1


async def test_beyond_the_queue_there_is_429_and_a_batch_counts_as_many() -> None:
    held = Held()
    settings = JudgeServerSection(max_in_flight=2, max_queue=2, max_batch=4)
    async with client_of(create_app(held, settings)) as client:
        batch = {"requests": [RIGHT] * 3}
        asking = [asyncio.create_task(client.post("/batch_judge", json=batch))]
        await until(lambda: held.began == 2)
        refused = await client.post("/batch_judge", json={"requests": [RIGHT, RIGHT]})
        asking.append(asyncio.create_task(client.post("/judge", json=RIGHT)))
        while await metric(client, "queued") < 2:
            await asyncio.sleep(0.005)
        refused_too = await client.post("/judge", json=RIGHT)
        # What can't be judged needs no room.
        invalid = await client.post("/batch_judge", json={"requests": [1, 2, 3, 4]})
        assert await metric(client, "refused_total") == 2
        held.go.set()
        assert [(await a).status_code for a in asking] == [200, 200]
        assert (await client.post("/judge", json=RIGHT)).status_code == 200
        assert await metric(client, 'requests_total{code="429",endpoint="/judge"}') == 1
    for answer in (refused, refused_too):
        assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1
        assert "max_queue" in answer.json()["error"]
    assert invalid.status_code == 200
    assert (held.began, held.most) == (5, 2)


async def test_room_comes_back_from_verdicts_that_never_began() -> None:
    admission = Admission(1, 3)
    with pytest.raises(KeyError), admission.admit(3) as slot:
        async with slot():
            assert (admission.running, admission.queued) == (1, 2)
        assert (admission.running, admission.queued) == (0, 2)
        raise KeyError
    assert (admission.running, admission.queued) == (0, 0)


async def test_clients_take_turns_however_much_one_has_queued() -> None:
    admission, turns = Admission(1, 9), list[str]()

    async def ask(client: str, slot: Slot) -> None:
        async with slot():
            turns.append(client)
            await asyncio.sleep(0)

    with admission.admit(6, "many") as many, admission.admit(2, "few") as few:
        asked = [ask("many", many) for _ in range(6)] + [ask("few", few) for _ in range(2)]
        await asyncio.gather(*asked)
    assert turns == ["many", "many", "few", "many", "few", "many", "many", "many"]
    assert (admission.running, admission.queued) == (0, 0)


async def test_who_holds_more_than_a_share_makes_room_for_who_was_refused() -> None:
    now = 0.0
    admission = Admission(2, 8, lambda: now)
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(admission.admit(2, "first"))
        leaving = ExitStack()
        leaving.enter_context(admission.admit(2, "first"))
        with pytest.raises(Overloaded), admission.admit(2, "second"):
            pass
        leaving.close()
        with pytest.raises(Overloaded), admission.admit(2, "first"):
            pass  # there is room, and it holds more than half of it
        with admission.admit(2, "second"):
            assert admission.queued == 10
        with admission.admit(2, "first"):
            pass  # nobody else wants it any more
        with pytest.raises(Overloaded), admission.admit(3, "gone"):
            pass
        now += 60.0
        with admission.admit(2, "first"):
            pass  # who was refused never came back
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_place_is_not_lost_with_who_waited_for_it() -> None:
    admission = Admission(1, 3)

    async def ask(slot: Slot) -> None:
        async with slot():
            await asyncio.sleep(0)

    with admission.admit(4) as slot:
        tasks = [asyncio.create_task(ask(slot)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()  # while it waits
        await tasks[0]
        tasks[2].cancel()  # in the moment in which it gets its turn
        await tasks[3]
    assert (admission.running, admission.queued) == (0, 0)


# Errors.


@pytest.mark.parametrize(
    ("method", "path", "content", "kind", "code"),
    [
        ("POST", "/judge", b"{", "application/json", 422),
        ("POST", "/judge", b"", "application/json", 422),
        ("POST", "/judge", b"[]", "application/json", 422),
        ("POST", "/judge", b"[" * 300_000, "application/json", 400),
        ("POST", "/judge", b'{"prompt": "\xff"}', "application/json", 400),
        ("POST", "/judge", b'{"prompt": 1, "completion": "", "x": 2}', "application/json", 422),
        ("POST", "/judge", b'{"prompt": "\\ud800"}', "application/json", 422),
        ("POST", "/judge", b'{"\\ud800": 1}', "application/json", 422),
        ("POST", "/judge", b"a=b", "application/x-www-form-urlencoded", 415),
        ("POST", "/batch_judge", b"[]", "application/json", 422),
        ("POST", "/batch_judge", b'{"requests": 1}', "application/json", 422),
        ("GET", "/judge", b"", "application/json", 405),
        ("GET", "/nowhere", b"", "application/json", 404),
        ("POST", "/judge/", b"{}", "application/json", 404),
    ],
)
async def test_every_error_is_a_sentence_in_json(
    method: str, path: str, content: bytes, kind: str, code: int
) -> None:
    double = Double()
    async with client_of(create_app(double, JudgeServerSection())) as client:
        answer = await client.request(method, path, content=content, headers={"Content-Type": kind})
    assert answer.status_code == code
    assert set(answer.json()) == {"error"} and answer.json()["error"]
    assert code != 415 or "curl: --json" in answer.json()["error"]
    assert "Traceback" not in answer.text and ".py" not in answer.text
    assert double.asked == []


async def test_a_bug_of_ours_says_nothing_but_that() -> None:
    class Bad(Double):
        async def judge(self, query: JudgeQuery) -> Verdict:
            return "no verdict"  # pyright: ignore[reportReturnType]

    async with client_of(create_app(Bad(), JudgeServerSection())) as client:
        answer = await client.post("/judge", json=RIGHT)
        assert await metric(client, 'requests_total{code="500",endpoint="/judge"}') == 1
    assert (answer.status_code, answer.json()) == (500, {"error": "internal error"})


# Health, metrics, OpenAPI.


async def test_a_judge_without_a_backend_is_always_ready() -> None:
    async with client_of(create_app(RuleJudge(), JudgeServerSection())) as client:
        answer = await client.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "judge": "rules",
        "simulated": False,
        "in_flight": 0,
        "queued": 0,
        "max_in_flight": 64,
        "max_queue": 256,
        "max_batch": 64,
        "max_body_bytes": 2 << 20,
    }


async def test_health_asks_the_backend_now_and_then() -> None:
    probes = 0

    async def ready() -> list[str]:
        nonlocal probes
        probes += 1
        await asyncio.sleep(0.01)
        return ["the backend is away"]

    async with client_of(create_app(Double(), JudgeServerSection(), ready=ready)) as client:
        answers = await asyncio.gather(*(client.get("/health") for _ in range(20)))
    assert {a.status_code for a in answers} == {503}
    assert answers[0].json()["status"] == "unavailable"
    assert answers[0].json()["error"] == "the backend is away"
    assert probes == 1


async def test_a_probe_that_raises_means_not_ready() -> None:
    async def ready() -> list[str]:
        raise RuntimeError("secret of the house")

    async with client_of(create_app(Double(), JudgeServerSection(), ready=ready)) as client:
        answer = await client.get("/health")
    assert answer.status_code == 503 and "secret" not in answer.text


async def test_what_is_simulated_says_so() -> None:
    async with client_of(create_app(Double(), JudgeServerSection(), simulated=True)) as client:
        health = (await client.get("/health")).json()
        assert health["simulated"] is True and "simulated" in health["notice"]
        assert await metric(client, 'info{judge="double",simulated="true"}') == 1
        assert "simulated" in (await client.get("/openapi.json")).json()["info"]["description"]


async def test_metrics_count_verdicts_tokens_and_time() -> None:
    app, other = (create_app(Double(), JudgeServerSection()) for _ in range(2))
    async with client_of(app) as client, client_of(other) as unused:
        for completion in ("42", "41", "down"):
            await client.post("/judge", json={**RIGHT, "completion": completion})
        page = await client.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert await metric(client, 'requests_total{code="200",endpoint="/judge"}') == 3
        assert await metric(client, 'verdicts_total{source="llm",status="ok"}') == 2
        assert await metric(client, 'verdicts_total{source="llm",status="unavailable"}') == 1
        assert await metric(client, 'tokens_total{kind="prompt"}') == 90
        assert await metric(client, 'tokens_total{kind="completion"}') == 12
        assert await metric(client, "verdict_seconds_count") == 3
        assert await metric(client, 'verdict_seconds_bucket{le="+Inf"}') == 3
        assert await metric(unused, 'tokens_total{kind="prompt"}') == 0
        await client.get("/a/secret/path")
        page = await client.get("/metrics")
        assert "secret" not in page.text
        assert await metric(client, 'requests_total{code="404",endpoint="other"}') == 1


async def test_the_api_is_described_with_models_and_examples() -> None:
    async with client_of(create_app(Double(), JudgeServerSection(api_key="k"))) as client:
        assert "swagger" in (await client.get("/docs")).text
        api = (await client.get("/openapi.json")).json()
    schemas = api["components"]["schemas"]
    assert schemas["JudgeRequest"]["examples"] and schemas["JudgeResponse"]["examples"]
    members = schemas["BatchRequest"]["properties"]["requests"]["items"]
    assert members["required"] == ["prompt", "completion"] and members["examples"]
    for path in ("/judge", "/batch_judge"):
        operation = api["paths"][path]["post"]
        assert {"200", "401", "413", "422", "429", "503"} <= set(operation["responses"])
        assert len(operation["security"]) == 2


# Connections.


async def test_a_client_that_goes_away_takes_its_verdicts_along() -> None:
    held = Held()
    settings = JudgeServerSection(max_in_flight=2, max_queue=8, max_batch=5)
    async with served(create_app(held, settings)) as (url, _):
        async with httpx2.AsyncClient(base_url=url) as client:
            batch = {"requests": [RIGHT] * 5}
            asking = asyncio.create_task(client.post("/batch_judge", json=batch))
            await until(lambda: held.began == 2)
            asking.cancel()
            await asyncio.wait({asking})
        await until(lambda: held.cancelled == 2)
        async with httpx2.AsyncClient(base_url=url) as client:
            assert (await metric(client, "in_flight"), await metric(client, "queued")) == (0, 0)
            gone = 'requests_total{code="499",endpoint="/batch_judge"}'
            assert await metric(client, gone) == 1
            held.go.set()
            assert (await client.post("/judge", json=RIGHT)).json()["score"] == 1.0
    assert held.began == 3


async def test_sigterm_lets_running_requests_finish_and_no_new_ones_in() -> None:
    held = Held()
    app = create_app(held, JudgeServerSection())
    async with served(app) as (url, said), httpx2.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post("/judge", json=RIGHT))
        await until(lambda: held.began == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: bool(said))
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert (await client.get("/metrics")).status_code == 200
        for path, body in (("/judge", RIGHT), ("/batch_judge", {"requests": []})):
            refused = await client.post(path, json=body)
            assert refused.status_code == 503 and "draining" in refused.json()["error"]
        held.go.set()
        assert (await asking).json()["score"] == 1.0
        await until(lambda: "drained; requests cancelled: 0" in said)
    assert held.began == 1


async def test_what_outlasts_the_drain_is_told() -> None:
    held = Held()
    app = create_app(held, JudgeServerSection())
    async with served(app, 0.1) as (url, said), httpx2.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post("/judge", json=RIGHT))
        await until(lambda: held.began == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        answer = await asking
        assert (answer.status_code, set(answer.json())) == (503, {"error"})
        await until(lambda: "drained; requests cancelled: 1" in said)
    assert held.cancelled == 1


async def test_a_second_signal_does_not_wait() -> None:
    held = Held()
    app = create_app(held, JudgeServerSection())
    async with served(app, 60) as (url, said), httpx2.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post("/judge", json=RIGHT))
        await until(lambda: held.began == 1)
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            await until(lambda count=count: len(said) >= count)
        async with asyncio.timeout(5):
            assert (await asking).status_code == 503


# The program and its configuration.


def test_the_shipped_service_starts_judges_and_ends() -> None:
    command = [sys.executable, str(ROOT / "scripts/serve_judge.py")]
    command += ["--config", str(SHIPPED), "server.port=0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JUDGE_")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    assert process.stdout is not None
    with process.stdout as output:
        try:
            line = output.readline()
            assert "simulated" in line + output.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert url is not None
            with httpx2.Client(base_url=url[0], trust_env=False) as client:
                deadline = time.monotonic() + 60
                while client.get("/health").status_code != 200:
                    assert time.monotonic() < deadline
                right = {**RIGHT, "completion": "The answer is 42."}
                wrong = {**RIGHT, "completion": "The answer is 40."}
                answer = client.post("/batch_judge", json={"requests": [right, wrong]})
                assert [r["score"] for r in answer.json()["responses"]] == [1.0, 0.0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0
        finally:
            process.kill()
            process.wait()


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; sys.argv=['x','--help']; import runpy\n"
    code += f"try: runpy.run_path({str(ROOT / 'scripts/serve_judge.py')!r}, run_name='__main__')\n"
    code += "except SystemExit: assert not {'fastapi', 'pydantic'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_shipped_configuration_can_name_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_MODEL", raising=False)
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    shipped = load_judge_server(SHIPPED)
    assert (shipped.models, shipped.server.api_key) == ({"simulated"}, "")
    monkeypatch.setenv("JUDGE_MODEL", "gpt-oss-120b")
    monkeypatch.setenv("JUDGE_API_KEY", "k")
    real = load_judge_server(SHIPPED)
    assert (real.models, real.server.api_key) == ({"gpt-oss-120b"}, "k")
    assert set(real.models) <= set(load_models(ROOT / real.llm.file))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("server: {prot: 1}\njudge: {model: x}", "server.prot: unknown key; did you mean server.p"),
        ("server: {max_batch: 99, max_in_flight: 4, max_queue: 4}", "server: max_batch must fit"),
        ("judge: {}", "judge.model: name a model of `llm.file`, or `simulated`"),
        ("server: {api_key: 'a b'}", "server.api_key: string should match pattern"),
        ("grpo: {}", "grpo: unknown key"),
    ],
)
def test_a_mistake_in_the_configuration_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_judge_server(path)
    assert any(told in line for line in caught.value.problems)
    assert "a b" not in str(caught.value)


async def test_a_rules_judge_opens_no_server_and_a_missing_model_is_told(tmp_path: Path) -> None:
    rules = JudgeServerConfig(judge=JudgeSection(mode="rules"), llm=LlmSection(file=tmp_path / "x"))
    async with open_backend(rules) as (opened, ready):
        assert await ready() == [] and not opened.simulated
    file = tmp_path / "llm.yaml"
    file.write_text("models: {big: {base_url: 'http://127.0.0.1:9/v1', model_name: b}}")
    for name, told in (("bog", "did you mean big"), ("simulatd", "did you mean simulated")):
        config = JudgeServerConfig(judge=JudgeSection(model=name), llm=LlmSection(file=file))
        with pytest.raises(ConfigError, match=told):
            async with open_backend(config):
                pass


async def test_a_real_model_that_is_down_is_not_ready(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text("models: {big: {base_url: 'http://127.0.0.1:9/v1', model_name: b}}")
    config = JudgeServerConfig(judge=JudgeSection(model="big"), llm=LlmSection(file=file))
    async with open_backend(config) as (opened, ready):
        app = create_app(opened.judge, config.server, ready=ready)
        async with client_of(app) as client:
            answer = await client.get("/health")
    assert answer.status_code == 503 and "cannot be reached" in answer.json()["error"]
