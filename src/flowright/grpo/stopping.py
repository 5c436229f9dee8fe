"""A run that is asked to stop finishes its step first."""

import signal
from collections.abc import Callable
from typing import Any


class StopOnSignals:
    """SIGINT and SIGTERM ask for a stop after the step; a second one has its usual effect.

    Plain handlers and not the event loop's, which would hear of nothing if it were stuck.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        self.__exit__()
        self._stop(signal.Signals(number).name)
