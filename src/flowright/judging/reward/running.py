"""What a reward system has in one process once it was asked: thread, judge, counts. It is never
copied to another process, and a forked child leaves it to its parent.
"""

import asyncio
import logging
import os
import statistics
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowright.config.judge import JudgeRewardSection
from flowright.core.errors import boundary
from flowright.judging.remote import RemoteJudge
from flowright.judging.reward.calibration import Calibrated
from flowright.judging.reward.fallback_log import LogsFallbacks
from flowright.judging.reward.loop_thread import LoopThread
from flowright.judging.reward.result import told_of
from flowright.judging.rules import RuleJudge
from flowright.judging.second_reading import SecondReading
from flowright.judging.verdict import Judge, JudgeQuery, Status, Verdict
from flowright.judging.wrappers import Cached, CircuitBreaker, Gated, WithRuleFallback

LATENCIES_KEPT = 2000
_REFUSED: frozenset[Status] = frozenset({"refused"})  # no completion buys itself out by its size

_log = logging.getLogger("JudgeReward")


@dataclass(eq=False)
class Running:
    thread: LoopThread = field(default_factory=LoopThread)
    judge: Judge | None = None
    remote: RemoteJudge | None = None
    cache: Cached | None = None
    breaker: CircuitBreaker | None = None
    threads: ThreadPoolExecutor | None = None
    sources: Counter[str] = field(default_factory=Counter)
    zeros: int = 0
    pending: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    def end(self) -> None:
        """Give up what is under way, within seconds."""
        self.thread.end(None if self.remote is None else self.remote.aclose)
        if self.threads is not None:
            self.threads.shutdown(wait=False, cancel_futures=True)

    def put_in_wrappers(self, asked: Judge, config: JudgeRewardSection) -> Judge:
        """The judge that is asked within its wrappers, from the inside out: breaker, calibration,
        cache, second reading, fallback, gate."""
        judge = asked
        if config.circuit_breaker_threshold:
            judge = self.breaker = CircuitBreaker(
                judge, config.circuit_breaker_threshold, config.circuit_breaker_timeout
            )
        if config.low_confidence:
            judge = Calibrated(judge, config.low_confidence, config.low_confidence_factor)
        if config.use_cache:
            judge = self.cache = Cached(judge, config.cache_size, config.judge_url)
        rules = RuleJudge(only_certain=True) if config.fallback_to_rule else None
        # What else a service is kept from by an answer is the service's own to read again.
        judge = SecondReading(judge, asked, rules, _REFUSED)
        if rules is not None:
            judge = WithRuleFallback(judge, rules)
        self.judge = Gated(LogsFallbacks(judge))
        return self.judge

    async def answer_all(
        self,
        judge: Judge,
        queries: Sequence[tuple[int, JudgeQuery]],
        told: list[dict[str, Any] | None],
    ) -> None:
        """Put what each query came to into its place in ``told``."""

        async def one(number: int, query: JudgeQuery) -> None:
            told[number] = await self._answer(judge, query)

        await asyncio.gather(*(one(number, query) for number, query in queries))

    async def _answer(self, judge: Judge, query: JudgeQuery) -> dict[str, Any]:
        began = time.monotonic()
        self.pending += 1
        try:
            with boundary("judge") as attribution:
                verdict = await judge.judge(query)
            if attribution.failure is not None:
                verdict = _failed(judge.name, str(attribution.failure))
        except SystemExit as error:  # of a judge of somebody's own: it would end the thread
            verdict = _failed(judge.name, f"the judge called sys.exit: {error}")
        finally:
            self.pending -= 1
        self.thread.moved()
        seconds = time.monotonic() - began
        self.sources["failed" if verdict.score is None else verdict.source] += 1
        self.zeros += verdict.score == 0
        self.seconds.append(seconds)
        _log.debug(
            "reward %s: %s, %s, after %.3f s: %.300s",
            *(verdict.score, verdict.status, verdict.source, seconds, verdict.reason),
        )
        return told_of(verdict, query.key or None, seconds)


def _failed(judge: str, reason: str) -> Verdict:
    return Verdict(None, None, "llm", "unavailable", reason, judge=judge)


def metrics_of(running: Running | None, breaks: bool) -> dict[str, Any]:
    """What has happened so far; None: nothing. ``breaks``: there is to be a circuit breaker."""
    sources = running.sources if running else Counter[str]()
    calls, invalid = sum(sources.values()), sources["invalid"]
    failed, fallback = sources["failed"], sources["rule_fallback"]
    cache, remote, breaker = (
        (running.cache, running.remote, running.breaker) if running else (None, None, None)
    )
    seconds = sorted(running.seconds.copy()) if running else []  # at once: others may add to it
    quantiles = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
    zeros = running.zeros if running else 0
    return {
        "requests": calls,
        "error_rate": _share(failed + fallback, calls) or 0.0,
        "unscored_rate": _share(failed + invalid, calls),
        "fallbacks": fallback,
        "fallback_rate": _share(fallback, calls),
        "zero_rate": _share(zeros, calls - failed - invalid),
        "cache_hit_rate": (_share(cache.hits, cache.asked) if cache else None) or 0.0,
        "latency": statistics.fmean(seconds) if seconds else 0.0,
        "latency_p50": quantiles[9] if quantiles else None,
        "latency_p95": quantiles[18] if quantiles else None,
        "current_queue_size": running.pending if running else 0,
        "batched_share": _share(remote.batched, remote.asked) if remote else None,
        "http_requests": remote.requests if remote else None,
        "retries": remote.retries if remote else None,
        "circuit_breaker": {
            "state": breaker.state if breaker else "closed" if breaks else "none",
            "opened": breaker.opened if breaker else 0,
            "refused": breaker.refused if breaker else 0,
        },
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class Owner(Protocol):
    def leave_behind(self) -> Running | None: ...


owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()
"""Who has something running, or may have."""

_left_behind: list[Running | None] = []


def _after_fork() -> None:
    """The child has no thread, and the sockets are the parent's: nothing of them is used, closed or
    collected there."""
    for owner in list(owners):
        _left_behind.append(owner.leave_behind())


os.register_at_fork(after_in_child=_after_fork)
