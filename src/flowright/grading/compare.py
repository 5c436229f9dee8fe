"""Whether an answer says what is expected, as far as its text tells: the one comparison.

The gold check, the rules of the judge and the vote of ``ensemble`` all stand on it, so they cannot
contradict each other. Pure functions: nothing is evaluated and nobody is asked. Where two
expressions would have to be evaluated it says so (``correct=None``); only gold has a sandbox.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flowright.data.task import Kind
from flowright.grading.numbers import lone_number, quantities
from flowright.grading.text import chosen_label, exact_match, extract_answer, same_date, same_spans
from flowright.llm.replies import spoken_answer

LONGEST_EXPRESSION = 500
_LONGEST_WITH_UNIT = 4  # words

_LENIENT = frozenset({"date", "spans", "last_number"})

Choices = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``correct`` is None where a computer algebra system has to decide between ``final``, what
    the answer comes down to, and one of ``expected``. ``method`` names what decided."""

    correct: bool | None
    method: str
    final: str
    expected: tuple[str, ...]


def compare(expected: Sequence[str], answer: str, kind: Kind, choices: Choices = ()) -> Comparison:
    """Whether a solver's ``answer`` is one of the ``expected`` ones, for a task of mathematics or a
    question. With ``choices`` the first of ``expected`` is the label of the right one. Thinking
    that the answer opens with does not count."""
    answer = spoken_answer(answer)
    final = extract_answer(answer)
    if not answer.strip():
        return Comparison(False, "empty", final, tuple(expected))
    if choices:
        label = chosen_label(answer, choices) or chosen_label(final, choices)
        method = "choice" if label else "no_choice"
        return Comparison(label == expected[0], method, label or answer[-200:], (expected[0],))
    open_ones: list[str] = []
    method = ""
    for reference in expected:
        if kind == "math":
            correct, method = _same_value(final, reference)
        else:
            correct, method = _same_text(final, answer, reference)
        if correct:
            return Comparison(True, method, final, (reference,))
        if correct is None:
            open_ones.append(reference)
    if open_ones:
        return Comparison(None, "math_verify", final, tuple(open_ones))
    return Comparison(False, method, final, tuple(expected))


def _same_value(final: str, reference: str) -> tuple[bool | None, str]:
    """In this order: one number against one number, and, for prose with several numbers where a
    number is expected, the last of them; expressions are left open."""
    if "".join(final.split()) == "".join(reference.split()):
        return True, "identical"
    expected = lone_number(reference)
    found = lone_number(final) or lone_number(final.rpartition("=")[2])
    if expected is not None and found is not None:
        return expected.equals(found), "number"
    if expected is not None and not _is_expression(final):
        numbers = quantities(final)
        return bool(numbers) and expected.equals(numbers[-1]), "last_number"
    is_short = max(len(final), len(reference)) <= LONGEST_EXPRESSION
    return (None if is_short else False), "math_verify"


def _is_expression(text: str) -> bool:
    """Whether a text is a formula rather than prose, which has words, or bare punctuation."""
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text)
    signs = re.search(r"[\\^=+*/√π(){}\[\]]|\d[a-z]\b", text)
    return len(words) < 3 and signs is not None and any(map(str.isalnum, text))


def _same_text(final: str, answer: str, reference: str) -> tuple[bool, str]:
    """Exact match after normalisation; for a bare number also as a number with a unit, for dates
    and lists in another order."""
    expected, found = lone_number(reference), lone_number(final)
    equal = None if expected is None or found is None else expected.equals(found)
    if equal is False:
        return False, "exact_match"  # normalised text has no signs: "-5" would match "5"
    if exact_match(final, reference) or exact_match(answer, reference):
        return True, "exact_match"
    is_bare = not any(map(str.isalpha, reference))
    if equal and is_bare and len(final.split()) <= _LONGEST_WITH_UNIT:
        return True, "number"
    if same_date(final, reference):
        return True, "date"
    return (True, "spans") if same_spans(final, reference) else (False, "exact_match")


def groups(answers: Sequence[str], kind: Kind, choices: Choices = ()) -> list[list[str]]:
    """Answers that say the same together, each group and the groups in the order in which they
    came. An answer joins the first group whose first member says the same."""
    found: list[tuple[str, list[str]]] = []
    for answer in answers:
        value = _value(answer, kind, choices)
        for other, members in found:
            if value == other or (kind != "code" and _say_the_same(value, other, kind, choices)):
                members.append(answer)
                break
        else:
            found.append((value, [answer]))
    return [members for _, members in found]


def _value(answer: str, kind: Kind, choices: Choices) -> str:
    """What of an answer counts in a vote: the label of a choice, the final answer, all of a
    program but its spacing."""
    if kind == "code":
        return " ".join(answer.split())
    answer = spoken_answer(answer)
    final = extract_answer(answer)
    return chosen_label(answer, choices) or chosen_label(final, choices) or final


def _say_the_same(one: str, other: str, kind: Kind, choices: Choices) -> bool:
    """Whether one of two values would be right where the other is expected, without the leniency
    that knows what is asked for: one problem wants a list, another the order of its items. A
    problem of mathematics may have words for an answer."""
    if max(len(one), len(other)) > LONGEST_EXPRESSION:
        return False
    both = (one, other)
    if kind == "math" and not any(lone_number(text) or _is_expression(text) for text in both):
        return exact_match(one, other)
    found = (compare([a], b, kind, choices) for a, b in (both, (other, one)))
    return any(each.correct and each.method not in _LENIENT for each in found)
