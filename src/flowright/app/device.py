"""Where a run trains and whether it fits there: one answer for the dry run, which gives it before
the model is loaded, and for the run, which gives it after. No model is loaded here.
"""

import os
from pathlib import Path

import torch

from flowright.app.memory_plan import GIB, Demand
from flowright.config.policy import TINY
from flowright.config.root import Config
from flowright.policy.model import choose_device

_CGROUP = Path("/sys/fs/cgroup")


def planned_device(config: Config) -> str:
    """The kind of device that the run is planned for, also where the GPU that it names is missing,
    which :func:`look_at_device` says."""
    return "cuda" if config.policy.device == "cuda" else choose_device(config.policy).type


def gpus_here() -> list[str]:
    """The GPUs of this machine, as nvidia-smi numbers them."""
    return [str(number) for number in range(torch.cuda.device_count())]


def look_at_device(
    config: Config, demand: Demand | None, device: torch.device | None = None
) -> list[str]:
    """A line about the device and its free memory, then warnings. ``device``: where the policy is
    already, default: where it will be.

    Raises ConfigError where there is no such device, or where its memory cannot hold what no
    setting lowers; whatever else may be too large is a warning.
    """
    loaded = device is not None
    device = device or choose_device(config.policy)
    free, total = _memory(device)
    if loaded:
        free += torch.cuda.memory_reserved(device) if device.type == "cuda" else _own_memory()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    lines = [f"{name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"]
    if device.type == "cpu" and config.strategy_model != TINY:
        lines.append(
            "WARNING: torch sees no GPU, so this trains on the CPU, which is slow for all but "
            "small models; check nvidia-smi and physical_gpus if there is one"
            if config.policy.device == "auto"
            else "WARNING: policy.device is cpu, which is slow for all but small models"
        )
    if demand is not None:
        lines += demand.announce(free)[1:]
    return lines


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes that can be had, and all there are: of the GPU, or of the machine and its container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = total
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = (_text(_CGROUP / f"memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    return free, total


def _own_memory() -> int:
    pages = _text(Path("/proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
