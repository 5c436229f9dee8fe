"""Groups of equivalent answers: the votes of ``ensemble``, by the gold check's comparison."""

from collections.abc import Sequence

from flowright.data.task import Kind
from flowright.grading.choices import Choices
from flowright.grading.compare import LONGEST_EXPRESSION, compare, is_words, label_of
from flowright.grading.formulas import is_formula
from flowright.grading.numbers import lone_number
from flowright.grading.statements import extract_answer
from flowright.grading.text import exact_match
from flowright.llm.replies import spoken_answer

_LENIENT = frozenset({"date", "spans", "last_number", "decimal_comma"})


def groups(answers: Sequence[str], kind: Kind, choices: Choices = ()) -> list[list[str]]:
    """Group equivalent answers, in the order in which they came. An answer joins the first group
    whose first member is equivalent."""
    found: list[tuple[str, list[str]]] = []
    for answer in answers:
        value = _value(answer, kind, choices)
        for other, members in found:
            if value == other or (kind != "code" and _are_equivalent(value, other, kind, choices)):
                members.append(answer)
                break
        else:
            found.append((value, [answer]))
    return [members for _, members in found]


def _value(answer: str, kind: Kind, choices: Choices) -> str:
    """Return the part of an answer that counts in a vote: the label of a choice, the final answer,
    all of a program but its spacing."""
    if kind == "code":
        return " ".join(answer.split())
    answer = spoken_answer(answer)
    final = extract_answer(answer)
    return label_of(answer, final, choices) or final


def _are_equivalent(one: str, other: str, kind: Kind, choices: Choices) -> bool:
    """Return whether one of two values would be right where the other is expected, without the
    leniency that needs the question: one problem wants a list, another the order of its items. A
    problem of mathematics may have words for an answer."""
    if max(len(one), len(other)) > LONGEST_EXPRESSION:
        return False
    both = (one, other)
    if kind == "math" and not any(lone_number(text) or is_formula(text) for text in both):
        # Normalised text has no signs: "-i" would be "i".
        return all(map(is_words, both)) and exact_match(one, other)
    found = (compare([a], b, kind, choices, is_percent=True) for a, b in (both, (other, one)))
    return any(each.correct and each.method not in _LENIENT for each in found)
