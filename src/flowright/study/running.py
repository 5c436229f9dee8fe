"""Starting runs: processes, as many at once as there are cores, each with a log of its own.

A run that fails is tried once more; one that was interrupted goes on from its last checkpoint.
Nothing of what a run computes is known here.
"""

import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from pathlib import Path

from flowright.core.files import disk_errors, is_held
from flowright.runs.checkpoints import saved_checkpoints
from flowright.runs.run_files import read_metrics
from flowright.study.cells import Run
from flowright.study.children import Child, Forked, Spawned, Start
from flowright.study.journal import Journal, is_finished

Command = Callable[[Run, Path, bool], Sequence[str]]
"""The words of a run's command: of the run, the study's base, and whether it is to be resumed."""
Told = Callable[[Run, int, float], None]
"""Called with a run that is over, its exit status and its seconds."""

TRIES = 2
PATIENCE_SECONDS = 300.0
"""A run that was asked to stop may finish its step and save; then it is asked more firmly."""


def train_command(run: Run, base: Path, resume: bool) -> list[str]:
    """The command line of ``flowright train`` for a run."""
    words = [sys.executable, "-m", "flowright", "train", "--config", str(base)]
    return [*words, *(["--resume"] if resume else []), *run.overrides]


def start_of(run: Run) -> Start:
    """A run of the embedded policy takes so little that loading torch is a good part of it; others
    may be about GPUs, which no fork is for."""
    return Forked if run.embedded else Spawned


@dataclass(slots=True)
class Runner:
    """Works through runs; :meth:`work` returns when all are over, :meth:`kill` ends all at once."""

    base: Path
    out: Path
    journal: Journal
    at_once: int
    command: Command = train_command
    start: Callable[[Run], Start] = start_of
    tell: Told = lambda run, status, seconds: None
    failed: list[Run] = field(default_factory=list)
    _live: dict[str, Child] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def work(self, runs: Sequence[Run]) -> None:
        """Run all of them. Where it is interrupted, the runs under way are asked to save and stop,
        and waited for."""
        waiting: queue.SimpleQueue[Run] = queue.SimpleQueue()
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
        """End every process of every run now."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _worker(self, waiting: "queue.SimpleQueue[Run]") -> None:
        while not self._stopping.is_set():
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            self._run(run)

    def _run(self, run: Run) -> None:
        began, status = time.monotonic(), 1
        for _ in range(TRIES):
            status = self._process(run)
            if status == 0 or self._stopping.is_set():
                break
        if self._stopping.is_set() and status:
            return
        if status:
            self.failed.append(run)
        self.tell(run, status, time.monotonic() - began)

    def _process(self, run: Run) -> int:
        """One process of a run; its exit status, 1 for one that says 0 and has not finished."""
        with disk_errors(run.folder):
            run.folder.parent.mkdir(parents=True, exist_ok=True)
        resume = can_resume(run.folder)
        set_aside(run.folder, self.out / "set_aside" / run.cell.name) if not resume else None
        words = self.command(run, self.base, resume)
        log = log_path(self.out, run)
        with disk_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if self._stopping.is_set():
                return 1
            self.journal.start(run)
            child = self._live[run.name] = self.start(run)(words, log)
        began = time.monotonic()  # without what all runs share of the loading
        status = child.wait()
        with self._lock:
            del self._live[run.name]
            asked = self._stopping.is_set()
            if not status and not is_finished(run.folder):
                status = 1
            self.journal.end(run, status, time.monotonic() - began, asked)
        return status

    def _stop(self, workers: "Sequence[Future[None]]") -> None:
        self._stopping.set()
        with self._lock:  # one that is being started is asked, too
            self._signal(signal.SIGINT)
        if wait(workers, timeout=PATIENCE_SECONDS).not_done:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        """To the runs; a kill also to what they have started."""
        for child in [*self._live.values()]:
            child.signal(number)


def log_path(out: Path, run: Run) -> Path:
    """What the run's processes have said."""
    return out / "logs" / run.cell.name / f"seed_{run.seed}.log"


def can_resume(folder: Path) -> bool:
    """Whether ``--resume`` would go on: from a checkpoint, or from the start where no step was
    recorded."""
    if not (folder / "config.json").exists():
        return False
    recorded = any(row["step"] > 0 for row in read_metrics(folder))
    return not recorded or bool(saved_checkpoints(folder / "checkpoints"))


def set_aside(folder: Path, into: Path) -> None:
    """Make room for a run that has to begin again: what is there of it is kept elsewhere."""
    if not folder.exists():
        return
    into.mkdir(parents=True, exist_ok=True)
    taken = len([*into.glob(f"{folder.name}-*")])
    folder.rename(into / f"{folder.name}-{taken + 1}")


def held(runs: Sequence[Run]) -> list[Run]:
    """Runs that a process outside of the study still works at."""
    return [run for run in runs if is_held(run.folder)]
