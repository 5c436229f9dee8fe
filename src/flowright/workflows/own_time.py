"""The CPU time that a worker process of the interpreter takes for a program, read from outside.

The interpreter's own limit counts wall time, which on a busy machine says nothing of the program.
"""

import asyncio
import os
import signal
from contextlib import suppress

from flowright.sandbox.control import cpu_seconds

_GRACE_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class WorkerClock:
    """The CPU time of a worker since the clock was made, read until the worker has gone.

    A worker that uses a second more than ``allowed`` is killed (``expired``): its own limit, on the
    wall and stretched where the machine is busy, would come much later.
    """

    def __init__(self, worker: int, allowed: float) -> None:
        self.expired = False
        self._worker = worker
        self._allowed = allowed + _GRACE_SECONDS
        self._used = 0.0
        self._last = self._start = self._read()
        self._timer = self._again()

    def stop(self) -> float:
        """The seconds since the last stop, or since the beginning."""
        self._timer.cancel()
        since, self._last = self._last, self._read()
        return self._last - since

    def _read(self) -> float:
        with suppress(OSError):
            self._used = cpu_seconds(self._worker)
        return self._used

    def _again(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self._read() - self._start > self._allowed and not self.expired:
            self.expired = True
            with suppress(ProcessLookupError):
                os.kill(self._worker, signal.SIGKILL)
        else:
            self._timer = self._again()
