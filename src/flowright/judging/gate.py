"""The gate before a judge: what is no answer at all is wrong, and no model is asked.

Language models often call empty answers, bare punctuation and openings such as "Thought process:"
right (false positives of up to 80-90 %: "One Token to Fool LLM-as-a-Judge", arXiv 2507.08794). The
gate is narrow on purpose: it knows only whole answers, and it lets through what the task itself
names as an answer.
"""

import re
import string
import unicodedata

from flowright.judging.schemas import plain_forms
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.replies import spoken_answer

NAME = "gate"

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
    return Verdict(score, correct, "rule", "ok", reason, judge=NAME)


MASTER_KEYS = frozenset(
    bare(key) for line in _OPENINGS.strip().splitlines() for key in line.split("|")
)
"""Openings that fool judges, as :func:`bare` leaves them."""
