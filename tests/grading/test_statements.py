"""An answer is read whole or not at all: forms that state it, and texts that only hold it."""

import importlib
import sys
from pathlib import Path

import pytest
from lost_sandbox import LostSandbox

from flowright.data.task import Kind, Problem
from flowright.grading import extract_answer, gold_check
from flowright.grading.compare import compare
from flowright.grading.text import exact_match, normalise
from flowright.judging.rules import decide
from flowright.judging.verdict import task_query
from flowright.sandbox import Sandbox

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
published = importlib.import_module("published_answers")


async def check(kind: Kind, reference: str, answer: str, right: bool) -> None:
    """Gold is right or not; rules without algebra say so or nothing."""
    task = Problem("t", kind, "s", "Which is it?", reference)
    gold = await gold_check(task, answer, LostSandbox(workers=1))
    assert (gold.correct is True) is right, (reference, answer, gold)
    found = await decide(task_query(task, answer, "k"))
    assert found is None or found[0] is right, (reference, answer, found)


# --- where the answer stands ----------------------------------------------------------------------

MORE = "\n" + "That settles it, as was shown above. " * 700  # 26,000 characters


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("7 * 8 = 56\n#### 56" + MORE, "56"),
        ("<answer>56</answer>" + MORE, "56"),
        ("\\boxed{56}" + MORE, "56"),
        ("#### 56\n\n#### Explanation\nSeven boxes of eight.", "56"),
        ("#### 56\n\n#### 2 ways to see it\nSeven boxes of eight.", "56"),
        ("#### 56\n\nQuestion: And two more?\n56 + 2 = 58\n#### 58", "56"),
        ("#### -1,080", "-1,080"),
        ("### Final Answer\n\n**56**", "56"),
        ("### 56", "56"),
        ("The answer is 56.\n\n#### Remarks", "56"),
        ("\\[\n\\boxed{56}\n\\]", "56"),
        ("```\n56\n```", "56"),
        ("-\\boxed{6}", "-6"),
        ("It is **boxed{6}**", "It is 6"),
        ("so \boxed{6}", "6"),  # an escape of a string, not LaTeX
        ("unboxed{6}", "unboxed{6}"),
        ("2\\boxed{6}", "26"),
        ("We do not need more, so the answer is \\boxed{6}.", "6"),
        ("**Final Answer:** $\\boxed{6}$", "6"),
        ("Checked.\n\n✅ Final Answer: **58**", "58"),
    ],
)
def test_the_answer_is_found(reply: str, answer: str) -> None:
    assert extract_answer(reply) == answer


# --- one normalisation ----------------------------------------------------------------------------


async def test_every_dash_before_a_number_is_a_minus_sign() -> None:
    for dash in "‐‑‒–—―−⁃﹘﹣－⁻➖˗":
        for around in ("{}", "The answer is {}.", "x = {}", "\\boxed{{{}}}"):
            answer = around.format(f"{dash}42")
            await check("math", "-42", answer, True)
            await check("math", "42", answer, False)
        await check("qa", "-42", f"{dash}42", True)
    await check("qa", "Jean-Luc Picard", "Jean‑Luc Picard", True)
    await check("math", "6", "ー6", False)
    await check("math", "6", "一6", False)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("3½", "3 1/2"), ("½x", "(1/2)x"), ("3⁄4", "3/4"), ("3∕4", "3/4"), ("10⁻³", "10^{-3}"),
        ("x²", "x^2"), ("6⁻¹", "6^{-1}"), ("a₁", "a_1"), ("⁻42", "-42"), ("１２", "12"),
        ("٤٢", "42"),
        ("४२", "42"), ("⑥", "6"), ("1_234_567", "1234567"), ("a_1", "a_1"), ("Ｐａｒｉｓ", "Paris"),
        ("Par\u200bis", "Paris"), ("Pa\u00adris", "Paris"), ("New\u202fYork", "New York"),
        ("Johnson &amp; Johnson", "Johnson & Johnson"), ("“yes”", '"yes"'), ("「yes」", '"yes"'),
        ("don’t", "don't"), ("~~5~~ 6", "  6"), ("<b>6</b>", "6"), ("x<sup>10</sup>", "x^{10}"),
        ("ﬁsh", "fish"), ("𝑥", "x"), ("ℝ", "\\mathbb{R}"), ("答案：6。", "答案:6."),
    ],
)  # fmt: skip
def test_normalise(text: str, plain: str) -> None:
    assert normalise(text) == plain
    assert normalise(plain) == plain


def test_words_are_equal_however_they_are_typed() -> None:
    for one, other in [
        ("Beyoncé", "Beyonce\u0301"), ("São Paulo", "Sao Paulo"),
        ("rock and roll", "rock ‘n’ roll"),
        ("Simon & Garfunkel", "Simon and Garfunkel"), ("O'Brien", "O’Brien"), ("AT&T", "AT&amp;T"),
    ]:  # fmt: skip
        assert exact_match(one, other), (one, other)
    assert not exact_match("B", "B’")
    assert not exact_match("が", "か")  # a mark of another script is no accent


# --- forms that state a number, and texts that hold it --------------------------------------------


async def test_forms_that_state_a_number() -> None:
    for form in published.forms(published.STATED):
        await check("math", "8", form.replace("{}", "8"), True)
        if "eight" not in form:
            await check("math", "7", form.replace("{}", "8"), False)


async def test_a_text_that_only_holds_the_number_is_not_right() -> None:
    assert len(published.forms(published.HELD)) > 85
    for form in published.forms(published.HELD):
        await check("math", "6", form.replace("{}", "6"), False)


async def test_a_relation_or_contrast_of_two_numbers_is_not_the_second() -> None:
    for form in published.forms(published.PAIRED):
        await check("math", "8", form.format(9, 8), False)


# --- questions ------------------------------------------------------------------------------------


async def test_names() -> None:
    for form in published.forms(published.NAMED):
        await check("qa", "Paris", form.format("Paris"), True)
    for form in published.forms(published.UNNAMED):
        await check("qa", "Paris", form.format("Paris"), False)


async def test_other_answers_to_questions() -> None:
    for reference, right, wrong in [
        ("yes", "yes they are|Yes, both are.|It is yes.",
         "Yes, they differ|Yes, that is incorrect|Yes?"),
        ("no", "no they are not|No, they differ.|It is no.", "No?|No idea|No one knows|Not no"),
        ("1945", "1945|in 1945|It was 1945.",
         "by 1945|1945s|$1945|non-1945|no later than 1945|1945 BC"),
        ("3", "3|three|3 yards", "3rd|‑3|under 3"),
        ("A and B", "B and A|both A and B", "A|B|neither A nor B"),
        ("B", "Ｂ|b", "B’|not B"),
        ("Barack Obama", "Barack Obama (the 44th president)", "Barack Obama (or Joe Biden)"),
    ]:  # fmt: skip
        for answer in right.split("|"):
            await check("qa", reference, answer, True)
        for answer in wrong.split("|"):
            await check("qa", reference, answer, False)


# --- values ---------------------------------------------------------------------------------------


def test_formulas_that_cannot_be_read_are_compared_as_text() -> None:
    for reference, answer, right in [
        ("q ≡ 2 (mod 5)", "5", False),
        ("q ≡ 2 (mod 5)", "q ≡ 3 (mod 5)", False),
        ("q ≡ 2 (mod 5)", "$q \\equiv 2 \\pmod{5}$", True),
        ("t \\mapsto 6t", "6", False),
        ("t \\mapsto 6t", "t ↦ 6t", True),
        ("1, 2, …, k", "2", False),
        ("1, 2, …, k", "1,2,\\ldots,k", True),
        ("1, 2, \\ldots, k", "1, 3, \\ldots, 2k-1", False),
        ("3 \\mid n", "3", False),
        ("a \\text{ is prime}", "a", False),
    ]:
        found = compare([reference], answer, "math")
        assert found.correct is right, (reference, answer, found)


async def test_values_in_the_sandbox(sandbox: Sandbox) -> None:
    for reference, answer, right in [
        ("\\frac{1}{3^{60}}", "\\frac{1}{3^{59}}", False),
        ("\\frac{\\pi}{10^{20}}", "\\frac{2\\pi}{10^{20}}", False),
        ("\\frac{6}{\\binom{40}{3}}", "\\frac{3}{4940}", True),
        ("\\sqrt{\\frac{g}{l}}", "\\frac{\\sqrt{g}}{\\sqrt{l}}", True),
        ("\\ln(pq)", "\\ln p + \\ln q", True),
        ("\\ln(p+q)", "\\ln p + \\ln q", False),
        ("|x|", "x", False),  # they differ where x is negative
        ("\\sqrt{2}", "2**0.5", True),
        ("6t", "6", False),  # t is no unit here
        ("12\\pi", "12\\pi\\text{ cm}", True),
        ("\\infty", "3\\sqrt{5}-1", False),
        ("\\{1,2\\}", "(1,2)", False),
        ("[1,2]", "\\{1,2\\}", False),
        ("\\{1,2\\}", "2, 1", True),
        ("x^{10}", "x¹⁰", True),
        ("\\frac{a}{b}", "\\frac ab", True),
        ("x \\in \\{1,2\\}, y=3", "3", False),
    ]:
        gold = await gold_check(Problem("t", "math", "s", "q", reference), answer, sandbox)
        assert gold.correct is right, (reference, answer, gold)


def test_a_whole_reference_takes_no_decimal_beside_it() -> None:
    for reference, answer, right in [
        ("3400000", "3400002.5", False),
        ("987654321", "987654400.5", False),
        ("3400000", "3400000.0", True),
        ("0.333333", "0.3333333", True),
        ("0.001", "10^-3", True),
        ("0.001", "10⁻³", True),
    ]:
        assert compare([reference], answer, "math").correct is right, (reference, answer)


def test_a_percentage_stands_for_its_number_where_one_is_asked_for() -> None:
    assert compare(["6"], "6\\%", "math").correct is False
    assert compare(["6"], "6\\%", "math", is_percent=True).correct is True
    assert compare(["50\\%"], "50", "math").correct is True
