"""One comparison for gold, the rules and the vote: they never contradict each other."""

import pytest
from examples import up_to
from hypothesis import HealthCheck, given, settings, strategies as st
from lost_sandbox import LostSandbox

from flowright.data.task import Kind, Problem
from flowright.grading import extract_answer, gold_check
from flowright.grading.compare import compare
from flowright.grading.votes import groups
from flowright.judging.rules import decide
from flowright.judging.verdict import task_query
from flowright.sandbox import Sandbox

EXPRESSIONS = ["sqrt(3)", "2^3", "x + 3", "3x", "f(3)", "\\boxed{x+3}", "5 \\cdot 3", "-(-3)"]


@pytest.mark.parametrize(
    ("reference", "answer"), [("3", e) for e in EXPRESSIONS] + [("12", "4!/2")]
)
async def test_rules_leave_expressions_to_algebra(reference: str, answer: str) -> None:
    task = Problem("t", "math", "s", "Q", reference)
    assert await decide(task_query(task, answer, "k")) is None
    assert (await gold_check(task, answer, LostSandbox(workers=1))).correct is None


@pytest.mark.parametrize(
    ("reference", "answer", "correct"),
    [("12", "4!/2", True), ("3", "\\sqrt{9}", True), ("3", "x + 3", False), ("3", "2^3", False)],
)
async def test_gold_asks_algebra(
    sandbox: Sandbox, reference: str, answer: str, correct: bool
) -> None:
    gold = await gold_check(Problem("t", "math", "s", "Q", reference), answer, sandbox)
    assert (gold.correct, gold.method) == (correct, "math_verify")


WORDS = ["3", "12", "-", "3.0", "1/2", "\\frac{1}{2}", "50%", "x", "+", "=", "^", "sqrt(", ")", " "]
WORDS += [
    "\n",
    "Answer: ",
    "The answer is ",
    "A",
    "(B)",
    "C.",
    "iron",
    "gold",
    "the ",
    " and ",
    ",",
]
WORDS += ["12 May 1999", "May", "\\boxed{", "}", "<answer>", "</answer>", "####", "$", "1,000", "."]
WORDS += ["<think>", "</think>", "no idea at all", "dollars", "five", "!", "{", "π"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
CHOICES = (("A", "gold"), ("B", "iron"), ("C", "the 3"))


@st.composite
def tasks(draw: st.DrawFn) -> Problem:
    kind: Kind = draw(st.sampled_from(["math", "qa"]))
    if kind == "qa" and draw(st.booleans()):
        return Problem("t", kind, "s", "Which?", draw(st.sampled_from("ABC")), choices=CHOICES)
    accepted = draw(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=2))
    return Problem("t", kind, "s", "Q", accepted[0], alternatives=tuple(accepted[1:]))


@given(tasks(), TEXTS)
@settings(up_to(400), suppress_health_check=[HealthCheck.too_slow])
async def test_the_rules_say_what_gold_says_or_nothing(task: Problem, answer: str) -> None:
    gold = await gold_check(task, answer, LostSandbox(workers=1))
    found = await decide(task_query(task, answer, "k"))
    if found is not None:
        assert gold.correct is found[0], (gold, found)


@given(tasks(), TEXTS, TEXTS)
@up_to(400)
def test_votes_go_together_where_one_answer_makes_the_other_right(
    task: Problem, one: str, other: str
) -> None:
    same = groups([one, other], task.kind, task.choices)
    assert [text for group in same for text in group] == [one, other]
    if task.choices:
        verdicts = {compare([task.reference], text, "qa", CHOICES).correct for text in (one, other)}
        assert len(same) == 2 or len(verdicts) == 1
    elif compare([extract_answer(one)], other, task.kind).method == "number":
        right = compare([extract_answer(one)], other, task.kind).correct
        assert right is (len(same) == 1) or task.kind == "qa"


def test_the_vote_keeps_the_order_and_the_first_form() -> None:
    assert groups(["4", "5", "5.0", "4", "$5$"], "math") == [["4", "4"], ["5", "5.0", "$5$"]]
    assert groups(["(B)", "iron", "A"], "qa", CHOICES) == [["(B)", "iron"], ["A"]]
    assert groups(["def f(): 1", "def f():  1", "DEF"], "code")[0] == ["def f(): 1", "def f():  1"]
    assert len(groups(["one, two", "two, one"], "qa")) == 2, "an order may be what is asked for"


def test_a_number_may_have_any_length() -> None:
    compare(["3"], "1" + ",111" * 3000, "math")
    compare(["1" + ",111" * 3000], "9" * 9000, "math")
