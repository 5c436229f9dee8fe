"""Counts of requests by role: calls, attempts, failures, waiting, tokens, and current outages.

Each owner of connections has :class:`Counters`; :func:`metrics_since` and :func:`outages` merge
those of a run.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

FIGURES = (
    "calls", "attempts", "http_429", "http_5xx", "timeouts", "failures", "empty", "wait_seconds",
    "wire_seconds", "prompt_tokens", "completion_tokens",
)  # fmt: skip


@dataclass(slots=True)
class Outage:
    """A server without a served request since ``since`` (seconds of ``time.monotonic``): how
    attempts fail, the roles that ask it, and the calls that wait for it."""

    server: str
    since: float
    kind: str
    roles: set[str] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)

    @property
    def waiting(self) -> int:
        return len(self.calls)


class RoleCounts(defaultdict[str, float]):
    """One role's FIGURES, failures by their kind (``http_503``, ``unreachable`` ...), and
    ``<host:port>/attempts`` and ``/failures`` of each server. A call is one request with all its
    attempts; ``empty`` are replies without content; ``wait_seconds`` pass in our own queue and in
    pauses between attempts, ``wire_seconds`` in attempts at a server."""

    def __init__(self, role: str = "", outages: dict[str, Outage] | None = None) -> None:
        super().__init__(float)
        self._role = role
        self._outages = {} if outages is None else outages

    def lost(self, url: str, kind: str, since: float, call: int) -> None:
        """Count an attempt, begun at ``since``, that failed by the server's fault."""
        outage = self._outages.setdefault(url, Outage(url.rpartition("@")[2], since, kind))
        outage.kind = kind
        outage.roles.add(self._role)
        outage.calls.add(call)

    def answered(self, url: str) -> None:
        """End the server's outage."""
        self._outages.pop(url, None)

    def ended(self, call: int) -> None:
        """Drop a finished call from all outages."""
        for outage in self._outages.values():
            outage.calls.discard(call)

    def attempt(self, url: str) -> None:
        self["attempts"] += 1
        self[f"{_host(url)}/attempts"] += 1

    def failed(self, url: str, kind: str) -> None:
        for name in ("failures", f"{_host(url)}/failures", kind):
            self[name] += 1
        self["timeouts"] += kind == "timeout"
        self["http_5xx"] += kind.startswith("http_5")

    def replied(self, prompt_tokens: int, completion_tokens: int) -> None:
        self["prompt_tokens"] += prompt_tokens
        self["completion_tokens"] += completion_tokens


class Counters:
    """Counts of one owner of connections, by role."""

    def __init__(self, urls: Iterable[str]) -> None:
        self.hosts = tuple(map(_host, urls))
        self._roles: dict[str, RoleCounts] = {}
        self.outages: dict[str, Outage] = {}
        self._reported: dict[str, dict[str, float]] = {}

    def role(self, name: str) -> RoleCounts:
        """Return the role's counts, to be added to."""
        return self._roles.setdefault(name, RoleCounts(name, self.outages))

    def add(self, counts: Mapping[str, Mapping[str, float]]) -> None:
        """Add the counts of :meth:`since` of another process."""
        for role, some in counts.items():
            for name, count in some.items():
                self.role(role)[name] += count

    def since(self) -> dict[str, dict[str, float]]:
        """Return what was added since the last call of this method, by role and name."""
        now = {role: dict(counts) for role, counts in self._roles.items()}
        before, self._reported = self._reported, now
        return {
            role: {name: n - before.get(role, {}).get(name, 0) for name, n in counts.items()}
            for role, counts in now.items()
        }


def metrics_since(owners: Iterable[Counters]) -> dict[str, float]:
    """Return the metrics ``servers/<role>/<name>`` counted since the last call.

    ``failures`` are failed attempts of every kind, ``http_429``, ``http_5xx`` and ``timeouts``
    among them. A role with several servers has ``attempts`` and ``failures`` for each
    ``host:port``, too. A role without counts is left out. The roles ``executor/<model>`` of a pool
    also count as ``executor``.
    """
    roles: defaultdict[str, RoleCounts] = defaultdict(RoleCounts)
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for owner in owners:
        for role, counts in owner.since().items():
            for counted in dict.fromkeys((role, role.partition("/")[0])):
                hosts[counted].update(owner.hosts)
                for name, count in counts.items():
                    roles[counted][name] += count
    metrics: dict[str, float] = {}
    for role, counts in roles.items():
        servers = sorted(hosts[role]) if len(hosts[role]) > 1 else ()
        each = [f"{host}/{name}" for host in servers for name in ("attempts", "failures")]
        if any(counts.values()):
            metrics |= {f"servers/{role}/{name}": counts[name] for name in (*FIGURES, *each)}
    return metrics


def outages(owners: Iterable[Counters]) -> list[Outage]:
    """Return the outages that calls wait for, the longest first."""
    found = [outage for owner in owners for outage in owner.outages.values() if outage.calls]
    return sorted(found, key=lambda outage: outage.since)


@cache
def _host(url: str) -> str:
    """Return ``host:port``, without a password."""
    return urlsplit(url).netloc.rpartition("@")[2]
