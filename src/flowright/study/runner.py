"""Run a study's training processes on cores, GPUs or a Ray cluster, each with a log of its own."""

import multiprocessing
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

from flowright.core.checkout import child_environment
from flowright.core.errors import ConfigError
from flowright.core.files import disk_errors
from flowright.runs.run_files import read_metrics, saved_checkpoints
from flowright.study.config import GpuSection, StudyConfig
from flowright.study.runs import StudyJournal, StudyRun, is_finished

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD: Mapping[str, str] = dict.fromkeys(_THREADS, "1")
"""Environment of a run: runs share the cores, one each."""

TRIES = 2
STOP_SECONDS = 300.0
"""Time that interrupted runs get to finish their step and save, before they are killed."""

_PRELOADED = ["flowright.app.session", "flowright.app.launch", "transformers", "peft"]
_fork_lock = threading.Lock()  # multiprocessing's bookkeeping is not thread-safe


class Child(Protocol):
    """A process of a run."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it still runs; SIGKILL also reaches its descendants."""
        ...

    def wait(self) -> int:
        """Return its exit status once it is over; below 0 for a signal."""
        ...


Start = Callable[[Sequence[str], Path], Child]
"""Starts a command (Python, a script, arguments) whose output is appended to a log."""
Starts = Callable[[StudyRun], Start]
"""Selects how a run is started."""
Command = Callable[[StudyRun, Path, bool], Sequence[str]]
"""Builds a run's command from the run, the study's base, and whether to resume."""
OnDone = Callable[[StudyRun, int, float], None]
"""Called with a run that is over, its exit status and its seconds."""


class Spawned:
    """A new Python process. ``also`` extends its environment; ``on_exit`` is called once it has
    been waited for."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        also: Mapping[str, str] | None = None,
        on_exit: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_exit = on_exit
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**child_environment(), **ONE_THREAD, **(also or {})},
                start_new_session=True,  # the study forwards Ctrl-C itself
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            _send(self._process.pid, number)

    def wait(self) -> int:
        try:
            return self._process.wait()
        finally:
            self._on_exit()


class Forked:
    """A fork of a server process that has already imported torch, running a script or a module."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        with _fork_lock:
            os.environ.update(ONE_THREAD)  # before torch is loaded
            context.set_forkserver_preload(_PRELOADED)
            self._process: ForkServerProcess = context.Process(
                target=_run_script, args=([*command[1:]], str(log))
            )
            self._process.start()

    def signal(self, number: signal.Signals) -> None:
        if not connection.wait([self._process.sentinel], 0):
            assert self._process.pid is not None
            _send(self._process.pid, number)

    def wait(self) -> int:
        connection.wait([self._process.sentinel])
        with _fork_lock:
            self._process.join()
            return self._process.exitcode or 0


def _send(pid: int, number: signal.Signals) -> None:
    """Signal the first process of a session, or for SIGKILL all of it."""
    with suppress(ProcessLookupError):
        (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)


def _run_script(arguments: list[str], log: str) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, out), (2, out)):
        os.dup2(file, number)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__")
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def train_command(run: StudyRun, base: Path, resume: bool) -> list[str]:
    """Build the ``flowright train`` command of a run."""
    command = [sys.executable, "-m", "flowright", "train", "--config", str(base)]
    return [*command, *(["--resume"] if resume else []), *run.overrides]


def default_start(run: StudyRun) -> Start:
    """Fork runs of the embedded policy, which are short next to importing torch; spawn others,
    since CUDA does not survive a fork."""
    return Forked if run.embedded else Spawned


@dataclass(slots=True)
class Runner:
    """Runs processes, ``at_once`` at a time; a failing run is tried ``TRIES`` times."""

    base: Path
    out: Path
    journal: StudyJournal
    at_once: int
    command: Command = train_command
    start: Starts = default_start
    on_done: OnDone = lambda run, status, seconds: None
    failed: list[StudyRun] = field(default_factory=list)
    _live: dict[str, Child] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def work(self, runs: Sequence[StudyRun]) -> None:
        """Run all of them. When interrupted, let the live runs save and stop, and wait for them."""
        waiting: queue.SimpleQueue[StudyRun] = queue.SimpleQueue()
        for run in runs:
            waiting.put(run)
        threads = max(1, min(self.at_once, len(runs)))
        with ThreadPoolExecutor(threads) as pool:
            workers = [pool.submit(self._worker, waiting) for _ in range(threads)]
            try:
                for worker in as_completed(workers):
                    worker.result()
            except BaseException:
                self._stop(workers)
                raise

    def kill(self) -> None:
        """Kill every process of every run at once."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _worker(self, waiting: "queue.SimpleQueue[StudyRun]") -> None:
        while not self._stopping.is_set():
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            self._run(run)

    def _run(self, run: StudyRun) -> None:
        began, status = time.monotonic(), 1
        for _ in range(TRIES):
            status = self._process(run)
            if status == 0 or self._stopping.is_set():
                break
        if self._stopping.is_set() and status:
            return
        if status:
            self.failed.append(run)
        self.on_done(run, status, time.monotonic() - began)

    def _process(self, run: StudyRun) -> int:
        """Run one process; return its exit status, 1 for one that exits 0 without finishing."""
        with disk_errors(run.folder):
            run.folder.parent.mkdir(parents=True, exist_ok=True)
        resume = can_resume(run.folder)
        if not resume:
            set_aside(run.folder, self.out / "set_aside" / run.cell.name)
        command = self.command(run, self.base, resume)
        log = log_path(self.out, run)
        with disk_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if self._stopping.is_set():
                return 1
            self.journal.start(run)
            child = self._live[run.name] = self.start(run)(command, log)
        began = time.monotonic()  # after the imports that all forks share
        status = child.wait()
        with self._lock:
            del self._live[run.name]
            if not status and not is_finished(run.folder):
                status = 1
            self.journal.end(run, status, time.monotonic() - began, self._stopping.is_set())
        return status

    def _stop(self, workers: "Sequence[Future[None]]") -> None:
        self._stopping.set()
        with self._lock:  # includes one that is being started
            self._signal(signal.SIGINT)
        if wait(workers, timeout=STOP_SECONDS).not_done:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        for child in [*self._live.values()]:
            child.signal(number)


def log_path(out: Path, run: StudyRun) -> Path:
    """Return the log of a run's processes."""
    return out / "logs" / run.cell.name / f"seed_{run.seed}.log"


def can_resume(folder: Path) -> bool:
    """Return whether ``--resume`` works: there is a checkpoint, or no step was recorded yet."""
    if not (folder / "config.json").exists():
        return False
    recorded = any(row["step"] > 0 for row in read_metrics(folder))
    return not recorded or bool(saved_checkpoints(folder / "checkpoints"))


def set_aside(folder: Path, into: Path) -> None:
    """Move the directory of a run that has to start over out of its place."""
    if not folder.exists():
        return
    into.mkdir(parents=True, exist_ok=True)
    taken = len([*into.glob(f"{folder.name}-*")])
    folder.rename(into / f"{folder.name}-{taken + 1}")


# Places: cores, GPUs of this machine, or a Ray cluster.


@dataclass(frozen=True, slots=True)
class Placement:
    """Runs that fit at once, and how each is started."""

    at_once: int
    command: Command
    start: Starts


@contextmanager
def open_placement(
    study: StudyConfig, wanted: int | None, command: Command, start: Starts, ray: bool
) -> Iterator[Placement]:
    """Find the places of a study's runs; ``wanted`` at once, at most those that fit. ``command``
    and ``start`` are those of a run without GPUs. Raises ConfigError if not one run fits, or a
    cluster cannot be joined."""
    gpus = study.gpus.per_run if study.gpus is not None else 0
    if gpus > 1:
        command = partial(with_processes, command, gpus)
    if ray:
        with on_ray(gpus) as (room, ray_start):
            if room < 1:
                raise ConfigError(f"--ray: the cluster has no room for a run of {gpus} GPUs")
            yield Placement(min(wanted or room, room), command, ray_start)
    elif study.gpus is not None:
        groups = gpu_groups(study.gpus)
        if not groups:
            raise ConfigError(
                f"gpus: a run takes {gpus}, and this process sees fewer; check nvidia-smi and "
                "CUDA_VISIBLE_DEVICES, or name them: gpus.devices"
            )
        room = min(wanted or len(groups), len(groups))
        yield Placement(room, command, on_gpus(groups, start))
    else:
        yield Placement(wanted or _cores(), command, start)


def planned_at_once(study: StudyConfig, wanted: int | None) -> int:
    """Return the runs at once on this machine, at least 1."""
    if study.gpus is None:
        return wanted or _cores()
    room = max(1, len(gpu_groups(study.gpus)))
    return min(wanted or room, room)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_groups(section: GpuSection) -> list[tuple[str, ...]]:
    """Split this machine's GPUs into groups, one per run; a remainder stays idle."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if section.devices is not None:
        found = [str(device) for device in section.devices]
    elif visible is not None:
        found = [name.strip() for name in visible.split(",") if name.strip()]
    else:
        from flowright.app.device import gpus_here  # loads torch

        found = gpus_here()
    whole = len(found) // section.per_run
    return [tuple(found[i * section.per_run :][: section.per_run]) for i in range(whole)]


def with_processes(
    command: Command, count: int, run: StudyRun, base: Path, resume: bool
) -> Sequence[str]:
    """Build the command with ``count`` processes, one per GPU."""
    python, script, *arguments = command(run, base, resume)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return [python, *launcher, script, *arguments]


def on_gpus(groups: Sequence[tuple[str, ...]], otherwise: Starts) -> Starts:
    """Give each run a group of GPUs until its process ends; there have to be at least as many
    groups as runs at once. Runs of the embedded policy get none."""
    free: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
    for group in groups:
        free.put(group)

    def start(command: Sequence[str], log: Path) -> Child:
        group = free.get_nowait()
        release = partial(free.put, group)
        # The numbers are those of nvidia-smi.
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(group), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        try:
            return Spawned(command, log, visible, release)
        except BaseException:
            release()
            raise

    return lambda run: otherwise(run) if run.embedded else start


# Ray's processes may block or ignore SIGINT, and their children inherit that; a run saves on it.
_INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class RunProcess:
    """The Ray actor: one process on its node. :meth:`wait` and :meth:`signal` may overlap."""

    def __init__(self, command: Sequence[str], log: str, folder: str) -> None:
        os.chdir(folder)
        self._process = Spawned([command[0], "-c", _INTERRUPTIBLE, *command], Path(log))

    def signal(self, number: int) -> None:
        self._process.signal(signal.Signals(number))

    def wait(self) -> int:
        return self._process.wait()


class RayChild:
    """A run's process behind its actor."""

    def __init__(self, ray: Any, actor: Any, command: Sequence[str], log: Path) -> None:
        self._ray = ray
        self._actor = actor.remote([*command], str(log.absolute()), str(Path.cwd()))
        self._over = self._actor.wait.remote()

    def signal(self, number: signal.Signals) -> None:
        self._actor.signal.remote(int(number))

    def wait(self) -> int:
        """Return the exit status, 1 if the node or the actor was lost."""
        try:
            return self._ray.get(self._over)
        except self._ray.exceptions.RayError:
            return 1
        finally:
            with suppress(ValueError):
                self._ray.kill(self._actor)


@contextmanager
def on_ray(gpus: int) -> Iterator[tuple[int, Starts]]:
    """Join the cluster of RAY_ADDRESS, or one of this machine; yield how many runs of ``gpus``
    GPUs (0: of one core) fit, and how they are started. All nodes share the study's folder and this
    checkout. Raises ConfigError without a cluster."""
    from flowright.app.ray_cluster import joined

    with joined(None) as ray:
        found = ray.cluster_resources()
        room = int(found.get("GPU", 0)) // gpus if gpus else int(found.get("CPU", 0))
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_concurrency=2)(RunProcess)
        start = partial(RayChild, ray, actor)
        yield room, lambda run: start
