"""Judges around judges. Each changes one thing about how a query is answered.

No prompts and no calls of their own here; which wrappers stand around the model is decided in
:mod:`flowright.judging.build`.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from flowright.core.memo import Memo
from flowright.core.off_loop import off_loop
from flowright.judging.gate import gate
from flowright.judging.verdict import DOWN, Judge, JudgeQuery, Verdict, Wrapper
from flowright.llm.chat import Usage
from flowright.llm.replies import spoken_answer


class Gated(Wrapper):
    """Rejects what is no answer at all (:func:`flowright.judging.gate.gate`) without asking."""

    async def judge(self, query: JudgeQuery) -> Verdict:
        texts = (query.answer, query.rival or "", query.reference, query.question)
        return await off_loop(lambda: gate(query), *texts) or await self.inner.judge(query)


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

    What the rules cannot decide either stays a failure of the judge: they must abstain where only
    the wording may differ (``RuleJudge(only_certain=True)``), or right answers are scored 0.
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
            members=(verdict,),
            replies=verdict.replies,
        )


def _verdict(known: Mapping[str, Any]) -> Verdict:
    """Of what asdict made of it."""
    members = tuple(_verdict(member) for member in known["members"])
    return Verdict(**{**known, "usage": Usage(**known["usage"]), "members": members})


class _Failed(Exception):
    """Carries a verdict that must not be kept past those who wait for it."""


@dataclass(eq=False)
class Cached(Wrapper):
    """Equal queries, those at the same time included, cost one call: attempts of a group often end
    in the same answer. Keeps the latest ``capacity`` verdicts of ``inner``, in memory. A judge's
    failure is never kept, so the next who asks tries again.

    ``fingerprint`` names what else decides a verdict beside the query: the wording and the
    parameters of the request. A query's ``key`` is not part of the question, since it only seeds
    retries. A verdict out of the cache says ``source="cache"`` and has cost nothing. ``asked``
    counts the queries, ``hits`` those that were answered by another's call.

    A question is kept as its hash, which is all that :meth:`state` has to hold of it.
    """

    capacity: int
    fingerprint: str
    asked: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._memo: Memo[tuple[str, Verdict]] = Memo(self.capacity)

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """The verdicts, as plain JSON for :meth:`restore`; without those that a query brought
        whose key begins with one of ``without``."""
        return [
            [question, key, asdict(verdict)]
            for question, (key, verdict) in self._memo.answers()
            if not key.startswith(tuple(without))
        ]

    def restore(self, state: Sequence[Any]) -> None:
        """Know again what :meth:`state` told, in a running event loop."""
        for question, key, verdict in state:
            self._memo.put(question, (key, _verdict(verdict)))

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        own = False

        async def ask() -> tuple[str, Verdict]:
            nonlocal own
            own = True
            verdict = await self.inner.judge(query)
            if verdict.status != "ok":
                raise _Failed(verdict)
            return query.key, verdict

        self.asked += 1
        question = await off_loop(lambda: self._hash(query), query.answer, query.rival or "")
        try:
            _, verdict = await self._memo.get(question, ask)
        except _Failed as failed:
            (verdict,) = failed.args
        if own:
            return verdict
        self.hits += 1
        source = "cache" if verdict.status == "ok" else verdict.source
        seconds = time.monotonic() - began
        return replace(verdict, source=source, attempts=0, usage=Usage(), seconds=seconds)

    def _hash(self, query: JudgeQuery) -> str:
        """Of all that decides the verdict."""
        rival = None if query.rival is None else spoken_answer(query.rival)
        asked = replace(query, answer=spoken_answer(query.answer), rival=rival, key="")
        question = repr((self.name, self.fingerprint, asked))
        return hashlib.sha256(question.encode(errors="surrogatepass")).hexdigest()


@dataclass(eq=False)
class CircuitBreaker(Wrapper):
    """A judge that is down is left alone for a while, instead of every query waiting for it in
    turn: opens after ``threshold`` failures of the backend in a row, for ``seconds``.

    The circuit breaker of Nygard's "Release It!" (2nd edition, 2018, chapter 5). Written here
    because what has to be counted is a verdict's status: the judge raises nothing, and libraries
    count exceptions.

    While it is open every query gets ``unavailable`` at once. After that one query is let through
    as a probe (half open), for which the others wait, up to ``seconds``: if it is served the
    circuit closes and lets them through, so that a batch does not fail behind its first question;
    else they are refused, and it is open for as long again. A query that began earlier and is
    served closes it, too.
    ``opened`` counts how often, ``refused`` the queries that were not passed on.
    """

    threshold: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    opened: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _open_until: float | None = field(default=None, init=False)
    _probe: "asyncio.Future[None] | None" = field(default=None, init=False)

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        if self._open_until is None:
            return "closed"
        return "half_open" if self.clock() >= self._open_until else "open"

    async def judge(self, query: JudgeQuery) -> Verdict:
        while self.state == "half_open" and self._probe is not None:
            if not (await asyncio.wait({self._probe}, timeout=self.seconds))[0]:
                return self._refuse()
        if self.state == "open":
            return self._refuse()
        probe = None
        if self.state == "half_open":
            probe = self._probe = asyncio.get_running_loop().create_future()
        try:
            verdict = await self.inner.judge(query)
            self._count(verdict, probe is not None)
            return verdict
        finally:
            if probe is not None:
                self._probe = None
                probe.set_result(None)

    def _count(self, verdict: Verdict, is_probe: bool) -> None:
        if verdict.status not in DOWN:
            self._failures = 0
            self._open_until = None
        elif self._open_until is None or is_probe:
            self._failures += 1
            if is_probe or self._failures >= self.threshold:
                self._open_until = self.clock() + self.seconds
                self._failures = 0
                self.opened += 1

    def _refuse(self) -> Verdict:
        self.refused += 1
        reason = (
            f"Circuit breaker open: {self.threshold} verdicts in a row found {self.name} down; it "
            f"is asked again within {self.seconds:g} s"
        )
        return Verdict(None, None, "llm", "unavailable", reason, judge=self.name)
