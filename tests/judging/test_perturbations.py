"""Perturbations: each calls on one planted bias and no other, and changes no answer's truth."""

import pytest

from flowright.grading import extract_answer
from flowright.judging.measuring.exam_probes import (
    CONTROL,
    CUE_WORDS,
    CUED,
    CUES,
    FILLER,
    MASTER_KEYS,
    NEUTRAL,
    PERTURBATIONS,
    perturbed,
    reworded,
)
from flowright.judging.measuring.labelled_answers import LabelledItem
from flowright.judging.rules import gate
from flowright.llm.replies import extract_code
from flowright.simulation.assessor import BIASES, trigger
from flowright.simulation.values import final_answer

ANSWERS = ("42", "The answer is 42.", "Answer: New York", "#### 42", "\\boxed{42}", "-5", "(B)")


def item(number: int, answer: str = "The answer is 42.", label: bool = False) -> LabelledItem:
    return LabelledItem(str(number), "Q?", answer, "41", label)


@pytest.mark.parametrize("name", [*PERTURBATIONS, CONTROL])
def test_every_perturbation_calls_on_its_own_bias_alone(name: str) -> None:
    others = [bias for bias in BIASES if bias not in (name, "verbosity")]
    for number in range(60):
        changed = perturbed(item(number), name, seed=0)
        assert changed is not None
        fired = [bias for bias in others if trigger(bias, changed.answer)]
        assert fired == [], changed.answer
        if name != CONTROL:
            assert trigger(name, changed.answer) == 1.0, changed.answer


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name != "master_key"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_answer_stays_what_it_was(name: str, answer: str) -> None:
    for number in range(20):
        changed = perturbed(item(number, answer), name, seed=3)
        assert changed is not None and changed.answer != answer
        assert extract_answer(changed.answer) == extract_answer(answer)
        assert final_answer(changed.answer) == final_answer(answer)


def test_a_program_stays_the_program_that_it_was() -> None:
    bare = LabelledItem("1", "Q?", "def f():\n    return 1", "r", True, "code")
    for name in (CONTROL, *CUED, "verbosity"):
        changed = perturbed(bare, name, seed=0)
        assert changed is not None
        assert extract_code(changed.answer, "f").strip() == bare.answer


def test_cues_and_control_are_equally_long() -> None:
    for wordings in (NEUTRAL, *CUES.values()):
        assert {len(words.split()) for words in wordings} == {CUE_WORDS}
        assert len(set(wordings)) == len(wordings) >= 4


def test_a_bias_is_called_on_in_ways_that_share_few_words() -> None:
    """So that the exam of a judge that has no list of trigger words means something."""
    for wordings in CUES.values():
        for one in wordings:
            rest = [other for other in wordings if other != one]
            shared = [set(one.lower().split()) & set(other.lower().split()) for other in rest]
            assert max(map(len, shared)) < CUE_WORDS / 2


def test_padding_reaches_its_length_and_leaves_long_answers_alone() -> None:
    short = perturbed(item(1), "verbosity", seed=0)
    assert short is not None and 200 <= len(short.answer.split()) < 270
    assert perturbed(item(1, "word " * 200), "verbosity", seed=0) is None
    assert not any(trigger(bias, text) for bias in CUED for text in FILLER)


def test_master_keys_replace_wrong_answers_alone() -> None:
    changed = [perturbed(item(number), "master_key", 0) for number in range(200)]
    assert {one.answer for one in changed if one is not None} == set(MASTER_KEYS)
    assert perturbed(item(1, label=True), "master_key", 0) is None
    for key in MASTER_KEYS:
        rejected = gate(item(1, key).query(""))
        assert rejected is not None and rejected.correct is False


def test_wordings_are_drawn_by_seed_and_item() -> None:
    def drawn(seed: int) -> list[str]:
        changed = [perturbed(item(n), "tone", seed) for n in range(30)]
        return [one.answer for one in changed if one is not None]

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(set(drawn(0))) == len(CUES["tone"])


def test_a_pair_of_equals_differs_in_its_words_only() -> None:
    one, other = reworded(item(1), seed=0)
    assert one.answer != other.answer
    assert len(one.answer.split()) == len(other.answer.split())
    assert extract_answer(one.answer) == extract_answer(other.answer) == "42"
