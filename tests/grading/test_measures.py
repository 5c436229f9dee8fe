"""Units, dates and choices in the forms in which people write them, and what is near and wrong."""

from datetime import date
from fractions import Fraction

import pytest
from hypothesis import assume, given, strategies as st

from flowright.grading.choices import chosen_label, same_date
from flowright.grading.compare import compare
from flowright.grading.statements import closed_answer, predicate
from flowright.grading.units import conversion
from flowright.grading.votes import groups

LENGTHS = {"mm": 1, "cm": 10, "m": 1000, "km": 10**6}
WRITTEN = ["{} {}", "{}\\text{{ {}}}", "{}\\ \\mathrm{{{}}}", "The length is {} {}.", "${}$ {}"]


@given(
    st.integers(1, 10**6),
    st.sampled_from(sorted(LENGTHS)),
    st.sampled_from(sorted(LENGTHS)),
    st.sampled_from(WRITTEN),
)
def test_a_length_is_right_in_every_unit_and_no_other_length(
    value: int, unit: str, other: str, written: str
) -> None:
    reference = f"{value}\\text{{ {unit}}}"
    converted = Fraction(value * LENGTHS[unit], LENGTHS[other])
    answer = written.format(f"{converted.numerator}/{converted.denominator}", other)
    assert compare([reference], answer, "math").correct is True, answer
    if unit != other:
        answer = written.format(value, other)
        assert compare([reference], answer, "math").correct is False, answer
        assert len(groups([reference, answer], "math")) == 2


@pytest.mark.parametrize(
    ("answer", "reference", "factor"),
    [
        ("90 minutes", "1.5 hours", Fraction(1, 60)),
        ("72 km/h", "20\\ \\mathrm{m/s}", Fraction(5, 18)),
        ("72 miles per hour", "72 mph", 1),
        ("3\\text{ m}^2", "3 cm²", 10_000),
        ("$5", "500 cents", 100),
        ("$5$", "5 cents", 1),  # these enclose mathematics
        ("5 apples", "5 km", 1),  # no unit is known there
        ("5 kg", "5 km", None),
        ("5 m^2", "5 m", None),
    ],
)
def test_conversion(answer: str, reference: str, factor: Fraction | None) -> None:
    assert conversion(answer, reference) == factor


DATES = ["{0:%B} {0.day}, {0.year}", "{0.day} {0:%B} {0.year}", "{0:%b} {0.day} {0.year}",
         "the {0.day}th of {0:%B} {0.year}", "{0:%b}. {0.day}, {0.year}",
         "On {0:%B} {0.day}, {0.year}", "{0.year}-{0.month:02}-{0.day:02}",
         "{0:%A}, {0:%B} {0.day}, {0.year}"]  # fmt: skip
DAYS = st.dates(date(1000, 1, 1))


@given(DAYS, DAYS, st.sampled_from(DATES), st.sampled_from(DATES))
def test_a_day_is_itself_in_every_form_and_no_other(
    day: date, other: date, one: str, another: str
) -> None:
    assert same_date(one.format(day), another.format(day))
    assume(day != other)
    assert not same_date(one.format(day), another.format(other))


CHOICES = (("A", "river"), ("B", "bank"), ("C", "library"))


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("B - bank", "B"),
        ("b ) bank", "B"),  # MathQA's form
        ("B, because money is kept there.", "B"),
        ("**B. bank**", "B"),
        ("\\textbf{(B)} bank", "B"),
        ("A, B", None),
        ("B or C", None),
        ("B, not sure", None),
        ("B, C", None),
        ("A - bank", None),
        ("B. library, because it is quiet", None),
        ("(B) is wrong", None),
    ],
)
def test_a_label_with_a_remark(answer: str, label: str | None) -> None:
    assert chosen_label(answer, CHOICES) == label


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The capital of France is Paris", "Paris"),
        ("I first thought of Lyon, but in fact it is Paris", "Paris"),
        ("It's Bishop's Stortford", "Bishop's Stortford"),
        ("I would choose (B)", "(B)"),
        ("It is unclear whether it is Paris", "unclear whether it is Paris"),
        ("The city that is not in Spain is Paris", "not in Spain is Paris"),
        ("If it rains, the answer is Paris", "If it rains, the answer is Paris"),
        ("Nobody says that it is Paris", "Nobody says that it is Paris"),
    ],
)
def test_a_sentence_says_what_it_says(text: str, said: str) -> None:
    assert predicate(text) == said


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Yes, both are.", "yes"),
        ("No, they were not.", "no"),
        ("True", "true"),
        ("Yes, but no", None),
        ("No, wait, it was", None),
        ("No idea", None),
        ("yes/no", None),
        ("yesterday", None),
    ],
)
def test_yes_and_no_open_an_answer(text: str, word: str | None) -> None:
    assert closed_answer(text) == word
