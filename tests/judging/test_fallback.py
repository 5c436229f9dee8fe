"""A judge that fails: what rules decide in its place, what is left unscored, what is told."""

import logging
from dataclasses import replace

import pytest
from graded_answers import NUMBERS, OTHERS

from flowright.config.judge import JudgeSection
from flowright.data.task import Problem
from flowright.judging.build import build_judge
from flowright.judging.reward.adapter import JudgeRewardSystem
from flowright.judging.rules import RuleJudge
from flowright.judging.verdict import Judge, JudgeQuery, Verdict, task_query
from flowright.judging.wrappers import WithRuleFallback


class Down:
    """A judge whose service is not there."""

    name = "down"

    async def judge(self, query: JudgeQuery) -> Verdict:
        return Verdict(None, None, "llm", "unavailable", "connection refused", judge=self.name)


CHOICES = "Which is a metal?\n\nA. oxygen\nB. iron\nC. helium"
TEXTS = [
    ("Who wrote it?", "It was Jane Austen who wrote it.", "Jane Austen", True),
    ("Who wrote it?", "Austen", "Jane Austen", True),
    ("Who wrote it?", "Jane Austen", "Jane Austen", True),
    ("Who wrote it?", "Emily Bronte", "Jane Austen", False),
    ("Where?", "the French capital", "Paris", True),
    ("Where?", "Paris, France", "Paris", True),
    ("Where?", "Paris is where it was signed", "Paris", True),
    ("Where?", "Rome", "Paris", False),
    ("When?", "on the 12th of May 1999", "12 May 1999", True),
    ("When?", "May 12, 1999", "12 May 1999", True),
    ("When?", "May 13, 1999", "12 May 1999", False),
    ("Is it?", "Yes, it is.", "yes", True),
    ("Is it?", "No, it is not.", "yes", False),
    (
        "Why?",
        "The water boils away.",
        "Because the water evaporates when it is heated so long",
        True,
    ),
    ("How long?", "about an hour and a half", "90 minutes", True),
    ("How long?", "1.5 hours", "90 minutes", True),
    ("How many minutes?", "1.5 hours", "90", True),
    ("How many were sold?", "42 were sold, on day 3", "42", True),
    ("How many?", "a dozen", "12", True),
    ("How many?", "a couple", "2", True),
    ("How many?", "twelve of them", "12", True),
    ("How many?", "eleven of them", "12", False),
    ("How much?", "$1.5 million", "1500000", True),
    ("How much?", "1.5 million dollars", "$1,500,000", True),
    ("How much?", "two and a half", "2.5", True),
    ("What share?", "One half", "0.5", True),
    ("What share?", "3 out of 4", "0.75", True),
    ("What percentage?", "It is 75%.", "75", True),
    ("What percentage?", "It is 25%.", "75", False),
    ("Factor.", "(x - 1)(x + 1)", "x^2 - 1", True),
    ("Factor.", "(x - 1)^2", "x^2 - 1", False),
    ("How far?", "\\sqrt{9}", "3", True),
    ("How far?", "\\sqrt{3}", "3", False),
    (CHOICES, "B", "B", True),
    (CHOICES, "iron", "B", True),
    (CHOICES, "The second one, iron, is a metal.", "B", True),
    (CHOICES, "It is B.", "B", True),
    (CHOICES, "(A) oxygen", "B", False),
    (CHOICES, "C", "B", False),
    ("Iron (A) or gold (B)?", "gold", "B", True),
]
CASES = [(asked, answer, reference, right) for asked, answer, reference, right in TEXTS]
CASES += [
    ("Which?", answer, reference, right) for _, reference, answer, right, _ in NUMBERS + OTHERS
]


def test_the_corpus_has_enough_of_both() -> None:
    assert sum(right for *_, right in CASES) >= 60
    assert sum(not right for *_, right in CASES) >= 60


@pytest.mark.parametrize("kind", ["free_text", "number", "math_expression", "span"])
async def test_no_right_answer_is_0_and_no_wrong_one_1(kind: str) -> None:
    judge = WithRuleFallback(Down(), RuleJudge(only_certain=True))
    decided = {True: 0, False: 0}
    for question, answer, reference, right in CASES:
        query = JudgeQuery(question, answer, reference, kind)  # pyright: ignore[reportArgumentType]
        verdict = await judge.judge(query)
        assert verdict.correct in (right, None), (query, verdict)
        assert verdict.source == ("llm" if verdict.correct is None else "rule_fallback")
        decided[right] += verdict.correct is not None
    assert min(decided.values()) >= 20


async def test_a_task_with_a_verifier_of_its_own_is_decided_by_that() -> None:
    verifier = {"name": "reasoning_gym", "dataset": "n_queens", "entry": {}}
    task = Problem("t", "math", "s", "Q", "3", verifier=verifier)
    for outcome, expected in ((True, True), (False, False), (None, None)):
        for answer in ("3", "4", "x + 3"):  # whatever the reference says: others may be right
            query = task_query(task, answer, "k", verified=outcome)
            for rules in (RuleJudge(), RuleJudge(only_certain=True)):
                assert (await rules.judge(query)).correct is expected
    assert task_query(replace(task, verifier=None), "3", "k", verified=True).own_check is None


DENIALS = (
    "The answer isn't 42.", "The answer isn’t 42", "The answer wasn't 42", "answer != 42",
    "I doubt it is 42", "It's false that the answer is 42", "The wrong answer is 42", "42 is wrong",
    "42? No.", "42 is not the answer", "It is anything but 42", "答案不是42", "nicht 42",
    "Answer: 42 (incorrect)",
)  # fmt: skip


@pytest.mark.parametrize("answer", DENIALS)
async def test_a_right_number_that_is_denied_is_left_open(answer: str) -> None:
    query = JudgeQuery("What is 6 * 7?", answer, "42", "number")
    assert (await RuleJudge(only_certain=True).judge(query)).status == "abstain"


async def test_every_mode_takes_the_strict_rules() -> None:
    section = JudgeSection(mode="rules")
    query = JudgeQuery("Where?", "the French capital", "Paris", "span")
    alone = build_judge(section, None)
    assert (await alone.judge(query)).correct is False, "nobody reads it after that"


class Rewards(JudgeRewardSystem):
    """As it is, with a service that is down."""

    def make_judge(self) -> Judge:
        return Down()


def test_the_reward_is_a_rules_or_none() -> None:
    with Rewards({"judge_url": "http://nowhere"}) as system:
        right = system.reward("What is 6 * 7?", "It is 42.", "42")
        assert (right["reward"], right["source"], right["status"]) == (1.0, "rule_fallback", "ok")
        wrong = system.reward("What is 6 * 7?", "It is 41.", "42")
        assert (wrong["reward"], wrong["source"]) == (0.0, "rule_fallback")
        open_one = system.reward("Where?", "the French capital", "Paris")
        assert (open_one["reward"], open_one["status"]) == (None, "unavailable")
        asked = [
            {"prompt": question, "completion": answer, "answer": reference}
            for question, answer, reference, _ in CASES
        ]
        rewards = [told["reward"] for told in system.reward_batch(asked)]
        for (*case, is_right), reward in zip(CASES, rewards, strict=True):
            assert reward in (float(is_right), None), case
        metrics = system.get_metrics()
        assert metrics["fallbacks"] == 2 + sum(reward is not None for reward in rewards)


def test_fallbacks_are_told_with_the_error_and_a_dead_service_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "JudgeReward")
    with Rewards({"judge_url": "http://nowhere", "circuit_breaker_threshold": 0}) as system:
        for number in range(120):
            system.reward("Q", str(number), "3", request_id=str(number))
        system.reward("Where?", "the French capital", "Paris")
    said = [record.getMessage() for record in caplog.records if record.name == "JudgeReward"]
    assert len(said) == 4, "the 1st, 10th and 100th fallback, and the first without a reward"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert all("unavailable: connection refused" in line for line in said)
    assert "100 so far" in said[2] and "no reward" in said[3]
