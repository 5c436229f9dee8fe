"""A rollout worker: the run's environment in a process of its own, on this machine or another.

It is made from the configuration, opened with the run's tasks, and answers requests, each with what
its servers were asked since the last one. Models' files and keys are read where it runs. Candidate
code runs in the sandbox below it, as in a run without workers.
``python -m flowright.environments.worker FD`` answers over a socket that its parent has opened
(:mod:`flowright.environments.remote`).
"""

import asyncio
import pickle
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop

from flowright.core.errors import Failure, FailureError, FlowrightError, UserError, boundary
from flowright.environments.base import Environment, EnvironmentStatus, make_environment, states_of
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout
from flowright.llm.counters import Outage

_SIZE = struct.Struct("!Q")


class RolloutWorkerLost(FlowrightError):
    """Raised for requests to a worker that has ended."""


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A pickled ``value``, or what was raised; and the worker's condition. ``counts`` of each owner
    of connections: its hosts, what it counted since the last reply, and its outages by address,
    with seconds of their age in the place of ``since``. ``remembers``: the environment has a memory
    of its rollouts."""

    value: bytes = b""
    failure: Failure | None = None
    refusal: UserError | None = None
    fault: str = ""
    counts: Sequence[
        tuple[Sequence[str], Mapping[str, Mapping[str, float]], Mapping[str, Outage]]
    ] = ()
    status: EnvironmentStatus = field(default_factory=EnvironmentStatus)
    remembers: bool = False

    def result(self) -> Any:
        """Return the value, or raise what was raised."""
        if self.failure is not None:
            raise FailureError(self.failure.reason, self.failure.message, self.failure.line)
        if self.refusal is not None:
            raise self.refusal
        if self.fault:
            raise RuntimeError(f"in a rollout worker:\n{self.fault}")
        return pickle.loads(self.value)


class RolloutWorker:
    """An environment that answers requests, for one event loop."""

    def __init__(self) -> None:
        self.opened = AsyncExitStack()
        self._environment: Environment | None = None
        self._remembers = False

    async def ask(self, method: str, *arguments: Any) -> WorkerReply:
        """Call one of the methods below and return its result, whatever it is."""

        async def pickled() -> bytes:
            return pickle.dumps(await getattr(self, method)(*arguments))

        task = asyncio.ensure_future(pickled())
        await asyncio.wait({task})
        reply, error = self._reply(), task.exception()
        if error is None:
            return replace(reply, value=task.result())
        if isinstance(error, FailureError):
            return replace(reply, failure=error.failure)
        if isinstance(error, UserError):
            return replace(reply, refusal=error)
        return replace(reply, fault="".join(traceback.format_exception(error)))

    def _reply(self) -> WorkerReply:
        if self._environment is None:
            return WorkerReply()
        now = time.monotonic()
        counts = [
            (
                owner.hosts,
                owner.since(),
                {url: replace(o, since=now - o.since) for url, o in owner.outages.items()},
            )
            for owner in self._environment.counters()
        ]
        self._remembers = self._remembers or bool(self._environment.state())
        status = self._environment.status()
        return WorkerReply(counts=counts, status=status, remembers=self._remembers)

    async def open(self, config: bytes, tasks: bytes) -> None:
        environment = make_environment(pickle.loads(config))
        await self.opened.enter_async_context(environment.open(pickle.loads(tasks)))
        self._environment = environment

    async def rollout(self, group: Sequence[Episode]) -> list[Rollout]:
        (rollouts,) = await self._made.rollout([group])
        return rollouts

    async def answer(self, episode: Episode) -> Observation | None:
        with boundary("environment") as caught:
            return await self._made.answer_in_time(episode)
        failure = caught.failure
        raise FailureError(failure.reason, failure.message, failure.line)

    async def state(self, without: Sequence[str]) -> Any:
        return self._made.state(without)

    async def restore(self, memory: Any) -> None:
        for state in states_of(memory):
            self._made.restore(state)

    async def check_health(self) -> None: ...

    @property
    def _made(self) -> Environment:
        assert self._environment is not None
        return self._environment


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message; None at the end of the connection."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_message(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.writelines((_SIZE.pack(len(message)), message))


async def _serve(connection: socket.socket) -> None:
    """Answer requests until the parent closes the connection or ends."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    worker = RolloutWorker()

    async def answer(number: int, method: str, arguments: Sequence[Any]) -> None:
        write_message(writer, pickle.dumps((number, await worker.ask(method, *arguments))))
        await writer.drain()

    async with worker.opened, asyncio.TaskGroup() as group:
        running = set[asyncio.Task[None]]()
        while (message := await read_message(reader)) is not None:
            running.add(task := group.create_task(answer(*pickle.loads(message))))
            task.add_done_callback(running.discard)
        for task in running:
            task.cancel()


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # no process of an interpreter or a sandbox has it
    uvloop.run(_serve(connection))


if __name__ == "__main__":
    from flowright.environments.worker import main  # replies are pickled by this module's name

    main()
