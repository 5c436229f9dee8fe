"""Scores of answers in words against values that the datasets' own scorers gave."""

from collections.abc import Sequence

import pytest

from flowright.data.sources.benchmarks import UNANSWERABLE
from flowright.data.task import Problem
from flowright.grading import gold_check
from flowright.grading.word_scores import SCORERS, final_words
from flowright.sandbox import Sandbox

# Computed by hotpot_evaluate_v1.py, 2wikimultihop_evaluate_v1.1.py, evaluate-v2.0.py of SQuAD,
# triviaqa_evaluation.py and, of NQ-open without F1, orqa/utils/eval_utils.py.
GOLDEN = [
    ("squad_v2", "The Tower of London!", ["Tower, London", "a tower"], 0.0, 0.8),
    ("squad_v2", "", ["the", "A"], 1.0, 1.0),
    ("squad_v2", "", ["Paris"], 0.0, 0.0),
    ("squad_v2", "Paris", [UNANSWERABLE], 0.0, 0.0),
    ("squad_v2", "rock-n-roll", ["rock n roll"], 0.0, 0.0),
    ("squad_v2", "one two two", ["two two two"], 0.0, 2 / 3),
    ("triviaqa", "rock-n-roll", ["Rock n’ Roll"], 1.0, 1.0),
    ("triviaqa", "state_of_the_art", ["State of art"], 1.0, 1.0),
    ("triviaqa", "", ["the"], 1.0, 0.0),
    ("hotpotqa", "yes", ["yes indeed"], 0.0, 0.0),
    ("hotpotqa", "No.", ["no"], 1.0, 1.0),
    ("2wikimultihop", "noanswer", ["no answer"], 0.0, 0.0),
    ("2wikimultihop", "U.S. Army", ["Navy", "the US Army"], 1.0, 1.0),
    ("2wikimultihop", "café", ["cafe\u0301"], 0.0, 0.0),
    ("bamboogle", "“Ada”", ["Ada"], 0.0, 0.0),
    ("nq_open", "café", ["cafe\u0301"], 1.0, None),
    ("nq_open", "12 of December", ["December 12"], 0.0, None),
]


@pytest.mark.parametrize(("source", "prediction", "references", "exact", "f1"), GOLDEN)
def test_scores_are_those_of_the_dataset_s_own_scorer(
    source: str, prediction: str, references: Sequence[str], exact: float, f1: float | None
) -> None:
    found = SCORERS[source].scores(prediction, references)
    assert found[0] == exact
    assert f1 is None or found[1] == pytest.approx(f1, abs=1e-12)


@pytest.mark.parametrize("answer", ["", "Unanswerable.", UNANSWERABLE])
def test_an_open_question_is_answered_by_nothing_or_by_the_word_for_it(answer: str) -> None:
    assert SCORERS["squad_v2"].scores(answer, [UNANSWERABLE]) == (1.0, 1.0)
    assert SCORERS["squad_v2"].scores(answer, ["Paris", "in Paris"]) == (0.0, 0.0)


def test_a_reply_of_one_answer_is_scored_as_it_is_written() -> None:
    assert final_words("“Ada”") == "“Ada”"
    assert final_words("I think so.\nThe answer is **Ada**.") == "Ada"


async def test_gold_has_the_dataset_s_exact_match_where_it_has_a_scorer() -> None:
    def problem(source: str) -> Problem:
        return Problem("x", "qa", source, "When?", "14 December 1972 UTC", alternatives=("1972",))

    async with Sandbox() as sandbox:
        strict = await gold_check(problem("nq_open"), "in December 1972", sandbox)
        own = await gold_check(problem("own"), "in December 1972", sandbox)
        right = await gold_check(problem("nq_open"), "The answer is 1972.", sandbox)
    assert (strict.exact, strict.f1) == (0.0, pytest.approx(4 / 7))
    assert (right.exact, right.f1, right.correct) == (1.0, 1.0, True)
    assert own.exact is None and own.f1 == strict.f1
