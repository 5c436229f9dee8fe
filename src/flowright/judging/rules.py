"""A judge without a model: the comparison that the gold check makes, choices, counted tests.

Nothing is run here and no model is asked. The rules never contradict a gold check. What takes a
computer algebra system (``2^3``, ``\\sqrt{9}``), they leave to one where they were given it, and
then they decide all that gold decides; without one they abstain there and where gold goes by a
convention (``3%`` for 3), so that whoever uses them has to say what becomes of such an answer.
"""

import re
import string
import unicodedata
from dataclasses import replace

from flowright.core.errors import FailureError
from flowright.core.off_loop import off_loop
from flowright.grading.compare import Comparison, compare
from flowright.grading.gold import Algebra
from flowright.grading.numbers import lone_number
from flowright.judging.schemas import plain_forms
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.replies import spoken_answer

GATE = "gate"

LONGEST = 20_000  # characters that are looked at, from the end, which is what a judge is shown

# The first line holds the keys of the paper; the others say the same in other words or languages.
# Words that can be an answer by themselves ("first", "correct", "yes") are left out.
_OPENINGS = """
thought process | let's solve this problem step by step | solution | 解 | かいせつ | respuesta
let's solve this step by step | let us solve this problem step by step | let's think step by step
let's think about this step by step | let us think step by step | i will solve this step by step
i'll solve this step by step | i will solve this problem step by step | let me think step by step
let me think | let me think about this | step by step | to solve this problem | thinking process
reasoning process | reasoning | explanation | answer | the answer | the answer is | final answer
the final answer | the final answer is | my answer | my answer is | my final answer is
the correct answer is | the result is | the solution | the solution is | solution process
here is the answer | here's the answer | here is the solution | here's the solution
the answer is correct | this answer is correct | verdict true
解答 | 解答过程 | 解题过程 | 解决方案 | 解析 | 答 | 答案 | 答案是 | 答案如下 | 最终答案 | 回答
思考过程 | 推理过程 | 让我们一步一步地思考 | 让我们一步步思考 | 让我们逐步解决这个问题
让我们一步一步地解决这个问题 | 解説 | 解法 | 解き方 | 答え | 思考過程 | 最終的な答え
ステップバイステップで考えましょう | 풀이 | 해설 | 해답 | 답 | 정답 | 정답은 | 사고 과정
solución | la respuesta es | la solución es | respuesta final | proceso de pensamiento
resolvamos este problema paso a paso | pensemos paso a paso | réponse | la réponse est
réponse finale | la solution est | processus de réflexion | raisonnons étape par étape
résolvons ce problème étape par étape | lösung | die lösung ist | antwort | die antwort ist
gedankengang | lösungsweg | lösen wir dieses problem schritt für schritt | risposta | soluzione
la risposta è | resposta | solução | a resposta é | ответ | решение | ход мыслей
давайте решим эту задачу шаг за шагом | الحل | الجواب | الإجابة | उत्तर | समाधान
"""

# What may stand around an answer, or where one was to be put in.
_WRAPPERS = re.compile(r"\\boxed\b|</?(?:final_)?answer>|\{(?:final[_ ])?answer\}", re.IGNORECASE)

# Letters and symbols that show nothing: fillers of Hangul and Braille.
_BLANK = dict.fromkeys(map(ord, "\u115f\u1160\u3164\uffa0\u2800"))


def gate(query: JudgeQuery) -> Verdict | None:
    """A verdict of wrong for what cannot be an answer; None for everything else.

    Between two answers the one that is none has lost; two of that sort are a tie.
    """
    fault = _fault(query, query.answer)
    if query.rival is None:
        return None if fault is None else _said(0.0, False, fault)
    rival = _fault(query, query.rival)
    if fault is not None and rival is not None:
        return _said(0.5, None, f"{fault}, and so it is with the other")
    if fault is not None:
        return _said(0.0, False, fault)
    return None if rival is None else _said(1.0, True, f"of the other one: {rival}")


def _fault(query: JudgeQuery, answer: str) -> str | None:
    """Why this is no answer to the query."""
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
    """What a text says: letters, digits and mathematical signs beyond ASCII, in plain lower case.
    A run of anything else is one space; apostrophes and what cannot be seen are dropped."""
    plain = plain_forms(text.translate(_BLANK)).casefold().translate(_BLANK)
    return " ".join(plain.translate(_SHOWN).split())


class _Shown(dict[int, str]):
    """What a character shows, for ``str.translate``; worked out once for each."""

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
    """Whether a reference holds these words, or a labelled line of the question, a choice, is
    them."""
    if any(f" {words} " in f" {bare(text)} " for text in accepted):
        return True
    choices = (bare(line).split(" ", 1) for line in question.splitlines())
    return any(len(choice[0]) <= 2 and choice[1:] == [words] for choice in choices)


def _said(score: float, correct: bool | None, reason: str) -> Verdict:
    return Verdict(score, correct, "rule", "ok", reason, judge=GATE)


MASTER_KEYS = frozenset(
    bare(key) for line in _OPENINGS.strip().splitlines() for key in line.split("|")
)
"""Openings that fool judges, as :func:`bare` leaves them."""


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
