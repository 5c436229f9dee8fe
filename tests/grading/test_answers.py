"""Gold, the rules and the vote over one corpus of answers: none contradicts another."""

from dataclasses import replace

import pytest
from graded_answers import NUMBERS, OTHERS, UNDECIDED, Row

from flowright.data.task import Problem
from flowright.grading import gold_check
from flowright.grading.compare import AnswerComparison, compare
from flowright.grading.votes import groups
from flowright.judging.rules import decide
from flowright.judging.verdict import task_query
from flowright.sandbox import Sandbox

CORPUS = [*NUMBERS, *OTHERS]


def task(row: Row) -> Problem:
    return Problem("t", row[0], "s", "Which is it?", row[1])


async def test_gold_says_what_is_right(sandbox: Sandbox) -> None:
    assert len(CORPUS) >= 120
    for row in CORPUS:
        gold = await gold_check(task(row), row[2], sandbox)
        assert gold.correct is row[3], (row, gold)


async def test_rules_without_algebra_say_what_is_right_or_nothing() -> None:
    decided = 0
    for row in CORPUS:
        found = await decide(task_query(task(row), row[2], "k"))
        assert found is None or (found[0] is row[3] and row[2] not in UNDECIDED), (row, found)
        decided += found is not None
    assert decided >= 90


@pytest.mark.parametrize("only_certain", [False, True])
async def test_rules_with_algebra_decide_what_gold_decides(only_certain: bool) -> None:
    for row in CORPUS:

        async def evaluate(found: AnswerComparison, right: bool = row[3]) -> AnswerComparison:
            return replace(found, correct=right)  # as the sandbox does, by the test above

        found = await decide(task_query(task(row), row[2], "k"), evaluate, only_certain)
        assert (found is None and only_certain) or (found and found[0] is row[3]), (row, found)


def test_votes_join_nothing_that_is_wrong() -> None:
    for kind, reference, answer, right, why in CORPUS:
        joined = len(groups([reference, answer], kind)) == 1
        assert right or not joined, (reference, answer, why)
        said = compare([reference], answer, kind)
        if said.correct and said.method == "number" and said.certain:
            assert joined or kind == "qa", (reference, answer)


HEDGES = [
    "{wrong} or {right}", "{wrong}, {right}", "{wrong} to {right}", "{wrong}-{right}",
    "{wrong} and {right}", "{wrong} vs {right}", "Maybe {wrong} or {right}.",
    "between {wrong} and {right}",
]  # fmt: skip


@pytest.mark.parametrize("hedge", HEDGES)
async def test_nobody_is_right_by_naming_two(sandbox: Sandbox, hedge: str) -> None:
    answer = hedge.format(wrong=41, right=42)
    asked = Problem("t", "math", "s", "What is 6 * 7?", "42")
    assert (await gold_check(asked, answer, sandbox)).correct is False
    found = await decide(task_query(asked, answer, "k"))
    assert found is None or found[0] is False
