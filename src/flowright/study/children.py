"""How a run's process is started: as a command, or forked from a process that has loaded torch
once for all runs. Both write to a log, in a session of their own.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from flowright.core.checkout import child_environment

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD: Mapping[str, str] = dict.fromkeys(_THREADS, "1")
"""Runs share the cores: each has one."""

_LOADED = ["flowright.app.session", "flowright.app.launch", "transformers", "peft"]
_turn = threading.Lock()  # multiprocessing's own records are not made for several threads


class Child(Protocol):
    """A process of a run."""

    def signal(self, number: signal.Signals) -> None:
        """To the process, where it still runs; a kill also to what it has started."""
        ...

    def wait(self) -> int:
        """Its exit status once it is over; below 0 for a signal."""
        ...


Start = Callable[[Sequence[str], Path], Child]
"""Starts a command, of Python with a script, or with -m and a module; its output goes to a log."""


class Spawned:
    """A new Python. ``also``: variables of its environment beside this process's."""

    def __init__(
        self, words: Sequence[str], log: Path, also: Mapping[str, str] | None = None
    ) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**child_environment(), **ONE_THREAD, **(also or {})},
                start_new_session=True,  # Ctrl-C at the terminal is the study's to pass on
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            send(self._process.pid, number)

    def wait(self) -> int:
        return self._process.wait()


def send(pid: int, number: signal.Signals) -> None:
    """A signal to the first process of a session; a kill to all of it."""
    with suppress(ProcessLookupError):
        (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)


class Forked:
    """The script or module of ``words``, in a fork of a process with all imports loaded."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        with _turn:
            os.environ.update(ONE_THREAD)  # before torch is loaded
            context.set_forkserver_preload(_LOADED)
            self._process: ForkServerProcess = context.Process(
                target=_run_script, args=([*words[1:]], str(log))
            )
            self._process.start()

    def signal(self, number: signal.Signals) -> None:
        if not connection.wait([self._process.sentinel], 0):
            assert self._process.pid is not None
            send(self._process.pid, number)

    def wait(self) -> int:
        connection.wait([self._process.sentinel])
        with _turn:
            self._process.join()
            return self._process.exitcode or 0


def _run_script(words: list[str], log: str) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, out), (2, out)):
        os.dup2(file, number)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__")
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
