"""Judges around judges. Each changes one thing about how a query is answered.

No prompts and no calls of their own here; which wrappers stand around the model is decided in
:mod:`flowright.judge.build`.
"""

from dataclasses import replace

from flowright.judge.gate import gate
from flowright.judge.verdict import Judge, JudgeQuery, Verdict


class Gated:
    """Rejects what is no answer at all (:func:`flowright.judge.gate.gate`) without asking."""

    def __init__(self, inner: Judge) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        return gate(query) or await self._inner.judge(query)


class Sample:
    """One of several verdicts on the same query, with seeds of its own."""

    def __init__(self, inner: Judge, number: int) -> None:
        self._inner = inner
        self._number = number

    @property
    def name(self) -> str:
        return self._inner.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        return await self._inner.judge(replace(query, key=f"{query.key}/sample {self._number}"))


class WithRulesFirst:
    """Asks only what no rule can decide (``judge.mode: rules_then_judge``)."""

    def __init__(self, rules: Judge, inner: Judge) -> None:
        self._rules = rules
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        ruled = await self._rules.judge(query)
        return ruled if ruled.status == "ok" else await self._inner.judge(query)


class WithRuleFallback:
    """Takes the rules' verdict where the judge fails, tagged ``source="rule_fallback"`` (law 4).

    What the rules cannot decide either stays a failure of the judge.
    """

    def __init__(self, inner: Judge, rules: Judge) -> None:
        self._inner = inner
        self._rules = rules

    @property
    def name(self) -> str:
        return self._inner.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self._inner.judge(query)
        if verdict.status == "ok":
            return verdict
        ruled = await self._rules.judge(query)
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
