"""What a piece of work costs this process: CPU seconds and peak memory. Needs nothing but Linux.

Neither torch nor this project is imported here, so that another environment's Python can measure
in the same way.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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
    """Adds up phases by name; memory is what was held above that of the meter's making."""

    def __init__(self) -> None:
        self.loaded = memory("VmRSS")
        self.seconds: dict[str, float] = {}
        self.gb: dict[str, float] = {}

    def measure(self, phase: str, work: Callable[[], T]) -> T:
        forget_peak()
        began = time.process_time()
        made = work()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.process_time() - began
        peak = memory("VmHWM") - self.loaded
        self.gb[phase] = max(self.gb.get(phase, 0.0), peak)
        return made

    def found(self) -> dict[str, float]:
        """Seconds and GB, named "update s" and "update GB"."""
        seconds = {f"{phase} s": value for phase, value in self.seconds.items()}
        return seconds | {f"{phase} GB": value for phase, value in self.gb.items()}


def measured_environment(path: str) -> dict[str, str]:
    """This process's environment for a process that measures, with PYTHONPATH ``path``."""
    return os.environ | ONE_THREAD | {"PYTHONPATH": path}
