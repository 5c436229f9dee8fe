"""A meta judge, which rates the reasoning of a judge's samples, and the vote of the best of them
(Liu et al. 2025, arXiv 2504.02495)."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowright.config.judge import JudgeSection
from flowright.judging.attempts import QuestionResult, RetryingAsker
from flowright.judging.llm_judge import shown_answer, task_blocks
from flowright.judging.panel import Panel
from flowright.judging.prompts import Block, Question
from flowright.judging.schemas import GRADE, TOP_GRADE, Field
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import ChatModel, Usage

META, LEFT_OUT, META_FAILED = "meta", "left out", "meta_failed"
"""Parts of a verdict: the rating of a sample; 1 for a sample without a vote; 1 where the meta judge
failed and all voted."""

_GRADE = Field("grade", GRADE, tagged=True)
_SYSTEM = (
    "You check the judgement of another grader. You do not judge the answer anew: you rate how "
    "sound the judgement is."
)
_INSTRUCTION = (
    "What grade does the judgement deserve? It is a whole number. 4: its principles fit the "
    "problem, each statement about the answer is true, and the verdict follows; 3: nearly; 2: in "
    "part; 1: hardly; 0: it rests on what is false or does not matter."
)
_BOTH_ORDERS = (
    ' Two answers were compared in two orders: after "answer first" A and B are as shown here, '
    'after "rival first" the other way round.'
)


class MetaJudge:
    """Rates judgements with a model."""

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self.name = model.name
        self._section = section
        self._asker = RetryingAsker(model, section)

    async def rate(self, query: JudgeQuery, verdict: Verdict, number: int) -> QuestionResult:
        """Rate the reasoning of one sample; ``number`` is its place."""
        answer = shown_answer(query.answer, self._section)
        if query.rival is None:
            answers = [Block("FINAL ANSWER", answer)]
            found, instruction = "right" if verdict.correct else "wrong", _INSTRUCTION
        else:
            rival = shown_answer(query.rival, self._section)
            answers = [Block("ANSWER A", answer), Block("ANSWER B", rival)]
            sides = {True: "A is better", False: "B is better", None: "a tie"}
            found, instruction = sides[verdict.correct], _INSTRUCTION + _BOTH_ORDERS
        judgement = Block("JUDGEMENT", f"Verdict: {found}\n{verdict.reason}")
        blocks = (*task_blocks(query), *answers, judgement)
        question = Question(blocks, (_GRADE,), "meta", _SYSTEM, instruction)
        return await self._asker.ask(question, f"{query.key}/meta {number}")


@dataclass(eq=False, kw_only=True)
class BestSamples(Panel):
    """Samples of one judge, of which only the ``keep`` that ``meta`` rates highest vote; of equal
    ones the earlier.

    If a rating fails, all samples vote, and the verdict has the part :data:`META_FAILED`. With no
    more verdicts than ``keep`` there are no ratings. ``members`` of the verdict are all samples,
    with the parts :data:`META` and :data:`LEFT_OUT`.
    """

    meta: MetaJudge
    keep: int

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        verdicts = await asyncio.gather(*(member.judge(query) for member in self.members))
        places = [place for place, verdict in enumerate(verdicts) if verdict.score is not None]
        if len(places) <= self.keep:
            return self.combined(query, verdicts, began)
        rated = await asyncio.gather(*(self.meta.rate(query, verdicts[n], n) for n in places))
        failed = next((result for result in rated if result.status != "ok"), None)
        if failed is not None:
            note = f"the meta judge failed ({failed.status}: {failed.reason}), all samples vote: "
            parts, voting = {META_FAILED: 1.0}, verdicts
        else:
            grades = [int(result.values[_GRADE.key]) for result in rated]
            best = sorted(range(len(places)), key=lambda i: -grades[i])[: self.keep]
            kept = {places[i] for i in best}
            for place, grade in zip(places, grades, strict=True):
                verdicts[place] = _graded(verdicts[place], grade, place in kept)
            note = f"best {self.keep} of {len(places)} by the meta judge: "
            parts, voting = {}, [v for n, v in enumerate(verdicts) if n in kept or n not in places]
        verdict = self.combined(query, voting, began)
        return replace(
            verdict,
            reason=note + verdict.reason,
            attempts=sum(v.attempts for v in verdicts) + sum(r.attempts for r in rated),
            usage=sum((each.usage for each in (*verdicts, *rated)), Usage()),
            parts={**verdict.parts, **parts},
            members=tuple(verdicts),
            replies=tuple(reply for result in rated for reply in result.replies),
        )


def voting_samples(samples: Sequence[Verdict]) -> list[Verdict]:
    """Return the samples that a meta judge did not leave out."""
    return [sample for sample in samples if LEFT_OUT not in sample.parts]


def _graded(verdict: Verdict, grade: int, has_vote: bool) -> Verdict:
    parts = {META: grade / TOP_GRADE} | ({} if has_vote else {LEFT_OUT: 1.0})
    return replace(verdict, parts={**verdict.parts, **parts})
