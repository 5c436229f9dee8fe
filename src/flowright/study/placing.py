"""Where runs go: cores, GPUs of this machine, or a Ray cluster. How many at once, and what each is
given. Nothing is started here.
"""

import os
import queue
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flowright.core.errors import ConfigError
from flowright.study.cells import Run
from flowright.study.children import Child, Spawned, Start
from flowright.study.config import GpuSection, StudyConfig
from flowright.study.plan import cores
from flowright.study.running import Command

Starts = Callable[[Run], Start]


@dataclass(frozen=True, slots=True)
class Places:
    """So many runs ``at_once``, by these commands and starts."""

    at_once: int
    command: Command
    start: Starts


@contextmanager
def open_places(
    study: StudyConfig, asked: int | None, command: Command, start: Starts, ray: bool
) -> Iterator[Places]:
    """Of a study; ``asked``: runs at once, at most as many as there is room for. ``command`` and
    ``start``: of a run that needs no GPU. Raises ConfigError where there is no room for one run,
    and where a cluster cannot be had."""
    gpus = study.gpus.per_run if study.gpus is not None else 0
    if gpus > 1:
        command = partial(with_processes, command, gpus)
    if ray:
        from flowright.study.ray_runs import on_ray

        with on_ray(gpus) as (room, placed):
            if room < 1:
                raise ConfigError(f"--ray: the cluster has no room for a run of {gpus} GPUs")
            yield Places(min(asked or room, room), command, placed)
    elif study.gpus is not None:
        groups = groups_of(study.gpus)
        if not groups:
            raise ConfigError(
                f"gpus: a run takes {gpus}, and this process sees fewer; check nvidia-smi and "
                "CUDA_VISIBLE_DEVICES, or name them: gpus.devices"
            )
        room = min(asked or len(groups), len(groups))
        yield Places(room, command, GpuPlaces(groups, start).start)
    else:
        yield Places(asked or cores(), command, start)


def planned_at_once(study: StudyConfig, asked: int | None) -> int:
    """As :func:`open_places` on this machine, and one where there is no room."""
    if study.gpus is None:
        return asked or cores()
    room = max(1, len(groups_of(study.gpus)))
    return min(asked or room, room)


def groups_of(section: GpuSection) -> list[tuple[str, ...]]:
    """The GPUs of this machine in groups, one a run; what is left over stays idle."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if section.devices is not None:
        found = [str(device) for device in section.devices]
    elif given is not None:
        found = [name.strip() for name in given.split(",") if name.strip()]
    else:
        from flowright.app.device import gpus_here  # loads torch

        found = gpus_here()
    whole = len(found) // section.per_run
    return [tuple(found[i * section.per_run :][: section.per_run]) for i in range(whole)]


def with_processes(
    command: Command, count: int, run: Run, base: Path, resume: bool
) -> Sequence[str]:
    """The command in so many processes, one a GPU, where a run trains on several."""
    python, script, *words = command(run, base, resume)
    started = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return [python, *started, script, *words]


class GpuPlaces:
    """Gives every run a group of GPUs of its own, and takes it back when its process is over. There
    have to be as many groups as runs at once."""

    def __init__(self, groups: Sequence[tuple[str, ...]], otherwise: Starts) -> None:
        self._otherwise = otherwise
        self._free: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        for group in groups:
            self._free.put(group)

    def start(self, run: Run) -> Start:
        """Of the embedded policy: without a GPU."""
        return self._otherwise(run) if run.embedded else self._placed

    def _placed(self, words: Sequence[str], log: Path) -> Child:
        group = self._free.get_nowait()
        give_back = partial(self._free.put, group)
        try:
            return _Placed(Spawned(words, log, visible(group)), give_back)
        except BaseException:
            give_back()
            raise


def visible(group: Sequence[str]) -> Mapping[str, str]:
    """What makes a process see these GPUs alone, by the numbers of nvidia-smi."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(group), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True, slots=True)
class _Placed:
    child: Child
    over: Callable[[], None]

    def signal(self, number: signal.Signals) -> None:
        self.child.signal(number)

    def wait(self) -> int:
        try:
            return self.child.wait()
        finally:
            self.over()
