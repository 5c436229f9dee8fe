"""Several vLLM servers as one: which is asked next, what is tried again, and for how long.

Not :class:`flowright.llm.client.ChatClient`'s tries: a completion has no deadline but waits out a
server's restart, and a server must be ready, with an adapter proven, before it is asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from flowright.config import PolicySection
from flowright.errors import RunError, RunPaused, UserError
from flowright.llm.balance import Balance, Server
from flowright.llm.troubles import Trouble, backoff
from flowright.policy.vllm.proof import Probe, Weights
from flowright.policy.vllm.server import BAD_REPLY, PolicyServer

T = TypeVar("T")

_AWAY = frozenset({"unreachable", "connection", "timeout", "http_429", "http_502", "http_503"})
"""Kinds of trouble that pass when a server is back: they are waited out, not counted."""

_LONGEST_PAUSE = 3.0  # seconds, while one is waited for


@dataclass(slots=True)
class _Tries:
    """What became of one request so far: tries that count and that don't, when the first failed,
    and the server that failed the last."""

    counted: int = 0
    waited: int = 0
    since: float | None = None
    avoid: Server | None = None


class Fleet:
    """The servers of ``section.vllm``. For one event loop."""

    def __init__(self, section: PolicySection, model: str) -> None:
        self._section = section.vllm
        self.servers = {url: PolicyServer(url, model, section) for url in section.vllm.base_urls}
        self._balance = Balance(tuple(self.servers), (section.vllm.api_key,))
        self._slots = asyncio.Semaphore(section.vllm.max_concurrency)
        self._away: set[str] = set()

    async def aclose(self) -> None:
        for server in self.servers.values():
            await server.aclose()

    async def ask(self, key: str, work: Callable[[PolicyServer], Awaitable[T]]) -> T:
        """Let the server with the fewest requests do the work, and another one where it fails.
        ``key`` names the request; pauses are drawn from it.

        Raises RunPaused when no server is there for ``wait_seconds``, or one answers ``attempts``
        times with errors; RunError for what patience does not mend.
        """
        tries = _Tries()
        while True:
            try:
                async with self._slots:
                    return await self._lease(tries, work)
            except Trouble as trouble:
                pause = self._pause(key, tries, trouble, RunPaused)
            await asyncio.sleep(pause)

    async def publish(self, weights: Weights, probe: Probe) -> None:
        """Have the servers serve these weights, proven. One is enough: another that is away gives
        its proof before it is asked for samples.

        Raises RunError when none does so within ``wait_seconds`` or ``attempts``, and at once when
        one serves something else.
        """
        tries = _Tries()
        while True:
            near = [s for url, s in self.servers.items() if url not in self._away]
            found = await all_of(
                self._try_ready(server, weights, probe) for server in near or self.servers.values()
            )
            troubles = [trouble for trouble in found if trouble is not None]
            if len(troubles) < len(found):
                return
            if near and len(near) < len(self.servers):
                continue  # those that were away are tried before anything is waited for
            await asyncio.sleep(self._pause(weights.name, tries, troubles[0], RunError))

    async def _lease(self, tries: _Tries, work: Callable[[PolicyServer], Awaitable[T]]) -> T:
        lease = self._balance.lease(tries.avoid)
        server = self.servers[lease.server.url]
        report = self._balance.abandoned
        try:
            done = await work(server)
            report = self._balance.succeeded
            self._away.discard(server.url)
            return done
        except Trouble as trouble:
            tries.avoid = lease.server
            report = self._balance.failed if trouble.blames_server else self._balance.succeeded
            raise
        finally:
            report(lease)

    async def _try_ready(
        self, server: PolicyServer, weights: Weights, probe: Probe
    ) -> Trouble | None:
        try:
            await server.ready(weights, probe)
        except Trouble as trouble:
            self._away.add(server.url)
            if trouble.final:
                raise _fatal(trouble) from None
            return trouble
        self._away.discard(server.url)
        return None

    def _pause(self, key: str, tries: _Tries, trouble: Trouble, given_up: type[UserError]) -> float:
        """Seconds until the next try. Raises ``given_up`` when there was patience enough."""
        if trouble.final:
            raise _fatal(trouble)
        now = time.monotonic()
        tries.since = now if tries.since is None else tries.since
        tries.waited += trouble.kind in _AWAY
        tries.counted += trouble.kind not in _AWAY
        if trouble.kind in _AWAY and now - tries.since >= self._section.wait_seconds:
            raise given_up(
                f"policy.vllm: no server could be used for {now - tries.since:.0f} s "
                f"(wait_seconds); last: {trouble.message}; start it with: bash "
                "launch_vllm_safe.sh policy, then --resume"
            )
        if tries.counted >= self._section.attempts:
            kind = RunError if trouble.kind == BAD_REPLY else given_up
            raise kind(
                f"policy.vllm: given up after {tries.counted} tries; last: {trouble.message}; see "
                "the server's log, then --resume"
            )
        number = tries.waited + tries.counted
        if number == 1 and len(self.servers) > 1:
            return 0.0  # another server, at once
        return min(backoff(key.encode(), number, self._section.backoff_seconds), _LONGEST_PAUSE)


def _fatal(trouble: Trouble) -> RunError:
    return RunError(f"policy.vllm: {trouble.message}")


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of work that is done at once; the first UserError ends the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* UserError as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


async def check_servers(section: PolicySection, model: str) -> list[str]:
    """What keeps the servers from being sampled from, one line each; empty when all is well."""
    fleet = Fleet(section, model)
    try:
        found = await all_of(server.check() for server in fleet.servers.values())
    finally:
        await fleet.aclose()
    return [problem for problems in found for problem in problems]
