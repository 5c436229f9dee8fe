"""Thread, judge and counts of a reward system in one process, made by its first call.

None of it is copied to another process; a forked child starts anew and leaves all to its parent.
"""

import asyncio
import logging
import os
import statistics
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import uvloop

from flowright.config.judge import JudgeRewardSection, JudgeSection
from flowright.core.errors import boundary
from flowright.core.off_loop import call_user_function, plain_numbers
from flowright.judging.build import open_terms, wrap_backend, wrap_verdicts, wrappers_of
from flowright.judging.payloads import read_verdict, request_of
from flowright.judging.remote import RemoteJudge
from flowright.judging.reward.calls import RewardResult, result_of
from flowright.judging.rules import RuleJudge
from flowright.judging.terms import WithTerms
from flowright.judging.verdict import Judge, JudgeQuery, Status, Verdict
from flowright.judging.wrappers import Cached, CircuitBreaker

Answer = TypeVar("Answer")

CLOSING_SECONDS = 5.0  # for running work when the thread is to end
LATENCIES_KEPT = 2000
_POLL_SECONDS = 0.5  # between two checks that waiting is not in vain
_REFUSED: frozenset[Status] = frozenset({"refused"})  # no completion escapes a verdict by its size
_ENDED = "the reward system was closed, or its thread ended, while this waited"

_log = logging.getLogger("JudgeReward")


class LoopThread:
    """An event loop on a daemon thread, and waits for it that always end. ``moved_at`` is the
    ``time.monotonic()`` of the latest finished work, set by :meth:`moved`.

    anyio's BlockingPortal does not do: its end waits for running work without a limit, and a loop
    that a user's judge stopped leaves callers waiting.
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="judge-reward", daemon=True)
        self.moved_at = time.monotonic()
        self._ended = False
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._ended

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def moved(self) -> None:
        self.moved_at = time.monotonic()

    def submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # it ended in this moment
            work.close()
            lost: Future[Answer] = Future()
            lost.cancel()
            return lost

    def wait(self, work: "Future[Any]", patience: float) -> str | None:
        """Wait until the work is done. Returns None, or why it never will be: the thread ended, or
        no work at all was finished for ``patience`` seconds. Raises the work's exception."""
        if self.is_current:
            work.cancel()
            raise RuntimeError("this would wait for itself; await areward or areward_batch here")
        began = time.monotonic()
        while True:
            try:
                work.result(timeout=_POLL_SECONDS)
                return None
            except CancelledError:
                return _ENDED
            except TimeoutError:
                if work.done():  # it may have raised this itself
                    return None if work.exception() is None else work.result()
            except KeyboardInterrupt:
                self._abandon(work)
                raise
            if (why := self._why_not(began, patience)) is not None:
                self._abandon(work)
                return why

    async def waited(self, work: "Future[Any]", patience: float) -> str | None:
        """Do as :meth:`wait` on another loop, without blocking it."""
        began = time.monotonic()
        done = asyncio.wrap_future(work)
        try:
            while not (await asyncio.wait({done}, timeout=_POLL_SECONDS))[0]:
                if (why := self._why_not(began, patience)) is not None:
                    return why
            if done.cancelled():
                return _ENDED
            done.result()
            return None
        finally:
            self._abandon(done)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Run ``last``, then stop, each within :data:`CLOSING_SECONDS`."""
        if not self.is_alive:
            return
        if last is not None and not self.is_current:
            wait([self.submit(last())], CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join(CLOSING_SECONDS)

    def _abandon(self, work: "Future[Any] | asyncio.Future[Any]") -> None:
        if not self._loop.is_closed():  # else there is nothing left to cancel
            work.cancel()

    def _why_not(self, began: float, patience: float) -> str | None:
        if not self.is_alive:
            return _ENDED
        if time.monotonic() - max(began, self.moved_at) > patience:
            return f"Timeout waiting for results: no verdict at all within {patience:g} s"
        return None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels remaining work
            try:
                runner.get_loop().run_forever()
            finally:
                self._ended = True


class OwnRequests:
    """Judge that passes each query's request to ``ask``, an overridden bound method: a coroutine
    method on the loop, a plain one on one of the ``threads``, where it may block. Holds a weak
    reference to the method's object."""

    def __init__(
        self, name: str, ask: Callable[[dict[str, Any]], Any], threads: Callable[[], Executor]
    ) -> None:
        self.name = name
        self._ask = weakref.WeakMethod(ask)
        self._threads = threads

    async def judge(self, query: JudgeQuery) -> Verdict:
        request = request_of(query)
        with boundary("_request_judge") as attribution:
            try:
                if (ask := self._ask()) is None:
                    raise RuntimeError("the reward system is gone")
                response = await call_user_function(ask, self._threads, request)
            except SystemExit as error:  # in a task it would end the loop
                raise RuntimeError(f"it called sys.exit: {error}") from None
            if isinstance(response, RewardResult):
                response = response.score
            return read_verdict(plain_numbers(response), self.name)
        return _failed(self.name, str(attribution.failure))


@dataclass(eq=False)
class Runtime:
    """State of one reward system in this process."""

    thread: LoopThread = field(default_factory=LoopThread)
    judge: Judge | None = None
    remote: RemoteJudge | None = None
    threads: ThreadPoolExecutor | None = None
    sources: Counter[str] = field(default_factory=Counter)
    zeros: int = 0
    pending: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    def end(self) -> None:
        """Cancel running work, and end the thread within seconds."""
        self.thread.end(None if self.remote is None else self.remote.aclose)
        if self.threads is not None:
            self.threads.shutdown(wait=False, cancel_futures=True)

    def wrap(self, asked: Judge, config: JudgeRewardSection) -> Judge:
        """Put the judge in the wrappers that ``config`` chooses."""
        rules = RuleJudge(only_certain=True) if config.fallback_to_rule else None
        backend = wrap_backend(
            asked,
            (config.circuit_breaker_threshold, config.circuit_breaker_timeout),
            (config.cache_size if config.use_cache else 0, config.judge_url),
            (config.low_confidence, config.low_confidence_factor),
        )
        # Other failures that an answer can cause are read a second time by the service itself.
        second = asked, rules
        self.judge = wrap_verdicts(
            backend, second_reading=second, steerable=_REFUSED, last_resort=rules, logs=True
        )
        if (terms := open_terms(config, JudgeSection())) is not None:
            self.judge = WithTerms(self.judge, terms)
        return self.judge

    async def answer_all(
        self,
        judge: Judge,
        queries: Sequence[tuple[int, JudgeQuery]],
        results: list[dict[str, Any] | None],
    ) -> None:
        """Judge all queries, and put each result into its place in ``results``."""

        async def one(number: int, query: JudgeQuery) -> None:
            results[number] = await self._answer(judge, query)

        await asyncio.gather(*(one(number, query) for number, query in queries))

    async def _answer(self, judge: Judge, query: JudgeQuery) -> dict[str, Any]:
        began = time.monotonic()
        self.pending += 1
        try:
            with boundary("judge") as attribution:
                verdict = await judge.judge(query)
            if attribution.failure is not None:
                verdict = _failed(judge.name, str(attribution.failure))
        except SystemExit as error:  # of a user's judge; it would end the thread
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
        return result_of(verdict, query.key or None, seconds)


def _failed(judge: str, reason: str) -> Verdict:
    return Verdict(None, None, "llm", "unavailable", reason, judge=judge)


def metrics_of(runtime: Runtime | None, breaks: bool) -> dict[str, Any]:
    """Return the metrics so far, of nothing if ``runtime`` is None. ``breaks``: a circuit breaker
    is configured."""
    sources = runtime.sources if runtime else Counter[str]()
    calls, invalid = sum(sources.values()), sources["invalid"]
    failed, fallback = sources["failed"], sources["rule_fallback"]
    remote = runtime.remote if runtime else None
    judge = runtime.judge if runtime else None
    cache = next(iter(wrappers_of(judge, Cached) if judge else ()), None)
    breaker = next(iter(wrappers_of(judge, CircuitBreaker) if judge else ()), None)
    seconds = sorted(runtime.seconds.copy()) if runtime else []  # a copy: other threads add to it
    quantiles = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
    zeros = runtime.zeros if runtime else 0
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
        "current_queue_size": runtime.pending if runtime else 0,
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
    def leave_behind(self) -> Runtime | None: ...


owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()
"""Reward systems that may have a runtime."""

_left_behind: list[Runtime | None] = []


def _after_fork() -> None:
    # The child has no thread, and the sockets are the parent's: keep them from being used, closed
    # or collected there.
    for owner in list(owners):
        _left_behind.append(owner.leave_behind())


os.register_at_fork(after_in_child=_after_fork)
