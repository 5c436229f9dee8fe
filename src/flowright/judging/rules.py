"""A judge without a model: the comparison that the gold check makes, choices, counted tests.

Nothing is run here and no model is asked. The rules never contradict a gold check. What takes a
computer algebra system (``2^3``, ``\\sqrt{9}``), they leave to one where they were given it, and
then they decide all that gold decides; without one they abstain there and where gold goes by a
convention (``3%`` for 3), so that whoever uses them has to say what becomes of such an answer.
"""

import re
from dataclasses import replace

from flowright.core.errors import FailureError
from flowright.core.off_loop import off_loop
from flowright.grading.compare import Comparison, compare
from flowright.grading.gold import Algebra
from flowright.grading.numbers import lone_number
from flowright.judging.verdict import JudgeQuery, Verdict

NAME = "rules"

# How :mod:`flowright.grading.gold` opens its evidence. What follows may quote the program.
_COUNTED = re.compile(r"passed (\d+) of (\d+) tests(?:$|;)")
_CHOICE = re.compile(r"\(?([A-Z0-9])[.):]\s+(\S.*)")
_LONGEST_REPEATED = 12  # words; a longer reference is said in other words, which no rule can read
# In several languages, among the last words of an answer.
_DENIES = re.compile(
    r"n['’]t\b|!=|[≠不非]|\b(?:not|no|never|wrong|incorrect|false|doubt|hardly|scarcely|nobody|none"
    r"|anything but|far from|close to|approximately|approx|pas|nicht|kein\w{0,2}|non|не)\b",
    re.IGNORECASE,
)
_LAST_WORDS = 200  # characters
_NO_CHOICE = "choice: none is named"
_NO_NUMBER = "number: none is named"
_NO_EQUAL = "text: equals no accepted answer"
_NO_EXPRESSION = "expression: differs"
_SAID = {
    (True, "identical"): "text: equal",
    (True, "number"): "number: equal",
    (True, "percent"): "number: equal but for a percent sign",
    (False, "percent"): "number: a percent sign too many",
    (True, "unit"): "number: equal in another unit",
    (False, "unit"): "number: the unit differs",
    (True, "equation"): "number: the right-hand side is equal",
    (True, "decimal_comma"): "number: equal, with a comma for the point",
    (True, "last_number"): "number: the last one is equal",
    (True, "math_verify"): "expression: equal",
    (False, "number"): "number: differs",
    (False, "several"): "number: several are offered",
    (False, "last_number"): "number: the last one differs",
    (False, "no_number"): _NO_NUMBER,
    (False, "math_verify"): _NO_EXPRESSION,
    (True, "exact_match"): "text: equal after normalisation",
    (False, "spans"): "text: other parts",
    (True, "date"): "text: the same parts in another order",
    (True, "spans"): "text: the same parts in another order",
    (False, "exact_match"): _NO_EQUAL,
    (False, "no_choice"): _NO_CHOICE,
    (False, "empty"): "the answer is empty",
}
"""A comparison in the words of a verdict."""


class RuleJudge:
    """Decides by rules; abstains where none applies.

    ``algebra`` (:func:`flowright.grading.gold.algebra`) evaluates expressions. With
    ``only_certain``, somebody else speaks where this one does not, so it abstains too where only
    the wording may differ: a text or an expression that equals no accepted one, a choice or a
    number that is not named, a number within a sentence that hedges or denies it. By itself
    it calls all but the last wrong.
    """

    name = NAME

    def __init__(self, only_certain: bool = False, algebra: Algebra | None = None) -> None:
        self._only_certain = only_certain
        self._algebra = algebra

    async def judge(self, query: JudgeQuery) -> Verdict:
        try:
            found = await decide(query, self._algebra, self._only_certain)
        except FailureError as error:
            return Verdict(None, None, "rule", "unavailable", str(error), judge=NAME)
        if found is None:
            return Verdict(None, None, "rule", "abstain", "no rule can tell", judge=NAME)
        correct, reason = found
        return Verdict(float(correct), correct, "rule", "ok", reason, judge=NAME)


async def decide(
    query: JudgeQuery, algebra: Algebra | None = None, only_certain: bool = False
) -> tuple[bool, str] | None:
    """Whether the answer is right, and by which rule; None where no rule can tell. Raises
    FailureError where ``algebra`` failed for our reasons.

    Of two answers a right one is the better; two that are both right, or both wrong, no rule
    tells apart. No rule reads a rubric, or an instruction.
    """
    if query.criteria or query.instruction:
        return None
    found = await _decide(query, query.answer, algebra, only_certain)
    if query.rival is None or found is None:
        return found
    other = await _decide(query, query.rival, algebra, only_certain)
    if other is None or other[0] == found[0]:
        return None
    return found[0], f"{found[1]}; the other: {other[1]}"


async def _decide(
    query: JudgeQuery, answer: str, algebra: Algebra | None, only_certain: bool
) -> tuple[bool, str] | None:
    if query.own_check is not None:
        is_open = query.own_check == "open" or query.rival is not None
        said = f"the task's own verifier: {query.own_check}"
        return None if is_open else (query.own_check == "right", said)
    if query.answer_type == "code":
        return None if query.rival is not None else _by_tests(query.evidence or "")
    found = await off_loop(lambda: _compared(query, answer, algebra is not None), answer)
    if found is not None and found.correct is None and algebra is not None:
        found = await algebra(found)
    if found is None or found.correct is None:
        return None
    if not found.certain and (only_certain or algebra is None):
        return None
    if found.method == "choice":
        return found.correct, f"choice: {found.final} against {found.expected[0]}"
    if only_certain and found.correct and _DENIES.search(answer[-_LAST_WORDS:]):
        return None
    said = _SAID[found.correct, found.method]
    is_wording = said in (_NO_CHOICE, _NO_NUMBER, _NO_EQUAL) or (
        said == _NO_EXPRESSION and not all(map(lone_number, found.expected))
    )
    return None if only_certain and is_wording else (found.correct, said)


def _compared(query: JudgeQuery, answer: str, has_algebra: bool) -> Comparison | None:
    """The comparison of an answer with what is accepted, as gold makes it; None where the task is
    none that it can be made for."""
    accepted = [text for text in (query.reference, *query.alternatives) if text.strip()]
    if not accepted:
        return None
    choices = _choices(query.question)
    is_choice = query.reference in dict(choices)
    if query.answer_type in ("number", "math_expression"):
        # Without algebra, expressions would be decided where both are the same text alone, and so
        # all be right.
        if is_choice or not (has_algebra or all(map(lone_number, accepted))):
            return None
        found = compare(accepted, answer, "math")
    elif is_choice:
        return compare(accepted, answer, "qa", choices)
    elif query.answer_type == "multiple_choice":
        return None  # the question does not list its choices one a line
    elif query.answer_type == "free_text" and len(query.reference.split()) > _LONGEST_REPEATED:
        return None
    else:
        found = compare(accepted, answer, "qa")
    asks_percent = _PERCENT.search(query.question) is not None
    return replace(found, certain=found.certain or (found.method == "percent" and asks_percent))


_PERCENT = re.compile(r"percent|per cent|%", re.IGNORECASE)


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
