"""A control process that measures how much CPU the machine has to give.

Blame for an execution without progress rests on this measure alone, which the execution cannot
influence: not on its state, its threads or their waiting times.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

_PROGRAM = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""
_LOOK_SECONDS = 0.1
_IN_LINE_SHARE = 0.05
_HAS_SCHEDSTAT = Path("/proc/self/schedstat").exists()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, its ended threads included. Raises OSError once
    it is gone.

    The clock is ``clock_getcpuclockid(3)``'s: the complement of the id, shifted, and 2 for the
    scheduler's own count (linux/posix-timers_types.h).
    """
    if pid < 1:  # it would be our own
        raise ProcessLookupError(f"no process {pid}")
    return time.clock_gettime((~pid << 3) | 2)


class Control:
    """The control process of a sandbox; it runs only while a measurement needs it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watchers = 0

    async def offers(
        self, enough: float, patience: float, done: "asyncio.Future[Any]"
    ) -> float | None:
        """Wait until ``done``, but no longer than it takes the machine to offer ``enough`` seconds
        of CPU to a process that wants them. After ``patience`` seconds without either: what it
        did offer; else None. Raises OSError where no process can be started."""
        deadline = time.monotonic() + patience
        async with self._running() as pid:
            start = cpu_seconds(pid)
            while not done.done():
                offered, left = cpu_seconds(pid) - start, deadline - time.monotonic()
                if offered >= enough:
                    return None
                if left <= 0:
                    return offered
                await asyncio.wait({done}, timeout=min(_LOOK_SECONDS, left))
        return None

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[int]:
        """The control's process id; the last of those that look at it ends it."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # as the workers are: some kernels share by session
            )
        self._watchers += 1
        try:
            yield self._process.pid
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                process, self._process = self._process, None
                process.kill()
                await asyncio.to_thread(process.wait)


def stood_in_line(pidfd: int, seconds: float) -> bool:
    """Return whether the process behind ``pidfd`` may have lacked CPU during ``seconds``: a thread
    is ready to run now, waited for a CPU in that time, or cannot be inspected.

    From /proc/PID/task/*/stat and schedstat (Documentation/scheduler/sched-stats.rst). It spares
    sleeping processes the longer measurement; it is no verdict, since a program can make it true.
    """
    pid = _pid_of(pidfd)
    if pid == -1:
        return False
    if not _HAS_SCHEDSTAT:
        return True
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    for task in tasks:
        with suppress(OSError, ValueError, IndexError):  # a thread that has ended proves nothing
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            waited = int((task / "schedstat").read_text().split()[1]) / 1e9
            if state == "R" or waited >= _IN_LINE_SHARE * seconds:
                return True
    return False


def _pid_of(pidfd: int) -> int:
    """Return the process id of a pidfd; -1 once it has ended, 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/self/fdinfo/{pidfd}").read_text().split("\nPid:")[1].split()[0])
    return 0
