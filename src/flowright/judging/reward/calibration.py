"""Scores of a judge that is not sure of itself. How sure it is the judge says."""

from dataclasses import dataclass, replace

from flowright.judging.verdict import JudgeQuery, Verdict, Wrapper

CONFIDENCE = "confidence"
"""The part of a verdict that tells how sure the judge is, from 0 to 1."""


@dataclass(eq=False)
class Calibrated(Wrapper):
    """Multiplies the score of a verdict whose confidence is below ``threshold`` by ``factor``. What
    it calls right stays right; a verdict that tells no confidence stays as it is."""

    threshold: float
    factor: float

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self.inner.judge(query)
        confidence = verdict.parts.get(CONFIDENCE)
        if verdict.score is None or verdict.correct is None or confidence is None:
            return verdict
        if confidence >= self.threshold:
            return verdict
        reason = f"{verdict.reason} (confidence {confidence:.2f}: score times {self.factor:g})"
        return replace(verdict, score=verdict.score * self.factor, reason=reason)
