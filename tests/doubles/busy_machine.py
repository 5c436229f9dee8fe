"""A machine that others keep busy, for as long as a test wants it so."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def busy(hogs_per_core: int = 4) -> Iterator[None]:
    """Processes beside us that take all CPU that they get; each in a session of its own, since some
    kernels share by session."""
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0))
    processes = [
        subprocess.Popen(spin, start_new_session=True) for _ in range(hogs_per_core * cores)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
