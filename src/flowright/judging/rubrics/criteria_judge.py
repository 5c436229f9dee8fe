"""Which criteria a judge says an answer meets, and whose fault it is where it does not say.

A criterion is met, not met, or ungraded, and a failure makes none "not met". How a model is asked,
how often, and what counts as its word is :mod:`flowright.judging`'s; what is met is worth is not
known here, nor is the judge told.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flowright.config.judge import JudgeSection
from flowright.core.off_loop import off_loop
from flowright.criteria.rubrics.replies import read_bracketed
from flowright.data.preferences import Conversation
from flowright.judging.attempts import RetryingAsker
from flowright.judging.llm_judge import LlmJudge, Questions
from flowright.judging.parsing import Form
from flowright.judging.payloads import prompt_text, whole_characters
from flowright.judging.schemas import Field, Reading
from flowright.judging.verdict import Criterion, Judge, JudgeQuery, Verdict
from flowright.judging.wrappers import NO_ANSWER, STEERABLE
from flowright.llm.chat import ChatModel
from flowright.llm.replies import spoken_answer

CriteriaCalls = Literal["together", "each"]
"""All criteria in one call, or each in a call of its own, as HealthBench's program asks."""

PER_CALL: Mapping[CriteriaCalls, int] = {"together": 1_000, "each": 1}
"""Criteria in one call; the first is more than any rubric has."""

SURE_ATTEMPTS = 7
"""Attempts at a question, all in vain, before it is the answer's doing: a judge that is empty at
random 13 % of the time fails them with a probability of 6e-7."""


def criteria_judge(
    model: ChatModel, section: JudgeSection, calls: CriteriaCalls = "together"
) -> LlmJudge:
    """The judge of ``section``, asked about criteria as ``calls`` says. It has no second reading:
    what :func:`ask_criteria` does in its place leaves the answer whole, on which criteria about
    length and form depend. Raises ConfigError for a wording without words for rubrics."""
    asked = {"ask": "rubric", "criteria_per_call": PER_CALL[calls]}
    return LlmJudge(model, section.model_copy(update=asked))


@dataclass(frozen=True, slots=True)
class CriteriaSaid:
    """What a judge said of an answer: ``met``, one for each criterion, None where it is ungraded.

    ``floored``: the answer is empty, or it keeps the judge from judging it although the judge can;
    that is the policy's doing, and such an answer earns the least (law 1). ``verdicts`` are the
    judge's own in order, the control's second; ``reason`` is why something is missing.
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
) -> CriteriaSaid:
    """Which of the criteria the answer meets; its thinking is not shown. ``key`` names the sample,
    ``calls`` is how the judge puts them into questions.

    What stays ungraded in a way that the answer can bring about is asked again, once a control has
    shown that the judge answers the same of another answer: without that the fault is ours, and
    with it an answer that still cannot be judged after :data:`SURE_ATTEMPTS` is floored.
    """
    if not criteria:
        return CriteriaSaid(())
    answer = await off_loop(lambda: whole_characters(spoken_answer(answer)), answer)
    if not answer.strip():
        return CriteriaSaid((None,) * len(criteria), True, "the answer is empty")
    turns = [{"role": turn.role, "content": turn.content} for turn in conversation]
    query = JudgeQuery(prompt_text(turns), answer, "", instruction=instruction, key=key)
    met: list[bool | None] = [None] * len(criteria)
    verdicts: list[Verdict] = []

    tried = 0  # attempts at what is still missing, at least

    async def ask(asked: JudgeQuery, counts: bool = True) -> Verdict:
        nonlocal tried
        missing = [place for place, known in enumerate(met) if known is None]
        # What the criteria are worth is nothing to the judge, so all are worth the same here.
        about = tuple(Criterion(criteria[place], 1.0) for place in missing)
        verdict = await judge.judge(replace(asked, criteria=about))
        verdicts.append(verdict)
        if counts:
            for number, place in enumerate(missing, start=1):
                said = verdict.parts.get(f"criterion {number}")
                met[place] = None if said is None else said == 1.0
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
    return CriteriaSaid(tuple(met), floored, _why(verdicts) if None in met else "", tuple(verdicts))


def _why(verdicts: Sequence[Verdict]) -> str:
    """What became of the first question, and of the control if there was one."""
    first, *more = verdicts
    if first.status == "ok":
        return "the judge gave a score and did not say which criteria are met"
    told = f"{first.status}: {first.reason}"
    return f"{told} (of another answer: {more[0].status})" if more else told


ASKS = """\
Begin your reply with the verdict in double square brackets: [[1]] if the value is true, and [[0]] \
if it is false. Your reasons may follow."""

_REASON_CHARS = 2_000


def read_verdict(text: str, form: Form, fields: Sequence[Field]) -> Reading:
    """The one field of a reply that begins with ``[[1]]`` or ``[[0]]``, whatever the form."""
    verdict = read_bracketed(text)
    if verdict is not None:
        return Reading({fields[0].key: verdict}, text.strip()[:_REASON_CHARS])
    why = f"it begins with {text.strip()[:80]!r}, not with [[1]] or [[0]] alone"
    return Reading({}, why, "no_verdict" if text.strip() else "empty")


class BracketJudge:
    """Judges one criterion, which may be a list of constraints, by asking a chat model for
    ``[[1]]`` or ``[[0]]``; a query with another number of criteria is not judged (``abstain``).
    Made for :class:`~flowright.judging.rubrics.rewards.VerifReward`. Raises ConfigError for a wording without
    words for rubrics."""

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
