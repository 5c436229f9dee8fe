"""Judges around judges: rules first, cache, breaker; each fails as a verdict, never as a 0."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from judge_doubles import RIGHT, WRONG, ScriptedModel, reply, unavailable

from flowright.config.judge import JudgeSection
from flowright.judging.build import build_judge, fingerprint
from flowright.judging.verdict import Criterion, JudgeQuery, Status, Verdict
from flowright.judging.wrappers import Cached, CircuitBreaker
from flowright.llm.chat import Usage

ASKED = JudgeQuery("What is 6 * 7?", "It is 42.", "42", "math_expression", key="1/a/0")


@dataclass
class Backend:
    """A judge that gives the statuses of a list, the last one for ever; ``gate`` holds it up."""

    statuses: list[Status] = field(default_factory=lambda: ["ok"])
    gate: asyncio.Event | None = None
    name: str = "backend"
    queries: list[JudgeQuery] = field(default_factory=list)

    async def judge(self, query: JudgeQuery) -> Verdict:
        status = self.statuses[min(len(self.queries), len(self.statuses) - 1)]
        self.queries.append(query)
        if self.gate is not None:
            await self.gate.wait()
        said = (1.0, True) if status == "ok" else (None, None)
        return Verdict(*said, "llm", status, attempts=1, judge=self.name, usage=Usage(1, 10, 5))


# Rules first.


@pytest.mark.parametrize(
    ("query", "source"),
    [
        (JudgeQuery("Q", "41", "42", "math_expression"), "rule"),
        (JudgeQuery("Q", "x^2 + 1", "1 + x^2", "math_expression"), "llm"),
        (JudgeQuery("Q", "Paris.", "Paris", "free_text"), "rule"),
        (JudgeQuery("Q", "the French capital", "Paris", "free_text"), "llm"),
        (JudgeQuery("Q\nA. red\nB. blue", "B", "B", "free_text"), "rule"),
        (JudgeQuery("Q\nA. red\nB. blue", "A", "B", "free_text"), "rule"),
        (JudgeQuery("Q\nA. red\nB. blue", "like the sky", "B", "free_text"), "llm"),
        (JudgeQuery("Q", "def f(): ...", "r", "code", evidence="passed 2 of 3 tests"), "rule"),
        (JudgeQuery("Q", "def f(): ...", "r", "code"), "llm"),
    ],
)
async def test_only_what_no_rule_can_decide_is_asked(query: JudgeQuery, source: str) -> None:
    model = ScriptedModel([reply(RIGHT)])
    verdict = await build_judge(JudgeSection(mode="rules_then_judge"), model).judge(query)
    assert (verdict.status, verdict.source) == ("ok", source)
    assert len(model.requests) == (source == "llm")


# The cache.


async def test_equal_queries_are_asked_once_whatever_their_key() -> None:
    backend = Backend()
    cached = Cached(backend, 8, "v1")
    first = await cached.judge(ASKED)
    again = await cached.judge(
        JudgeQuery("What is 6 * 7?", "It is 42.", "42", "math_expression", key="other")
    )
    assert (first.source, first.usage.calls) == ("llm", 1)
    assert (again.source, again.correct, again.attempts, again.usage) == ("cache", True, 0, Usage())
    assert len(backend.queries) == 1 and (cached.asked, cached.hits) == (2, 1)


async def test_what_the_judge_is_not_shown_makes_no_difference() -> None:
    backend = Backend()
    cached = Cached(backend, 8, "v1")
    for thought in ("short", "long and different"):
        answer = f"<think>{thought}</think>42"
        await cached.judge(JudgeQuery("Q", answer, "42", "math_expression"))
    assert len(backend.queries) == 1


@pytest.mark.parametrize(
    "other",
    [
        JudgeQuery("What is 6 * 8?", "It is 42.", "42", "math_expression"),
        JudgeQuery("What is 6 * 7?", "It is 43.", "42", "math_expression"),
        JudgeQuery("What is 6 * 7?", "It is 42.", "43", "math_expression"),
        JudgeQuery("What is 6 * 7?", "It is 42.", "42", "free_text"),
        JudgeQuery("What is 6 * 7?", "It is 42.", "42", "math_expression", alternatives=("43",)),
        JudgeQuery(
            "What is 6 * 7?", "It is 42.", "42", "math_expression", evidence="passed 1 of 1 tests"
        ),
        replace(ASKED, rival="It is 41."),
        replace(ASKED, criteria=(Criterion("It is short.", 1),)),
    ],
)
async def test_any_other_difference_is_another_question(other: JudgeQuery) -> None:
    backend = Backend()
    cached = Cached(backend, 8, "v1")
    await cached.judge(ASKED)
    assert (await cached.judge(other)).source == "llm"
    assert len(backend.queries) == 2


async def test_how_the_judge_is_asked_is_part_of_the_question() -> None:
    for changed in ({"ask": "pointwise"}, {"samples": 3}, {"temperature": 0.5}):
        sections = (JudgeSection(), JudgeSection.model_validate(changed))
        assert len({fingerprint(section) for section in sections}) == 2
    assert fingerprint(JudgeSection(max_attempts=2)) == fingerprint(JudgeSection())


async def test_queries_at_the_same_time_share_one_call() -> None:
    backend = Backend(gate=asyncio.Event())
    cached = Cached(backend, 8, "v1")
    asked = [asyncio.create_task(cached.judge(ASKED)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert backend.gate is not None
    backend.gate.set()
    verdicts = await asyncio.gather(*asked)
    assert len(backend.queries) == 1
    assert [v.source for v in verdicts].count("cache") == 19
    assert sum(v.usage.calls for v in verdicts) == 1


@pytest.mark.parametrize(
    "status", ["abstain", "parse_error", "truncated", "timeout", "unavailable"]
)
async def test_a_failure_is_never_kept(status: Status) -> None:
    backend = Backend([status, "ok"])
    cached = Cached(backend, 8, "v1")
    failed = await cached.judge(ASKED)
    assert (failed.status, failed.score, failed.source) == (status, None, "llm")
    assert (await cached.judge(ASKED)).correct is True
    assert (await cached.judge(ASKED)).source == "cache"
    assert len(backend.queries) == 2


async def test_those_who_waited_for_a_failure_share_it() -> None:
    backend = Backend(["timeout"], gate=asyncio.Event())
    cached = Cached(backend, 8, "v1")
    asked = [asyncio.create_task(cached.judge(ASKED)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert backend.gate is not None
    backend.gate.set()
    verdicts = await asyncio.gather(*asked)
    assert {(v.status, v.source, v.score) for v in verdicts} == {("timeout", "llm", None)}
    assert len(backend.queries) == 1


# The breaker.


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def breaker(backend: Backend, threshold: int = 3) -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    return CircuitBreaker(backend, threshold, 30.0, clock), clock


async def test_it_opens_within_its_threshold_and_asks_no_more() -> None:
    backend = Backend(["unavailable"])
    judge, _ = breaker(backend)
    verdicts = [await judge.judge(ASKED) for _ in range(10)]
    assert len(backend.queries) == 3 and judge.state == "open" and judge.refused == 7
    assert {(v.status, v.score) for v in verdicts} == {("unavailable", None)}
    assert "Circuit breaker open" in verdicts[-1].reason


async def test_one_probe_goes_through_when_it_is_half_open_and_the_others_wait_for_it() -> None:
    backend = Backend(["timeout", "timeout", "timeout", "ok"])
    judge, clock = breaker(backend)
    for _ in range(3):
        await judge.judge(ASKED)
    clock.now += 30.0
    assert judge.state == "half_open"
    backend.gate = asyncio.Event()
    asked = [asyncio.create_task(judge.judge(ASKED)) for _ in range(10)]
    await asyncio.sleep(0)
    assert len(backend.queries) == 4, "ten asked, one was let through"
    backend.gate.set()
    verdicts = await asyncio.gather(*asked)
    assert {v.status for v in verdicts} == {"ok"}, "a batch does not fail behind its first question"
    assert len(backend.queries) == 13 and judge.refused == 0
    assert judge.state == "closed" and (await judge.judge(ASKED)).correct is True


async def test_who_waited_for_a_probe_that_fails_is_refused() -> None:
    backend = Backend(["unavailable"])
    judge, clock = breaker(backend)
    for _ in range(3):
        await judge.judge(ASKED)
    clock.now += 30.0
    verdicts = await asyncio.gather(*(judge.judge(ASKED) for _ in range(10)))
    assert {v.status for v in verdicts} == {"unavailable"}
    assert len(backend.queries) == 4 and judge.refused == 9 and judge.state == "open"


async def test_a_probe_that_fails_opens_it_again() -> None:
    backend = Backend(["unavailable"])
    judge, clock = breaker(backend)
    for _ in range(3):
        await judge.judge(ASKED)
    clock.now += 30.0
    await judge.judge(ASKED)
    assert judge.state == "open" and judge.opened == 2 and len(backend.queries) == 4
    clock.now += 29.0
    assert judge.state == "open"


async def test_a_cancelled_probe_leaves_room_for_the_next() -> None:
    backend = Backend(["unavailable", "unavailable", "unavailable", "ok"])
    judge, clock = breaker(backend)
    for _ in range(3):
        await judge.judge(ASKED)
    clock.now += 30.0
    backend.gate = asyncio.Event()
    probe = asyncio.create_task(judge.judge(ASKED))
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    backend.gate.set()
    assert (await judge.judge(ASKED)).correct is True


async def test_failures_in_a_row_count_and_only_the_servers() -> None:
    backend = Backend(["unavailable", "unavailable", "ok", "unavailable", "unavailable", "ok"])
    judge, _ = breaker(backend)
    for _ in range(6):
        await judge.judge(ASKED)
    assert judge.state == "closed"
    unread = Backend(["parse_error"])
    judge, _ = breaker(unread)
    for _ in range(10):
        await judge.judge(ASKED)
    assert judge.state == "closed" and len(unread.queries) == 10


async def test_one_that_began_before_it_opened_and_is_served_closes_it() -> None:
    slow = Backend(["ok"], gate=asyncio.Event())
    judge, _ = breaker(slow, threshold=1)
    early = asyncio.create_task(judge.judge(ASKED))
    await asyncio.sleep(0)
    gate, slow.gate = slow.gate, None
    slow.statuses = ["unavailable"]
    await judge.judge(ASKED)
    assert judge.state == "open" and gate is not None
    gate.set()
    assert (await early).correct is True
    assert judge.state == "closed"


# Together.


async def test_the_configured_chain_of_wrappers() -> None:
    section = JudgeSection(
        mode="judge_with_rule_fallback", cache_size=8, breaker_threshold=2, max_attempts=1
    )
    model = ScriptedModel([reply(WRONG), unavailable()])
    judge = build_judge(section, model)
    assert (await judge.judge(ASKED)).correct is False
    assert (await judge.judge(ASKED)).source == "cache"
    others = [JudgeQuery("Q", str(n), "42", "math_expression") for n in (41, 42, 43, 44)]
    verdicts = [await judge.judge(query) for query in others]
    assert [v.source for v in verdicts] == ["rule_fallback"] * 4, "none of them is cached"
    assert [v.correct for v in verdicts] == [False, True, False, False]
    assert len(model.requests) == 3, "one answered, two to open the circuit, none after that"
