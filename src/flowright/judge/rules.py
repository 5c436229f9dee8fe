"""A judge without a model: equality after normalisation, numbers, choices, counted tests.

It compares texts by the gold checks' own pure functions; nothing is run and nothing is asked.
Whether the rules can decide a query depends on the task and on what was observed, never on what
the answer says: if only right answers could be decided, the samples that are left without a score
would be the wrong ones, and what remains would be biased.
"""

import re

from flowright.grading.numbers import Quantity, lone_number, quantities
from flowright.grading.text import (
    chosen_label,
    exact_match,
    extract_answer,
    same_date,
    same_spans,
)
from flowright.judge.untrusted import spoken_answer
from flowright.judge.verdict import JudgeQuery, Verdict

NAME = "rules"

# How :mod:`flowright.grading.gold` opens its evidence. What follows may quote the program.
_COUNTED = re.compile(r"passed (\d+) of (\d+) tests(?:$|;)")
_CHOICE = re.compile(r"\(?([A-Z0-9])[.):]\s+(\S.*)")
_LONGEST_WITH_UNIT = 4  # words
_LONGEST_REPEATED = 12  # words; a longer reference is said in other words, which no rule can read
_NO_CHOICE = (False, "choice: none is named")
_NO_EQUAL = (False, "text: equals no accepted answer")
_WORDING = (_NO_CHOICE, _NO_EQUAL)


class RuleJudge:
    """Decides by rules; abstains where none applies.

    With ``reader_behind``, another judge that reads stands behind this one, so it abstains too
    where only the wording may differ: a text that equals no accepted answer, a choice that is not
    named. By itself it must call them wrong (see above).
    """

    def __init__(self, reader_behind: bool = False) -> None:
        self._reader_behind = reader_behind

    @property
    def name(self) -> str:
        return NAME

    async def judge(self, query: JudgeQuery) -> Verdict:
        found = decide(query)
        if found is None or (self._reader_behind and found in _WORDING):
            reason = "no rule applies to this reference" if found is None else found[1]
            return Verdict(None, None, "rule", "abstain", reason, judge=NAME)
        correct, reason = found
        return Verdict(float(correct), correct, "rule", "ok", reason, judge=NAME)


def decide(query: JudgeQuery) -> tuple[bool, str] | None:
    """Whether the answer is right, and by which rule; None where no rule applies.

    Of two answers a right one is the better; two that are both right, or both wrong, no rule
    tells apart. No rule reads a rubric.
    """
    if query.criteria:
        return None
    found = _decide(query, query.answer)
    if query.rival is None or found is None:
        return found
    other = _decide(query, query.rival)
    if other is None or other[0] == found[0]:
        return None
    return found[0], f"{found[1]}; the other: {other[1]}"


def _decide(query: JudgeQuery, answer: str) -> tuple[bool, str] | None:
    if query.answer_type == "code":
        return None if query.rival is not None else _by_tests(query.evidence or "")
    accepted = [text for text in (query.reference, *query.alternatives) if text.strip()]
    if not accepted:
        return None
    answer = spoken_answer(answer)
    if query.answer_type in ("number", "math_expression"):
        return _by_number(answer, accepted)
    choices = _choices(query.question)
    if query.reference in dict(choices):
        label = chosen_label(answer, choices) or chosen_label(extract_answer(answer), choices)
        if label is None:
            return _NO_CHOICE
        return label == query.reference, f"choice: {label} against {query.reference}"
    if query.answer_type == "multiple_choice":
        return None  # the question does not list its choices one a line
    if query.answer_type == "free_text" and len(query.reference.split()) > _LONGEST_REPEATED:
        return None
    return _by_text(answer, accepted)


def _by_tests(evidence: str) -> tuple[bool, str] | None:
    counted = _COUNTED.match(evidence)
    if counted is None:
        return None
    passed, total = int(counted[1]), int(counted[2])
    return 0 < passed == total, f"tests: {passed} of {total} passed"


def _by_number(answer: str, accepted: list[str]) -> tuple[bool, str] | None:
    expected = [number for text in accepted if (number := lone_number(text)) is not None]
    if len(expected) < len(accepted):
        return None  # an expression: comparing those takes a computer algebra system
    found = _final_number(extract_answer(answer))
    if found is None:
        return False, "number: the answer holds none"
    equal = any(number.equals(found) for number in expected)
    return equal, "number: equal" if equal else "number: differs"


def _final_number(final: str) -> Quantity | None:
    number = lone_number(final) or lone_number(final.rpartition("=")[2])
    if number is not None:
        return number
    return next(iter(reversed(quantities(final))), None)


def _by_text(answer: str, accepted: list[str]) -> tuple[bool, str]:
    final = extract_answer(answer)
    for reference in accepted:
        number = None if any(map(str.isalpha, reference)) else lone_number(reference)
        if number is not None:
            found = lone_number(final)
            if found is not None:
                if number.equals(found) and len(final.split()) <= _LONGEST_WITH_UNIT:
                    return True, "number: equal"
                continue  # not as text: there, -5 equals 5
        if exact_match(final, reference) or exact_match(answer, reference):
            return True, "text: equal after normalisation"
        if same_date(final, reference) or same_spans(final, reference):
            return True, "text: the same parts in another order"
    return _NO_EQUAL


def _choices(question: str) -> list[tuple[str, str]]:
    """The labelled lines that a question ends with, as ``Task.problem`` writes them."""
    choices: list[tuple[str, str]] = []
    for line in reversed(question.strip().splitlines()):
        match = _CHOICE.fullmatch(line.strip())
        if match is None:
            break
        choices.append((match[1], match[2]))
    return choices[::-1] if len(choices) > 1 else []
