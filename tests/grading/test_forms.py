"""A number in the forms in which people write it: gold and rules read each, and take no other."""

from decimal import Decimal
from fractions import Fraction

from examples import up_to
from hypothesis import assume, example, given, strategies as st
from lost_sandbox import LostSandbox

from flowright.data.task import Kind, Problem
from flowright.grading import gold_check
from flowright.grading.numbers import spelled
from flowright.grading.votes import groups
from flowright.judging.rules import decide
from flowright.judging.verdict import task_query

VALUES = st.integers(-(10**7), 10**7).map(Decimal) | st.decimals(
    -5_000,
    5_000,
    allow_nan=False,
    places=2,  # further apart than the tolerance
)


def german(value: Decimal) -> str:
    return f"{value:,}".translate(str.maketrans(",.", ".,"))


PLAIN = {
    "as it is": str,
    "in thousands": lambda value: f"{value:,}",
    "in thousands of LaTeX": lambda value: f"{value:,}".replace(",", "{,}"),
    "a minus of typographers": lambda value: str(value).replace("-", "−"),
    "with zeros": lambda value: f"{value:.4f}",
    "scientific": lambda value: f"{value.scaleb(-2):f} \\times 10^{{2}}",
    "scientific, typed": lambda value: f"{value.scaleb(3):f} x 10^-3",
    "a fraction": lambda value: "{}/{}".format(*Fraction(value).as_integer_ratio()),
    "a fraction of LaTeX": lambda value: "\\frac{{{}}}{{{}}}".format(
        *Fraction(value).as_integer_ratio()
    ),
    "dollars": lambda value: f"{'-' if value < 0 else ''}${abs(value)}",
    "with a unit": lambda value: f"{value} km",
    "with a unit of LaTeX": lambda value: f"{value}\\text{{ cm}}^2",
    "as a percentage": lambda value: f"{value * 100}%",
}
AROUND = [
    "{}", "\\boxed{{{}}}", "The answer is {}.", "**{}**", "$x = {}$", "#### {}", "(C) {}",
    "<answer>{}</answer>", "The value of x is {}", "Some working: 1 + 1 = 2.\n\nSo: {}",
]  # fmt: skip
CHANGED = [
    "\\sqrt{{{}}}", "{}!", "{} or 1", "1 or {}", "log {}", "{}x", "{}^3", "x + {}", "1, {}",
    "x < {}", "{} squared", "half of {}", "{}:7", "not {}", "1 to {}", "{}\\pi", "{}i",
]  # fmt: skip
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["math", "qa"])


@given(VALUES, st.sampled_from(sorted(PLAIN)), st.sampled_from(AROUND), KINDS)
@example(Decimal(0), "as a percentage", "{}", "math")
@up_to(400)
async def test_a_number_is_right_in_every_form(
    value: Decimal, form: str, around: str, kind: Kind
) -> None:
    answer = around.format(PLAIN[form](value))
    asked = Problem("t", kind, "s", "Q", str(value))
    gold = await gold_check(asked, answer, LostSandbox(workers=1))
    assert gold.correct is True, (answer, gold)
    found = await decide(task_query(asked, answer, "k"))
    assert found is not None and found[0] is True, (answer, found)
    assert len(groups([str(value), answer], "math")) == 1


@given(VALUES, VALUES, st.sampled_from(sorted(PLAIN)), st.sampled_from(AROUND), KINDS)
@up_to(400)
async def test_another_number_is_wrong_in_every_form(
    value: Decimal, other: Decimal, form: str, around: str, kind: Kind
) -> None:
    assume(value != other and 100 * value != other and value != 100 * other)
    answer = around.format(PLAIN[form](other))
    asked = Problem("t", kind, "s", "Q", str(value))
    assert (await gold_check(asked, answer, LostSandbox(workers=1))).correct is False
    found = await decide(task_query(asked, answer, "k"))
    assert found is None or found[0] is False, (answer, found)
    assert len(groups([str(value), answer], "math")) == 2


@given(st.integers(2, 10**6), st.sampled_from(CHANGED), st.sampled_from(["{}", *AROUND[:4]]), KINDS)
@up_to(400)
async def test_a_number_that_is_part_of_something_else_is_never_right(
    value: int, change: str, around: str, kind: Kind
) -> None:
    answer = around.format(change.format(value))
    asked = Problem("t", kind, "s", "Q", str(value))
    assert (await gold_check(asked, answer, LostSandbox(workers=1))).correct is not True, answer
    found = await decide(task_query(asked, answer, "k"))
    assert found is None or found[0] is False, (answer, found)


@given(VALUES)
async def test_the_german_form_is_right_or_not_decided(value: Decimal) -> None:
    asked = Problem("t", "math", "s", "Q", str(value))
    found = await decide(task_query(asked, german(value), "k"))
    gold = await gold_check(asked, german(value), LostSandbox(workers=1))
    assert found is None or found[0] is gold.correct is True, found


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
ONES += " fifteen sixteen seventeen eighteen nineteen"
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety"


def in_words(number: int) -> str:
    if number < 20:
        return ONES.split()[number]
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            return f"{in_words(number // size)} {name}" + (f" and {in_words(rest)}" if rest else "")
    return TENS.split()[number // 10] + (f"-{in_words(number % 10)}" if number % 10 else "")


@given(st.integers(0, 10**9 - 1))
def test_numbers_in_words(number: int) -> None:
    for text in (in_words(number), f"{in_words(number).capitalize()} apples"):
        found = spelled(text)
        assert found is not None and found.value == number, text
