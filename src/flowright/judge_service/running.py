"""What a reward system has in one process once it was asked: thread, judge, counts. It is never
copied to another process, and a forked child leaves it to its parent.
"""

import os
import statistics
import weakref
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowright.judge.remote import RemoteJudge
from flowright.judge.verdict import Judge
from flowright.judge.wrappers import Cached, CircuitBreaker
from flowright.judge_service.loop_thread import LoopThread

LATENCIES_KEPT = 2000


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
