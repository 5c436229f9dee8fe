"""The end of the process waits for the interpreter's threads. No pool is kept here."""

import atexit
import time

# Monty's threads may still hand a result to Python when the last pool has been closed; a process
# that ends in that moment aborts (measured: up to half of the runs that parked many programs, none
# with a tenth of a second between). So the end of the process waits.
_EXIT_PAUSE_SECONDS = 0.3


def hold_exit() -> None:
    """Say that a pool is in use or was closed just now."""
    atexit.unregister(_pause)
    atexit.register(_pause, time.monotonic())


def _pause(last_used: float) -> None:
    time.sleep(max(0.0, _EXIT_PAUSE_SECONDS - (time.monotonic() - last_used)))
