"""Several vLLM servers of one model: each piece of work goes to the least busy, with retries."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from flowright.config.section import ServersSection
from flowright.core.errors import RunError, RunPaused, UserError
from flowright.llm.balance import Lease, balance_of
from flowright.llm.counters import Counters
from flowright.llm.retries import RetriedCall, Retries, RetryPolicy
from flowright.llm.transport import RequestError
from flowright.policy.vllm.requests import BAD_REPLY

T = TypeVar("T")

_LONGEST_PAUSE = 3.0  # seconds
_RESTARTING = frozenset(
    {"unreachable", "connection", "timeout", "http_429", "http_502", "http_503"}
)
"""Kinds of failure that pass when a server is back: they are waited out, not counted."""


class FleetServer(Protocol):
    """One server."""

    async def aclose(self) -> None: ...


S = TypeVar("S", bound=FleetServer)


class Fleet(Generic[S]):
    """Servers by URL, for one event loop. ``role`` is theirs in ``counters``; ``key`` is their
    section's name and ``remedy`` how to start one, for messages."""

    def __init__(
        self, servers: Mapping[str, S], section: ServersSection, role: str, key: str, remedy: str
    ) -> None:
        self.servers = servers
        self.counters = Counters(servers)
        self._role, self._key, self._remedy = role, key, remedy
        balance = balance_of(tuple(servers), (section.api_key,), section)
        self._retries = Retries(balance, section.request_seconds / 2)
        self._policy = RetryPolicy(
            attempts=section.attempts,
            first_pause=section.backoff_seconds,
            longest_pause=_LONGEST_PAUSE,
            away=_RESTARTING,
            away_seconds=section.wait_seconds,
            ends_away=True,
        )

    async def aclose(self) -> None:
        self._retries.balance.close()
        for server in self.servers.values():
            await server.aclose()

    async def ask(self, key: str, work: Callable[[S], Awaitable[T]]) -> T:
        """Have the server with the fewest requests do the work, and another one if it fails.
        ``key`` names the request; pauses are drawn from it.

        Raises RunPaused if no server can be used for ``wait_seconds``, or ``attempts`` replies are
        errors; RunError for what waiting does not mend.
        """

        async def attempt(lease: Lease) -> T:
            done = await work(self.servers[lease.server.url])
            self.answered(lease.server.url)
            return done

        call = self.call(key)
        try:
            return await self._retries.run(call, attempt)
        except RequestError as error:
            raise self.final_error(call, error, RunPaused) from None

    def answered(self, url: str) -> None:
        """Note that a server has done its work."""

    def call(self, key: str) -> RetriedCall:
        return RetriedCall(self._policy, key.encode(), self.counters.role(self._role))

    def final_error(
        self, call: RetriedCall, error: RequestError, kind: type[UserError]
    ) -> UserError:
        """Return the error of a call that ended so: ``kind`` if waiting might have helped."""
        if error.final:
            return RunError(f"{self._key}: {error.message}")
        if error.kind in _RESTARTING:
            return kind(
                f"{self._key}: no server could be used for {call.failing:.0f} s (wait_seconds); "
                f"last: {error.message}; {self._remedy}, then --resume"
            )
        kind = RunError if error.kind == BAD_REPLY else kind
        return kind(
            f"{self._key}: given up after {call.counted} attempts; last: {error.message}; see the "
            "server's log, then --resume"
        )
