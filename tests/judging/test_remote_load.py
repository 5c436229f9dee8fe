"""A judge service that has no room, or does not take everything: nothing is lost but what is at
fault itself."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from judge_stand_in import StandIn, scored

from flowright.config.judge import JudgeRewardSection
from flowright.judging.remote import RemoteJudge
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.judging.wrappers import CircuitBreaker


def queries(count: int, say: str = "It is 42.") -> list[JudgeQuery]:
    return [JudgeQuery("What is 6 * 7?", say, "42", key=f"q/{n}") for n in range(count)]


async def all_of(judge: RemoteJudge, asked: Sequence[JudgeQuery]) -> list[Verdict]:
    return list(await asyncio.gather(*map(judge.judge, asked)))


@pytest.mark.parametrize(
    ("service", "refused"),
    [
        (StandIn(0.001, room=20), True),
        (StandIn(0.001, room=20, retry_after=None), True),
        (StandIn(0.001, room=20, busy=503), True),
        (StandIn(0.001, room=6), True),  # less than a batch
        (StandIn(0.001, room=20, health={"max_in_flight": 16, "max_queue": 4}), False),
        (StandIn(0.001, room=20, health={"max_in_flight": 20}), False),
        (StandIn(0.001, room=20, health={"max_in_flight": "many", "max_batch": None}), True),
    ],
    ids=["429", "no hint", "503", "small", "its word", "half a word", "no word"],
)
async def test_a_service_without_room_loses_nothing_and_is_not_down(
    service: StandIn, refused: bool
) -> None:
    async with service.asked(max_retries=0) as judge:
        breaker = CircuitBreaker(judge, 1, 60.0)
        verdicts = await asyncio.gather(*map(breaker.judge, queries(120)))
    assert [v.correct for v in verdicts] == [True] * 120
    assert (breaker.opened, service.at_once) == (0, 0)
    assert (set(service.statuses) != {200}) is refused
    assert len({m["request_id"] for batch in service.served for m in batch}) == 120


async def test_several_callers_share_a_service_and_lose_nothing() -> None:
    service = StandIn(0.002, room=40)
    async with service.listening() as url:
        section = JudgeRewardSection(judge_url=url, batch_timeout=0.01, max_retries=0)
        judges = [RemoteJudge(section) for _ in range(5)]
        found = await asyncio.gather(*(all_of(judge, queries(200)) for judge in judges))
        for judge in judges:
            await judge.aclose()
    assert [v.correct for verdicts in found for v in verdicts] == [True] * 1000


async def test_what_finds_no_room_in_time_is_overloaded_and_nobody_waits_in_turn() -> None:
    service = StandIn(room=0, retry_after="0.05")
    async with service.asked(deadline=0.3, max_retries=0, max_concurrent_requests=1) as judge:
        breaker = CircuitBreaker(judge, 1, 60.0)
        verdicts = await asyncio.gather(*map(breaker.judge, queries(160)))
    assert {(v.score, v.status) for v in verdicts} == {(None, "overloaded")}
    assert all("Request queue full" in v.reason for v in verdicts)
    assert breaker.state == "closed"
    assert len(service.statuses) < 160, "ten batches that wait in turn would ask for longer"


async def test_a_server_that_says_when_is_not_asked_before() -> None:
    service = StandIn(room=0, retry_after="30")
    async with service.asked(deadline=10.0) as judge:
        (verdict,) = await all_of(judge, queries(1))
    assert verdict.status == "overloaded" and "asks to wait 30 s" in verdict.reason
    assert service.statuses == [429]


async def test_the_service_is_asked_no_more_than_it_says_that_it_takes() -> None:
    said = {"max_in_flight": 8, "max_queue": 0, "max_batch": 5, "max_body_bytes": 700}
    service = StandIn(0.002, room=8, most=5, most_bytes=700, health=said)
    async with service.asked() as judge:
        verdicts = await all_of(judge, queries(100))
    assert [v.correct for v in verdicts] == [True] * 100
    assert set(service.statuses) == {200}, "found out at the first call"


async def test_without_its_word_the_most_of_a_batch_is_found_out_at_the_first_call() -> None:
    service = StandIn(most=5)
    async with service.asked(max_retries=0) as judge:
        assert all(v.correct for v in await all_of(judge, queries(16)))
        found_out = service.statuses.count(413)
        assert all(v.correct for v in await all_of(judge, queries(64)))
    assert service.statuses.count(413) == found_out == 3  # 16, 8, 8


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 410, 413, 422, 451, 200])
async def test_a_question_that_is_refused_spoils_only_itself(status: int) -> None:
    service = StandIn(refuses=lambda m: status if "poison" in m["completion"] else None)
    asked = queries(48)
    asked[5] = asked[21] = JudgeQuery("Q", "poison", "42", key="bad")
    async with service.asked(max_retries=0) as judge:
        breaker = CircuitBreaker(judge, 1, 60.0)
        verdicts = await asyncio.gather(*map(breaker.judge, asked))
    assert [n for n, v in enumerate(verdicts) if v.status != "ok"] == [5, 21]
    assert {(v.score, v.status) for n, v in enumerate(verdicts) if n in (5, 21)} == {
        (None, "refused")
    }
    assert breaker.opened == 0


async def test_a_service_that_refuses_everything_is_down() -> None:
    service = StandIn(refuses=lambda m: 401)
    async with service.asked(max_retries=0) as judge:
        breaker = CircuitBreaker(judge, 5, 60.0)
        verdicts = await asyncio.gather(*map(breaker.judge, queries(160)))
    assert {(v.score, v.status) for v in verdicts} == {(None, "unavailable")}
    assert breaker.opened == 1 and len(service.statuses) <= 20, "ten batches and controls"


async def test_one_huge_completion_goes_alone() -> None:
    service = StandIn(most_bytes=2 << 20)
    asked = queries(32)
    asked[7] = JudgeQuery("Q", "x" * 3_000_000, "42", key="huge")
    async with service.asked(max_retries=0) as judge:
        verdicts = await all_of(judge, asked)
    assert [n for n, v in enumerate(verdicts) if v.status != "ok"] == [7]
    assert verdicts[7].status == "refused" and "413" in verdicts[7].reason
    assert service.statuses.count(413) == 1, "a batch is bounded by bytes, too"


@pytest.mark.parametrize("failure", [500, "half a reply", "no score"])
async def test_a_question_that_breaks_the_service_spoils_only_itself(failure: object) -> None:
    def answers(members: list[dict[str, Any]]) -> Any:
        bad = any(m["completion"] == "poison" for m in members)
        if bad and failure == "half a reply":
            return "none"
        return [{} if m["completion"] == "poison" else scored(m) for m in members]

    def refuses(member: dict[str, Any]) -> int | None:
        return 500 if failure == 500 and member["completion"] == "poison" else None

    asked = queries(40)
    asked[3] = JudgeQuery("Q", "poison", "42", key="bad")
    async with StandIn(0.002, refuses=refuses, answers=answers).asked(max_retries=1) as judge:
        first = asyncio.gather(*map(judge.judge, asked))
        for n in range(40):  # others pass meanwhile
            await judge.judge(JudgeQuery("Q", "It is 42.", "42", key=f"other/{n}"))
        verdicts = await first
    assert [n for n, v in enumerate(verdicts) if v.status != "ok"] == [3]


async def test_a_service_that_is_down_is_not_asked_for_each_question() -> None:
    service = StandIn(refuses=lambda member: 500)
    async with service.asked(max_retries=1, max_concurrent_requests=1) as judge:
        verdicts = await all_of(judge, queries(320))
    assert {v.status for v in verdicts} == {"unavailable"}
    assert len(service.statuses) <= 40, "two attempts for each of twenty batches"


async def test_a_judge_that_takes_its_time_is_given_more_of_it() -> None:
    service = StandIn(0.3)
    async with service.asked(timeout=0.2, max_retries=4) as judge:
        (verdict,) = await all_of(judge, queries(1))
    assert verdict.correct is True


async def test_closing_leaves_nobody_waiting() -> None:
    service = StandIn(60.0, room=1)
    async with service.asked(max_batch_size=2, batch_timeout=60.0) as judge:
        waiting = [asyncio.create_task(judge.judge(q)) for q in queries(3)]
        await asyncio.sleep(0.05)
        await judge.aclose()
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found)
