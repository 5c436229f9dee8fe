"""What the requests of each role came to: calls, attempts, failures, waiting, tokens. No requests.

Whoever owns connections has :class:`Counters`; :func:`metrics_since` puts those of a run together.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class RoleCounts:
    """One role's. A call is one request with all its ``attempts``, whose number by the server's
    URL is here, as is that of failed ones by URL and by kind (``http_429``, ``timeout`` ...).
    ``wait_seconds`` are spent in our own queue and in pauses between attempts."""

    calls: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    wait_seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def replied(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Add what a reply took."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def failures_of(self, kind: str = "", url: str | None = None) -> int:
        """Failed attempts of the kinds that begin so, at one server or at all."""
        return sum(
            count
            for (server, name), count in self.failures.items()
            if name.startswith(kind) and url in (None, server)
        )

    def __add__(self, other: "RoleCounts") -> "RoleCounts":
        return RoleCounts(
            self.calls + other.calls,
            self.attempts + other.attempts,
            self.failures + other.failures,
            self.wait_seconds + other.wait_seconds,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def __sub__(self, earlier: "RoleCounts") -> "RoleCounts":
        return RoleCounts(
            self.calls - earlier.calls,
            self.attempts - earlier.attempts,
            self.failures - earlier.failures,
            self.wait_seconds - earlier.wait_seconds,
            self.prompt_tokens - earlier.prompt_tokens,
            self.completion_tokens - earlier.completion_tokens,
        )


class Counters:
    """The counts of one owner of connections since it was made, by role."""

    def __init__(self, urls: Iterable[str]) -> None:
        self.urls = tuple(urls)
        self._roles: dict[str, RoleCounts] = {}
        self._told: dict[str, RoleCounts] = {}

    def role(self, name: str) -> RoleCounts:
        """The role's counts, to be added to."""
        return self._roles.setdefault(name, RoleCounts())

    def since(self) -> dict[str, RoleCounts]:
        """What was added since the last call of this method, by role."""
        now = {name: counts + RoleCounts() for name, counts in self._roles.items()}
        before, self._told = self._told, now
        return {name: counts - before.get(name, RoleCounts()) for name, counts in now.items()}


def metrics_since(owners: Iterable[Counters]) -> dict[str, float]:
    """The metrics of what was counted since they were last asked for, each as
    ``servers/<role>/<name>``.

    ``failures`` are failed attempts of every kind, those with a name of their own (``http_429``,
    ``http_5xx``, ``timeouts``) among them. Where a role has several servers, ``attempts`` and
    ``failures`` are there for each, too, after its ``host:port``. A role of which nothing was
    counted is left out.
    """
    roles: dict[str, RoleCounts] = {}
    urls: dict[str, dict[str, None]] = {}
    for owner in owners:
        for name, counts in owner.since().items():
            roles[name] = roles.get(name, RoleCounts()) + counts
            urls.setdefault(name, {}).update(dict.fromkeys(owner.urls))
    metrics: dict[str, float] = {}
    for name, counts in roles.items():
        if counts == RoleCounts():
            continue
        at = f"servers/{name}"
        metrics |= {
            f"{at}/calls": counts.calls,
            f"{at}/attempts": counts.attempts.total(),
            f"{at}/http_429": counts.failures_of("http_429"),
            f"{at}/http_5xx": counts.failures_of("http_5"),
            f"{at}/timeouts": counts.failures_of("timeout"),
            f"{at}/failures": counts.failures_of(),
            f"{at}/wait_seconds": counts.wait_seconds,
            f"{at}/prompt_tokens": counts.prompt_tokens,
            f"{at}/completion_tokens": counts.completion_tokens,
        }
        for url in urls[name] if len(urls[name]) > 1 else ():
            server = f"{at}/{urlsplit(url).netloc.rpartition('@')[2]}"
            metrics[f"{server}/attempts"] = counts.attempts[url]
            metrics[f"{server}/failures"] = counts.failures_of(url=url)
    return metrics
