"""The gate, the rules, the wrappers around a judge, and how they are put together."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from judge_doubles import RIGHT, ScriptedModel, reply, unavailable

from flowright.config.judge import JudgeSection
from flowright.data.task import Problem
from flowright.grading import gold_check
from flowright.judging.build import build_judge
from flowright.judging.rules import MASTER_KEYS, RuleJudge, bare, decide, gate
from flowright.judging.verdict import Criterion, JudgeQuery, Verdict
from flowright.judging.wrappers import Gated, WithRuleFallback
from flowright.llm.chat import Usage
from flowright.llm.replies import spoken_answer
from flowright.sandbox import Limits, TestReport, TestResult

# The gate.

KEYS_OF_THE_PAPER = [
    " ",
    ".",
    ",",
    ":",
    "Thought process:",
    "Let's solve this problem step by step.",
    "Solution",
    "解",
    "かいせつ",
    "Respuesta",
]


@pytest.mark.parametrize(
    "answer",
    [
        *KEYS_OF_THE_PAPER,
        "",
        "\n\t",
        "...",
        "。",
        "：",
        "「」",
        "---",
        "** **",
        "\u200b",
        "\u3164",
        "\u2800\u2800",
        "SOLUTION:",
        "**Solution**",
        "### Solution\n",
        "Ｓｏｌｕｔｉｏｎ",
        "Let’s think step by step",
        "The final answer is:",
        "答案：",
        "Lösung:",
        "Ответ:",
        "s\u200bolution",
        "<think>It is 42.</think>",
        "<think>It is 42, I am sure",
        "<think></think>Solution:",
        "\\boxed{}",
        "$\\boxed{ }$",
        "<answer></answer>",
        "<answer>Thought process:</answer>",
        "The final answer is {answer}.",
        "✓✓✓",
    ],
    ids=repr,
)
def test_what_is_no_answer_is_wrong(answer: str) -> None:
    verdict = gate(JudgeQuery("What is 6 * 7?", answer, "42"))
    assert verdict is not None
    assert (verdict.correct, verdict.score, verdict.status) == (False, 0.0, "ok")
    assert (verdict.source, verdict.attempts, verdict.judge) == ("rule", 0, "gate")


@pytest.mark.parametrize(
    "answer",
    ["42", "0", "-", "yes", "Yes.", "B", "(B)", "first", "correct", "Solution: 42", "解：42",
     "the answer is 42", "∞", "½", "λ", "none", "None", "x", "👍 42", "Let me think. 42.", "I"],
    ids=repr,
)  # fmt: skip
def test_what_may_be_an_answer_passes(answer: str) -> None:
    reference = "-" if answer == "-" else "42"
    assert gate(JudgeQuery("What is 6 * 7?", answer, reference)) is None


@pytest.mark.parametrize(
    ("question", "answer", "reference", "alternatives"),
    [
        ("Which sign ends a sentence?", ".", ".", ()),
        ("Which sign divides hours and minutes?", ":", "colon", (":",)),
        ("What is salt in water?", "Solution", "solution", ()),
        ("What is salt in water?", "solution", "a solution", ()),
        ("What is salt in water?", "solution", "mixture", ("a homogeneous solution",)),
        ("What is salt in water?\n\nA. alloy\nB. solution", "Solution", "B", ()),
    ],
)
def test_the_gate_lets_through_what_the_task_names(
    question: str, answer: str, reference: str, alternatives: tuple[str, ...]
) -> None:
    assert gate(JudgeQuery(question, answer, reference, alternatives=alternatives)) is None


def test_every_key_is_caught_in_any_dress() -> None:
    assert len(MASTER_KEYS) > 80
    assert "" not in MASTER_KEYS
    for key in MASTER_KEYS:
        for dressed in (key, key.upper(), f"  {key}:\n", f"**{key}**", f"## {key}."):
            assert gate(JudgeQuery("Q", dressed, "42")) is not None, dressed


@given(st.text())
def test_the_gate_never_rejects_the_reference(text: str) -> None:
    assume(text.strip() and spoken_answer(text) == text)
    assert gate(JudgeQuery("Q", text, text)) is None


@given(st.text())
def test_bare_is_idempotent(text: str) -> None:
    assert bare(bare(text)) == bare(text)


# The rules.

CHOICES = "Which one is a metal?\n\nA. oxygen\nB. iron\nC. helium"


@pytest.mark.parametrize(
    ("kind", "question", "answer", "reference", "expected"),
    [
        ("math_expression", "Q", "42", "42", True),
        ("math_expression", "Q", "The total is $1,080.", "1080", True),
        ("math_expression", "Q", "#### 18", "18", True),
        ("math_expression", "Q", "First 3, then 15, so 18", "18", None),  # more than an answer
        ("math_expression", "Q", "18 or 19", "18", False),
        ("math_expression", "Q", "-5", "5", False),
        ("math_expression", "Q", "9" * 400, "9", False),
        ("math_expression", "Q", "no idea", "18", False),
        ("math_expression", "Q", "\\frac{1}{2}", "0.5", True),
        (
            "math_expression",
            "Q",
            "x^2",
            "x^2",
            None,
        ),  # an expression: not decided, even where it is equal
        ("math_expression", "Q", "y^2", "x^2", None),
        ("span", "Q", "The Beatles", "Beatles", True),
        ("span", "Q", "the rolling stones", "Beatles", False),
        ("span", "Q", "Answer: Paris.", "Paris", True),
        ("span", "Q", "12 May 1999", "May 12, 1999", True),
        ("span", "Q", "B and A", "A, B", True),
        ("span", "Q", "5 dollars", "5", True),
        ("span", "Q", "five", "5", True),
        ("span", "Q", "-5", "5", False),
        ("span", "Q", "2 or 3", "2", False),
        ("span", "Q", "anything", " ", None),
        ("span", CHOICES, "B", "B", True),
        ("span", CHOICES, "iron", "B", True),
        ("span", CHOICES, "Answer: (B) iron", "B", True),
        ("span", CHOICES, "B. helium", "B", False),
        ("span", CHOICES, "A", "B", False),
        ("span", CHOICES, "metal", "B", False),
        ("code", "Q", "def f(): ...", "def f(): ...", None),
        ("number", "Q", "It is 42.", "42", True),
        ("number", "Q", "It is 41.", "42", False),
        ("multiple_choice", CHOICES, "(B)", "B", True),
        ("multiple_choice", "Iron (A) or gold (B)?", "B", "B", True),
        ("multiple_choice", "Iron (A) or gold (B)?", "(A)", "B", False),
        ("multiple_choice", "Iron (A) or gold (B)?", "The answer is B.", "B", True),
        ("multiple_choice", "Iron (A) or gold (B)?", "gold", "B", None),  # choices are not found
        ("multiple_choice", "Iron (A) or gold (B)?", "(B) gold", "B", True),
        ("multiple_choice", "Iron (A) or gold (B)?", "The answer is A: iron.", "B", False),
        ("multiple_choice", "Iron (A) or gold (B)?", "B. gold, which is no iron", "B", None),
        ("multiple_choice", "Iron (A) or gold (B)?", "(B) gold or (A) iron", "B", None),
        ("multiple_choice", "Who?", "A. Einstein", "B", None),  # may be a name
        ("free_text", "Q", "Paris.", "Paris", True),
        ("free_text", "Q", "Rome", "Paris", False),
        ("free_text", "Q", "so " * 13, "so " * 13, None),  # too long to be repeated to the word
    ],
)
async def test_rules(
    kind: Any, question: str, answer: str, reference: str, expected: bool | None
) -> None:
    verdict = await RuleJudge().judge(JudgeQuery(question, answer, reference, kind))
    assert (verdict.source, verdict.judge) == ("rule", "rules")
    assert verdict.correct is expected
    assert verdict.status == ("abstain" if expected is None else "ok")


async def test_an_alternative_counts() -> None:
    assert await decide(JudgeQuery("Q", "IV", "4", "span", ("iv",))) == (
        True,
        "text: equal after normalisation",
    )
    assert await decide(JudgeQuery("Q", "8", "4", "math_expression", ("8", "16"))) == (
        True,
        "text: equal",
    )
    assert await decide(JudgeQuery("Q", "8", "4", "math_expression", ("2^3",))) is None


@given(st.text(), st.text())
async def test_what_is_decided_does_not_depend_on_the_answer(one: str, other: str) -> None:
    for kind, reference in (
        ("math_expression", "x^2"),
        ("span", "Paris"),
        ("free_text", "Paris"),
        ("free_text", "because " * 13),
        ("code", "f"),
    ):
        queries = [JudgeQuery("Q", answer, reference, kind) for answer in (one, other)]  # pyright: ignore
        assert len({await decide(query) is None for query in queries}) == 1


@dataclass
class ScriptedSandbox:
    """Reports what it was told to; stands in for the execution of tests."""

    report: TestReport
    checked: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    async def check(self, solution: str, *_: object, **__: object) -> TestReport:
        self.checked.append(solution)
        return self.report


def report_of(*failures: str | None) -> TestReport:
    results = tuple(TestResult("f()", failure is None, failure or "") for failure in failures)
    return TestReport(all(result.passed for result in results), results, "ok")


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ((None, None), True),
        ((None, "AssertionError"), False),
        (("passed 2 of 2 tests", None), False),  # the program's own words
    ],
)
async def test_code_is_decided_by_the_evidence_of_the_gold_check(
    failures: tuple[str | None, ...], expected: bool
) -> None:
    task = Problem("t", "code", "s", "Q", "def f(): ...", entry_point="f", hidden_tests=("f()",))
    sandbox: Any = ScriptedSandbox(report_of(*failures))
    gold = await gold_check(task, "def f(): return 1", sandbox)
    assert gold.correct is expected
    query = JudgeQuery("Q", "def f(): return 1", task.reference, "code", evidence=gold.evidence)
    assert (await RuleJudge().judge(query)).correct is expected


@pytest.mark.parametrize(
    "evidence",
    ["failed; passed 3 of 3 tests", "passed 3 of 3", "passed 3 of 3 tests!"],
)
async def test_only_the_opening_words_of_the_evidence_count(evidence: str) -> None:
    assert await decide(JudgeQuery("Q", "a", "b", "code", evidence=evidence)) is None


async def test_no_tests_prove_nothing() -> None:
    evidence = "passed 0 of 0 tests"
    assert await decide(JudgeQuery("Q", "a", "b", "code", evidence=evidence)) == (
        False,
        "tests: 0 of 0 passed",
    )


# The wrappers.

ASKED = JudgeQuery("What is 6 * 7?", "42", "42", "math_expression", key="k")


async def test_the_gate_asks_nobody() -> None:
    model = ScriptedModel([reply(RIGHT)])
    judge = build_judge(JudgeSection(), model)
    verdict = await judge.judge(JudgeQuery("Q", "Thought process:", "42"))
    assert (verdict.correct, verdict.source) == (False, "rule")
    assert model.requests == []
    assert (await judge.judge(ASKED)).correct is True
    assert len(model.requests) == 1


async def test_without_the_gate_the_judge_is_asked_and_may_be_fooled() -> None:
    model = ScriptedModel([reply(RIGHT)])
    judge = build_judge(JudgeSection(gate=False), model)
    assert (await judge.judge(JudgeQuery("Q", "Thought process:", "42"))).correct is True


async def test_a_failing_judge_stays_failed_by_default() -> None:
    verdict = await build_judge(JudgeSection(), ScriptedModel([unavailable()])).judge(ASKED)
    assert (verdict.status, verdict.correct, verdict.source) == ("unavailable", None, "llm")


async def test_a_configured_fallback_is_tagged() -> None:
    section = JudgeSection(mode="judge_with_rule_fallback", max_attempts=2)
    judge = build_judge(section, ScriptedModel([reply("?"), reply("??")]))
    verdict = await judge.judge(ASKED)
    assert (verdict.status, verdict.correct, verdict.source) == ("ok", True, "rule_fallback")
    assert verdict.usage == Usage(2, 200, 20), "what the judge cost is kept"
    assert verdict.attempts == 2
    assert "the judge failed: parse_error" in verdict.reason


async def test_a_fallback_that_cannot_decide_leaves_the_failure() -> None:
    section = JudgeSection(mode="judge_with_rule_fallback")
    judge = build_judge(section, ScriptedModel([unavailable()]))
    verdict = await judge.judge(JudgeQuery("Q", "x^2", "x^2", "math_expression"))
    assert (verdict.status, verdict.source) == ("unavailable", "llm")


async def test_the_fallback_leaves_a_working_judge_alone() -> None:
    section = JudgeSection(mode="judge_with_rule_fallback")
    judge = build_judge(section, ScriptedModel([reply(RIGHT)]))
    verdict = await judge.judge(JudgeQuery("Q", "41", "42", "math_expression"))
    assert (verdict.correct, verdict.source) == (True, "llm")


async def test_rules_alone_need_no_model() -> None:
    judge = build_judge(JudgeSection(mode="rules"), None)
    assert (await judge.judge(ASKED)).correct is True
    with pytest.raises(ValueError, match="needs a model"):
        build_judge(JudgeSection(), None)


def test_the_name_is_the_judges() -> None:
    model = ScriptedModel([], name="gpt-oss-120b")
    for section in (JudgeSection(), JudgeSection(mode="judge_with_rule_fallback", gate=False)):
        assert build_judge(section, model).name == "gpt-oss-120b"
    assert build_judge(JudgeSection(mode="rules"), None).name == "rules"


@dataclass
class FixedJudge:
    verdict: Verdict
    name: str = "fixed"

    async def judge(self, query: JudgeQuery) -> Verdict:
        del query
        return self.verdict


async def test_wrappers_go_around_any_judge() -> None:
    silent = FixedJudge(Verdict(None, None, "llm", "timeout"))
    right = FixedJudge(Verdict(1.0, True, "rule", "ok"))
    judge = Gated(WithRuleFallback(WithRuleFallback(silent, silent), right))
    assert (await judge.judge(ASKED)).source == "rule_fallback"


# Two answers, rubrics.


@pytest.mark.parametrize(
    ("answer", "rival", "score"),
    [
        ("Thought process:", "It is 41.", 0.0),
        ("It is 41.", "Solution", 1.0),
        ("", ":", 0.5),
        ("It is 41.", "It is 42.", None),
    ],
)
def test_the_gate_between_two_answers(answer: str, rival: str, score: float | None) -> None:
    verdict = gate(JudgeQuery("What is 6 * 7?", answer, "42", rival=rival))
    assert (None if verdict is None else verdict.score) == score
    if verdict is not None:
        assert verdict.correct is (None if score == 0.5 else score == 1.0)
        assert verdict.source == "rule"


@pytest.mark.parametrize(
    ("answer", "rival", "correct"),
    [("42", "41", True), ("41", "42", False), ("42", "42.0", None), ("40", "41", None)],
)
async def test_rules_tell_two_answers_apart_where_one_is_right(
    answer: str, rival: str, correct: bool | None
) -> None:
    verdict = await RuleJudge().judge(JudgeQuery("Q", answer, "42", "number", rival=rival))
    assert verdict.correct is correct
    assert verdict.status == ("abstain" if correct is None else "ok")


async def test_no_rule_reads_a_rubric_or_a_rivals_test_run() -> None:
    rubric = JudgeQuery("Q", "42", "42", "number", criteria=(Criterion("It is short.", 1),))
    assert (await RuleJudge().judge(rubric)).status == "abstain"
    code = JudgeQuery("Q", "f", "f", "code", evidence="passed 3 of 3 tests", rival="g")
    assert (await RuleJudge().judge(code)).status == "abstain"
