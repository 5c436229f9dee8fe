"""Retries of requests: attempts, pauses, deadline, and failover between servers and keys.

A caller brings a :class:`RetryPolicy` and a function that makes one attempt.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from flowright.llm.balance import Balance, Lease, Server
from flowright.llm.counters import RoleCounts
from flowright.llm.transport import RequestError

T = TypeVar("T")

LONGEST_PAUSE = 30.0  # seconds
_WAITING_PAUSE = 3.0  # at most, while a server that is away is waited for


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of one call; times are seconds.

    ``attempts`` are made at most. Pauses double from ``first_pause`` to ``longest_pause``, scaled
    by a factor in [0.5, 1) drawn from a hash of the request, so that a repeated run pauses alike.
    ``deadline`` covers attempts and pauses; the wait for a slot is our own queue and not part of
    it. A ``Retry-After`` is obeyed: one that would outlast the deadline ends the call, without a
    deadline it is cut to ``longest_pause``.

    An overloaded server (429, or 503 with a ``Retry-After``) is waited for: with a deadline, such a
    failure does not count as an attempt.

    Failures of the kinds in ``away`` mean a restarting server. From a call's first failure on they
    don't count as attempts for ``away_seconds``, and pauses stay short. Then they count, or else,
    with ``ends_away``, the next one ends the call.
    """

    attempts: int
    first_pause: float
    longest_pause: float = LONGEST_PAUSE
    deadline: float = math.inf
    away: frozenset[str] = frozenset()
    away_seconds: float = 0.0
    ends_away: bool = False


@dataclass(slots=True)
class RetriedCall:
    """State of one request. Pauses are drawn from ``key``; ``spent`` are the seconds of attempts
    and pauses. ``weight`` is the share of a server's window that it asks for, ``granted`` what it
    got this time; the lowest ``order`` is served first."""

    policy: RetryPolicy
    key: bytes
    counts: RoleCounts
    weight: int = 1
    granted: int = 1
    order: int = 0
    attempts: int = 0
    uncounted: int = 0  # of these, on a server that was away or had no room
    overloads: int = 0  # of these, on one that had no room
    failovers: int = 0
    spent: float = 0.0
    began: float | None = None  # the first attempt, by time.monotonic()
    failed_at: float | None = None
    avoid: Server | None = None
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> float:
        return self.policy.deadline - self.spent

    @property
    def counted(self) -> int:
        return self.attempts - self.uncounted

    @property
    def failing(self) -> float:
        """Seconds of the call since its first failure."""
        return 0.0 if self.failed_at is None else self.spent - self.failed_at

    def next_pause(self, error: RequestError, fails_over: bool = False) -> float | None:
        """Return the seconds until the next attempt, 0 if it ``fails_over`` to another server; None
        if the call ends with this error."""
        policy = self.policy
        self.failed_at = self.spent if self.failed_at is None else self.failed_at
        is_away = error.kind in policy.away
        waits = is_away and self.failing < policy.away_seconds
        has_no_room = error.is_overload and not math.isinf(policy.deadline)
        self.overloads += has_no_room
        self.uncounted += waits or has_no_room
        waited_enough = is_away and not waits and policy.ends_away
        if error.final or waited_enough or self.counted >= policy.attempts or self.left <= 0:
            return None
        seconds = 0.0 if fails_over or error.elsewhere else self._seconds(error)
        seconds = min(seconds, _WAITING_PAUSE) if waits else seconds
        if seconds >= self.left:
            if error.retry_after:
                error.message += f"; the server asks to wait {seconds:.3g} s"
            return None
        return seconds

    async def sleep(self, seconds: float) -> None:
        """Pause between attempts, counted in ``spent``."""
        if seconds > 0:
            await asyncio.sleep(seconds)
            self.spent += seconds
            self.counts["wait_seconds"] += seconds

    def _seconds(self, error: RequestError) -> float:
        policy = self.policy
        if error.retry_after is None:
            return backoff(self.key, self.attempts, policy.first_pause, policy.longest_pause)
        if self.overloads and error.retry_after <= 0:  # again and again it means a little more
            return backoff(self.key, self.overloads, policy.first_pause / 8, _WAITING_PAUSE)
        endless = math.isinf(policy.deadline)
        return min(error.retry_after, policy.longest_pause) if endless else error.retry_after


class Retries:
    """Attempts at one or several servers; a place at a server is held only during an attempt.

    ``in_time``: the windows of the servers adapt, and grow while replies take less than so many
    seconds. Without it the attempts adapt them.
    """

    def __init__(self, balance: Balance, in_time: float | None = None) -> None:
        self.balance = balance
        self._in_time = in_time

    async def run(self, call: RetriedCall, attempt: Callable[[Lease], Awaitable[T]]) -> T:
        """Return the result of the first successful attempt. The first retries go to other healthy
        servers without a pause. Raises the last attempt's RequestError when all are spent."""
        pause: float | None = None

        def wait(state: RetryCallState) -> float:  # tenacity asks this before `stop`
            nonlocal pause
            error = state.outcome.exception() if state.outcome else None
            assert isinstance(error, RequestError)
            pause = call.next_pause(error, self._fails_over(call))
            return pause or 0.0

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RequestError),
            wait=wait,
            stop=lambda _: pause is None,
            sleep=call.sleep,
            reraise=True,
        )
        try:
            return await retrying(self._once, call, attempt)
        finally:
            call.counts.ended(id(call))

    async def _once(self, call: RetriedCall, attempt: Callable[[Lease], Awaitable[T]]) -> T:
        queued = time.monotonic()
        lease = await self.balance.acquire(call.avoid, call.weight, call.order)
        call.granted = lease.granted
        began = time.monotonic()
        call.began = began if call.began is None else call.began
        call.counts["wait_seconds"] += began - queued
        call.counts["calls"] += not call.attempts
        call.counts.attempt(lease.server.url)
        call.attempts += 1
        report = self.balance.abandoned
        try:
            done = await attempt(lease)
            report = self.balance.succeeded
            call.counts.answered(lease.server.url)
            self._adapt(lease, began)
            return done
        except RequestError as error:
            call.avoid = lease.server
            call.counts.failed(lease.server.url, error.kind)
            call.failures[error.kind] += 1
            report = self.balance.succeeded
            if error.blames_server:
                call.counts.lost(lease.server.url, error.kind, began, id(call))
                report = partial(self.balance.failed, at_once=error.kind == "unreachable")
            elif error.kind.startswith("http_"):
                call.counts.answered(lease.server.url)
            self._change_key(lease, error)
            self._adapt(lease, began, error)
            raise
        finally:
            report(lease)
            call.spent += time.monotonic() - began
            call.counts["wire_seconds"] += time.monotonic() - began

    def _adapt(self, lease: Lease, began: float, error: RequestError | None = None) -> None:
        """Widen the window that limits a server in time; halve that of an overloaded one. A 429
        that limits one of several keys, and a timeout of the caller's own, show no overload."""
        if self._in_time is None:
            return
        window, seconds = lease.server.window, time.monotonic() - began
        if error is None:
            grows = seconds < self._in_time and window.is_full
            window.answered(lease.granted, seconds, grows)
        elif (error.kind in ("http_429", "http_503") and not error.elsewhere) or (
            error.kind == "timeout" and error.blames_server
        ):
            window.congested(began)

    def _change_key(self, lease: Lease, error: RequestError) -> None:
        """With several keys, one that is refused or limited leaves the next attempt to another."""
        if error.kind in ("http_401", "http_403") and self.balance.refuse_key(lease):
            error.final = False
            error.elsewhere = True
        elif error.kind == "http_429" and len(self.balance.keys) > 1:
            self.balance.limit_key(lease, error.retry_after or 1.0)
            error.elsewhere = self.balance.has_other_key()

    def _fails_over(self, call: RetriedCall) -> bool:
        others = len(self.balance.servers) - 1
        if call.failovers >= others or call.avoid is None or not self.balance.has_other(call.avoid):
            return False
        call.failovers += 1
        return True


def backoff(key: bytes, attempts: int, first: float, longest: float = LONGEST_PAUSE) -> float:
    """Return the pause in seconds after ``attempts`` failures: ``first`` doubled each time, at most
    ``longest``, times a factor in [0.5, 1) that is a function of the key and the attempt."""
    full = min(first * 2.0 ** min(attempts - 1, 60), longest)
    digest = blake2b(key, digest_size=4, salt=attempts.to_bytes(8, "little")).digest()
    return full * (0.5 + 0.5 * int.from_bytes(digest, "little") / 2**32)
