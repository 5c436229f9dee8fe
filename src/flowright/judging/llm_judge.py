"""A large model as judge: the configured questions put to it, and its replies made a verdict.

How often it is asked until it says so clearly is :mod:`flowright.judging.attempts`'s. A failing
backend is a verdict with a status, never an exception.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from flowright.config.judge import JudgeSection
from flowright.core.off_loop import off_loop
from flowright.judging.attempts import QuestionResult, RetryingAsker
from flowright.judging.questions import Questions, Scored
from flowright.judging.retries import reading_section
from flowright.judging.verdict import DOWN, JudgeQuery, Verdict
from flowright.judging.wording import wording_of
from flowright.llm.chat import ChatModel, Usage


class LlmJudge:
    """Judges by asking a chat model what ``section.ask`` says, in the words of ``section.wording``.

    Where a verdict takes several questions (both orders of a pair, a rubric in batches), they are
    asked at the same time, each with all of ``section.deadline_seconds`` and
    ``section.max_attempts``. A query with criteria is asked about them whatever ``section.ask`` is,
    where the wording has words for it. Raises ConfigError for a wording with mistakes.
    """

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self.name = model.name
        self._model = model
        self._section = section
        self._questions = self._rubric = Questions(section)
        if not self._questions.ask.reads_criteria and "rubric" in wording_of(section).questions:
            self._rubric = Questions(section.model_copy(update={"ask": "rubric"}))
        self._asker = RetryingAsker(model, section)

    def strictly(self) -> "LlmJudge":
        """The same judge for a second reading: it holds the model to the strictest form that its
        server is known to serve, and gives it more room."""
        reader = LlmJudge(self._model, reading_section(self._section))
        reader._asker = RetryingAsker(
            self._model, reader._section, forms=self._asker.forms, strict=True
        )
        return reader

    async def judge(self, query: JudgeQuery) -> Verdict:
        questions = self._rubric if query.criteria else self._questions
        problem = questions.ask.unfit(query)
        if problem is not None:
            problem = f"{problem}, and judge.ask is {self._section.ask}"
            return Verdict(None, None, "llm", "abstain", problem, judge=self.name)
        began = time.monotonic()
        answers = query.answer, query.rival or ""
        asked = await off_loop(lambda: questions.about(query), *answers)
        results = await asyncio.gather(
            *(self._asker.ask(q, f"{query.key}/{q.name}" if q.name else query.key) for q in asked)
        )
        replies = [result.values for result in results]
        scored = questions.ask.score(query, self._section, replies)
        verdict = self._verdict(query, results, scored, began)
        if not scored.each:
            return verdict
        members = tuple(
            self._verdict(query, [result], Scored(share), began)
            for result, share in zip(results, scored.each, strict=True)
        )
        told = (f"{q.name}: {member.reason}" for q, member in zip(asked, members, strict=True))
        return replace(verdict, members=members, reason=scored.note + "; ".join(told))

    def _verdict(
        self, query: JudgeQuery, results: Sequence[QuestionResult], scored: Scored, began: float
    ) -> Verdict:
        score = scored.score
        correct = None if score is None else score >= self._section.right_from
        if query.rival is not None:
            correct = None if score is None or score == 0.5 else score > 0.5
        failed = [result for result in results if result.status != "ok"]
        failed.sort(key=lambda result: result.status not in DOWN)  # that explains the others
        return Verdict(
            score=score,
            correct=correct,
            source="llm",
            status="ok" if score is not None else failed[0].status if failed else "abstain",
            reason="\n".join(result.reason for result in failed or results if result.reason),
            attempts=sum(result.attempts for result in results),
            judge=self.name,
            usage=sum((result.usage for result in results), Usage()),
            seconds=time.monotonic() - began,
            parts=scored.parts,
            replies=tuple(reply for result in results for reply in result.replies),
        )
