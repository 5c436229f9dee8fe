"""One zygote process and the parent's conversation with it.

What work to give it, and what its outcome means, is the pool's affair.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import FlowrightError
from flowright.sandbox.control import stood_in_line

_INSIDE = Path(__file__).with_name("inside")
# Same hashes in every run; one malloc arena and one BLAS thread, or address space limits hit early.
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_KEPT = {"LD_LIBRARY_PATH"}  # without it some interpreters do not find their own library
_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")
_START_SECONDS = 120.0
_ANSWER_SECONDS = 60.0


Longer = Callable[["asyncio.Future[Exit]"], Awaitable[None]]
"""Decides, once the wall time is up, how much longer a child that had no CPU may run."""


class WorkerLost(FlowrightError):
    """The zygote is gone, or a child died for reasons that are not the program's."""


class MachineBusy(WorkerLost):
    """A child got no CPU, and waiting did not help."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a child: exit status, or minus the signal; CPU seconds and most bytes of memory used.
    ``ordered``: this process killed it, ``overtime``: because its time was up."""

    code: int
    cpu_seconds: float
    memory_bytes: int
    ordered: bool
    overtime: bool


class Worker:
    """A zygote; ``dead`` once it is lost or closed."""

    def __init__(self) -> None:
        self.dead = False
        self._on_idle: Callable[[], None] | None = None
        self.report: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._jobs: dict[int, Job] = {}
        self._count = 0

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when no child is left: now, or when the last has ended."""
        self._on_idle = callback
        self._if_idle()

    def _if_idle(self) -> None:
        if self._on_idle is not None and not self._jobs:
            callback, self._on_idle = self._on_idle, None
            callback()

    async def start(self, config: dict[str, Any]) -> None:
        """Start the zygote and wait for its report. Raises WorkerLost."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        errors = os.memfd_create("zygote-errors")
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_OPTIONS, _INSIDE, str(theirs.fileno())],
                env=_ENVIRONMENT | {name: os.environ[name] for name in _KEPT & os.environ.keys()},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            ours.send(json.dumps(config).encode())
            ours.setblocking(False)
            self._ready = loop.create_future()
            loop.add_reader(ours.fileno(), self._on_message)
            async with asyncio.timeout(_START_SECONDS):
                self.report = await self._ready
        except (OSError, TimeoutError, WorkerLost) as error:
            written = os.pread(errors, 4000, 0).decode("utf-8", "replace").strip()
            await self.close()
            last = written.splitlines()[-1] if written else str(error) or type(error).__name__
            raise WorkerLost(f"the sandbox's interpreter did not start: {last}") from None
        except BaseException:
            await self.close()
            raise
        finally:
            theirs.close()
            os.close(errors)

    async def close(self) -> None:
        """End the zygote and, with it, every child."""
        self._lose("the sandbox was closed")
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, 5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        except asyncio.CancelledError:
            process.kill()
            process.wait()
            raise

    def launch(self, children: Sequence[list[int]]) -> "list[Job]":
        """Fork a child for each list of descriptors (see inside/zygote.py). The caller may close
        the descriptors at once. Raises WorkerLost."""
        return [self._fork(descriptors) for descriptors in children]

    async def outcome(
        self, jobs: "Sequence[Job]", wall_seconds: float, longer: "Longer | None" = None
    ) -> list[Exit]:
        """Return how the children ended. When the first of them ends, or the caller is cancelled,
        the others are killed; all are after ``wall_seconds``, but if one of them seems to have had
        no CPU, only once ``longer`` has ended, too. Raises WorkerLost, also from ``longer``."""
        decisive = jobs[0].done
        try:
            await asyncio.wait({decisive}, timeout=wall_seconds)
            if not decisive.done():
                in_line = [await self._in_line(job, wall_seconds) for job in jobs]
                if longer is not None and any(in_line):
                    await longer(decisive)
                for job in jobs:
                    job.overtime = job.number in self._jobs
            for job in jobs:
                self._kill(job)
            async with asyncio.timeout(_ANSWER_SECONDS):
                return [await job.done for job in jobs]
        except TimeoutError:
            self._lose("the sandbox's interpreter does not answer")
            raise WorkerLost("the sandbox's interpreter does not answer") from None
        finally:
            for job in jobs:
                self._kill(job)

    def _fork(self, descriptors: list[int]) -> "Job":
        self._count += 1
        job = Job(self._count, asyncio.get_running_loop().create_future())
        self._tell("fork", job, descriptors)
        if self.dead:
            raise WorkerLost("the sandbox's interpreter is gone")
        self._jobs[job.number] = job
        return job

    def _kill(self, job: "Job") -> None:
        if job.number in self._jobs and not job.ordered:
            job.ordered = True
            self._tell("kill", job)

    def _tell(self, order: str, job: "Job", descriptors: Sequence[int] = ()) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [json.dumps([order, job.number]).encode()], descriptors)
        except OSError as error:
            self._lose(f"the sandbox's interpreter takes no orders: {error.strerror}")

    async def _in_line(self, job: "Job", seconds: float) -> bool:
        """Return whether a child may have had less CPU than it wanted for ``seconds``."""
        if job.number not in self._jobs:
            return False
        job.seen = asyncio.get_running_loop().create_future()
        job.looked_for = seconds
        self._tell("watch", job)
        ends: set[asyncio.Future[Any]] = {job.seen, job.done}
        await asyncio.wait(ends, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return job.seen.done() and job.seen.result()

    def _on_message(self) -> None:
        assert self._control is not None
        try:
            text, descriptors, _, _ = socket.recv_fds(self._control, 65536, 1)
        except BlockingIOError:
            return
        except OSError:
            text, descriptors = b"", []
        if not text:
            self._lose("the sandbox's interpreter ended")
            return
        message = json.loads(text)
        job = self._jobs.get(message.get("id", 0))
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(message)
        elif job is not None and "watch" not in message:
            self._finish(job, message)
        for descriptor in descriptors:  # with "watch"
            if job is not None and job.seen is not None and not job.seen.done():
                job.seen.set_result(stood_in_line(descriptor, job.looked_for))
            os.close(descriptor)

    def _finish(self, job: "Job", message: dict[str, Any]) -> None:
        del self._jobs[job.number]
        if not job.done.done():
            if "lost" in message:
                job.lose(message["lost"])
            else:
                code, cpu, memory = message["code"], message["cpu"], message["memory"]
                job.done.set_result(Exit(code, cpu, memory, job.ordered, job.overtime))
        self._if_idle()

    def _lose(self, reason: str) -> None:
        """Give the zygote up: closing the control socket ends it and its children."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        self.dead = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(WorkerLost(reason))
        for job in self._jobs.values():
            if not job.done.done():
                job.lose(reason)
        self._jobs.clear()
        self._if_idle()


@dataclass(eq=False, slots=True)
class Job:
    """A child on its way: its number, its end to come, and what this process did to it."""

    number: int
    done: asyncio.Future[Exit]
    ordered: bool = False
    overtime: bool = False
    seen: asyncio.Future[bool] | None = None
    looked_for: float = 0.0

    def lose(self, reason: str) -> None:
        self.done.set_exception(WorkerLost(reason))
        self.done.exception()  # seen: the waiter may have left
