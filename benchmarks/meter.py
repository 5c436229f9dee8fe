"""The cost of a piece of work to this process: CPU seconds and peak memory, or on a GPU seconds of
the clock and the GPU's memory.

This project is not imported here, and torch for a GPU alone, so that another environment's Python
can measure in the same way.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
KIB_A_GB = 2**20
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""The environment of a measured process."""


def memory(name: str) -> float:
    """GB of this process: VmRSS now, VmHWM the most since the last :func:`forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / KIB_A_GB
    raise KeyError(name)


def forget_peak() -> None:
    """Let the peak begin again at what is held now; see proc_pid_clear_refs(5)."""
    Path("/proc/self/clear_refs").write_text("5")


class Meter:
    """Adds up phases by name; memory is what was held above that of the meter's making, or all
    that was held on a GPU."""

    loaded = 0.0

    def __init__(self, device: str = "cpu") -> None:
        self._cuda: Any = None
        if device == "cuda":
            import torch

            self._cuda = torch.cuda
        else:
            self.loaded = memory("VmRSS")
        self.seconds: dict[str, float] = {}
        self.gb: dict[str, float] = {}

    def now(self) -> float:
        if self._cuda is None:
            return time.process_time()
        self._cuda.synchronize()
        return time.perf_counter()

    def forget_peak(self) -> None:
        forget_peak() if self._cuda is None else self._cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        """GB at most since :meth:`forget_peak`."""
        if self._cuda is None:
            return memory("VmHWM") - self.loaded
        return self._cuda.max_memory_allocated() / 1e9

    def measure(self, phase: str, work: Callable[[], T]) -> T:
        self.forget_peak()
        began = self.now()
        made = work()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + self.now() - began
        self.gb[phase] = max(self.gb.get(phase, 0.0), self.peak())
        return made

    def found(self) -> dict[str, float]:
        """Seconds and GB, named "update s" and "update GB"."""
        seconds = {f"{phase} s": value for phase, value in self.seconds.items()}
        return seconds | {f"{phase} GB": value for phase, value in self.gb.items()}


def apart(command: Sequence[str], path: Sequence[str]) -> Any:
    """What a process of its own prints on its last line, as JSON; with one thread, and ``path`` as
    its PYTHONPATH."""
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": ":".join(path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        # -9 is the kernel's, where memory ran out: smaller shapes, or fewer rows.
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def forked(work: Callable[..., T], *given: Any) -> T:
    """What ``work`` gives in a process of its own that is forked from this one: with all that was
    imported here, and none of its memory is another's. Whoever calls this computes nothing itself,
    as threads do not survive a fork."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, given)


def least(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: min(run[name] for run in runs) for name in runs[0]}
