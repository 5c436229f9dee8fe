"""Worker processes of the interpreter: their pool, the limits of a session, the CPU time used."""

import asyncio
import atexit
import os
import shlex
import shutil
import signal
import time
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

from pydantic_monty import AsyncMonty, AsyncMontySession, OSPolicy, ResourceLimits
from pydantic_monty._binary import find_monty_binary

from flowright.config.workflow import WorkflowSection
from flowright.sandbox.control import cpu_seconds

# Monty's threads may still hand a result to Python when the last pool has been closed; a process
# that ends in that moment aborts (measured: up to half of the runs that parked many programs, none
# with a tenth of a second between). So the end of the process waits.
_EXIT_PAUSE_SECONDS = 0.3


def hold_exit() -> None:
    """Note that a pool is in use or was closed just now."""
    atexit.unregister(_pause)
    atexit.register(_pause, time.monotonic())


def _pause(last_used: float) -> None:
    time.sleep(max(0.0, _EXIT_PAUSE_SECONDS - (time.monotonic() - last_used)))


@cache
def quiet_binary() -> str | None:
    """Return a wrapper of the interpreter's binary without its lines on stderr.

    A program's failure is in its result; a line such as "allocation exceeds the memory limit" on
    the terminal would look like an error of the run. None where temporary files cannot be executed:
    the lines are shown then.
    """
    folder = Path(mkdtemp(prefix="flowright-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wrapper = folder / "monty"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(find_monty_binary())} "$@" 2>/dev/null\n')
    wrapper.chmod(0o700)
    return str(wrapper) if os.access(wrapper, os.X_OK) else None


_GRACE_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class WorkerClock:
    """CPU time of a worker since the clock was made, read from outside.

    The interpreter's own limit counts wall time, which on a busy machine measures other programs.
    A worker that uses a second more than ``allowed`` is killed (``expired``).
    """

    def __init__(self, worker: int, allowed: float) -> None:
        self.expired = False
        self._worker = worker
        self._allowed = allowed + _GRACE_SECONDS
        self._used = 0.0
        self._last = self._start = self._read()
        self._timer = self._again()

    def stop(self) -> float:
        """Return the seconds since the last stop, or since the beginning."""
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


MAX_RECURSION = 300
MOST_PATIENCE = 64.0  # wall time for computing at most, in units of the CPU time allowed
TURNS_PER_LLM_CALL = 64  # events of one program, per model call that it may make


class Interpreter:
    """Pool of worker processes; an async context manager for one event loop."""

    def __init__(self, limits: WorkflowSection) -> None:
        self.limits = limits
        self.workers = limits.workers or len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(self.workers)
        self._wanted = 0
        self._stack = AsyncExitStack()
        # Every limit is set, also those that the interpreter's own should make unreachable.
        self._pool = AsyncMonty(
            binary_path=quiet_binary(),
            min_processes=self.workers,
            max_processes=self.workers,
            checkout_timeout=60.0,
            request_timeout=10.0 + MOST_PATIENCE * limits.own_seconds,
            max_checkouts_per_worker=10_000,
            feed_duration_limit_grace=4.0,
            turn_duration_limit_grace=4.0,
        )

    async def __aenter__(self) -> Self:
        hold_exit()
        await self._stack.enter_async_context(self._pool)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
        hold_exit()

    @property
    def crowded(self) -> bool:
        """True while programs wait for a worker."""
        return self._wanted > 0

    async def checkout(
        self, policy: OSPolicy, patience: float
    ) -> tuple[AsyncMontySession, AsyncExitStack]:
        """Wait for a free worker; return a fresh session and the stack that gives it back.
        ``patience``: wall time for computing, in units of the CPU time that a program may use."""
        async with AsyncExitStack() as stack:
            self._wanted += 1
            try:
                await self._slots.acquire()
            finally:
                self._wanted -= 1
            stack.callback(self._slots.release)
            own = patience * self.limits.own_seconds
            limits: ResourceLimits = {
                "max_feed_duration_secs": own,
                "max_turn_duration_secs": own,
                "max_memory": self.limits.memory_mb << 20,
                "gc_interval": None,
                "max_recursion_depth": MAX_RECURSION,
                "max_suspensions": 2 * self.max_turns,
                "max_total_sleep_secs": 0.0,
            }
            session = await stack.enter_async_context(
                self._pool.checkout(
                    script_name="workflow.py",
                    limits=limits,
                    type_check=False,
                    assert_message_annotations=False,
                    os_policy=policy,
                )
            )
            return session, stack.pop_all()

    @property
    def max_turns(self) -> int:
        """Most events of one program."""
        return TURNS_PER_LLM_CALL * self.limits.max_llm_calls
