"""A run that is asked to stop finishes its step first."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

AT_ONCE_SECONDS = 1.0
"""Supervisors such as torchrun send SIGTERM to the process and to its group: that is one request,
not a second one."""


class StopOnSignals:
    """SIGINT and SIGTERM ask for a stop after the step; a second one has its usual effect.

    Plain handlers and not the event loop's, which would hear of nothing if it were stuck. One rank
    of ``several`` that leaves by an error is terminated by torchrun at once: it may say why first.
    """

    def __init__(self, stop: Callable[[str], None], several: bool = False) -> None:
        self._stop = stop
        self._several = several
        self._before: dict[signal.Signals, Any] = {}
        self._asked: float | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a worker of Ray, which hears no signals; Ray stops it
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._restore()
        if error is not None and self._several and self._before:
            signal.signal(signal.SIGTERM, lambda *_: None)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
            self._stop(signal.Signals(number).name)
        elif number == signal.SIGINT or now - self._asked > AT_ONCE_SECONDS:
            self._restore()
            signal.raise_signal(number)
