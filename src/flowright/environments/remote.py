"""An environment whose rollouts run in workers (``rollout.workers``).

Tasks, prompts, metrics and records stay in the trainer's process; groups go to the workers, all of
a task to the same one, so that its judge's cache answers as one of a single process would (each has
``judge.cache_size`` verdicts). A worker that ends, or does not answer in time, is replaced: the new
one gets the memory of the old one, and its unanswered requests are made again with the same seeds.
"""

import asyncio
import hashlib
import math
import pickle
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol, Self, cast

from flowright.config.grpo import RolloutSection
from flowright.core.batch_calls import all_of
from flowright.core.checkout import child_environment
from flowright.core.errors import FailureError, RunPaused, UserError
from flowright.data.task import Task
from flowright.environments.base import OF_WORKERS, Environment, EnvironmentStatus, states_of
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout
from flowright.environments.worker import (
    RolloutWorkerLost,
    WorkerReply,
    read_message,
    write_message,
)
from flowright.llm.counters import Counters

SILENCE_SECONDS = 60.0
"""Limit of a health check, after which a worker is replaced."""
OPENING_SECONDS = 600.0
MOST_LOSSES = 3
"""Losses of a worker before the run pauses: without an answer in between, or with one request."""
_CLOSING_SECONDS = 10.0
_CHECK_SECONDS = 1.0
_MOST_LOGGED = 64  # requests, after which the memory is fetched


class WorkerProcess(Protocol):
    """A process with a :class:`flowright.environments.worker.RolloutWorker`."""

    async def ask(self, method: str, *arguments: Any) -> WorkerReply:
        """Return the worker's reply. Raises RolloutWorkerLost when it ends before."""
        ...

    def kill(self, why: str) -> None:
        """End it at once; open requests raise RolloutWorkerLost."""
        ...

    async def close(self) -> None: ...


StartWorker = Callable[[], Awaitable[WorkerProcess]]


class ChildProcess:
    """A worker as a child of this process, over a socket that no other process has."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._requests: dict[int, asyncio.Future[WorkerReply]] = {}
        self._numbers = count()
        self._why = ""
        self._writer: asyncio.StreamWriter
        self._receiving: asyncio.Task[None]

    @classmethod
    async def start(cls) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            # In its own session: Ctrl-C stops the trainer, which closes its workers.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "flowright.environments.worker", str(theirs.fileno())),
                env=child_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        made = cls(process)
        reader, made._writer = await asyncio.open_unix_connection(sock=ours)
        made._receiving = asyncio.create_task(made._receive(reader))
        return made

    async def ask(self, method: str, *arguments: Any) -> WorkerReply:
        if self._receiving.done():
            raise RolloutWorkerLost(self._why)
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._requests[number] = future
        if not self._writer.is_closing():  # else the receiver is about to report it
            write_message(self._writer, pickle.dumps((number, method, arguments)))
            with suppress(ConnectionError):
                await self._writer.drain()
        return await future

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await read_message(reader)) is not None:
                number, reply = pickle.loads(message)
                if not (future := self._requests.pop(number)).done():
                    future.set_result(reply)
        finally:
            self._writer.close()
            with suppress(ProcessLookupError):
                self._process.kill()  # it has closed the connection, or sent what cannot be read
            code = await self._process.wait()
            how = f"ended with status {code}" if code >= 0 else f"was ended by signal {-code}"
            self._why = self._why or f"process {self._process.pid} {how}"
            for future in self._requests.values():
                if not future.done():
                    future.set_exception(RolloutWorkerLost(self._why))

    def kill(self, why: str) -> None:
        self._why = self._why or why
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End it once it has closed its environment."""
        if not self._writer.is_closing():
            self._writer.write_eof()
        if not (await asyncio.wait({self._receiving}, timeout=_CLOSING_SECONDS))[0]:
            self.kill("closed")
            if not (await asyncio.wait({self._receiving}, timeout=_CLOSING_SECONDS))[0]:
                self._receiving.cancel()


@dataclass(eq=False)
class _Place:
    """A worker's place, which outlives its processes. ``log``: answered requests that ``memory``
    does not have yet; empty where there is nothing to remember. ``is_behind``: the process has not
    got the memory of a resumed run."""

    number: int
    process: WorkerProcess | None = None
    starts: int = 0
    was_open: bool = False
    why: str = ""
    status: EnvironmentStatus = field(default_factory=EnvironmentStatus)
    counters: list[Counters] = field(default_factory=list)
    memory: Any = None
    is_behind: bool = False
    remembers: bool = False
    log: list[tuple[str, Any]] = field(default_factory=list)
    open_requests: list[tuple[str, Any]] = field(default_factory=list)
    episodes: int = 0
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    room: asyncio.Condition = field(default_factory=asyncio.Condition)


class Workers:
    """The workers of a run: who gets what, and what becomes of those that are lost."""

    def __init__(
        self,
        section: RolloutSection,
        start: StartWorker,
        say: Callable[[str], None],
        opening: tuple[bytes, bytes],
        silence_seconds: float,
    ) -> None:
        self._section = section
        self._start_worker = start
        self._say = say
        self._opening = opening
        self._silence = silence_seconds
        self.places = [_Place(number) for number in range(section.workers)]
        self.lost = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watching = list[asyncio.Task[None]]()
        try:
            await all_of(self._ask(place, "check_health") for place in self.places)
            watching += [asyncio.create_task(self._watch(place)) for place in self.places]
            yield
        finally:
            for task in watching:
                task.cancel()
            processes = [place.process for place in self.places if place.process is not None]
            await asyncio.gather(*(process.close() for process in processes))

    def place_of(self, task: Task) -> _Place:
        digest = hashlib.sha256(task.problem.encode("utf-8", "replace")).digest()
        return self.places[int.from_bytes(digest[:8]) % len(self.places)]

    async def ask_about(self, place: _Place, method: str, about: Any, episodes: int) -> Any:
        """Return a worker's answer about episodes, once there is room for them. Raises RunPaused
        where workers are lost again and again."""
        async with place.room:
            most = self._section.episodes_per_worker
            await place.room.wait_for(
                lambda: not place.episodes or place.episodes + episodes <= most
            )
            place.episodes += episodes
        request = (method, about)
        place.open_requests.append(request)
        try:
            answer = await self._ask(place, method, about)
            if place.remembers:
                place.log.append(request)
            return answer
        finally:
            place.open_requests.remove(request)
            place.episodes -= episodes
            async with place.room:
                place.room.notify_all()

    async def memory(self, without: Sequence[str]) -> Any:
        states = await all_of(self._ask(place, "state", [*without]) for place in self.places)
        return {OF_WORKERS: states} if any(states) else None

    def remember(self, memory: Any) -> None:
        states = states_of(memory)
        for number, place in enumerate(self.places):
            same = len(states) == len(self.places)
            place.memory, place.is_behind = states[number] if same else memory, True

    async def _ask(self, place: _Place, method: str, *arguments: Any) -> Any:
        for number in range(1, MOST_LOSSES + 1):
            try:
                process = await self._process(place)
                return await self._ask_once(place, process, method, *arguments)
            except RolloutWorkerLost as error:
                if number == MOST_LOSSES:
                    raise self._pause(place, str(error)) from None
        raise AssertionError("MOST_LOSSES is positive")

    def _pause(self, place: _Place, why: str) -> RunPaused:
        return RunPaused(
            f"rollout worker {place.number} was lost {MOST_LOSSES} times in a row ({why}); "
            "nothing was trained on its episodes; mend the cause and start again with --resume"
        )

    async def _ask_once(
        self, place: _Place, process: WorkerProcess, method: str, *arguments: Any
    ) -> Any:
        limits = {"open": OPENING_SECONDS, "check_health": self._silence}
        seconds = limits.get(method, self._section.timeout_seconds)
        asking = asyncio.ensure_future(process.ask(method, *arguments))
        try:
            # In slices: while our own loop is busy, a worker's answer waits for us.
            for _ in range(math.ceil(seconds / _CHECK_SECONDS)):
                if (await asyncio.wait({asking}, timeout=_CHECK_SECONDS))[0]:
                    break
            else:
                process.kill(why := f"no answer to {method} in {seconds:g} s")
                if not (await asyncio.wait({asking}, timeout=_CLOSING_SECONDS))[0]:
                    raise RolloutWorkerLost(why)  # the kernel does not let it end
            reply = await asking
        except RolloutWorkerLost as error:
            place.why = str(error)
            if place.process is process:
                place.process = None
                self.lost += 1
            raise
        finally:
            asking.cancel()
        self._count(place, reply)
        answer = reply.result()
        if method not in limits:
            place.starts = 0
        return answer

    def _count(self, place: _Place, reply: WorkerReply) -> None:
        for number, (hosts, counts, outages) in enumerate(reply.counts):
            if number == len(place.counters):
                place.counters.append(Counters([]))
            counters, now = place.counters[number], time.monotonic()
            # All read the same file of models; an embedded server has a port in each.
            counters.hosts = tuple(hosts) if place.number == 0 else ()
            counters.add(counts)
            counters.outages = {
                url: replace(outage, since=now - outage.since) for url, outage in outages.items()
            }
        place.status, place.remembers = reply.status, reply.remembers or place.remembers

    async def _process(self, place: _Place) -> WorkerProcess:
        """Return the running process of a place, started anew if there is none."""
        async with place.starting:
            if place.process is not None:
                if place.is_behind:
                    await self._ask_once(place, place.process, "restore", place.memory)
                    place.is_behind = False
                return place.process
            if place.starts == MOST_LOSSES:
                raise self._pause(place, place.why)
            place.starts += 1
            process = await self._start_worker()
            try:
                await self._bring_up(place, process)
            except BaseException:
                process.kill("not opened")
                await process.close()
                raise
            place.process = process
            return process

    async def _bring_up(self, place: _Place, process: WorkerProcess) -> None:
        try:
            await self._ask_once(place, process, "open", *self._opening)
        except UserError as error:
            if not place.was_open:
                raise
            place.why = f"a new one cannot be opened: {'; '.join(error.problems)}"
            raise RolloutWorkerLost(place.why) from None
        if place.was_open:
            waiting = len(place.open_requests)
            self._say(
                f"rollout worker {place.number} was lost ({place.why}); a new one makes its "
                f"{waiting} requests again, and {len(place.log)} for its memory"
            )
        if place.memory is not None:
            await self._ask_once(place, process, "restore", place.memory)
        repeated = (self._ask_once(place, process, *request) for request in place.log)
        for found in await asyncio.gather(*repeated, return_exceptions=True):
            if isinstance(found, Exception) and not isinstance(found, FailureError):
                raise found
        place.was_open, place.is_behind = True, False

    async def _watch(self, place: _Place) -> None:
        """Check a worker's health, and fetch its memory where the log has become long."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if (process := place.process) is None:
                continue
            with suppress(RolloutWorkerLost):  # replaced at the next request
                await self._ask_once(place, process, "check_health")
                if len(place.log) >= _MOST_LOGGED:
                    await self._shorten_log(place, process)

    async def _shorten_log(self, place: _Place, process: WorkerProcess) -> None:
        """Fetch the memory without the groups of open requests, which stay in the log."""
        running = {_group_key(about) for _, about in place.open_requests}
        before = [*place.log]
        memory = await self._ask_once(place, process, "state", sorted(running))
        done = [r for r in before if _group_key(r[1]) not in running]
        place.memory = memory
        place.log = [request for request in place.log if request not in done]


def _group_key(about: Episode | Sequence[Episode]) -> str:
    """Return the beginning of the keys of a group's episodes."""
    episode = about if isinstance(about, Episode) else about[0]
    return episode.key.rpartition("/")[0] + "/"


class RemoteEnvironment(Environment):
    """Mixin of an environment whose rollouts run in workers; see :func:`with_workers`."""

    _workers: Workers
    _section_of_workers: RolloutSection
    _start_worker: StartWorker
    _say: Callable[[str], None]
    _silence_seconds: float

    @asynccontextmanager
    async def open(self, tasks: Sequence[Task]) -> AsyncIterator[None]:
        opening = pickle.dumps(self.config), pickle.dumps([*tasks])
        section = self._section_of_workers
        self._workers = Workers(
            section, self._start_worker, self._say, opening, self._silence_seconds
        )
        async with self._workers.running():
            yield

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return await all_of(
            self._workers.ask_about(
                self._workers.place_of(group[0].task), "rollout", group, len(group)
            )
            for group in groups
        )

    async def answer_in_time(self, episode: Episode) -> Observation | None:
        return await self._workers.ask_about(
            self._workers.place_of(episode.task), "answer", episode, 1
        )

    async def memory(self, without: Sequence[str] = ()) -> Any:
        return await self._workers.memory(without)

    def remember(self, memory: Any) -> None:
        self._workers.remember(memory)

    def counters(self) -> Sequence[Counters]:
        return [counters for place in self._workers.places for counters in place.counters]

    def status(self) -> EnvironmentStatus:
        return joined_status([place.status for place in self._workers.places])

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        lost = {"rollout/workers_lost": float(self._workers.lost)}
        return super().summarise(rollouts) | lost

    def introduction(self) -> Sequence[str]:
        return [*super().introduction(), f"workers   {self._section_of_workers.workers} roll out"]


def joined_status(several: Sequence[EnvironmentStatus]) -> EnvironmentStatus:
    """Return the status of several workers as that of one: the weakest isolation, all counts."""
    known = [each.sandbox for each in several if each.sandbox is not None]
    weakest = min(known, key=lambda status: status.isolation.sufficient, default=None)
    if weakest is not None:
        weakest = replace(
            weakest,
            retried=sum(status.retried for status in known),
            prolonged=sum(status.prolonged for status in known),
        )
    notes = dict.fromkeys(note for each in several for note in each.notes)
    return EnvironmentStatus(any(each.simulated for each in several), tuple(notes), weakest)


def with_workers(
    environment: Environment,
    section: RolloutSection,
    say: Callable[[str], None],
    start: StartWorker | None = None,
    silence_seconds: float = SILENCE_SECONDS,
    ranks: int = 1,
) -> Environment:
    """Return the environment of one of so many ``ranks``, not yet open, with its rollouts in the
    workers of ``section``, if any, and its share of the run's requests. ``say`` shows a line about
    a worker that was lost. ``start``: default processes on this machine."""
    environment = copy(environment)
    llm = environment.config.llm.shared_by(ranks * max(section.workers, 1))
    environment.config = environment.config.model_copy(update={"llm": llm})
    if not section.workers:
        return environment
    kind = type(environment)
    made = cast(
        RemoteEnvironment, object.__new__(type(kind.__name__, (RemoteEnvironment, kind), {}))
    )
    vars(made).update(vars(environment))
    made._section_of_workers, made._say = section, say
    made._start_worker = start or ChildProcess.start
    made._silence_seconds = silence_seconds
    return made
