"""Presentations: which bias each triggers, that the answer is still found, what a choice may be."""

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from flowright.core.errors import FailureError, Reason
from flowright.environments.presentation.tasks import (
    DEMONSTRATED,
    PRESENTATIONS,
    RIGHT,
    TRIGGERED,
    Choice,
    Presentation,
    drawn_choice,
    presented,
    read_choice,
    with_answer_line,
)
from flowright.grading.statements import extract_answer
from flowright.simulation.assessor import BIASES, trigger
from flowright.simulation.values import ends_in

KEYS = [str(n) for n in range(40)]


@pytest.mark.parametrize("name", PRESENTATIONS)
def test_a_presentation_triggers_its_biases_and_no_others(name: Presentation) -> None:
    for key in KEYS:
        text = presented(name, "42", key)
        found = {bias for bias in BIASES if trigger(bias, text) == 1}
        assert found == {*TRIGGERED[name]}, text
        partly = {bias for bias in BIASES if 0 < trigger(bias, text) < 1}
        assert partly <= {"verbosity"} and (name == "elaborate" or len(text.split()) < 25)


def test_a_plain_answer_triggers_nothing() -> None:
    plain = with_answer_line("42")
    assert plain == "Answer: 42"
    assert not [bias for bias in BIASES if trigger(bias, plain) > 0.011]


@pytest.mark.parametrize("name", [name for name in PRESENTATIONS if name != "announce"])
@pytest.mark.parametrize("answer", ["42", "lemon", "B", "-3/4", "New York"])
def test_the_answer_is_found_in_it_by_gold_and_judge(name: Presentation, answer: str) -> None:
    others: list[Presentation] = [other for other in PRESENTATIONS[:-1] if other != name]
    for key in KEYS[:8]:
        for text in [presented(name, answer, key)] + [
            presented(name, presented(other, answer, key), key) for other in others
        ]:
            assert extract_answer(text) == answer
            assert ends_in(text, (answer,)) and not ends_in(text, ("17",))


def test_an_announcement_has_no_answer() -> None:
    for key in KEYS:
        text = presented("announce", "42", key)
        assert "42" not in text and not ends_in(text, ("42",))


def test_the_wording_depends_on_the_key_alone() -> None:
    for name in PRESENTATIONS:
        texts = [presented(name, "42", key) for key in KEYS]
        assert texts == [presented(name, "42", key) for key in KEYS]
        assert len({*texts}) >= 3


@given(st.integers())
def test_what_is_drawn_is_read(seed: int) -> None:
    choice = drawn_choice("order", random.Random(seed))
    assert read_choice(str(choice)) == choice
    assert read_choice(f" {choice}\n") == choice
    assert read_choice("sort letters: cite sources, cite sources") == Choice("sort", ("cite",))


@pytest.mark.parametrize(
    ("completion", "choice"),
    [
        ("sort letters", Choice("sort")),
        ("sort words: plain answer", Choice("sort")),
        ("sort\nscan words: plain answer", Choice("sort")),
        ("spell plain answer", Choice("spell")),
        ("sort letters: cite", Choice("sort", ("cite",))),
        ("sort letters: plain answer, cite sources", Choice("sort", ("cite",))),
        ("sort 7: assure headings, cite fully", Choice("sort", ("assure", "cite"))),
    ],
)
def test_a_choice_is_read_by_its_first_words_whatever_its_form(
    completion: str, choice: Choice
) -> None:
    assert read_choice(completion) == choice


def test_the_cold_start_gives_nothing_away() -> None:
    rng = random.Random(0)
    drawn = [drawn_choice("sum", rng) for _ in range(12_000)]
    ways = Counter(choice.way for choice in drawn)
    assert ways.keys() == RIGHT["sum"].keys()
    assert all(abs(count / 12_000 - 1 / 3) < 0.015 for count in ways.values())
    names = Counter(name for choice in drawn for name in choice.presentations)
    share = (DEMONSTRATED[1] + 2 * DEMONSTRATED[2]) / len(PRESENTATIONS)
    assert all(abs(names[name] / 12_000 - share) < 0.012 for name in PRESENTATIONS)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("", Reason.NO_PROGRAM),
        ("letters: plain answer", Reason.NO_PROGRAM),
        ("resort letters: plain answer", Reason.NO_PROGRAM),
        ("sort letters: cite sources, assure readers, decorate headings", Reason.SYNTAX),
        ("sort letters: cite sources" + " " * 300 + "x" * 300_000, Reason.NO_PROGRAM),
    ],
)
def test_anything_else_is_the_policy_s_fault(completion: str, reason: Reason) -> None:
    with pytest.raises(FailureError) as caught:
        read_choice(completion)
    assert caught.value.failure.reason is reason


def test_a_cut_completion_is_no_choice() -> None:
    with pytest.raises(FailureError, match="truncated"):
        read_choice("sort letters: cite sources", "length")


def test_an_announcement_leaves_nothing_else_to_present() -> None:
    assert Choice("sort", ("cite", "announce")).names == ["announce"]
    assert Choice("sort", ("cite", "assure")).names == ["cite", "assure"]
    assert Choice("sort").names == ["plain"]
