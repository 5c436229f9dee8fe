"""The lock that says whether a trainer owns a run directory. The kernel drops it with the process,
even after ``kill -9``; a process id in a file would not do, since ids are used again.
"""

import fcntl
import os
from pathlib import Path
from typing import IO

from flowright.errors import RunError


def take_lock(run: Path) -> IO[str]:
    """Own the directory until the file is closed. Raises RunError where another trainer does."""
    lock = (run / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise RunError(
            f"{run}: another trainer (process {holder}) is using this run directory; "
            "wait for it or choose another run.name"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def is_held(run: Path) -> bool | None:
    """Whether a trainer owns the directory now; None where it has no lock file (a copy, say).

    Only to be asked about a run that looks alive: where no trainer holds the lock, asking takes it
    for some microseconds.
    """
    try:
        with (run / "lock").open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
