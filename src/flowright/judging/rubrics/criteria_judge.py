"""Grade an answer criterion by criterion with a judge: met, not met, or ungraded.

A failure makes no criterion "not met", nor does a reply outside the format of RuscaRL or VerIF. The
judge does not see the points.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flowright.config.judge import JudgeSection
from flowright.core.off_loop import off_loop
from flowright.data.task import Conversation
from flowright.judging.attempts import RetryingAsker
from flowright.judging.llm_judge import LlmJudge, Questions
from flowright.judging.parsing import Form
from flowright.judging.payloads import prompt_text, whole_characters
from flowright.judging.schemas import Field, ReadReply
from flowright.judging.verdict import Criterion, Judge, JudgeQuery, Verdict
from flowright.judging.wrappers import NO_ANSWER, STEERABLE
from flowright.llm.chat import ChatModel
from flowright.llm.loose_json import read_object
from flowright.llm.replies import spoken_answer, strip_thinking

CriteriaCalls = Literal["together", "each"]
"""All criteria in one call, or each in a call of its own, as in HealthBench's program."""

PER_CALL: Mapping[CriteriaCalls, int] = {"together": 1_000, "each": 1}
"""Criteria in one call; the first is more than any rubric has."""

SURE_ATTEMPTS = 7
"""Failed attempts at a question that blame the answer: a judge that is empty at random 13 % of the
time fails all of them with a probability of 6e-7."""


def criteria_judge(
    model: ChatModel, section: JudgeSection, calls: CriteriaCalls = "together"
) -> LlmJudge:
    """Return the judge of ``section`` for criteria. It has no second reading: :func:`ask_criteria`
    replaces it and shows the whole answer, on which criteria about length and form depend. Raises
    ConfigError for a wording that does not cover rubrics."""
    asked = {"ask": "rubric", "criteria_per_call": PER_CALL[calls]}
    return LlmJudge(model, section.model_copy(update=asked))


@dataclass(frozen=True, slots=True)
class CriteriaResult:
    """Grades of an answer: ``met`` for each criterion, None if ungraded.

    ``floored``: the answer is empty, or prevents every verdict of a judge that works; that is the
    policy's fault, and such an answer earns the minimum (law 1). ``verdicts`` are the judge's in
    order, the control's second; ``reason`` explains missing grades.
    """

    met: tuple[bool | None, ...]
    floored: bool = False
    reason: str = ""
    verdicts: tuple[Verdict, ...] = ()


async def ask_criteria(
    judge: Judge,
    conversation: Conversation,
    answer: str,
    criteria: Sequence[str],
    instruction: str,
    key: str,
    calls: CriteriaCalls = "together",
    grades_empty: bool = False,
) -> CriteriaResult:
    """Grade an answer, without its thinking. ``key`` names the sample; ``calls`` is how the judge
    batches criteria. An empty answer is floored, unless ``grades_empty``.

    Criteria that stay ungraded in a way that the answer can cause are asked about again, once the
    judge has graded a control, another answer. Without that the fault is ours; with it an answer
    that still cannot be judged after :data:`SURE_ATTEMPTS` is floored.
    """
    if not criteria:
        return CriteriaResult(())
    answer = await off_loop(lambda: whole_characters(spoken_answer(answer)), answer)
    if not answer.strip() and not grades_empty:
        return CriteriaResult((None,) * len(criteria), True, "the answer is empty")
    turns = [{"role": turn.role, "content": turn.content} for turn in conversation]
    query = JudgeQuery(prompt_text(turns), answer, "", instruction=instruction, key=key)
    met: list[bool | None] = [None] * len(criteria)
    verdicts: list[Verdict] = []

    tried = 0  # attempts at what is still missing, at least

    async def ask(asked: JudgeQuery, counts: bool = True) -> Verdict:
        nonlocal tried
        missing = [place for place, known in enumerate(met) if known is None]
        # The judge does not see points, so all are equal here.
        about = tuple(Criterion(criteria[place], 1.0) for place in missing)
        verdict = await judge.judge(replace(asked, criteria=about))
        verdicts.append(verdict)
        if counts:
            for number, place in enumerate(missing, start=1):
                grade = verdict.parts.get(f"criterion {number}")
                met[place] = None if grade is None else grade == 1.0
            tried += max(1, verdict.attempts // math.ceil(len(missing) / PER_CALL[calls]))
        return verdict

    floored = False
    first = await ask(query)
    if None in met and first.status in STEERABLE:
        neutral = replace(query, answer=NO_ANSWER, key=f"{key}/control")
        control = await ask(neutral, counts=False)
        if control.status == "ok":
            again, number = await ask(replace(query, key=f"{key}/again")), 1
            while None in met and again.status in STEERABLE and tried < SURE_ATTEMPTS:
                number += 1
                again = await ask(replace(query, key=f"{key}/again {number}"))
            floored = None in met and again.status in STEERABLE
    reason = _why(verdicts) if None in met else ""
    return CriteriaResult(tuple(met), floored, reason, tuple(verdicts))


def _why(verdicts: Sequence[Verdict]) -> str:
    """Describe the first failure, and the control if there was one."""
    first, *more = verdicts
    if first.status == "ok":
        return "the judge gave a score without the criteria that are met"
    failure = first.cause
    return f"{failure} (of another answer: {more[0].status})" if more else failure


ASKS = """\
Begin your reply with the verdict in double square brackets: [[1]] if the value is true, and [[0]] \
if it is false. Your reasons may follow."""

_REASON_CHARS = 2_000


def read_verdict(text: str, form: Form, fields: Sequence[Field]) -> ReadReply:
    """Read the one field of a reply that begins with ``[[1]]`` or ``[[0]]``, in any form."""
    verdict = read_bracketed(text)
    if verdict is not None:
        return ReadReply({fields[0].key: verdict}, text.strip()[:_REASON_CHARS])
    why = f"it begins with {text.strip()[:80]!r}, not with [[1]] or [[0]] alone"
    return ReadReply({}, why, "no_verdict" if text.strip() else "empty")


class BracketJudge:
    """Judge with VerIF's reply format, ``[[1]]`` or ``[[0]]`` at the head of the reply, for models
    that were trained on it, such as THU-KEG/IF-Verifier-7B.

    Judges exactly one criterion, which may be a list of constraints; it abstains on other queries.
    Used by :class:`~flowright.judging.rubrics.rewards.VerifReward`. Raises ConfigError for a
    wording that does not cover rubrics."""

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self.name = model.name
        self._questions = Questions(section.model_copy(update={"ask": "rubric"}))
        self._asker = RetryingAsker(model, section, read=read_verdict)

    async def judge(self, query: JudgeQuery) -> Verdict:
        if len(query.criteria) != 1:
            why = f"{len(query.criteria)} criteria, and one verdict is asked for"
            return Verdict(None, None, "llm", "abstain", why, judge=self.name)
        began = time.monotonic()
        (question,) = await off_loop(lambda: self._questions.about(query), query.answer)
        question = replace(question, asks=ASKS, examples=())
        result = await self._asker.ask(question, query.key)
        verdict = result.values.get(question.fields[0].key)
        met = None if verdict is None else verdict is True
        return Verdict(
            score=None if met is None else float(met),
            correct=met,
            source="llm",
            status=result.status,
            reason=result.reason,
            attempts=result.attempts,
            judge=self.name,
            usage=result.usage,
            seconds=time.monotonic() - began,
            parts={} if met is None else {"criterion 1": float(met)},
            replies=result.replies,
        )


_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_PRESENCE: Mapping[object, bool] = {"PRESENT": True, "NOT_PRESENT": False}
_LONGEST = 200_000  # characters, more than any rubric needs


def read_presence(text: str, count: int) -> Mapping[int, bool]:
    """By number, from 1 to ``count``, which criteria a reply calls ``PRESENT`` or ``NOT_PRESENT``.
    The reply is one JSON object, alone or in a fence, behind any thinking; a criterion that it
    leaves out, calls something else or names twice is missing, and all are in any other reply."""
    spoken = (strip_thinking(text[:_LONGEST]) or "").strip()
    fenced = _FENCED.fullmatch(spoken)
    spoken = fenced[1].strip() if fenced else spoken
    found = read_object(spoken)
    if found is None or found.end != len(spoken):
        return {}
    pairs = found.pairs
    named = Counter(key for key, _ in pairs)
    numbers = {str(number): number for number in range(1, count + 1)}
    return {
        numbers[key]: _PRESENCE[value]
        for key, value in pairs
        if key in numbers and named[key] == 1 and isinstance(value, str) and value in _PRESENCE
    }


_SCORE = re.compile(r"\[\[([^\[\]\n]{0,40})\]\]")


def read_bracketed(text: str) -> bool | None:
    """Return the verdict of a reply that begins with ``[[1]]`` or ``[[0]]``, after any thinking;
    None for any other, and for one with a contradicting mark further on."""
    spoken = (strip_thinking(text) or "").strip()
    head = _SCORE.match(spoken)
    if head is None or head[1] not in ("0", "1"):
        return None
    others = {mark[1].strip() for mark in _SCORE.finditer(spoken, head.end())} & {"0", "1"}
    return head[1] == "1" if others <= {head[1]} else None
