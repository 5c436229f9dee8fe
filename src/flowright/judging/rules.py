"""Verdicts without a model: the gate against non-answers, and the rules.

Language models often call empty answers, bare punctuation and openings such as "Thought process:"
right (false positives of up to 80-90 %: "One Token to Fool LLM-as-a-Judge", arXiv 2507.08794). The
gate is narrow on purpose: it matches whole answers only, and accepts what the task itself names as
an answer.

The rules use the comparison of the gold check, choices and counted tests, and never contradict a
gold check. With a computer algebra system (``2^3``, ``\\sqrt{9}``) they decide whatever gold
decides; without one they abstain on expressions and on conventions of gold (``3%`` for 3), so that
their callers must define the outcome of such answers.
"""

import re
import string
import unicodedata

from flowright.core.errors import FailureError
from flowright.core.off_loop import off_loop
from flowright.grading.compare import AnswerComparison, asks_percent, compare
from flowright.grading.gold import Algebra
from flowright.grading.numbers import lone_number
from flowright.grading.statements import DOUBT, extract_answer, predicate
from flowright.judging.contradictions import PHRASES
from flowright.judging.schemas import plain_forms
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.replies import spoken_answer

GATE = "gate"

LONGEST = 20_000  # characters, from the end, which is the part shown to judges

# Wrappers and placeholders of answers.
_WRAPPERS = re.compile(r"\\boxed\b|</?(?:final_)?answer>|\{(?:final[_ ])?answer\}", re.IGNORECASE)

# Invisible letters and symbols: fillers of Hangul and Braille.
_BLANK = dict.fromkeys(map(ord, "\u115f\u1160\u3164\uffa0\u2800"))


def gate(query: JudgeQuery) -> Verdict | None:
    """Return a verdict of wrong for a text that cannot be an answer, else None. Between two answers
    such a text loses; two of them are a tie."""
    fault = _fault(query, query.answer)
    rival = None if query.rival is None else _fault(query, query.rival)
    if fault is not None and rival is not None:
        return Verdict(
            0.5, None, "rule", "ok", f"{fault}; the rival is no answer either", judge=GATE
        )
    if fault is not None:
        return Verdict(0.0, False, "rule", "ok", fault, judge=GATE)
    if rival is not None:
        return Verdict(1.0, True, "rule", "ok", f"of the other one: {rival}", judge=GATE)
    return None


def _fault(query: JudgeQuery, answer: str) -> str | None:
    """Return the reason why a text is no answer to the query, None if it may be one."""
    answer = spoken_answer(answer)
    accepted = [text for text in (query.reference, *query.alternatives) if text.strip()]
    if answer.strip() in {text.strip() for text in accepted}:
        return None
    words = bare(_WRAPPERS.sub(" ", answer[-LONGEST:]))
    if not words:
        return f"the answer {'holds no letter and no digit' if answer.strip() else 'is empty'}"
    if words in MASTER_KEYS and not _is_named(words, accepted, query.question):
        return "the answer only announces an answer"
    return None


def bare(text: str) -> str:
    """Return the letters, digits and mathematical signs beyond ASCII of a text, in plain lower
    case. A run of anything else is one space; apostrophes and invisible characters are dropped."""
    plain = plain_forms(text.translate(_BLANK)).casefold().translate(_BLANK)
    return " ".join(plain.translate(_SHOWN).split())


class _Shown(dict[int, str]):
    """Cache of :func:`_shown` for ``str.translate``."""

    def __missing__(self, code: int) -> str:
        if len(self) > 65_536:
            self.clear()
        self[code] = shown = _shown(chr(code))
        return shown


_SHOWN = _Shown()


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if character in "'’" or (category in ("Cc", "Cf") and not character.isspace()):
        return ""
    if character in string.punctuation:
        return " "
    return character if category[0] in "LNM" or category in ("Sm", "Sc") else " "


def _is_named(words: str, accepted: list[str], question: str) -> bool:
    """Return whether a reference contains these words, or a choice of the question consists of
    them."""
    if any(f" {words} " in f" {bare(text)} " for text in accepted):
        return True
    choices = (bare(line).split(" ", 1) for line in question.splitlines())
    return any(len(choice[0]) <= 2 and choice[1:] == [words] for choice in choices)


MASTER_KEYS = frozenset(map(bare, PHRASES["master_keys"].split("|")))
"""Openings that fool judges, as :func:`bare` normalises them."""


NAME = "rules"

# The start of the evidence of :mod:`flowright.grading.gold`; the rest may quote the program.
_COUNTED = re.compile(r"passed (\d+) of (\d+) tests(?:$|;)")
_CHOICE = re.compile(r"\(?([A-Z0-9])[.):]\s+(\S.*)")
_LONGEST_REPEATED = 12  # words; longer references are paraphrased, which no rule can read
_REASONS = {
    (True, "identical"): "text: equal",
    (True, "number"): "number: equal",
    (True, "percent"): "number: equal but for a percent sign",
    (False, "percent"): "number: a percent sign too many",
    (True, "unit"): "number: equal in another unit",
    (False, "unit"): "number: the unit differs",
    (True, "decimal_comma"): "number: equal, with a comma for the point",
    (True, "last_number"): "number: the last one is equal",
    (True, "math_verify"): "expression: equal",
    (False, "text"): "expression: cannot be read, and its text differs",
    (False, "number"): "number: differs",
    (False, "several"): "number: several are offered",
    (False, "last_number"): "number: the last one differs",
    (False, "no_number"): "number: none is named",
    (False, "math_verify"): "expression: differs",
    (True, "exact_match"): "text: equal after normalisation",
    (False, "spans"): "text: other parts",
    (True, "date"): "text: the same parts in another order",
    (True, "spans"): "text: the same parts in another order",
    (False, "exact_match"): "text: equals no accepted answer",
    (False, "no_choice"): "choice: none is named",
    (False, "empty"): "the answer is empty",
}
"""Reason of a verdict, by outcome and method of the comparison."""


class RuleJudge:
    """Decides by rules; abstains if none applies.

    ``algebra`` (:func:`flowright.grading.gold.algebra`) evaluates expressions. With
    ``only_certain``, for use beside another judge, it also abstains if only the wording may differ:
    on a text or expression that equals no accepted one, a choice or number that is not named, or a
    number in a sentence that hedges or denies it. Without, all but the last are wrong.
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
    """Return whether the answer is right, and the reason; None if no rule applies. Raises
    FailureError if ``algebra`` failed for our reasons.

    Of two answers a right one is better than a wrong one; no rule compares two right or two wrong
    ones, and none reads a rubric or an instruction.
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
        reason = f"the task's own verifier: {query.own_check}"
        return None if is_open else (query.own_check == "right", reason)
    if query.answer_type == "code":
        counted = _COUNTED.match(query.evidence or "")
        if counted is None or query.rival is not None:
            return None
        passed, total = int(counted[1]), int(counted[2])
        return 0 < passed == total, f"tests: {passed} of {total} passed"
    found = await off_loop(lambda: _compared(query, answer, algebra is not None), answer)
    if found is not None and found.correct is None and algebra is not None:
        found = await algebra(found)
    if found is None or found.correct is None:
        return None
    if not found.certain and (only_certain or algebra is None):
        return None
    if found.method == "choice":
        return found.correct, f"choice: {found.final} against {found.expected[0]}"
    may_be_wording = not found.correct and (
        found.method in ("no_choice", "no_number", "exact_match", "text")
        or (found.method == "math_verify" and not all(map(lone_number, found.expected)))
    )
    if only_certain and may_be_wording:
        return None
    return found.correct, _REASONS[found.correct, found.method]


def _compared(query: JudgeQuery, answer: str, has_algebra: bool) -> AnswerComparison | None:
    """Compare an answer with the accepted ones as the gold check does; None for tasks that it does
    not cover."""
    accepted = [text for text in (query.reference, *query.alternatives) if text.strip()]
    if not accepted:
        return None
    choices = _choices(query.question)
    is_percent = asks_percent(query.question)
    is_choice = query.reference in dict(choices)
    if query.answer_type in ("number", "math_expression"):
        # Without algebra only equal texts could be decided, so that all verdicts would be right.
        if is_choice or not (has_algebra or all(map(lone_number, accepted))):
            return None
        return compare(accepted, answer, "math", is_percent=is_percent)
    if is_choice:
        return compare(accepted, answer, "qa", choices)
    if query.answer_type == "multiple_choice":  # the question does not list its choices one a line
        return _same_label(query.reference, answer)
    if query.answer_type == "free_text" and len(query.reference.split()) > _LONGEST_REPEATED:
        return None
    return compare(accepted, answer, "qa", is_percent=is_percent)


def _same_label(reference: str, answer: str) -> AnswerComparison | None:
    """Compare labels alone; None where the reference or the answer is none."""
    final = extract_answer(answer)
    stated = (label[1] for text in (final, predicate(final)) if (label := _label(text)))
    expected, found = _LABEL.fullmatch(reference.strip()), next(stated, None)
    if expected is None or found is None:
        return None
    return AnswerComparison(found == expected[1], "choice", found, (expected[1],))


def _label(text: str) -> re.Match[str] | None:
    """Match a label alone, or before the words of its choice where these name no other label."""
    if (alone := _LABEL.fullmatch(text)) is not None:
        return alone
    found = _LABEL_AND_WORDS.fullmatch(text)
    if found and (re.search(r"\b[A-Z]\b", found["words"]) or DOUBT.search(found["words"])):
        return None
    return found


_LABEL = re.compile(r"(?:(?:[Oo]ption|[Cc]hoice)\s)?[(\[]?([A-Z])[)\]]?\s?[.:)]?")
_LABEL_AND_WORDS = re.compile(
    # `A. Smith` may be a name.
    r"(?:(?:[Oo]ption|[Cc]hoice)\s)?[(\[]?([A-Z])(?:[)\]:]\s*|\.\s+(?![A-Z]))(?P<words>\S.{0,200})"
)


def _choices(question: str) -> list[tuple[str, str]]:
    """Return the labelled lines at the end of a question, as ``Task.problem`` writes them."""
    choices: list[tuple[str, str]] = []
    for line in reversed(question.strip().splitlines()):
        match = _CHOICE.fullmatch(line.strip())
        if match is None:
            break
        choices.append((match[1], match[2]))
    return choices[::-1] if len(choices) > 1 else []
