"""A trained judge that scores answers: as a measured judge of benchmarks, and as a judge that is
served. The scorer itself is :class:`flowright.evaluation.trained_judge.LocalScorer`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from flowright.config.judge import JudgeSection
from flowright.core.errors import DataError, FailureError
from flowright.core.off_loop import off_loop
from flowright.judging.llm_judge import shown_answer
from flowright.judging.measuring.measured_judges import Conversation, MeasuredJudge, Rating
from flowright.judging.trained.calibration import Calibration
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Message, Usage


class AnswerScorer(Protocol):
    """Computes Bradley-Terry scores."""

    async def score(self, turns: Sequence[Message], answer: str) -> tuple[float, int]:
        """Return the score of an answer, and the tokens of the text. Raises DataError for a text
        that the template refuses or that is too long, FailureError where the model fails."""
        ...


class ScalarJudge(MeasuredJudge):
    """Rates an answer by its score. A text that the template refuses or that is too long has no
    rating."""

    def __init__(self, name: str, scorer: AnswerScorer, calibration: Calibration) -> None:
        self.name = name
        self.calibration = calibration
        self._scorer = scorer

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        turns = [*conversation]
        try:
            return Rating((await self._scorer.score(turns, answer))[0])
        except DataError as error:
            return Rating(None, "unreadable", str(error))
        except FailureError as error:
            return Rating(None, "failed", error.failure.message)


class ServedScalarJudge:
    """Verdicts from calibrated scores. A single answer: P(preferred to an average answer), right
    from ``section.right_from``; two answers: P(the one is preferred to the other). The verdict's
    reason gives the scores."""

    def __init__(
        self, name: str, scorer: AnswerScorer, calibration: Calibration, section: JudgeSection
    ) -> None:
        self.name = name
        self._scorer = scorer
        self._calibration = calibration
        self._section = section

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on its verdicts."""
        return (
            str(self._calibration),
            "a score is the probability that the answer is preferred to an average one, not that "
            f"it is right; it counts as right from {self._section.right_from:g}",
            "it is shown question and answer, and neither reference nor evidence",
            "it scores each answer by itself: the order of two cannot matter, and the same answer "
            "always has the same score",
            "it takes neither criteria nor an instruction",
        )

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        if query.criteria or query.instruction:
            return self._lost("refused", "it was trained for neither criteria nor an instruction")
        turns = [Message("user", query.question)]
        answers = [query.answer] if query.rival is None else [query.answer, query.rival]
        shown = await off_loop(lambda: [shown_answer(a, self._section) for a in answers], *answers)
        scoring = (self._scorer.score(turns, answer) for answer in shown)
        found = await asyncio.gather(*scoring, return_exceptions=True)
        scored: list[tuple[float, int]] = []
        for one in found:
            if isinstance(one, DataError):
                return self._lost("refused", str(one))
            if isinstance(one, FailureError):
                return self._lost("unavailable", one.failure.message)
            if isinstance(one, BaseException):
                raise one
            scored.append(one)
        usage = Usage(1, sum(tokens for _, tokens in scored), 0)
        compare = query.rival is not None
        judged = self._compared(scored) if compare else self._alone(scored[0][0])
        probability, correct, reason = judged
        won = 0.5 if correct is None else float(correct)
        orders = {"answer first": won, "rival first": won} if compare else {}
        return Verdict(
            score=probability,
            correct=correct,
            source="llm",
            status="ok",
            reason=reason,
            attempts=1,
            judge=self.name,
            usage=usage,
            seconds=time.monotonic() - began,
            parts=orders,
        )

    def _alone(self, score: float) -> tuple[float, bool | None, str]:
        calibration, limit = self._calibration, self._section.right_from
        probability = calibration.of_answer(score)
        reason = (
            f"score {score:+.3f}: {probability:.1%} likely preferred to an average answer "
            f"({calibration}), right from {limit:.1%}; no reference was shown"
        )
        return probability, probability >= limit, reason

    def _compared(self, scored: Sequence[tuple[float, int]]) -> tuple[float, bool | None, str]:
        (one, _), (other, _) = scored
        probability = self._calibration.preferred(one - other)
        reason = f"scores {one:+.3f} and {other:+.3f}: {probability:.1%} likely preferred"
        correct = None if one == other else one > other
        # A probability that rounds to a half is a tie.
        if correct is not None and probability == 0.5:
            correct = None
        return probability, correct, f"{reason} ({self._calibration})"

    def _lost(self, status: str, why: str) -> Verdict:
        assert status in ("refused", "unavailable")
        return Verdict(None, None, "llm", status, why, judge=self.name)
