"""Several vLLM servers as one: which is asked next, what is tried again, and for how long.

A completion has no deadline but waits out a server's restart, and a server must be ready, with an
adapter proven, before it is asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from flowright.config.policy import PolicySection
from flowright.core.errors import RunError, RunPaused, UserError
from flowright.llm.counters import Counters
from flowright.llm.retries import Balance, Call, Lease, Retries, RetryPolicy
from flowright.llm.transport import RequestError
from flowright.policy.vllm.proof import Probe, Weights
from flowright.policy.vllm.requests import BAD_REPLY
from flowright.policy.vllm.server import PolicyServer, how_to_start

T = TypeVar("T")

ROLE = "policy"
_AWAY = frozenset({"unreachable", "connection", "timeout", "http_429", "http_502", "http_503"})
"""Kinds of failure that pass when a server is back: they are waited out, not counted."""

_LONGEST_PAUSE = 3.0  # seconds


class Fleet:
    """The servers of ``section.vllm``. For one event loop. ``counters`` has what :meth:`ask` did;
    adapters and proofs are not in it."""

    def __init__(self, section: PolicySection, model: str) -> None:
        vllm = section.vllm
        self.servers = {url: PolicyServer(url, model, section) for url in vllm.base_urls}
        self.counters = Counters(self.servers)
        balance = Balance(tuple(self.servers), (vllm.api_key,))
        self._retries = Retries(balance, vllm.max_concurrency)
        self._policy = RetryPolicy(
            attempts=vllm.attempts,
            first_pause=vllm.backoff_seconds,
            longest_pause=_LONGEST_PAUSE,
            away=_AWAY,
            away_seconds=vllm.wait_seconds,
            ends_away=True,
        )
        self._away: set[str] = set()

    async def aclose(self) -> None:
        for server in self.servers.values():
            await server.aclose()

    def proof_metrics(self, name: str) -> dict[str, float]:
        """Of the proofs for an adapter; of several servers' the least certain one."""
        found = [server.proof(name) for server in self.servers.values()]
        proofs = [proof for proof in found if proof is not None]
        if not proofs:
            return {}
        return min(proofs, key=lambda proof: (proof.decided, -proof.lacking)).metrics()

    async def ask(self, key: str, work: Callable[[PolicyServer], Awaitable[T]]) -> T:
        """Let the server with the fewest requests do the work, and another one where it fails.
        ``key`` names the request; pauses are drawn from it.

        Raises RunPaused when no server is there for ``wait_seconds``, or one answers ``attempts``
        times with errors; RunError for what patience does not mend.
        """

        async def attempt(lease: Lease) -> T:
            server = self.servers[lease.server.url]
            done = await work(server)
            self._away.discard(server.url)
            return done

        call = self._call(key)
        try:
            return await self._retries.run(call, attempt)
        except RequestError as error:
            raise _given_up(call, error, RunPaused) from None

    async def publish(self, weights: Weights, probe: Probe) -> None:
        """Have the servers serve these weights, proven. One is enough: another that is away gives
        its proof before it is asked for samples.

        Raises RunError when none does so within ``wait_seconds`` or ``attempts``, and at once when
        one serves something else.
        """
        call = self._call(weights.name)
        while True:
            began = time.monotonic()
            near = [s for url, s in self.servers.items() if url not in self._away]
            found = await all_of(
                self._try_ready(server, weights, probe) for server in near or self.servers.values()
            )
            call.spent += time.monotonic() - began
            errors = [error for error in found if error is not None]
            if len(errors) < len(found):
                return
            if near and len(near) < len(self.servers):
                continue  # those that were away are tried before anything is waited for
            call.attempts += 1
            pause = call.next_pause(errors[0])
            if pause is None:
                raise _given_up(call, errors[0], RunError)
            await call.sleep(pause)

    def _call(self, key: str) -> Call:
        return Call(self._policy, key.encode(), self.counters.role(ROLE))

    async def _try_ready(
        self, server: PolicyServer, weights: Weights, probe: Probe
    ) -> RequestError | None:
        try:
            await server.ready(weights, probe)
        except RequestError as error:
            self._away.add(server.url)
            self.counters.role(ROLE).lost(server.url, error.kind, time.monotonic(), id(server))
            if error.final:
                raise RunError(f"policy.vllm: {error.message}") from None
            return error
        self._away.discard(server.url)
        self.counters.role(ROLE).answered(server.url)
        return None


def _given_up(call: Call, error: RequestError, kind: type[UserError]) -> UserError:
    """What is raised for a call that ended so: ``kind``, where more patience might have helped."""
    if error.final:
        return RunError(f"policy.vllm: {error.message}")
    if error.kind in _AWAY:
        return kind(
            f"policy.vllm: no server could be used for {call.failing:.0f} s (wait_seconds); last: "
            f"{error.message}; {how_to_start()}, then --resume"
        )
    kind = RunError if error.kind == BAD_REPLY else kind
    return kind(
        f"policy.vllm: given up after {call.counted} attempts; last: {error.message}; see the "
        "server's log, then --resume"
    )


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of work that is done at once; the first UserError ends the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* UserError as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


async def check_servers(
    section: PolicySection, model: str, adapter: Path | None = None
) -> list[str]:
    """What keeps the servers from being sampled from, one line each; empty when all is well.
    ``adapter``: see :meth:`flowright.policy.vllm.server.PolicyServer.check`."""
    fleet = Fleet(section, model)
    try:
        found = await all_of(server.check(adapter) for server in fleet.servers.values())
    finally:
        await fleet.aclose()
    return [problem for problems in found for problem in problems]
