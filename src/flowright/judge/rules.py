"""A judge without a model: the comparison that the gold check makes, choices, counted tests.

Nothing is run and nothing is asked. Whether the rules can decide a query depends on the task and on
what was observed, and on the answer in one case alone: an expression where a number is expected
(``2^3``, ``\\sqrt{9}``), which takes a computer algebra system. They never contradict a gold check.
"""

import re

from flowright.grading.compare import Comparison, compare
from flowright.grading.numbers import lone_number
from flowright.judge.verdict import JudgeQuery, Verdict
from flowright.off_loop import off_loop

NAME = "rules"

# How :mod:`flowright.grading.gold` opens its evidence. What follows may quote the program.
_COUNTED = re.compile(r"passed (\d+) of (\d+) tests(?:$|;)")
_CHOICE = re.compile(r"\(?([A-Z0-9])[.):]\s+(\S.*)")
_LONGEST_REPEATED = 12  # words; a longer reference is said in other words, which no rule can read
_NO_CHOICE = "choice: none is named"
_NO_EQUAL = "text: equals no accepted answer"
_SAID = {
    (True, "identical"): "number: equal",
    (True, "number"): "number: equal",
    (True, "last_number"): "number: equal",
    (False, "number"): "number: differs",
    (False, "last_number"): "number: differs",
    (False, "math_verify"): "number: differs",
    (True, "exact_match"): "text: equal after normalisation",
    (True, "date"): "text: the same parts in another order",
    (True, "spans"): "text: the same parts in another order",
    (False, "exact_match"): _NO_EQUAL,
    (False, "no_choice"): _NO_CHOICE,
    (False, "empty"): "the answer is empty",
}
"""A comparison in the words of a verdict."""


class RuleJudge:
    """Decides by rules; abstains where none applies.

    With ``reader_behind``, another judge that reads stands behind this one, so it abstains too
    where only the wording may differ: a text that equals no accepted answer, a choice that is not
    named. By itself it must call them wrong (see above).
    """

    name = NAME

    def __init__(self, reader_behind: bool = False) -> None:
        self._reader_behind = reader_behind

    async def judge(self, query: JudgeQuery) -> Verdict:
        found = await off_loop(lambda: decide(query), query.answer, query.rival or "")
        if found is None or (self._reader_behind and found[1] in (_NO_CHOICE, _NO_EQUAL)):
            reason = "no rule can tell" if found is None else found[1]
            return Verdict(None, None, "rule", "abstain", reason, judge=NAME)
        correct, reason = found
        return Verdict(float(correct), correct, "rule", "ok", reason, judge=NAME)


def decide(query: JudgeQuery) -> tuple[bool, str] | None:
    """Whether the answer is right, and by which rule; None where no rule can tell.

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
    choices = _choices(query.question)
    is_choice = query.reference in dict(choices)
    if query.answer_type in ("number", "math_expression"):
        # What is not a number alone takes a computer algebra system, even where both are the same
        # text: decided so, expressions would all be right.
        if is_choice or any(lone_number(text) is None for text in accepted):
            return None
        return _told(compare(accepted, answer, "math"))
    if is_choice:
        return _told(compare(accepted, answer, "qa", choices))
    if query.answer_type == "multiple_choice":
        return None  # the question does not list its choices one a line
    if query.answer_type == "free_text" and len(query.reference.split()) > _LONGEST_REPEATED:
        return None
    return _told(compare(accepted, answer, "qa"))


def _told(found: Comparison) -> tuple[bool, str] | None:
    if found.correct is None:
        return None
    if found.method == "choice":
        return found.correct, f"choice: {found.final} against {found.expected[0]}"
    return found.correct, _SAID[found.correct, found.method]


def _by_tests(evidence: str) -> tuple[bool, str] | None:
    counted = _COUNTED.match(evidence)
    if counted is None:
        return None
    passed, total = int(counted[1]), int(counted[2])
    return 0 < passed == total, f"tests: {passed} of {total} passed"


def _choices(question: str) -> list[tuple[str, str]]:
    """The labelled lines that a question ends with, as ``Task.problem`` writes them."""
    choices: list[tuple[str, str]] = []
    for line in reversed(question.strip().splitlines()):
        match = _CHOICE.fullmatch(line.strip())
        if match is None:
            break
        choices.append((match[1], match[2]))
    return choices[::-1] if len(choices) > 1 else []
