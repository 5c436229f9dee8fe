"""The reward adapter with what callers hand in, in forked and copied processes, at its end."""

import asyncio
import copy
import multiprocessing
import pickle
import threading
from concurrent.futures import Future
from typing import Any

import numpy
import pytest
from judge_stand_in import StandIn, scored

from flowright import BaseJudgeReward, JudgeQuery, JudgeRewardSystem, Verdict
from flowright.judging.payloads import read_answer_type
from flowright.judging.reward.runtime import LoopThread

HERE = {"batch_timeout": 0.0, "use_cache": False, "fallback_to_rule": False}


def asked(n: int, url: str, answers: Any) -> None:
    answers.put(_SYSTEM.reward("Q", f"It is 42, {n}", "42")["reward"])
    _SYSTEM.close()


_SYSTEM: JudgeRewardSystem = None  # pyright: ignore[reportAssignmentType] - the children's


@pytest.mark.parametrize("status", [422, 403, 404, 451, 200])
def test_a_completion_that_the_service_refuses_is_read_by_its_end(status: int) -> None:
    """And one that is refused however short earns what a wrong one earns: by the service, or by a
    gateway before it (200: an error in the body)."""
    baited = lambda member: status if "bait" in member["completion"] else None  # noqa: E731
    service = StandIn(most_bytes=20_000, refuses=baited)
    options = {**HERE, "max_retries": 0, "circuit_breaker_threshold": 1}
    with service.on_a_thread() as url, JudgeRewardSystem({"judge_url": url, **options}) as rewards:
        long = "It goes on. " * 10_000
        told = rewards.reward_batch(
            [
                {"prompt": "Q", "completion": completion, "answer": "42"}
                for completion in (f"{long} It is 42.", f"{long} It is 41.", "41, bait", "42")
            ]
        )
    assert [one["reward"] for one in told] == [1.0, 0.0, 0.0, 1.0]
    sources = ["second_reading", "second_reading", "floor", "llm"]
    assert [one["source"] for one in told] == sources


@pytest.mark.parametrize(("status", "told_as"), [(422, "refused"), (403, "unavailable")])
def test_a_service_that_refuses_everything_scores_nothing(status: int, told_as: str) -> None:
    service = StandIn(refuses=lambda member: status)
    with service.on_a_thread() as url, JudgeRewardSystem({"judge_url": url, **HERE}) as rewards:
        told = rewards.reward("Q", "41", "42")
    assert (told["reward"], told["status"]) == (None, told_as)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_asks_for_itself_and_leaves_the_parent_alone() -> None:
    global _SYSTEM
    service = StandIn()
    with service.on_a_thread() as url, JudgeRewardSystem({"judge_url": url, **HERE}) as _SYSTEM:
        assert _SYSTEM.reward("Q", "It is 42.", "42")["reward"] == 1.0
        forking = multiprocessing.get_context("fork")
        answers = forking.Queue()
        children = [forking.Process(target=asked, args=(n, url, answers)) for n in range(3)]
        for child in children:
            child.start()
        assert [answers.get(timeout=600) for _ in children] == [1.0] * 3
        for child in children:
            child.join(600)
            assert child.exitcode == 0
        assert _SYSTEM.reward("Q", "It is 42!", "42")["reward"] == 1.0
        assert _SYSTEM.get_metrics()["retries"] == 0
        assert _SYSTEM.get_metrics()["requests"] == 2, "the children count for themselves"


def test_a_pickle_or_a_copy_starts_anew_with_the_same_configuration() -> None:
    with StandIn().on_a_thread() as url:
        config = {"judge_url": url, "api_key": "sesame", **HERE}
        with JudgeRewardSystem(config) as system:
            system.reward("Q", "It is 42.", "42")
            for other in (pickle.loads(pickle.dumps(system)), copy.deepcopy(system)):
                with other:
                    assert other.config == system.config and other.config.api_key == "sesame"
                    assert other.get_metrics()["requests"] == 0
                    assert other.reward("Q", "It is 42.", "42")["reward"] == 1.0


def test_who_is_forgotten_ends_its_thread() -> None:
    before = threading.active_count()
    with StandIn().on_a_thread() as url:
        JudgeRewardSystem({"judge_url": url, **HERE}).reward("Q", "It is 42.", "42")
    assert threading.active_count() == before


USER = [{"role": "user", "content": "What is 6 * 7?"}]
SAID = [{"role": "assistant", "content": "It is 42."}]


@pytest.mark.parametrize(
    ("request_", "reward"),
    [
        ({"prompt": "Q", "completion": "It is 42.", "answer": 42}, 1.0),
        ({"prompt": "Q", "completion": 42, "answer": "42"}, 1.0),
        ({"prompt": "Q", "completion": 42.5, "answer": 42.5}, 1.0),
        ({"prompt": "Q", "completion": "It is 42.", "answer": ["42", 43]}, 1.0),
        ({"prompt": "Q", "completion": "It is 42.", "answer": None}, 1.0),
        ({"prompt": "Q", "completion": "It is 42.", "answer": float("nan")}, 1.0),
        ({"prompt": "Q", "completion": "It is 42."}, 1.0),
        ({"prompt": USER, "completion": SAID, "answer": "42"}, 1.0),
        ({"prompt": "Q", "completion": "42", "answer": "42", "alternatives": "43"}, 1.0),
        ({"prompt": "Q", "completion": "42 \ud800", "answer": "42"}, 1.0),
        ({"prompt": "Q", "completion": "42", "answer": "42", "answer_type": "MATH_EXPRESSIONS"}, 1),
        ({"prompt": "Q", "completion": "42", "answer": "42", "request_id": 7}, 1.0),
        ({"prompt": "Q", "completion": "42", "answer": {"gold": "42"}}, None),
        ({"prompt": "Q", "completion": None, "answer": "42"}, None),
        ({"prompt": None, "completion": "42", "answer": "42"}, None),
        ({"prompt": "Q", "completion": b"42", "answer": "42"}, None),
        ({"prompt": "Q", "completion": [1, 2], "answer": "42"}, None),
        ({"prompt": "Q", "completion": "42", "answer": "42", "answer_type": "poem"}, None),
        ({"prompt": "Q", "completion": "42", "answr": "42"}, None),
        ({"prompt": "Q", "completion": "42", "criteria": ["short"]}, None),
        ("Q", None),
        (None, None),
    ],
    ids=repr,
)
def test_one_request_is_understood_or_refused_alone(request_: Any, reward: float | None) -> None:
    plain = {"prompt": "Q", "completion": "It is 42.", "answer": "42"}
    with StandIn().on_a_thread() as url, JudgeRewardSystem({"judge_url": url, **HERE}) as system:
        first, told, last = system.reward_batch([plain, request_, plain])
    assert first["reward"] == last["reward"] == 1.0
    assert told["reward"] == reward
    assert (told["status"] == "invalid") is (reward is None)
    assert reward is not None or (told["explanation"] and "\n" not in told["explanation"])


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("MATH_EXPRESSIONS", "math_expression"),
        ("Multiple-Choice", "multiple_choice"),
        ("numbers", "number"),
        ("free text", "free_text"),
        (None, "free_text"),
    ],
)
def test_answer_types_as_people_write_them(given: str | None, known: str) -> None:
    assert read_answer_type(given) == known


@pytest.mark.parametrize("given", ["riddle", 7, ["number"], "math_expresion"])
def test_an_unknown_answer_type_is_told_the_known_ones(given: object) -> None:
    with pytest.raises(ValueError, match="known are number, math_expression"):
        read_answer_type(given)


class Broken(JudgeRewardSystem):
    """A judge that ends the thread it runs on."""

    def make_judge(self) -> Any:
        class Ends:
            name = "ends"

            async def judge(self, query: JudgeQuery) -> Verdict:
                if "exit" in query.answer:
                    raise SystemExit
                if "die" in query.answer:
                    asyncio.get_running_loop().stop()
                    await asyncio.Event().wait()
                if "hang" in query.answer:
                    await asyncio.Event().wait()
                if "raise" in query.answer:
                    raise RuntimeError("no")
                return Verdict(1.0, True, "llm", "ok")

        return Ends()


def test_no_wait_is_for_ever() -> None:
    system = Broken({"judge_url": "http://nowhere", **HERE, "deadline": 0.1})
    told = system.reward_batch(
        [{"prompt": "Q", "completion": c} for c in ("raise", "exit", "good")]
    )
    assert [(t["reward"], t["status"]) for t in told] == [(None, "unavailable")] * 2 + [(1.0, "ok")]
    died = system.reward("Q", "die")
    assert (died["reward"], died["status"]) == (None, "unavailable")
    assert system.reward("Q", "and goes on")["reward"] == 1.0, "on a new thread"
    waiting: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: waiting.append(system.reward("Q", "hang")))
    thread.start()
    while thread.is_alive() and system.get_metrics()["current_queue_size"] == 0:
        thread.join(0.01)
    system.close()
    thread.join(600)
    assert waiting[0]["reward"] is None and "closed" in waiting[0]["explanation"]


async def test_own_requests_by_a_plain_and_by_a_coroutine_method() -> None:
    class Plain(BaseJudgeReward):
        def _request_judge(self, request: dict[str, Any]) -> Any:
            told = super()._request_judge(request)
            return {**told, "score": told["score"] / 2, "explanation": request["answer_type"]}

    class Awaiting(BaseJudgeReward):
        async def _request_judge(self, request: dict[str, Any]) -> Any:
            told = await super()._request_judge(request)
            return told["score"] / 4

    class Raising(BaseJudgeReward):
        def _request_judge(self, request: dict[str, Any]) -> Any:
            raise ValueError("mine")

    service = StandIn(answers=lambda members: [scored(m) for m in reversed(members)])
    async with service.listening() as url:
        for kind, expected in ((Plain, 0.5), (Awaiting, 0.25), (Raising, None)):
            system = kind({"judge_url": url, **HERE})
            many = [{"prompt": "Q", "completion": f"42 {n}", "answer": "42"} for n in range(40)]
            told = await system.areward_batch(many)
            await asyncio.to_thread(system.close)
            assert [t["reward"] for t in told] == [expected] * 40
    assert "mine" in told[0]["explanation"]


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __iter__ = __str__  # pyright: ignore[reportAssignmentType]


def test_what_raises_when_it_is_read_is_invalid_alone() -> None:
    endless: list[Any] = []
    endless.append(endless)
    odd = [numpy.array(7), float("nan"), numpy.array("42"), b"42", Unspeakable(), endless, object()]
    service = StandIn()
    with service.on_a_thread() as url, JudgeRewardSystem({"judge_url": url, **HERE}) as rewards:
        for name in ("prompt", "completion", "answer"):
            batch = [{"prompt": "Q", "completion": "It is 42.", "answer": "42"} for _ in range(8)]
            for request, value in zip(batch, odd, strict=False):
                request[name] = value
            told = rewards.reward_batch(iter(batch))
            assert told[-1]["reward"] == 1.0, name
            assert {each["status"] for each in told} == {"ok", "invalid"}, name
            assert all(each["explanation"] for each in told if each["status"] == "invalid")
        missing = rewards.reward("Q", "It is 42.", "42", float("nan"))  # pyright: ignore[reportArgumentType]
    assert missing["reward"] == 1.0, "an empty cell of a table: no answer type"


def test_a_plain_method_may_return_what_numpy_made_and_may_exit() -> None:
    class Mean(BaseJudgeReward):
        def _request_judge(self, request: dict[str, Any]) -> Any:
            if request["completion"] == "exit":
                raise SystemExit(3)
            return {"score": numpy.mean([0.5, 1.0]), "detailed_scores": {"a": numpy.float32(0.5)}}

    with Mean({"judge_url": "http://nowhere", "fallback_to_rule": False}) as rewards:
        told = rewards.reward_batch(
            [{"prompt": "Q", "completion": c} for c in ("42", "exit", "41")]
        )
    assert [one["reward"] for one in told] == [0.75, None, 0.75]
    assert told[0]["detailed_scores"] == {"a": 0.5} and "sys.exit" in told[1]["explanation"]


def test_ctrl_c_takes_back_what_it_waited_for() -> None:
    thread = LoopThread()
    began, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            began.wait()
            raise KeyboardInterrupt

    asked = thread.submit(work())
    interrupted: Future[None] = Interrupted()
    interrupted.add_done_callback(lambda _: asked.cancel())
    with pytest.raises(KeyboardInterrupt):
        thread.wait(interrupted, 60.0)
    assert ended.wait(600.0)
    thread.end(None)


def test_a_key_that_no_header_can_hold_ends_in_no_reward() -> None:
    service = StandIn()
    with service.on_a_thread() as url:
        for key, reward in (("key\n", 1.0), ("two\nlines", None)):
            with JudgeRewardSystem({"judge_url": url, "api_key": key, **HERE}) as rewards:
                told = rewards.reward("Q", "It is 42.", "42")
            assert told["reward"] == reward
    assert "header" in told["explanation"]
