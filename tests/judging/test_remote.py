"""A judge behind HTTP and the reward adapter around it, against a service that misbehaves."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from judge_serving import served, until

from flowright.config.judge import JudgeRewardSection, JudgeServerSection
from flowright.config.loading import judge_reward, load_judge_reward
from flowright.core.errors import ConfigError, UserError
from flowright.judging.remote import RemoteJudge
from flowright.judging.reward.adapter import JudgeRewardSystem, create_judge_reward
from flowright.judging.rules import RuleJudge
from flowright.judging.service.app import create_app
from flowright.judging.verdict import Criterion, Judge, JudgeQuery, Verdict
from flowright.llm.transport import MOST_BYTES

ASKED = JudgeQuery("What is 6 * 7?", "It is 42.", "42", "math_expression", key="1/a/0")


def right(request: Mapping[str, Any]) -> dict[str, Any]:
    """What an honest service answers where the completion repeats the reference."""
    correct = request["answer"] in request["completion"]
    return {
        "score": float(correct),
        "correct": correct,
        "status": "ok",
        "source": "llm",
        "request_id": request.get("request_id"),
        "explanation": "compared",
        "metadata": {
            "latency": 0.1,
            "attempts": 2,
            "judge": "big",
            "prompt_tokens": 30,
            "completion_tokens": 4,
        },
    }


@dataclass
class Service:
    """Plays one step a request, the last one for ever: a status, a body, or an honest answer."""

    steps: list[object] = field(default_factory=lambda: ["honest"])
    delay: float = 0.0
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        step = self.steps[min(len(self.batches), len(self.steps) - 1)]
        members = (await request.json())["requests"]
        self.batches.append(members)
        self.keys.append(request.headers.get("Authorization", ""))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(60 if step == "hang" else self.delay)
        finally:
            self.in_flight -= 1
        if isinstance(step, int):
            return web.json_response(
                {"error": "so it is"}, status=step, headers={"Retry-After": "0"}
            )
        if callable(step):
            return web.json_response({"responses": [step(member) for member in members]})
        if step == "honest":
            return web.json_response({"responses": [right(member) for member in members]})
        return web.Response(text=str(step), content_type="application/json")


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[Service]:
    app = web.Application()
    app.router.add_post("/batch_judge", service.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()


def section(service: Service, **options: object) -> JudgeRewardSection:
    return JudgeRewardSection(judge_url=service.url, **{"batch_timeout": 0.01, **options})  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def remote(service: Service, **options: object) -> AsyncIterator[RemoteJudge]:
    async with serving(service):
        judge = RemoteJudge(section(service, **options))
        try:
            yield judge
        finally:
            await judge.aclose()


# The remote judge.


async def test_a_body_without_end_is_given_up_at_64_mib() -> None:
    service = Service([" " * (MOST_BYTES + 1)])
    async with remote(service, max_retries=0, timeout=60) as judge:
        verdict = await judge.judge(ASKED)
    assert verdict.score is None and "a body above 64 MiB" in verdict.reason


async def test_a_verdict_keeps_what_the_service_says() -> None:
    service = Service()
    async with remote(service, api_key="sesame") as judge:
        verdict = await judge.judge(ASKED)
    assert (verdict.score, verdict.correct, verdict.status, verdict.source) == (
        1.0,
        True,
        "ok",
        "llm",
    )
    assert (verdict.judge, verdict.attempts, verdict.reason) == ("big", 2, "compared")
    assert (verdict.usage.prompt_tokens, verdict.usage.completion_tokens) == (30, 4)
    assert service.keys == ["Bearer sesame"]
    assert service.batches == [
        [
            {
                "prompt": "What is 6 * 7?",
                "completion": "It is 42.",
                "answer": "42",
                "answer_type": "MATH_EXPRESSIONS",
                "request_id": "1/a/0",
            }
        ]
    ]


async def test_queries_at_the_same_time_go_together_and_come_back_in_order() -> None:
    service = Service()
    async with remote(service, max_batch_size=8) as judge:
        queries = [JudgeQuery("Q", str(n % 3), "0", "math_expression") for n in range(20)]
        verdicts = await asyncio.gather(*map(judge.judge, queries))
    assert [v.correct for v in verdicts] == [n % 3 == 0 for n in range(20)]
    assert sorted(map(len, service.batches)) == [4, 8, 8]
    assert (judge.asked, judge.batched, judge.requests) == (20, 20, 3)


async def test_requests_at_a_time_are_bounded() -> None:
    service = Service(delay=0.02)
    async with remote(service, max_batch_size=1, max_concurrent_requests=3) as judge:
        await asyncio.gather(*(judge.judge(ASKED) for _ in range(12)))
    assert service.most_in_flight == 3 and len(service.batches) == 12


@pytest.mark.parametrize("failure", [429, 500, 503, "not JSON"])
async def test_a_passing_failure_is_tried_again(failure: object) -> None:
    service = Service([failure, failure, "honest"])
    async with remote(service) as judge:
        assert (await judge.judge(ASKED)).correct is True
    assert judge.retries == len(service.batches) - 1 >= 1


@pytest.mark.parametrize(
    ("step", "status", "told"),
    [
        (500, "unavailable", "answered 500: so it is"),
        (401, "unavailable", "check api_key"),
        (400, "refused", "answered 400"),
        (413, "refused", "answered 413"),
        (422, "refused", "answered 422"),
        ("not JSON", "unavailable", "not a judge service's answer"),
        ('{"responses": []}', "unavailable", "0 responses to 1 requests"),
        ("[]", "unavailable", "not a judge service's answer"),
        ("hang", "timeout", "Timeout waiting for results"),
        (lambda m: {**right(m), "score": 7}, "unavailable", "score 7"),
        (lambda m: {**right(m), "score": None}, "unavailable", "score None"),
        (lambda m: {**right(m), "correct": "yes"}, "unavailable", "correct 'yes'"),
        (lambda m: {**right(m), "status": "fine"}, "unavailable", "status 'fine'"),
        (lambda m: {**right(m), "source": "oracle"}, "unavailable", "source 'oracle'"),
        (lambda m: {**right(m), "status": "timeout", "score": 0.0}, "timeout", "compared"),
        (lambda m: {**right(m), "status": "parse_error"}, "parse_error", "compared"),
        (lambda m: {**right(m), "status": "invalid", "source": None}, "abstain", "compared"),
    ],
)
async def test_a_failure_is_a_verdict_without_a_score(step: object, status: str, told: str) -> None:
    service = Service([step])
    seconds = 0.2 if step == "hang" else 60.0  # a busy machine is slow to answer, too
    async with remote(service, max_retries=1, timeout=seconds) as judge:
        verdict = await judge.judge(ASKED)
    assert (verdict.score, verdict.correct, verdict.status) == (None, None, status)
    assert told in verdict.reason


async def test_a_service_that_is_not_there() -> None:
    section = {"judge_url": "http://127.0.0.1:9", "max_retries": 0, "reconnect_seconds": 0.3}
    judge = RemoteJudge(JudgeRewardSection.model_validate(section))
    began = time.monotonic()
    verdict = await judge.judge(ASKED)
    assert time.monotonic() - began >= 0.3, "it may be restarting"
    assert verdict.status == "unavailable" and "refused" in verdict.reason.lower()
    sent = judge.requests
    assert (await judge.judge(ASKED)).status == "unavailable"
    assert judge.requests == sent + 1, "an outage is waited for once"
    await judge.aclose()


async def test_a_restarting_service_costs_no_verdict() -> None:
    """It is killed with requests in flight, refuses connections, and comes back."""

    @dataclass
    class Slow:
        name: str = "slow"

        async def judge(self, query: JudgeQuery) -> Verdict:
            await asyncio.sleep(0.005)
            return await RuleJudge().judge(query)

    app = create_app(Slow(), JudgeServerSection(max_in_flight=8))
    queries = [replace(ASKED, key=str(number)) for number in range(400)]
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(served(app, 0.0))
        section = {"judge_url": url, "max_retries": 0, "batch_timeout": 0}
        judge = RemoteJudge(JudgeRewardSection.model_validate(section))
        tasks = [asyncio.create_task(judge.judge(query)) for query in queries]
        await until(lambda: sum(task.done() for task in tasks) >= 40)
        await stack.aclose()
        assert not all(task.done() for task in tasks)
        await until(lambda: judge.counters.role("judge_service")["attempts"] > 10)
        port = int(url.rpartition(":")[2])
        async with served(create_app(Slow(), JudgeServerSection(max_in_flight=8)), port=port):
            verdicts = await asyncio.gather(*tasks)
    await judge.aclose()
    assert [each.status for each in verdicts] == ["ok"] * 400


async def test_what_is_at_an_address_is_known_before_the_first_question() -> None:
    app = web.Application()

    async def healthy(request: web.Request) -> web.Response:  # as vLLM answers
        return web.Response()

    app.router.add_get("/health", healthy)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    other = f"http://127.0.0.1:{runner.addresses[0][1]}"
    keyed = create_app(RuleJudge(), JudgeServerSection(api_key="k"))

    async def down() -> list[str]:
        return ["its model does not answer"]

    starting = create_app(RuleJudge(), JudgeServerSection(), ready=down)
    async with served(keyed) as (locked, _), served(starting) as (early, _):
        for url, key, waits, expected in (
            (other, "", True, "404"),
            (locked, "wrong", True, "401"),
            (locked, "k", True, ""),
            ("http://127.0.0.1:9", "", True, "cannot be reached"),
            (early, "", True, ""),
            (early, "", False, "its model does not answer"),
        ):
            judge = RemoteJudge(JudgeRewardSection(judge_url=url, api_key=key))
            found = " ".join(await judge.check(waits))
            await judge.aclose()
            assert expected in found and bool(expected) is bool(found), (url, key, waits, found)
    await runner.cleanup()


async def test_who_stops_waiting_is_not_asked_for() -> None:
    service = Service()
    async with remote(service, batch_timeout=0.05) as judge:
        gone = asyncio.create_task(judge.judge(ASKED))
        stays = asyncio.create_task(judge.judge(ASKED))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await stays).correct is True
    assert [len(batch) for batch in service.batches] == [1]


@asynccontextmanager
async def asked_remotely(judge: Judge, **settings: Any) -> AsyncIterator[RemoteJudge]:
    """The judge behind the real service, asked over a socket."""
    async with served(create_app(judge, JudgeServerSection(**settings))) as (url, _):
        remote = RemoteJudge(JudgeRewardSection(judge_url=url, batch_timeout=0.0, **settings))
        try:
            yield remote
        finally:
            await remote.aclose()


async def test_the_real_service_answers_it() -> None:
    code = JudgeQuery("Q", "def f(): ...", "r", "code", evidence="passed 3 of 3 tests")
    dates = JudgeQuery("When?", "the 4th", "4 May", "free_text", alternatives=("the 4th",))
    blank = JudgeQuery("Q", "x", " ", "free_text")
    async with asked_remotely(RuleJudge(), api_key="k") as judge:
        verdicts = await asyncio.gather(*map(judge.judge, [ASKED, code, dates, blank]))
    assert [v.correct for v in verdicts] == [True, True, True, None]
    assert [v.source for v in verdicts[:3]] == ["rule"] * 3
    assert verdicts[3].status == "abstain" and "no rule can tell" in verdicts[3].reason


async def test_pairs_and_rubrics_go_over_the_wire() -> None:
    pair = replace(ASKED, reference="", rival="It is 41.", key="2/b/0")
    rubric = replace(
        ASKED, criteria=(Criterion("It says 42.", 2.0), Criterion("It is rude.", -0.5))
    )
    async with asked_remotely(Echo()) as judge:
        verdicts = await asyncio.gather(judge.judge(pair), judge.judge(rubric))
    assert [v.reason for v in verdicts] == [repr(pair), repr(rubric)]
    assert [(v.score, v.correct, v.status) for v in verdicts] == [(0.5, None, "ok")] * 2
    assert verdicts[0].parts == {"criterion 1": 0.25}


class Echo:
    """Says what it was asked; a tie, with parts."""

    name = "echo"

    async def judge(self, query: JudgeQuery) -> Verdict:
        return Verdict(0.5, None, "llm", "ok", repr(query), parts={"criterion 1": 0.25})


# The adapter.


@asynccontextmanager
async def rewards(service: Service, **options: object) -> AsyncIterator[JudgeRewardSystem]:
    async with serving(service):
        system = JudgeRewardSystem(section(service, **options))
        try:
            yield system
        finally:
            await asyncio.to_thread(system.close)


async def test_plain_arguments_in_and_a_plain_dict_out() -> None:
    async with rewards(Service()) as system:
        told = await asyncio.to_thread(system.reward, "What is 6 * 7?", "It is 42.", "42", "NUMBER")
        latency = told.pop("latency")
        assert told == {
            "reward": 1.0,
            "acc_reward": 1.0,
            "source": "llm",
            "status": "ok",
            "explanation": "compared",
            "parts": {},
            "detailed_scores": {},
            "request_id": None,
            "judge": "big",
        }
        assert latency > 0
        wrong = await system.areward("What is 6 * 7?", "It is 41.", "42", request_id="mine")
        assert (wrong["reward"], wrong["request_id"]) == (0.0, "mine")


async def test_all_that_may_be_said_of_an_answer_is_sent() -> None:
    service = Service()
    async with rewards(service) as system:
        await system.areward("Q", "a", "b", alternatives=["c"], evidence="passed 1 of 2 tests")
        await system.areward("Q", "a", "", rival="d")
        await system.areward("Q", "a", "", criteria=[("It is short.", 1.5)])
    sent = [member for batch in service.batches for member in batch]
    assert [m.get("alternatives") for m in sent] == [["c"], None, None]
    assert sent[0]["evidence"] == "passed 1 of 2 tests"
    assert [m.get("rival") for m in sent] == [None, "d", None]
    assert sent[2]["criteria"] == [{"text": "It is short.", "points": 1.5}]


async def test_batches_from_both_worlds_and_from_threads() -> None:
    service = Service()
    async with rewards(service, use_cache=False) as system:
        asked = [{"prompt": "Q", "completion": str(n), "answer": "3"} for n in range(5)]
        one = await asyncio.to_thread(system.reward_batch, asked)
        other = await system.areward_batch(asked)
        assert [r["reward"] for r in one] == [r["reward"] for r in other] == [0, 0, 0, 1, 0]
        call: Callable[..., dict[str, Any]] = system.reward
        threads = [asyncio.to_thread(call, "Q", str(n), str(n)) for n in range(20)]
        assert [r["reward"] for r in await asyncio.gather(*threads)] == [1.0] * 20


async def test_a_dead_service_opens_the_circuit_and_rules_take_over() -> None:
    service = Service([500])
    options = {"max_retries": 0, "circuit_breaker_threshold": 3, "batch_timeout": 0.0}
    async with rewards(service, max_batch_size=1, **options) as system:
        told = [await system.areward("Q", str(n), "3", "number") for n in range(8)]
        assert [r["reward"] for r in told] == [0, 0, 0, 1, 0, 0, 0, 0]
        assert {r["source"] for r in told} == {"rule_fallback"}
        assert len(service.batches) == 3, "the rest was not sent"
        metrics = system.get_metrics()
        assert metrics["circuit_breaker"] == {"state": "open", "opened": 1, "refused": 5}
        assert (metrics["error_rate"], metrics["fallback_rate"]) == (1.0, 1.0)
        assert metrics["unscored_rate"] == 0.0


async def test_it_recovers_without_a_restart() -> None:
    service = Service([500, 500, "honest"])
    options = {"max_retries": 0, "circuit_breaker_threshold": 2, "circuit_breaker_timeout": 0.1}
    async with rewards(service, max_batch_size=1, **options) as system:
        for _ in range(3):
            await system.areward("Q", "3", "3", "number")
        await asyncio.sleep(0.15)
        assert (await system.areward("Q", "3", "3", "number"))["source"] == "llm"
        assert system.get_metrics()["circuit_breaker"]["state"] == "closed"


async def test_without_a_fallback_a_failure_has_no_reward() -> None:
    async with rewards(Service([500]), max_retries=0, fallback_to_rule=False) as system:
        told = await system.areward("Q", "3", "3", "number")
        assert (told["reward"], told["status"]) == (None, "unavailable")
        metrics = system.get_metrics()
        assert (metrics["unscored_rate"], metrics["zero_rate"]) == (1.0, None)


async def test_equal_questions_reach_the_service_once() -> None:
    service = Service(delay=0.05)
    async with rewards(service) as system:
        asked = [{"prompt": "Q", "completion": "3", "answer": "3"}] * 30
        told = await system.areward_batch(asked)
        assert [r["reward"] for r in told] == [1.0] * 30
        assert sum(map(len, service.batches)) == 1, "by the service's own count"
        metrics = system.get_metrics()
        assert metrics["cache_hit_rate"] == pytest.approx(29 / 30)
        assert metrics["requests"] == 30 and metrics["current_queue_size"] == 0
        assert 0 < metrics["latency_p50"] <= metrics["latency_p95"]


async def test_zeros_and_failures_are_told_apart() -> None:
    answers = [right, right, lambda m: {**right(m), "status": "parse_error"}]
    service = Service(list(answers))
    options = {"fallback_to_rule": False, "max_batch_size": 1, "circuit_breaker_threshold": 0}
    async with rewards(service, **options) as system:
        for completion in ("3", "4", "5"):
            await system.areward("Q", completion, "3")
        await system.areward("Q", "Thought process:", "3")
        metrics = system.get_metrics()
    assert metrics["error_rate"] == pytest.approx(1 / 4)
    assert metrics["zero_rate"] == pytest.approx(2 / 3), "one by the judge, one by the gate"
    assert metrics["circuit_breaker"]["state"] == "none"
    assert len(service.batches) == 3, "the gate asks nobody"


async def test_a_judge_of_ones_own() -> None:
    class Length(JudgeRewardSystem):
        def make_judge(self) -> Judge:
            class ByLength:
                name = "length"

                async def judge(self, query: JudgeQuery) -> Verdict:
                    good = len(query.answer) > 3
                    return Verdict(float(good), good, "llm", "ok", judge=self.name)

            return ByLength()

    config = {"type": "judge_model", "config": {"judge_url": "http://nowhere"}}
    with create_judge_reward(config, Length) as system:
        assert [system.reward("Q", a, "r")["reward"] for a in ("long enough", "no")] == [1.0, 0.0]
        assert system.get_metrics()["http_requests"] is None
    with pytest.raises(RuntimeError, match="closed"):
        system.reward("Q", "a", "b")


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    gone = {"judge_url": "http://127.0.0.1:9", "max_retries": 0, "reconnect_seconds": 0}
    with JudgeRewardSystem(gone) as system:
        assert system.reward("Q", "3", "4")["source"] == "rule_fallback"
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


# The configuration.


def test_the_documented_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "verl.yaml"
    file.write_text(
        "trainer: {anything: goes}\n"
        "reward:\n  type: judge_model\n"
        "  config: {judge_url: '${JUDGE_MODEL_URL}', api_key: '${JUDGE_MODEL_API_KEY:-}',\n"
        "           use_cache: true, cache_size: 5000, max_batch_size: 16, batch_timeout: 0.05,\n"
        "           max_concurrent_requests: 32, timeout: 30.0, fallback_to_rule: true,\n"
        "           max_retries: 3, circuit_breaker_threshold: 5, circuit_breaker_timeout: 30.0}\n"
    )
    monkeypatch.setenv("JUDGE_MODEL_URL", "http://judge:8888")
    assert load_judge_reward(file) == JudgeRewardSection(judge_url="http://judge:8888", api_key="")
    monkeypatch.setenv("JUDGE_MAX_BATCH_SIZE", "4")
    monkeypatch.setenv("JUDGE_MAX_CONCURRENT", "2")
    loaded = load_judge_reward(file)
    assert (loaded.max_batch_size, loaded.max_concurrent_requests) == (4, 2)
    with create_judge_reward(file) as system:
        assert system.config == loaded


def test_mistakes_are_named_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        judge_reward({"judge_url": "judge:8888", "cache": True, "timeout": 0}, environment={})
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="max_batch_size"):
        judge_reward({"judge_url": "http://j"}, environment={"JUDGE_MAX_BATCH_SIZE": "many"})
    with pytest.raises(UserError, match="must be judge_model"):
        create_judge_reward({"type": "rule"})
    with pytest.raises(ConfigError, match="create_judge_reward also takes an address"):
        JudgeRewardSystem("http://judge:8888")  # pyright: ignore[reportArgumentType]
