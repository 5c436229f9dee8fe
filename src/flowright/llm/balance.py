"""Which server and which key get the next attempt, and how long one that failed is left alone.

Bookkeeping only, with an injected clock: no requests, no waiting.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

REST_AFTER = 3  # failures in a row
REST_SECONDS = 1.0  # doubles with every failed probe
LONGEST_REST = 30.0


@dataclass(slots=True, eq=False)
class Server:
    """One base URL. ``failures`` counts those in a row; ``probing`` while its one probe is out."""

    url: str
    outstanding: int = 0
    failures: int = 0
    rests_until: float = 0.0
    probing: bool = False


@dataclass(slots=True, eq=False)
class Key:
    """One API key. ``refused`` once a server has said 401 or 403 to it."""

    value: str
    rests_until: float = 0.0
    refused: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """The right to send one request; ended by exactly one of Balance's three reports."""

    server: Server
    key: Key
    probe: bool


class Balance:
    """Least outstanding requests over healthy servers, keys in turn.

    A server rests after REST_AFTER failures in a row, or at the first refused connection; when its
    rest is over, one request probes it, and only a success lets the others follow. Where every
    server rests, the one whose rest ends first is used: health decides between servers, it never
    refuses work. A key that was refused is not used again; one that was limited rests.
    """

    def __init__(
        self, urls: Sequence[str], keys: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.servers = tuple(Server(url) for url in urls)
        self.keys = tuple(Key(key) for key in keys)
        self._clock = clock
        self._turn = 0
        self._key_turn = 0

    def lease(self, avoid: Server | None = None) -> Lease:
        """The server and key for the next attempt; ``avoid`` has just failed this request."""
        now = self._clock()
        ready = [s for s in self.servers if self._ready(s, now)]
        if len(ready) > 1:
            ready = [s for s in ready if s is not avoid]
        least = min((s.outstanding for s in ready), default=0)
        tied = [s for s in ready if s.outstanding == least]
        server = tied[self._turn % len(tied)] if tied else min(self.servers, key=_end_of_rest)
        self._turn += len(ready) > 1
        probe = server.failures >= REST_AFTER and bool(ready)
        server.probing = server.probing or probe
        server.outstanding += 1
        return Lease(server, self._next_key(now), probe)

    def abandoned(self, lease: Lease) -> None:
        """The caller went away before anything was learned."""
        lease.server.outstanding -= 1
        if lease.probe:
            lease.server.probing = False

    def succeeded(self, lease: Lease) -> None:
        """The server answered, whatever it thought of the request."""
        self.abandoned(lease)
        lease.server.failures = 0

    def failed(self, lease: Lease, at_once: bool = False) -> None:
        """The server did not answer properly; ``at_once``: nobody was there."""
        server = lease.server
        self.abandoned(lease)
        server.failures = max(server.failures + 1, REST_AFTER if at_once else 0)
        over = server.failures - REST_AFTER
        if over >= 0:
            rest = min(REST_SECONDS * 2.0 ** min(over, 10), LONGEST_REST)
            server.rests_until = self._clock() + rest

    def limit_key(self, lease: Lease, seconds: float) -> None:
        """The key was told to slow down."""
        lease.key.rests_until = self._clock() + seconds

    def refuse_key(self, lease: Lease) -> bool:
        """The key was refused; returns whether another one is left to try."""
        lease.key.refused = len(self.keys) > 1
        return any(not key.refused for key in self.keys) and len(self.keys) > 1

    def has_other(self, server: Server) -> bool:
        """Whether a healthy server other than this one is there."""
        now = self._clock()
        return any(s is not server and self._ready(s, now) for s in self.servers)

    def has_other_key(self) -> bool:
        """Whether some key is neither refused nor resting."""
        now = self._clock()
        return any(not key.refused and key.rests_until <= now for key in self.keys)

    def _ready(self, server: Server, now: float) -> bool:
        return server.failures < REST_AFTER or (server.rests_until <= now and not server.probing)

    def _next_key(self, now: float) -> Key:
        usable = [key for key in self.keys if not key.refused] or list(self.keys)
        awake = [key for key in usable if key.rests_until <= now]
        if not awake:
            return min(usable, key=_end_of_rest)
        self._key_turn += 1
        return awake[self._key_turn % len(awake)]


def _end_of_rest(one: Server | Key) -> float:
    return one.rests_until
