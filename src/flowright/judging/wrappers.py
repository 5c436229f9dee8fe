"""Judges around judges: gate, samples, rules, cache, circuit breaker, second reading.

:mod:`flowright.judging.build` decides which of them are used, and in which order.
"""

import asyncio
import hashlib
import logging
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from flowright.core.batch_calls import Memo
from flowright.core.off_loop import off_loop
from flowright.grading.statements import extract_answer
from flowright.grading.text import normalised
from flowright.judging.rules import gate
from flowright.judging.verdict import DOWN, Judge, JudgeQuery, Source, Status, Verdict, Wrapper
from flowright.llm.chat import Usage
from flowright.llm.context import last_tokens
from flowright.llm.control_tokens import sanitise
from flowright.llm.replies import spoken_answer

_log = logging.getLogger("JudgeReward")


class Gated(Wrapper):
    """Rejects non-answers (:func:`flowright.judging.rules.gate`) without asking."""

    async def judge(self, query: JudgeQuery) -> Verdict:
        texts = (query.answer, query.rival or "", query.reference, query.question)
        return await off_loop(lambda: gate(query), *texts) or await self.inner.judge(query)


@dataclass(eq=False)
class SampledJudge(Wrapper):
    """One of several verdicts on the same query, with seeds of its own."""

    number: int

    async def judge(self, query: JudgeQuery) -> Verdict:
        return await self.inner.judge(replace(query, key=f"{query.key}/sample {self.number}"))


@dataclass(eq=False)
class WithRulesFirst(Wrapper):
    """Asks only about queries that no rule decides (``judge.mode: rules_then_judge``)."""

    rules: Judge

    async def judge(self, query: JudgeQuery) -> Verdict:
        ruled = await self.rules.judge(query)
        return ruled if ruled.status == "ok" else await self.inner.judge(query)


@dataclass(eq=False)
class WithRuleFallback(Wrapper):
    """Uses the rules' verdict if the judge fails, with ``source="rule_fallback"`` (law 4).

    A query that the rules cannot decide either stays a failure of the judge. They must abstain if
    only the wording may differ (``RuleJudge(only_certain=True)``), or right answers are scored 0.
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
            reason=f"{ruled.reason} (the judge failed: {verdict.cause})",
            attempts=verdict.attempts,
            usage=verdict.usage + ruled.usage,
            seconds=verdict.seconds + ruled.seconds,
            members=(verdict,),
            replies=verdict.replies,
        )


@dataclass(eq=False)
class LogsFailures(Wrapper):
    """Logs each failure of the judge, and whether rules decided or the sample has no reward.

    A dead service fails thousands of times: of each kind (status and outcome) the 1st, 10th,
    100th ... is a warning with the count so far, the others are of level DEBUG.
    """

    _counts: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self.inner.judge(query)
        if verdict.status == "ok" and verdict.source != "rule_fallback":
            return verdict
        failed = verdict.members[0] if verdict.status == "ok" else verdict
        outcome = "rules decided" if verdict.status == "ok" else "no reward"
        self._counts[failed.status, outcome] += 1
        count = self._counts[failed.status, outcome]
        is_power_of_ten = str(count).strip("0") == "1"
        _log.log(
            logging.WARNING if is_power_of_ten else logging.DEBUG,
            "judge %s failed (%s: %s): %s; %d so far",
            self.name, failed.status, failed.reason, outcome, count,
        )  # fmt: skip
        return verdict


@dataclass(eq=False)
class Calibrated(Wrapper):
    """Multiplies the score of a verdict whose ``confidence`` part is below ``threshold`` by
    ``factor``. ``correct`` does not change, nor does a verdict without a confidence."""

    threshold: float
    factor: float

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self.inner.judge(query)
        confidence = verdict.parts.get("confidence")
        if verdict.score is None or verdict.correct is None or confidence is None:
            return verdict
        if confidence >= self.threshold:
            return verdict
        reason = f"{verdict.reason} (confidence {confidence:.2f}: score times {self.factor:g})"
        return replace(verdict, score=verdict.score * self.factor, reason=reason)


def _verdict(known: Mapping[str, Any]) -> Verdict:
    """Invert ``asdict``."""
    members = tuple(_verdict(member) for member in known["members"])
    return Verdict(**{**known, "usage": Usage(**known["usage"]), "members": members})


class _Failed(Exception):
    """Carries a verdict to the callers that wait for it, past the cache."""


@dataclass(eq=False)
class Cached(Wrapper):
    """Answers equal queries with one call, concurrent ones included: attempts of a group often end
    in the same answer. Keeps the latest ``capacity`` verdicts of ``inner`` in memory, by a hash of
    the query, but no failures.

    ``fingerprint`` identifies everything else that decides a verdict: the wording and parameters of
    the request, and the run's seed. Seeds are derived from the question, not from the ``key`` of
    the query that happened to be first. A verdict from the cache has ``source="cache"`` and no
    cost. ``asked`` counts queries, ``hits`` those answered by another query's call.
    """

    capacity: int
    fingerprint: str
    asked: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._memo: Memo[tuple[str, Verdict]] = Memo(self.capacity)

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """Return the verdicts as plain JSON for :meth:`restore`, except for queries whose key
        begins with one of ``without``."""
        return [
            [question, key, asdict(verdict)]
            for question, (key, verdict) in self._memo.answers()
            if not key.startswith(tuple(without))
        ]

    def restore(self, state: Sequence[Any]) -> None:
        """Add the verdicts of :meth:`state`; needs a running event loop."""
        for question, key, verdict in state:
            self._memo.put(question, (key, _verdict(verdict)))

    async def judge(self, query: JudgeQuery) -> Verdict:
        if query.fresh:
            return await self.inner.judge(query)
        began = time.monotonic()
        own = False

        async def ask() -> tuple[str, Verdict]:
            nonlocal own
            own = True
            verdict = await self.inner.judge(replace(query, key=question))
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
        question = repr((self.name, self.fingerprint, shown_query(query)))
        return hashlib.sha256(question.encode(errors="surrogatepass")).hexdigest()


def shown_query(query: JudgeQuery) -> JudgeQuery:
    """Return the query without thinking and without its key: equal for equal questions."""
    rival = None if query.rival is None else spoken_answer(query.rival)
    return replace(query, answer=spoken_answer(query.answer), rival=rival, key="")


@dataclass(eq=False)
class CircuitBreaker(Wrapper):
    """Stops asking a judge that is down: opens after ``threshold`` failures of the backend in a
    row, for ``seconds`` (Nygard, "Release It!", 2nd edition, 2018, chapter 5). Libraries count
    exceptions; here a verdict's status counts.

    While it is open every query is ``unavailable`` at once. Then one query is let through as a
    probe (half open), and the others wait for it up to ``seconds``: if it is served the circuit
    closes and lets them through, so that a batch does not fail because of its first question;
    otherwise they are refused, and it opens again. A query that began earlier and is served also
    closes it. ``opened`` counts openings, ``refused`` the queries that were not passed on.
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
        if query.fresh:
            return await self.inner.judge(query)
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


STEERABLE: frozenset[Status] = frozenset(
    {"abstain", "declined", "parse_error", "refused", "truncated"}
)
"""Failures that an answer can cause. A backend that is down is our fault, whatever the answer."""

SHORT = 300  # bytes of UTF-8 of an answer that is a number, a label, a name
LONG = 2000  # of a text, of code

NO_ANSWER = "I do not know."
"""The control's answer without a reference."""


@dataclass(eq=False)
class SecondReading(Wrapper):
    """Decides queries that ``inner`` left without a verdict in a way that the answer can cause: a
    policy gains by wrong answers that are not scored, so no text may turn "wrong" into "unscored"
    (law 1). Nor may a breakdown of ours become "wrong".

    1. ``reader``, the same judges asking more strictly, sees only the final answer
       (:func:`shortened`): its verdict has ``source="second_reading"``.
    2. ``reader`` gets a control: the same question with the reference as the answer
       (:func:`neutral`). Without a verdict on that the fault is ours, and the sample stays
       unscored.
    3. ``rules``, if there are any, decide if they can: ``source="rule_fallback"``.
    4. ``reader`` sees the answer once more, now that it is known to judge. If it fails again, the
       failure follows the answer, and the sample gets the floor: wrong, ``source="floor"``.

    Only the ``steerable`` statuses count. A server that fails or times out at any step ends it:
    unscored. Between two answers an abstention is a finding, and stays.

    The floor needs a failure before and after a control that passed, so that a temporary outage
    floors no answer. A judge that is empty at random, 13 % of the time, floors a right answer with
    a probability below 1e-6 with seven attempts or more: at least one of the first reading, and
    :data:`flowright.judging.attempts.READING_ATTEMPTS` of each of the two others.
    """

    reader: Judge
    rules: Judge | None = None
    steerable: frozenset[Status] = STEERABLE

    async def judge(self, query: JudgeQuery) -> Verdict:
        first = await self.inner.judge(query)
        if query.fresh or not self._is_steerable(first, query):
            return first
        steps = [first]

        async def ask(judge: Judge, asked: JudgeQuery, step: str) -> Verdict:
            verdict = await judge.judge(replace(asked, key=f"{query.key}/{step}"))
            steps.append(verdict)
            return verdict

        short = await off_loop(lambda: shortened(query), query.answer, query.rival or "")
        again = await ask(self.reader, short, "second reading")
        if not self._is_steerable(again, query):
            return _final(again, steps, "second_reading")
        control = await ask(self.reader, neutral(query), "control")
        if control.status != "ok":
            reason = f"the reference is not judged either: {control.reason}"
            lost = Verdict(None, None, control.source, control.status, reason, judge=self.name)
            return _final(lost, steps)
        if self.rules is not None:
            ruled = await ask(self.rules, query, "rules")
            if ruled.status == "ok":
                return _final(ruled, steps, "rule_fallback")
        last = await ask(self.reader, short, "third reading")
        if not self._is_steerable(last, query):
            return _final(last, steps, "second_reading")
        reason = f"{last.reason}; read again it fails again, and the reference does not"
        return _final(Verdict(0.0, False, "floor", "ok", reason, judge=self.name), steps)

    def _is_steerable(self, verdict: Verdict, query: JudgeQuery) -> bool:
        is_finding = verdict.status == "abstain" and query.rival is not None
        return verdict.status in self.steerable and not is_finding


def _final(verdict: Verdict, steps: Sequence[Verdict], source: Source | None = None) -> Verdict:
    """Return the verdict with the cost of all steps and the first failure, and a scored one with
    its ``source``."""
    first = steps[0]
    return replace(
        verdict,
        source=source if source and verdict.status == "ok" else verdict.source,
        reason=f"{verdict.reason} (first reading: {first.cause})",
        attempts=sum(step.attempts for step in steps),
        usage=sum((step.usage for step in steps), Usage()),
        seconds=sum(step.seconds for step in steps),
        members=verdict.members or (first,),
        replies=tuple(reply for step in steps for reply in step.replies),
    )


def shortened(query: JudgeQuery) -> JudgeQuery:
    """Return the query with as little of the answer as a verdict needs, without invisible
    characters: the final answer that the gold check finds, at most :data:`SHORT`, or the end of a
    text or code, at most :data:`LONG`. Evidence is cut to its first clause; the rest may quote the
    program."""
    evidence, others = (
        None if text is None else text.partition(";")[0][:SHORT]
        for text in (query.evidence, query.rival_evidence)
    )
    is_long = bool(query.criteria) or query.answer_type in ("code", "free_text")
    rival = None if query.rival is None else _end(query.rival, is_long)
    answer = _end(query.answer, is_long)
    return replace(query, answer=answer, rival=rival, evidence=evidence, rival_evidence=others)


def _end(answer: str, is_long: bool) -> str:
    spoken, most = spoken_answer(answer), LONG if is_long else SHORT
    if not is_long:
        spoken = " ".join(extract_answer(spoken).split())
    return last_tokens(_visible(last_tokens(spoken, most)), most)


def _visible(text: str) -> str:
    """Drop controls, format characters and unassigned ones; compose the rest, with at most two
    marks on a character."""
    kept: list[str] = []
    marks = 0
    for character in normalised("NFC", sanitise(text)):
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        if marks <= 2 and (character in "\n\t" or unicodedata.category(character)[0] != "C"):
            kept.append(character)
    return "".join(kept)


def neutral(query: JudgeQuery) -> JudgeQuery:
    """Return the control, without any text of the policy except for a rival."""
    answer = query.reference if query.reference.strip() else NO_ANSWER
    return replace(query, answer=answer, evidence=None)
