"""Servers of one model: which takes the next request, and how many each has in flight.

The window of a server is additive increase, multiplicative decrease (Chiu and Jain 1989, "Analysis
of the increase and decrease algorithms for congestion avoidance", section 3), with TCP's slow start
before the first refusal (RFC 5681, section 3.1): clients of one server converge to equal shares.
"""

import asyncio
import itertools
import math
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowright.config.section import Concurrency
from flowright.llm.transport import RequestError

REST_AFTER = 3  # failures in a row
REST_SECONDS = 1.0  # doubles with every failed probe
LONGEST_REST = 30.0

FIRST_WIDTH = 16.0

# Seconds of a pause after a refusal that names none, about the time of a request.
FIRST_PAUSE = 0.05  # before that is known; doubles until a request is served
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 5.0


@dataclass(slots=True, eq=False)
class Window:
    """Adaptive bound on the requests in flight at one server.

    Their total weight is at most ``width``, which is at most ``ceiling``; their number at most
    ``requests``. A request heavier than the width is granted less than its weight. After the first
    refusal a round of responses adds ``step``, or 1 in the last step before the width that was
    refused.
    """

    ceiling: float
    width: float = FIRST_WIDTH
    requests: float = math.inf
    step: float = 4.0
    clock: Callable[[], float] = time.monotonic
    held: int = field(default=0, init=False)
    outstanding: int = field(default=0, init=False)
    answered_at: float = field(default=-math.inf, init=False)
    opens_at: float = field(default=-math.inf, init=False)
    _cut_at: float = field(default=-math.inf, init=False)
    _refused_at: float = field(default=math.inf, init=False)
    _pace: float = field(default=FIRST_PAUSE, init=False)
    _refusals: int = field(default=0, init=False)  # in a row

    def __post_init__(self) -> None:
        self.width = min(self.width, self.ceiling)

    @property
    def is_full(self) -> bool:
        return self.held + 1 > self.width

    def set_limits(self, width: float, ceiling: float) -> None:
        """Take over the limits that the server announces."""
        self.ceiling = ceiling
        if self._cut_at == -math.inf:
            self.width = min(width, ceiling)

    def room(self, weight: int) -> int:
        """Return the weight that a request of ``weight`` is granted now, 0 if it has to wait."""
        granted = min(weight, max(1, int(self.width)))
        is_over = self.held > 0 and self.held + granted > self.width
        is_closed = self.opens_at > -math.inf and self.opens_at > self.clock()
        return 0 if is_over or is_closed or self.outstanding >= self.requests else granted

    def answered(self, weight: int, seconds: float, grows: bool = True) -> None:
        """Count a served request of this weight and latency; the width ``grows`` unless that was
        too slow."""
        self.answered_at = self.clock()
        self._refusals = 0
        self._pace += (seconds - self._pace) / 4
        if not grows:
            return
        if self.width >= self._refused_at:
            self._refused_at = math.inf  # the server accepts more by now
        is_slow_start = self._cut_at == -math.inf
        is_near = self.width + self.step >= self._refused_at
        added = weight if is_slow_start else (1 if is_near else self.step) * weight / self.width
        self.width = min(self.ceiling, self.width + added)

    def congested(self, began: float) -> None:
        """Halve the width for a request, sent at ``began``, that an overloaded server did not
        serve. Requests that were in flight at the same time count once."""
        if began < self._cut_at:
            return
        self._refused_at = min(self.width, self.held)
        self.width = max(1.0, self._refused_at / 2)
        self._cut_at = self.clock()

    def refused(self, began: float, seconds: float | None) -> float:
        """Do as :meth:`congested`, for a server that asks to wait; no request starts meanwhile.
        Returns the seconds of the pause."""
        self._refusals += began >= self._cut_at  # requests in flight at the same time count once
        self.congested(began)
        if not seconds:
            seconds = max(self._pace, SHORTEST_PAUSE) * 2.0 ** min(self._refusals - 1, 20)
            seconds = min(seconds, LONGEST_PAUSE)
        self.opens_at = max(self.opens_at, self.clock() + seconds)
        return seconds


@dataclass(slots=True, eq=False)
class Server:
    """One base URL. ``failures`` counts those in a row; ``probing`` while its one probe is out."""

    url: str
    window: Window
    failures: int = 0
    rests_until: float = 0.0
    probing: bool = False


@dataclass(slots=True, eq=False)
class Key:
    """One API key; ``refused`` after a 401 or 403."""

    value: str
    rests_until: float = 0.0
    refused: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """The right to send one request of weight ``granted``; ended by exactly one of Balance's three
    reports."""

    server: Server
    key: Key
    probe: bool
    granted: int = 1


_Waiting = tuple[int, int, int, Server | None, "asyncio.Future[Lease]"]


class Balance:
    """Least outstanding requests over healthy servers with room, keys in turn; for one event loop.

    Servers by URL, each with its window; over all of them at most ``total`` requests are in flight.
    Requests without a place wait in one queue, the lowest ``order`` first.

    A server rests after REST_AFTER failures in a row, or at the first refused connection; when its
    rest is over, one request probes it, and only a success lets the others follow. Where every
    server rests, the one whose rest ends first is used: health decides between servers, it never
    refuses work. A key that was refused is not used again; one that was limited rests.
    """

    def __init__(
        self,
        windows: Mapping[str, Window],
        keys: Sequence[str],
        total: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = tuple(Server(url, window) for url, window in windows.items())
        self.keys = tuple(Key(key) for key in keys)
        self.total = total
        self._clock = clock
        self._in_flight = 0
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._key_turn = 0

    async def acquire(self, avoid: Server | None = None, weight: int = 1, order: int = 0) -> Lease:
        """Wait for a place and lease it, as :meth:`lease`. Raises the error of :meth:`give_up`."""
        turn: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        entry = (order, next(self._numbers), weight, avoid, turn)
        insort(self._waiting, entry)  # numbers differ: nothing behind them is compared
        self._let_in()
        try:
            return await turn
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.abandoned(turn.result())  # it was let in and cancelled in the same moment
            raise

    def lease(self, avoid: Server | None = None, weight: int = 1) -> Lease | None:
        """Lease the server and key of the next attempt, another server than ``avoid``, which has
        just failed this request, if one has room. None if none has."""
        now = self._clock()
        ready = [s for s in self.servers if self._ready(s, now)]
        usable = ready or [min(self.servers, key=_end_of_rest)]
        rooms = {s: granted for s in usable if (granted := s.window.room(weight))}
        if not rooms or self._in_flight >= self.total:
            return None
        chosen = [s for s in rooms if s is not avoid] or [*rooms]
        least = min(s.window.outstanding for s in chosen)
        tied = [s for s in chosen if s.window.outstanding == least]
        server = tied[self._turn % len(tied)]
        granted = rooms[server]
        self._turn += len(chosen) > 1
        probe = server.failures >= REST_AFTER and bool(ready)
        server.probing = server.probing or probe
        server.window.outstanding += 1
        server.window.held += granted
        self._in_flight += 1
        return Lease(server, self._next_key(now), probe, granted)

    def abandoned(self, lease: Lease) -> None:
        """End a lease whose outcome is unknown, such as that of a cancelled call."""
        server = lease.server
        server.probing = server.probing and not lease.probe
        server.window.outstanding -= 1
        server.window.held -= lease.granted
        self._in_flight -= 1
        self._let_in()

    def succeeded(self, lease: Lease) -> None:
        """End a lease that the server answered, with whatever status."""
        lease.server.failures = 0
        self.abandoned(lease)

    def failed(self, lease: Lease, at_once: bool = False) -> None:
        """End a lease that failed; ``at_once``: the connection was refused, so rest at once."""
        server = lease.server
        server.failures = max(server.failures + 1, REST_AFTER if at_once else 0)
        over = server.failures - REST_AFTER
        if over >= 0:
            rest = min(REST_SECONDS * 2.0 ** min(over, 10), LONGEST_REST)
            server.rests_until = self._clock() + rest
        self.abandoned(lease)

    def give_up(self, error: RequestError) -> None:
        """Fail all waiting requests with the error."""
        waiting, self._waiting = self._waiting, []
        for *_, turn in waiting:
            if not turn.done():
                turn.set_exception(replace(error, final=True))

    def close(self) -> None:
        """Cancel the pending timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def limit_key(self, lease: Lease, seconds: float) -> None:
        """Let the key of a lease rest for some seconds."""
        lease.key.rests_until = self._clock() + seconds

    def refuse_key(self, lease: Lease) -> bool:
        """Use the key of a lease no more; returns whether another one is left to try. When all are
        refused it is the request's doing, and all are used again."""
        lease.key.refused = True
        if not all(key.refused for key in self.keys):
            return True
        for key in self.keys:
            key.refused = False
        return False

    def has_other(self, server: Server) -> bool:
        """Return whether there is another healthy server."""
        now = self._clock()
        return any(s is not server and self._ready(s, now) for s in self.servers)

    def has_other_key(self) -> bool:
        """Return whether some key is neither refused nor resting."""
        now = self._clock()
        return any(not key.refused and key.rests_until <= now for key in self.keys)

    def _let_in(self) -> None:
        now = self._clock()  # before the looks at servers: one may open right behind them
        while self._waiting:
            _, _, weight, avoid, turn = self._waiting[0]
            if not turn.done():
                lease = self.lease(avoid, weight)
                if lease is None:
                    break
                turn.set_result(lease)
            del self._waiting[0]
        self.close()
        if self._waiting:  # a server opens, or its rest ends, without a reply that would lead here
            ends = [t for s in self.servers for t in (s.rests_until, s.window.opens_at) if t > now]
            if ends:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(max(0.001, min(ends) - now), self._let_in)

    def _ready(self, server: Server, now: float) -> bool:
        return server.failures < REST_AFTER or (server.rests_until <= now and not server.probing)

    def _next_key(self, now: float) -> Key:
        usable = [key for key in self.keys if not key.refused] or list(self.keys)
        awake = [key for key in usable if key.rests_until <= now]
        if not awake:
            return min(usable, key=_end_of_rest)
        self._key_turn += 1
        return awake[self._key_turn % len(awake)]


def balance_of(urls: Sequence[str], keys: Sequence[str], section: Concurrency) -> Balance:
    """Return a balance of servers within this process' share of a section's bounds."""
    windows = {url: Window(section.in_flight(1)) for url in urls}
    return Balance(windows, keys, section.in_flight(len(urls)))


def _end_of_rest(one: Server | Key) -> float:
    return one.rests_until
