"""The judge integration guide, as its readers will try it: its programs and requests, with the
imports of docs/judge_service.md."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from judge_stand_in import StandIn, scored

from flowright import (
    BaseJudgeReward,
    Judge,
    JudgeQuery,
    JudgeRewardSystem as RewardSystem,
    RewardResult,
    Verdict,
    create_judge_reward,
)
from flowright.config.judge import JudgeServerSection
from flowright.core.errors import ConfigError, UserError
from flowright.judging.service.app import create_app
from flowright.judging.service.serve import OwnModelJudge, served_settings


def client_of(judge: Judge, settings: JudgeServerSection | None = None) -> httpx2.AsyncClient:
    app = create_app(judge, settings or JudgeServerSection())
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://judge")


class Contained:
    """Right is what contains the reference."""

    name = "contained"

    async def judge(self, query: JudgeQuery) -> Verdict:
        right = query.reference in query.answer
        return Verdict(float(right), right, "llm", "ok", "looked it up", 1, self.name)


PLAIN = {"use_cache": True, "batch_timeout": 0.0}


async def test_the_requests_of_the_guide() -> None:
    body = {
        "prompt": "What is 2+2?",
        "completion": "The answer is **boxed{4}**",
        "answer": "4",
        "answer_type": "NUMBER",
        "request_id": "unique_id",
    }
    batch = {
        "requests": [
            {"prompt": "...", "completion": "..."},
            {"prompt": "...", "completion": "..."},
        ]
    }
    async with client_of(Contained()) as client:
        one = (await client.post("/judge", json=body)).json()
        many = (await client.post("/batch_judge", json=batch)).json()["responses"]
    assert (one["score"], one["request_id"]) == (1.0, "unique_id")
    assert {"explanation", "metadata"} <= one.keys() and "latency" in one["metadata"]
    assert [(m["status"], m["score"]) for m in many] == [("ok", 1.0)] * 2, "without an answer"


def test_a_server_that_says_score_and_request_id_alone_in_any_order() -> None:
    service = StandIn(answers=lambda members: [scored(m) for m in reversed(members)])
    with service.on_a_thread() as url, create_judge_reward({"judge_url": url, **PLAIN}) as system:
        told = system.reward_batch(
            [{"prompt": "Q", "completion": str(n), "answer": str(n % 2)} for n in range(2, 22)]
        )
    assert [t["reward"] for t in told] == [float(str(n % 2) in str(n)) for n in range(2, 22)]


def test_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUDGE_MODEL_URL", "JUDGE_MODEL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"judge_url: missing.*JUDGE_MODEL_URL"):
        RewardSystem({})
    monkeypatch.setenv("JUDGE_MODEL_URL", "http://your-judge-server:8888")
    monkeypatch.setenv("JUDGE_MAX_BATCH_SIZE", "4")
    monkeypatch.setenv("JUDGE_MAX_CONCURRENT", "8")
    config: dict[str, Any] = {}
    section = RewardSystem(config.get("reward", {}).get("config", {})).config
    assert section.judge_url == "http://your-judge-server:8888"
    assert (section.max_batch_size, section.max_concurrent_requests) == (4, 8)
    # As a trainer's own YAML reader leaves them.
    raw = {"judge_url": "${JUDGE_MODEL_URL}", "api_key": "${JUDGE_MODEL_API_KEY}"}
    assert RewardSystem(raw).config.judge_url == "http://your-judge-server:8888"
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", "sesame")
    assert RewardSystem(raw).config.api_key == RewardSystem({}).config.api_key == "sesame"


def test_the_guides_import_and_its_callers_names() -> None:
    from reward.judge_reward_adapter import JudgeRewardSystem as Imported

    assert Imported is RewardSystem
    with (
        StandIn().on_a_thread() as url,
        RewardSystem({"judge_url": url}, use_cache=False) as system,
    ):
        assert system.config.use_cache is False and system.config.judge_url == url
        system.start()
        asked: dict[str, Any] = {"prompt": "Q", "answer": "42", "answer_type": "NUMBER"}
        messages = [{"role": "assistant", "content": "It is 42."}]
        for completions in ("It is 42.", ["It is 42."], messages):
            result = system.reward(**asked, completions=completions)
            assert result["reward"] == result["acc_reward"] == 1.0, completions
        result = system.reward(**asked, completions=["42", "41"])
        assert result["status"] == "invalid" and "reward_batch" in result["explanation"]
        result = system.reward("Q", "42", "42", use_judge=True)  # pyright: ignore[reportCallIssue]
        assert "the judge is always asked" in result["explanation"]
        system.stop()
        with pytest.raises(RuntimeError, match="was closed"):
            system.reward("Q", "42", "42")
    for name, said in (("cache_ttl", "do not expire"), ("use_judge", "always asked")):
        with pytest.raises(ConfigError, match=f"{name}: unknown key; .*{said}"):
            RewardSystem({"judge_url": "http://localhost:8888"}, **{name: 1})


def test_the_rules_decide_the_guides_own_example() -> None:
    gone = {"judge_url": "http://127.0.0.1:9", "max_retries": 0, "reconnect_seconds": 0}
    with RewardSystem(gone) as system:
        right = system.reward("What is 2+2?", "The answer is **boxed{4}**", "4", "NUMBER")
        wrong = system.reward("Which?", "(C) helium", "B", "MULTIPLE_CHOICE")
    assert (right["reward"], wrong["reward"]) == (1.0, 0.0)
    assert right["source"] == wrong["source"] == "rule_fallback"


def test_metrics_can_be_printed_before_the_first_reward() -> None:
    gone = {"judge_url": "http://127.0.0.1:9", "max_retries": 0, "reconnect_seconds": 0}
    with RewardSystem(gone) as reward_system:
        for asked in (False, True):
            if asked:
                reward_system.reward("Q", "It is 42.", "42")
            metrics = reward_system.get_metrics()
            print(f"Inflight: {metrics['current_queue_size']}")
            print(f"Hit rate': {metrics['cache_hit_rate']:.1%}")
            print(f"Circuit: {metrics['circuit_breaker']['state']}")
            print(f"Latency: {metrics['latency']:.3f}, errors: {metrics['error_rate']:.1%}")
            assert metrics["circuit_breaker"]["state"] == "closed"


def test_a_custom_judge_and_the_multi_critique_class() -> None:
    class MyCustomJudge(BaseJudgeReward):
        def _request_judge(self, request):
            seen.append(request)
            # Your custom logic here
            return super()._request_judge(request)

    class MultiCritiqueJudge:
        def __init__(self, judges: list[str]):
            self.judges = [create_judge_reward({"judge_url": url}) for url in judges]

        def score(self, prompt: str, completion: str, answer: str):
            scores = []
            for judge in self.judges:
                scores.append(judge.compute_reward(prompt, completion, answer))

            # Average scores or use voting
            return {
                "score": np.mean([s.score for s in scores]),
                "explanation": f"Voting平均得分: {np.mean(scores):.2f}",
            }

    seen: list[dict[str, Any]] = []
    half = StandIn(answers=lambda members: [{"score": 0.5} for _ in members])
    with StandIn().on_a_thread() as one, half.on_a_thread() as other:
        with MyCustomJudge({"judge_url": one}) as judge:
            assert judge.reward("Q", "It is 42.", "42", "NUMBER")["reward"] == 1.0
        several = MultiCritiqueJudge([one, other])
        assert several.score("Q", "It is 42.", "42") == {
            "score": 0.75,
            "explanation": "Voting平均得分: 0.75",
        }
        for judge in several.judges:
            judge.close()
    assert seen[0]["answer_type"] == "NUMBER" and seen[0]["completion"] == "It is 42."


def test_a_result_without_a_score_is_no_number() -> None:
    lost = RewardResult(None, None, "unavailable", "down", {}, None, "", 0.0)
    found = RewardResult(0.5, "llm", "ok", "", {}, None, "", 0.0)
    assert (np.mean([found]), sum([found, found]), f"{found:.2f}") == (0.5, 1.0, "0.50")
    for use in (float, lambda r: np.mean([found, r]), lambda r: f"{r:.2f}", lambda r: r / 2):
        with pytest.raises(UserError, match="no score"):
            use(lost)


def test_detailed_scores_and_calibration() -> None:
    def answers(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
        told = {"score": 1.0, "detailed_scores": {"clarity": 0.5, "note": "good"}}
        return [{**told, "confidence": float(m["completion"])} for m in members]

    with StandIn(answers=answers).on_a_thread() as url:
        for option, expected in (({}, 1.0), ({"low_confidence": 0.5}, 0.8)):
            with RewardSystem({"judge_url": url, **option}) as system:
                unsure, sure = (system.reward("Q", c, "x") for c in ("0.4", "0.5"))
                assert (unsure["reward"], sure["reward"]) == (expected, 1.0)
                assert sure["detailed_scores"] == {"clarity": 0.5, "confidence": 0.5}


async def test_a_judge_model_gets_the_type_of_the_answer() -> None:
    class Contextual:
        def score(self, prompt: str, completion: str, answer: str, answer_type: str):
            if answer_type == "MATH_EXPRESSIONS":
                return {"score": np.float32(0.75), "explanation": "symbolic"}
            if answer_type == "MULTIPLE_CHOICE":
                return 1
            return {"score": None, "explanation": answer_type}

    judge = OwnModelJudge(Contextual())
    async with client_of(judge) as client:
        told = [
            (await client.post("/judge", json={"prompt": "Q", "completion": "x", **kind})).json()
            for kind in (
                {"answer_type": t} for t in ("math_expressions", "MULTIPLE_CHOICE", "NUMBER")
            )
        ]
    assert [t["score"] for t in told] == [0.75, 1.0, None]
    assert [t["explanation"] for t in told] == ["symbolic", "", "NUMBER"]
    assert told[2]["status"] == "abstain"
    with pytest.raises(ConfigError, match="no method score"):
        OwnModelJudge(object())  # pyright: ignore[reportArgumentType]


async def test_a_judge_model_gets_batches() -> None:
    class Batched:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def score_batch(self, prompts: list[str], completions: list[str], answers: list[str]):
            self.sizes.append(len(prompts))
            if "bad" in completions:
                raise ValueError("a row that cannot be tokenized")
            return [{"score": float(c == a)} for c, a in zip(completions, answers, strict=True)]

    async def scores(model: Any, completions: list[str]) -> list[float | None]:
        asked = [{"prompt": "Q", "completion": c, "answer": "42"} for c in completions]
        judge = OwnModelJudge(model, max_batch_size=16)
        settings = served_settings(judge, JudgeServerSection())
        async with client_of(judge, settings) as client:
            found = await client.post("/batch_judge", json={"requests": asked})
        return [each["score"] for each in found.json()["responses"]]

    model = Batched()
    assert await scores(model, ["42", "41"] * 20) == [1.0, 0.0] * 20
    assert max(model.sizes) <= 16 and len(model.sizes) <= 5
    assert await scores(Batched(), ["42", "bad", "41"]) == [1.0, None, 0.0]

    class Short(Batched):
        async def score_batch(self, prompts: list[str], *_: list[str]):  # pyright: ignore
            return [1.0] * (1 if len(prompts) == 1 else len(prompts) - 1)

    assert await scores(Short(), ["42", "41"]) == [1.0, 1.0], "one by one where results are missing"


@pytest.mark.parametrize("command", ["the example", "the command"])
def test_the_example_server(tmp_path: Path, command: str) -> None:
    root = Path(__file__).parents[2]
    shutil.copy(root / "judge_server_example.py", tmp_path)
    run = [sys.executable, "judge_server_example.py", "0"]
    if command == "the command":
        run = [sys.executable, str(root / "scripts/serve_judge.py"), "--config"]
        run += [str(root / "config/judge_server.yaml"), "server.port=0"]
        run += ["server.judge_class=judge_server_example:CustomJudgeModel"]
    process = subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        try:
            url = output.readline().split(" at ")[1].split(",")[0]
            body = {"prompt": "What is 2+2?", "completion": "It is 4.", "answer": "4"}
            with httpx2.Client(base_url=url, trust_env=False) as client:
                told = client.post("/judge", json=body).json()
                assert (told["score"], told["metadata"]["judge"]) == (0.9, "CustomJudgeModel")
                assert client.get("/health").json()["max_in_flight"] == 1
        finally:
            process.kill()
            process.wait()


def test_the_guides_messages_and_its_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="JudgeReward")
    full, slow = StandIn(room=0, retry_after="60"), StandIn(delay=60.0)
    quick = {"max_retries": 0, "fallback_to_rule": False, "batch_timeout": 0.0, "timeout": 0.1}
    quick["deadline"] = 20.0
    with full.on_a_thread() as url, RewardSystem({"judge_url": url, **quick}) as system:
        assert "Request queue full" in system.reward("Q", "x", "y")["explanation"]
    with slow.on_a_thread() as url:
        options = {**quick, "circuit_breaker_threshold": 1}
        with RewardSystem({"judge_url": url, **options}) as system:
            assert "Timeout waiting for results" in system.reward("Q", "x", "y")["explanation"]
            assert "Circuit breaker open" in system.reward("Q", "z", "y")["explanation"]
    said = "\n".join(record.message for record in caplog.records)
    assert "1 questions" in said and "Request queue full" in said and "reward None" in said
