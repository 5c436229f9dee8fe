"""Judges around judges. Each changes one thing about how a query is answered.

No prompts and no calls of their own here; which wrappers stand around the model is decided in
:mod:`flowright.judge.build`.
"""

from dataclasses import dataclass, replace

from flowright.judge.gate import gate
from flowright.judge.verdict import Judge, JudgeQuery, Verdict, Wrapper


class Gated(Wrapper):
    """Rejects what is no answer at all (:func:`flowright.judge.gate.gate`) without asking."""

    async def judge(self, query: JudgeQuery) -> Verdict:
        return gate(query) or await self.inner.judge(query)


@dataclass(eq=False)
class Sample(Wrapper):
    """One of several verdicts on the same query, with seeds of its own."""

    number: int

    async def judge(self, query: JudgeQuery) -> Verdict:
        return await self.inner.judge(replace(query, key=f"{query.key}/sample {self.number}"))


@dataclass(eq=False)
class WithRulesFirst(Wrapper):
    """Asks only what no rule can decide (``judge.mode: rules_then_judge``)."""

    rules: Judge

    async def judge(self, query: JudgeQuery) -> Verdict:
        ruled = await self.rules.judge(query)
        return ruled if ruled.status == "ok" else await self.inner.judge(query)


@dataclass(eq=False)
class WithRuleFallback(Wrapper):
    """Takes the rules' verdict where the judge fails, tagged ``source="rule_fallback"`` (law 4).

    What the rules cannot decide either stays a failure of the judge.
    """

    rules: Judge

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self.inner.judge(query)
        if verdict.status == "ok":
            return verdict
        ruled = await self.rules.judge(query)
        if ruled.status != "ok":
            return verdict
        return replace(
            ruled,
            source="rule_fallback",
            reason=f"{ruled.reason} (the judge failed: {verdict.status}: {verdict.reason})",
            attempts=verdict.attempts,
            usage=verdict.usage + ruled.usage,
            seconds=verdict.seconds + ruled.seconds,
        )
