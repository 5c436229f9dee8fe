"""Whose fault a missing verdict is: no text turns "wrong" into "unscored", and no breakdown of ours
turns "unscored" into "wrong"."""

import asyncio
import random
import re
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest
from hypothesis import given, strategies as st
from judge_doubles import Step, in_form, reply, unavailable
from llm_standin import Seen, StandIn, good, http, problem, stream

from flowright.config.judge import JudgeSection
from flowright.config.llm import LlmSection, ModelEntry
from flowright.config.workflow import RewardSection
from flowright.environments.rollout import reward_of
from flowright.judging.attempts import READING_ATTEMPTS
from flowright.judging.audit import audit
from flowright.judging.build import build_judge
from flowright.judging.rules import gate
from flowright.judging.verdict import AnswerType, Criterion, JudgeQuery, Verdict
from flowright.judging.wrappers import LONG, SHORT, neutral, shortened
from flowright.llm.chat import ChatReply, ChatRequest, RequestRefused, Usage
from flowright.llm.client import ChatClient
from flowright.llm.context import most_tokens

BAIT = "xyzzy"
ASKED = JudgeQuery("What is 6 * 7?", f"fewer {BAIT}", "42", "span", key="1/a/0")
BESIDE = replace(ASKED, answer=f"{BAIT}, which makes it 6 * 7.\nAnswer: 42")
NO_DIGITS = st.characters(exclude_categories=["N", "Cs"])
SHOWN = re.compile(r"(~{5,}) FINAL ANSWER\n(.*?)\n\1(?!~)", re.DOTALL)

FAULTS: dict[str, Callable[[ChatRequest], Step]] = {
    "truncated": lambda request: reply("", "length", tokens=request.max_tokens or 0),
    "declined": lambda request: reply("I'm sorry, but I can't help with that."),
    "filtered": lambda request: reply("", "content_filter"),
    "empty": lambda request: reply(""),
    "unparsed": lambda request: reply("Hard to say."),
    "refused": lambda request: RequestRefused("HTTP 400: too long"),
}


@dataclass
class Baited:
    """Judges by whether the answer says 42, and has one fault where it reads the bait. ``down``
    and ``out_of_order`` are the requests, counted from 1, that meet no server or get that fault
    whatever they ask."""

    fault: Callable[[ChatRequest], Step] = FAULTS["declined"]
    down: range = range(0)
    out_of_order: range = range(0)
    empty: float = 0.0
    sways: str = "no such word"
    name: str = "baited"
    requests: list[ChatRequest] = field(default_factory=list)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.requests.append(request)
        found = SHOWN.search(request.messages[-1].content)
        assert found is not None
        number = len(self.requests)
        if number in self.down:
            step: Step = unavailable("HTTP 500")
        elif BAIT in found[2] or number in self.out_of_order:
            step = self.fault(request)
        elif random.Random(request.seed).random() < self.empty:
            step = reply("")
        else:
            step = reply(in_form(request, "42" in found[2] or self.sways in found[2]))
        if isinstance(step, Exception):
            raise step
        return step

    @property
    def answers(self) -> list[str]:
        found = (SHOWN.search(request.messages[-1].content) for request in self.requests)
        return [match[2] for match in found if match]


def attempts(fault: str) -> int:
    """Of a first reading."""
    return {"declined": 2, "filtered": 2}.get(fault, 4)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bait_beside_the_answer_is_not_read_again(fault: str) -> None:
    for text, right in (("42", True), ("41", False)):
        model = Baited(FAULTS[fault])
        query = replace(BESIDE, answer=BESIDE.answer.replace("42", text))
        verdict = await build_judge(JudgeSection(), model).judge(query)
        assert (verdict.status, verdict.correct) == ("ok", right)
        assert verdict.source == "second_reading"
        assert "(first reading: " in verdict.reason
        assert model.answers[-1] == text
        assert verdict.attempts == verdict.usage.calls + (fault == "refused") * 4
        assert len(model.requests) == attempts(fault) + 1
        assert model.requests[-1].max_tokens == 2 * JudgeSection().max_tokens


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failure_that_follows_the_answer_earns_what_a_wrong_answer_earns(
    fault: str,
) -> None:
    model = Baited(FAULTS[fault])
    verdict = await build_judge(JudgeSection(cache_size=8), model).judge(ASKED)
    assert (verdict.status, verdict.score, verdict.correct) == ("ok", 0.0, False)
    assert verdict.source == "floor"
    wrong = Verdict(0.0, False, "llm", "ok")
    section = RewardSection(wrong=0.1, right=1.1)
    assert reward_of(None, verdict, section) == reward_of(None, wrong, section)
    metrics = audit([verdict, wrong], [None, None])
    assert metrics["judge/source/floor"] == 0.5 and metrics["judge/status/ok"] == 1
    assert model.answers.count("42") == 1, "the control"
    asked = len(model.requests)
    again = await build_judge(JudgeSection(cache_size=8), model).judge(ASKED)
    assert again.source == "floor" and len(model.requests) == 2 * asked, "a floor is not kept"


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_judge_that_fails_whatever_it_reads_leaves_the_sample_unscored(fault: str) -> None:
    model = Baited(FAULTS[fault], out_of_order=range(1, 1000))
    verdict = await build_judge(JudgeSection(), model).judge(replace(ASKED, answer="42"))
    assert verdict.status != "ok" and verdict.score is None
    assert "the reference is not judged either" in verdict.reason


@pytest.mark.parametrize("first_down", range(1, 2 + 2 * READING_ATTEMPTS + 2))
async def test_a_server_that_goes_down_at_any_step_leaves_the_sample_unscored(
    first_down: int,
) -> None:
    """Two attempts, three of the second reading, the control, three of the third."""
    model = Baited(down=range(first_down, 1000))
    verdict = await build_judge(JudgeSection(), model).judge(ASKED)
    assert (verdict.status, verdict.score) == ("unavailable", None)


@pytest.mark.parametrize("lasts", range(1, 20))
async def test_a_server_that_was_out_of_order_for_a_while_floors_nobody(lasts: int) -> None:
    model = Baited(FAULTS["empty"], out_of_order=range(1, lasts))
    verdict = await build_judge(JudgeSection(), model).judge(replace(ASKED, answer="42"))
    assert verdict.correct is not False


async def test_a_server_that_is_down_is_asked_no_second_time() -> None:
    model = Baited(down=range(1, 1000))
    verdict = await build_judge(JudgeSection(max_attempts=2), model).judge(ASKED)
    assert (verdict.status, len(model.requests)) == ("unavailable", 2)


def test_a_right_answer_is_hardly_ever_floored_by_chance() -> None:
    fewest = 1 + 2 * READING_ATTEMPTS  # with judge.max_attempts: 1
    assert 0.13**fewest < 1e-6


async def test_a_judge_that_is_empty_at_random_loses_and_floors_nothing() -> None:
    model = Baited(empty=0.13)
    judge = build_judge(JudgeSection(max_attempts=1), model)
    verdicts = [
        await judge.judge(replace(ASKED, answer=text, key=f"{n}"))
        for n in range(300)
        for text in ("42", "41")
    ]
    assert [verdict.correct for verdict in verdicts] == [True, False] * 300
    assert {verdict.source for verdict in verdicts} == {"llm", "second_reading"}


async def test_rules_decide_before_the_floor() -> None:
    code = JudgeQuery(
        "Write f.", f"def f(): return '{BAIT}'", "def f(): ...", "code", key="k",
        evidence="passed 2 of 2 tests",
    )  # fmt: skip
    judge = build_judge(JudgeSection(), Baited())
    assert (await judge.judge(replace(code, evidence=None))).source == "floor"
    verdict = await judge.judge(code)
    assert (verdict.correct, verdict.source) == (True, "rule_fallback")
    verdict = await judge.judge(replace(code, evidence="passed 1 of 2 tests"))
    assert (verdict.correct, verdict.source) == (False, "rule_fallback")


async def test_what_the_query_lacks_is_not_the_answers_fault() -> None:
    """A query that does not fit, one that no rule reads: nobody is asked, nobody is floored."""
    model = Baited()
    verdict = await build_judge(JudgeSection(ask="rubric"), model).judge(ASKED)
    assert (verdict.status, model.requests) == ("abstain", [])
    unread = replace(ASKED, reference="x^2", answer="x^3", answer_type="math_expression")
    assert (await build_judge(JudgeSection(mode="rules"), None).judge(unread)).status == "abstain"


async def test_without_a_reference_the_control_is_a_plain_text() -> None:
    rubric = replace(ASKED, reference="", criteria=(Criterion("It is a number.", 1),))
    verdict = await build_judge(JudgeSection(ask="rubric"), Rubric()).judge(rubric)
    assert (verdict.source, verdict.score) == ("floor", 0.0)


class Rubric(Baited):
    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        if BAIT in request.messages[-1].content:
            raise RequestRefused("400")
        return ChatReply('{"reason": "", "criterion_1": true}', "stop", Usage(1, 1, 1), "r", 0.0)


@given(st.text(NO_DIGITS), st.sampled_from(list(FAULTS)), st.sampled_from(get_args(AnswerType)))
def test_whatever_an_answer_says_it_is_scored_where_the_reference_is(
    text: str, fault: str, answer_type: AnswerType
) -> None:
    """The judge fails on all that is not the reference."""

    class Picky(Baited):
        async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
            self.fault = FAULTS[fault]
            found = SHOWN.search(request.messages[-1].content)
            self.out_of_order = range(0 if found and found[2] == "42" else 1000)
            return await super().chat(request, deadline)

    query = replace(ASKED, answer=f"no {text}", answer_type=answer_type)
    verdict = asyncio.run(build_judge(JudgeSection(gate=False), Picky()).judge(query))
    assert (verdict.status, verdict.correct) == ("ok", False)
    assert verdict.source in ("floor", "rule_fallback")


# Panels and samples.


async def test_members_that_disagree_over_an_answer_floor_it() -> None:
    generous, strict = Baited(sways="almost"), Baited(name="strict")
    judge = build_judge(JudgeSection(panel=("strict",)), generous, [strict])
    verdict = await judge.judge(replace(ASKED, answer="fewer, almost"))
    assert (verdict.correct, verdict.source) == (False, "floor")
    assert (await judge.judge(replace(ASKED, answer="42"))).source == "llm"


async def test_a_vote_that_a_lost_member_could_have_decided_is_unscored() -> None:
    generous, strict, lost = Baited(sways="almost"), Baited(name="b"), Baited(down=range(1, 999))
    judge = build_judge(JudgeSection(panel=("b", "c")), generous, [strict, lost])
    verdict = await judge.judge(replace(ASKED, answer="fewer, almost"))
    assert (verdict.status, verdict.score) == ("unavailable", None)


async def test_a_member_that_is_down_hides_no_answer_from_the_others() -> None:
    lost = Baited(down=range(1, 999), name="lost")
    judge = build_judge(JudgeSection(panel=("lost",)), Baited(), [lost])
    assert (await judge.judge(ASKED)).source == "floor"
    needed = build_judge(JudgeSection(panel=("lost",), quorum=2), Baited(), [lost])
    assert (await needed.judge(ASKED)).status == "unavailable"


async def test_between_two_answers_an_abstention_is_a_finding() -> None:
    section = JudgeSection(ask="pairwise", on_disagreement="abstain")

    class First(Baited):
        async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
            text = '{"reason": "the first", "better": "A"}'
            return ChatReply(text, "stop", Usage(1, 1, 1), "first", 0.0)

    verdict = await build_judge(section, First()).judge(replace(ASKED, rival="42"))
    assert (verdict.status, verdict.usage.calls) == ("abstain", 2)


# Refusals, breakers, time.


async def test_a_refused_query_opens_no_breaker() -> None:
    section = JudgeSection(breaker_threshold=2, breaker_seconds=1000)
    judge = build_judge(section, Baited(FAULTS["refused"]))
    for _ in range(5):
        assert (await judge.judge(ASKED)).source == "floor"
    assert (await judge.judge(replace(ASKED, answer="42"))).source == "llm"


async def test_a_form_that_worked_is_not_given_up_for_one_query() -> None:
    def only_text(request: ChatRequest) -> Step:
        return RequestRefused("400") if request.response_format else reply("Verdict: False")

    model = Baited(only_text)
    judge = build_judge(JudgeSection(), model)
    for text in ("42", f"41 {BAIT}", "42"):
        await judge.judge(replace(ASKED, answer=text))
    last = model.requests[-1].response_format
    assert last is not None and last["type"] == "json_schema"


async def test_an_answer_that_is_thought_about_for_ever_is_cut_before_time_is_up() -> None:
    """Thirty tokens a second: without a limit, the third attempt would run out of time."""
    asked: list[tuple[float, float]] = []

    @dataclass
    class Slow(Baited):
        async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
            assert deadline is not None and request.max_tokens is not None
            told = await super().chat(request, deadline)
            took = told.usage.completion_tokens / 30
            asked.append((took, deadline))
            return replace(told, seconds=took)

    verdict = await build_judge(JudgeSection(), Slow(FAULTS["truncated"])).judge(ASKED)
    assert verdict.source == "floor"
    assert all(took <= deadline for took, deadline in asked)


async def test_a_server_too_slow_for_the_configured_tokens_is_not_asked_for_fewer() -> None:
    """Else a cut would be laid to the answer that is the server's."""

    @dataclass
    class Slow(Baited):
        async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
            return replace(await super().chat(request, deadline), seconds=30.0)

    model = Slow(lambda request: reply("", "stop", tokens=10))
    await build_judge(JudgeSection(max_attempts=3), model).judge(ASKED)
    assert min(request.max_tokens or 0 for request in model.requests) == JudgeSection().max_tokens


# Refusals by a real server, between the client and the judge.

PAGE = b"<html><h1>Request blocked</h1></html>"
GATEWAY = {
    **{str(n): problem(n, "flagged") for n in (302, 400, 401, 402, 403, 404, 409, 410, 451, 500)},
    "403, a page": http(403, PAGE),
    "200, a page": http(200, PAGE),
    "200, an error": http(200, b'{"error": {"message": "flagged", "code": 403}, "choices": null}'),
    "200, an error in a stream": stream({"error": {"message": "flagged"}}),
    "204": http(204, b""),
}


@asynccontextmanager
async def behind_gateway(choose: Callable[[str], bytes | None]) -> AsyncIterator[tuple]:
    """A judge with a breaker, and its server, which ``choose`` may interrupt by the prompt."""

    def answer(seen: Seen) -> bytes:
        text = seen.json["messages"][-1]["content"]
        found = SHOWN.search(text)
        asked = ChatRequest((), response_format=seen.json.get("response_format"))
        said = in_form(asked, found is not None and "42" in found[2])
        return choose(text) or good(said)

    section = LlmSection(backoff_seconds=0.001, reconnect_seconds=0)
    async with StandIn(choose=answer) as server:
        entry = ModelEntry(base_url=server.url, model_name="m")
        client = ChatClient("big", entry, section)
        yield build_judge(JudgeSection(breaker_threshold=2, breaker_seconds=60), client), server
        await client.aclose()


FLAGGED = replace(ASKED, answer_type="free_text")


@pytest.mark.parametrize("kind", GATEWAY)
async def test_an_answer_that_a_gateway_refuses_is_wrong_and_closes_it_for_nobody(
    kind: str,
) -> None:
    async with behind_gateway(lambda text: GATEWAY[kind] if BAIT in text else None) as (judge, _):
        for n in range(2):
            verdict = await judge.judge(replace(FLAGGED, key=f"{n}"))
            assert (verdict.source, verdict.score) == ("floor", 0.0), verdict.reason
        assert (await judge.judge(replace(FLAGGED, answer="42"))).source == "llm"
        rescued = await judge.judge(replace(BESIDE, answer_type="span"))
        assert (rescued.source, rescued.score) == ("second_reading", 1.0)


@pytest.mark.parametrize("kind", ["401", "404", "200, a page", "500"])
async def test_a_gateway_that_refuses_everything_is_ours_and_opens_the_breaker(kind: str) -> None:
    async with behind_gateway(lambda text: GATEWAY[kind]) as (judge, server):
        for n in range(9):
            verdict = await judge.judge(replace(FLAGGED, answer="41", key=f"{n}"))
            assert (verdict.status, verdict.score) == ("unavailable", None)
        assert len(server.seen) <= 4 if kind in ("401", "404") else 2 * 2 * 4 * 5
        assert "Circuit breaker open" in verdict.reason


async def test_a_key_that_is_revoked_between_the_readings_floors_nobody() -> None:
    for last in range(1, 24):
        count = 0

        def choose(text: str, last: int = last) -> bytes | None:
            nonlocal count
            count += 1
            return GATEWAY["403"] if BAIT in text or count > last else None

        async with behind_gateway(choose) as (judge, _):
            verdict = await judge.judge(FLAGGED)
        assert verdict.score is None or last > 20, last


# What is read again.


@given(st.text(), st.sampled_from(["number", "span", "code", "free_text"]))
def test_what_is_read_again_is_short_and_seen(text: str, answer_type) -> None:
    query = replace(ASKED, answer=text * 50, answer_type=answer_type)
    short = shortened(query)
    most = LONG if answer_type in ("code", "free_text") else SHORT
    assert most_tokens(short.answer) <= most
    assert all(c in "\n\t" or unicodedata.category(c)[0] != "C" for c in short.answer)
    assert neutral(query).answer == "42"


@pytest.mark.parametrize(
    ("answer", "short"),
    [
        ("It is 42.\nSo much for it.\n\\boxed{42}", "42"),
        ("x " * 5000 + "Answer: 42", "42"),
        ("4\u200b2\u202e", "42"),
        ("e" + "\u0301" * 40, "é\u0301\u0301"),
        ("<|im_end|>42", "< |im_end|>42"),
        ("<think>" + "hm " * 500 + "</think>42", "42"),
    ],
)
def test_the_final_answer_is_what_is_read(answer: str, short: str) -> None:
    assert shortened(replace(ASKED, answer=answer)).answer == short


def test_evidence_that_quotes_the_program_is_cut() -> None:
    query = replace(ASKED, evidence=f"passed 0 of 3 tests; first failure: {BAIT}")
    assert shortened(query).evidence == "passed 0 of 3 tests"
    assert neutral(query).evidence is None


async def test_a_model_is_shown_the_end_of_an_answer_that_is_too_long() -> None:
    model = Baited()
    judge = build_judge(JudgeSection(max_answer_chars=100), model)
    assert (await judge.judge(replace(ASKED, answer="𓀀" * 19_000 + "42"))).correct is True
    assert model.answers == ["𓀀" * 24 + "42"]


async def test_it_can_be_switched_off_and_a_fresh_query_does() -> None:
    fresh = replace(ASKED, fresh=True)
    assert (await build_judge(JudgeSection(), Baited()).judge(fresh)).status == "declined"
    for mode in ("judge", "rules_then_judge"):
        section = JudgeSection(second_reading=False, mode=mode)
        assert (await build_judge(section, Baited()).judge(ASKED)).status == "declined"
    rules = JudgeSection(mode="rules", second_reading=False)
    expression = replace(ASKED, answer="2^x", answer_type="math_expression")
    assert (await build_judge(rules, None).judge(expression)).status == "abstain"
    assert (await build_judge(JudgeSection(mode="rules"), None).judge(expression)).source == "floor"


def test_the_gate_comes_first() -> None:
    assert gate(replace(ASKED, answer="")) is not None


@pytest.mark.parametrize("form", ["json_schema", "json_object", "text"])
async def test_a_right_answer_that_one_form_alone_can_be_read_of_is_never_floored(
    form: str,
) -> None:
    """Where the bait is shown the judge's JSON is broken, or its line quoted, but in one form."""

    def broken(request: ChatRequest) -> Step:
        asked = "text" if request.response_format is None else request.response_format["type"]
        if asked == form:
            return reply(in_form(request, True))
        if asked == "text":
            return reply("The answer ends with\nVerdict: True")
        return reply('{"reason": "It says "a", "verdict": true}", "verdict": ')

    judge = build_judge(JudgeSection(max_attempts=2), Baited(broken))
    verdict = await judge.judge(replace(ASKED, answer=f"{BAIT} 42"))
    assert (verdict.correct, verdict.source) == (
        True,
        "llm" if form != "text" else "second_reading",
    )


async def test_a_right_answer_whose_formula_breaks_the_json_is_right_at_once() -> None:
    model = Baited(lambda request: reply(r'{"reason": "\(42\) and \frac{84}{2}", "verdict": true}'))
    verdict = await build_judge(JudgeSection(), model).judge(replace(ASKED, answer=f"{BAIT} 42"))
    assert (verdict.correct, verdict.source, verdict.attempts) == (True, "llm", 1)
