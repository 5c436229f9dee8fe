"""How a run's process is started: as a command, or forked from a process that has loaded torch
once for all runs. Both write to a log, in a session of their own.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from flowright.checkout import child_environment

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD: Mapping[str, str] = dict.fromkeys(_THREADS, "1")
"""Runs share the cores: each has one."""

_LOADED = ["flowright.app.session", "flowright.app.launch", "transformers", "peft"]
_turn = threading.Lock()  # multiprocessing's own records are not made for several threads


class Child(Protocol):
    """A process of a run."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """None while it runs; else anything."""
        ...

    def wait(self) -> int:
        """Its exit status once it is over; below 0 for a signal."""
        ...


Start = Callable[[Sequence[str], Path], Child]
"""Starts a command, which begins with Python and a script, with its output added to a log."""


def spawned(words: Sequence[str], log: Path) -> Child:
    """A new Python."""
    with log.open("ab") as out:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**child_environment(), **ONE_THREAD},
            start_new_session=True,  # Ctrl-C at the terminal is the study's to pass on
        )


class Forked:
    """The script of ``words`` in a fork of a process that has imported what it will import."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        with _turn:
            os.environ.update(ONE_THREAD)  # before torch is loaded
            context.set_forkserver_preload(_LOADED)
            self._process: ForkServerProcess = context.Process(
                target=_run_script, args=([*words[1:]], str(log))
            )
            self._process.start()
            assert self._process.pid is not None
            self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return 0 if connection.wait([self._process.sentinel], 0) else None

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
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
