"""A run that is asked to stop finishes its step first."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE_SECONDS = 1.0
"""Supervisors such as torchrun send SIGTERM to the process and to its group: that is one request,
not a second one."""


@contextmanager
def stop_on_signals(stop: Callable[[str], None], several: bool = False) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a stop after the step; a second one has its usual effect.

    Plain handlers and not the event loop's, which would hear of nothing if it were stuck. One rank
    of ``several`` that leaves by an error is terminated by torchrun at once: it may say why first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # a worker of Ray, which hears no signals; Ray stops it
        return
    asked: float | None = None

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        now = time.monotonic()
        if asked is None:
            asked = now
            stop(signal.Signals(number).name)
        elif number == signal.SIGINT or now - asked > AT_ONCE_SECONDS:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException:
        restore()
        if several:
            signal.signal(signal.SIGTERM, lambda *_: None)
        raise
    restore()
