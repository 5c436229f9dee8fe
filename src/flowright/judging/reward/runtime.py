"""What a reward system has in one process once it was asked: thread, judge, counts. It is never
copied to another process, and a forked child leaves it to its parent.
"""

import asyncio
import inspect
import logging
import os
import statistics
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import uvloop

from flowright.config.judge import JudgeRewardSection
from flowright.core.errors import boundary
from flowright.judging.payloads import read_verdict, request_of
from flowright.judging.remote import RemoteJudge
from flowright.judging.reward.calls import RewardResult, told_of
from flowright.judging.rules import RuleJudge
from flowright.judging.verdict import Judge, JudgeQuery, Status, Verdict
from flowright.judging.wrappers import (
    Cached,
    Calibrated,
    CircuitBreaker,
    Gated,
    LogsFallbacks,
    SecondReading,
    WithRuleFallback,
)

Answer = TypeVar("Answer")

CLOSING_SECONDS = 5.0  # for what is under way when the thread is to end
_LOOK_SECONDS = 0.5  # between two looks at whether there is still something to wait for


class LoopThread:
    """Does not keep the process alive. ``moved_at`` is when something was finished last, by
    ``time.monotonic()``; :meth:`moved` says that it was now."""

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
        """Wait until the work is done; None, or why it never will be: the thread ended, or nothing
        at all was finished for ``patience`` seconds. Raises what the work raised."""
        if self.is_current:
            work.cancel()
            raise RuntimeError("this would wait for itself; await areward or areward_batch here")
        began = time.monotonic()
        while True:
            try:
                work.result(timeout=_LOOK_SECONDS)
                return None
            except CancelledError:
                return _ENDED
            except TimeoutError:
                if work.done():
                    return None if work.exception() is None else _raise(work)
            except KeyboardInterrupt:  # nobody waits for it any more
                self._abandon(work)
                raise
            if (why := self._why_not(began, patience)) is not None:
                self._abandon(work)
                return why

    async def waited(self, work: "Future[Any]", patience: float) -> str | None:
        """:meth:`wait` on another loop, which it does not block."""
        began = time.monotonic()
        done = asyncio.wrap_future(work)
        try:
            while not (await asyncio.wait({done}, timeout=_LOOK_SECONDS))[0]:
                if (why := self._why_not(began, patience)) is not None:
                    return why
            if done.cancelled():
                return _ENDED
            done.result()
            return None
        finally:
            self._abandon(done)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Let ``last`` run, then stop; what does not end in time is left to the process's end."""
        if not self.is_alive:
            return
        if last is not None and not self.is_current:
            wait([self.submit(last())], CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join(CLOSING_SECONDS)

    def _abandon(self, work: "Future[Any] | asyncio.Future[Any]") -> None:
        if not self._loop.is_closed():  # else nothing of it is left
            work.cancel()

    def _why_not(self, began: float, patience: float) -> str | None:
        if not self.is_alive:
            return _ENDED
        if time.monotonic() - max(began, self.moved_at) > patience:
            return f"Timeout waiting for results: no verdict for anybody within {patience:g} s"
        return None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left
            try:
                runner.get_loop().run_forever()
            finally:
                self._ended = True


_ENDED = "the reward system was closed, or its thread ended, while this waited"


def _raise(work: "Future[Any]") -> None:
    work.result()


class OwnRequests:
    """A judge that hands each query's request to ``ask``, a bound method: a coroutine method on the
    loop, a plain one on one of the ``threads``, where it may block. Its object is not kept alive.
    """

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
                response = await self._asked(request)
            except SystemExit as error:  # in a task it would end the loop
                raise RuntimeError(f"it called sys.exit: {error}") from None
            if isinstance(response, RewardResult):
                response = response.score
            return read_verdict(plain(response), self.name)
        return Verdict(None, None, "llm", "unavailable", str(attribution.failure), judge=self.name)

    async def _asked(self, request: dict[str, Any]) -> Any:
        ask = self._ask()
        if ask is None:
            raise RuntimeError("the reward system is gone")
        if inspect.iscoroutinefunction(ask):
            return await ask(request)
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._threads(), ask, request)
        return await response if inspect.isawaitable(response) else response


def plain(told: Any) -> Any:
    """What a judge of one's own returned, without the types of numerical libraries, whose numbers
    have ``item``."""
    if isinstance(told, Mapping):
        return {name: plain(value) for name, value in told.items()}
    return told.item() if hasattr(told, "item") else told


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
