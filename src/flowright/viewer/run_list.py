"""The runs in view: their files, their indexes, and the thread that keeps these up to date."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from flowright.core.errors import RunError, UserError, boundary
from flowright.core.untrusted import one_line
from flowright.runs.run_files import HELD_OUT, rollout_steps
from flowright.viewer.index import Indexer, Progress, index_path
from flowright.viewer.rollout_records import Attempt, escape_surrogates, record_at
from flowright.viewer.search import AttemptSearch
from flowright.viewer.snapshot import Snapshot, Watcher, file_stamp

PAUSE = 2.0  # seconds between two looks for new steps
MARKS = ("config.json", "state.json", "metrics.jsonl")
DEPTH = 3
BETWEEN = "~"
"""Between the folders of a name."""
PARTS = ("", *HELD_OUT)
"""A run itself, and its parts that are viewed as a run is."""


@dataclass
class ViewedRun:
    """A run, or one of its parts with attempts at held-out problems (:data:`HELD_OUT`), which is
    viewed as a run is. ``name`` is that of its address, ``path`` is the run's."""

    name: str
    path: Path
    part: str = ""
    behind: str = ""  # why the index is not up to date
    damaged: str = ""  # why the run's own files cannot be read
    progress: Progress = field(default_factory=Progress)
    _looked: tuple[Any, Snapshot] | None = None
    _watcher: Watcher | None = None

    @property
    def trouble(self) -> str:
        """A warning for the top of a page; empty where all is well."""
        return "; ".join(filter(None, (self.damaged, self.behind)))

    @property
    def folder(self) -> Path:
        """The folder of its attempts."""
        return self.path / self.part

    def found(self) -> AttemptSearch:
        """Open the index for one answer: ``with run.found() as found``."""
        return AttemptSearch(index_path(self.folder))

    def update(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Bring the index up to date, or as far as the step after which ``stopped``; ``behind`` has
        the reason of a failure."""
        try:
            with closing(Indexer(self.folder).update()) as steps:
                for self.progress in steps:
                    if stopped():
                        return
            self.behind = ""
        except UserError as error:
            self.behind = "; ".join(error.problems)
        except OSError as error:  # such as a step that a resumed run moves just now
            self.behind = one_line(f"the index is not up to date: {error}", 300)

    def steps(self) -> int:
        """Count the steps that kept rollouts."""
        return len(rollout_steps(self.folder))

    def snapshot(self) -> Snapshot:
        """Read its files, again when they have changed. Where one cannot be read ``damaged`` has
        the reason, and the snapshot is empty."""
        stamp = tuple(file_stamp(self.path / name) for name in (*MARKS, "evaluation.json"))
        if self._looked is None or self._looked[0] != stamp:
            self._watcher = self._watcher or Watcher(self.path)
            try:
                looked = self._watcher.look()
                self.damaged = ""
            except RunError as error:
                self.damaged = "; ".join(error.problems)
                looked = Snapshot(self.path)
            self._looked = (stamp, looked)
        return self._looked[1]

    def record(self, attempt: Attempt) -> dict[str, Any]:
        """The attempt's record. Raises UserError where its file has changed."""
        return record_at(self.folder, attempt.step, attempt.start, attempt.size)


class RunList:
    """The runs of a folder, or one run; those that appear later, too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._runs: dict[str, ViewedRun] = {}
        self._named: dict[tuple[Path, str], ViewedRun] = {}

    def runs(self) -> Sequence[ViewedRun]:
        """All runs now, the one that changed last first."""
        with self._lock:
            below = [*_runs_below(self.root)]
            for path in below:  # before all parts, so that no part takes a run's name
                self._put(_name(path, self.root), path, "")
            for path in below:
                for part in HELD_OUT:
                    if (path / part / "rollouts").is_dir():
                        self._put(f"{self._named[path, ''].name}{BETWEEN}{part}", path, part)
            there = [run for run in self._runs.values() if run.path.is_dir() and not run.part]
        return sorted(there, key=lambda run: -_changed(run.path))

    def _put(self, name: str, path: Path, part: str) -> None:
        """Keep a run under a name that no other has, which does not change."""
        if (path, part) in self._named:
            return
        free = (f"{name}{BETWEEN}{n}" if n > 1 else name for n in count(1))
        run = ViewedRun(next(each for each in free if each not in self._runs), path, part)
        self._runs[run.name] = self._named[path, part] = run

    def parts(self, run: ViewedRun) -> Sequence[ViewedRun]:
        """The run itself and its parts that there are; of a part those of its run."""
        places = ((run.path, part) for part in PARTS)
        return [self._named[place] for place in places if place in self._named]

    def links(self, run: ViewedRun) -> tuple[tuple[str, str], ...]:
        """The run and its parts, for :class:`flowright.viewer.layout.Links`."""
        return tuple((one.part.capitalize() or "Attempts", one.name) for one in self.parts(run))

    def run(self, name: str) -> ViewedRun | None:
        """The run of a name; None for any other text."""
        if name not in self._runs:
            self.runs()
        return self._runs.get(name)


class Refresher(threading.Thread):
    """Keeps the indexes of all runs up to date until it is stopped."""

    def __init__(self, run_list: RunList) -> None:
        super().__init__(daemon=True, name="viewer-index")
        self._run_list = run_list
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            run_list = self._run_list
            for one in [part for run in run_list.runs() for part in run_list.parts(run)]:
                with boundary("the index is not up to date") as tried:  # the others go on
                    one.update(self._stopped.is_set)
                if tried.failure is not None:
                    one.behind = one_line(tried.failure.message, 300)
                if self._stopped.is_set():
                    return
            self._stopped.wait(PAUSE)

    def stop(self) -> None:
        """Stop after the step at work."""
        self._stopped.set()
        self.join(timeout=10)


def _runs_below(root: Path, depth: int = DEPTH, seen: set[Path] | None = None) -> Iterator[Path]:
    """Folders of runs, each once however many links lead to it."""
    seen = set() if seen is None else seen
    try:
        place = root.resolve()
        if place in seen:
            return
        seen.add(place)
        if any((root / mark).is_file() for mark in MARKS[:2]):
            yield root
            return
        if not depth or not root.is_dir():
            return
        below = sorted(path for path in root.iterdir() if path.is_dir() and path.name[:1] != ".")
    except (OSError, RuntimeError):  # not ours to read, or a link to itself
        return
    for path in sorted(below, key=Path.is_symlink):  # a link's target under its own name first
        yield from _runs_below(path, depth - 1, seen)


def _name(path: Path, root: Path) -> str:
    inside = path.relative_to(root).parts
    return escape_surrogates(BETWEEN.join(inside) if inside else path.resolve().name)


def _changed(path: Path) -> float:
    return max((time_ns[0] for mark in MARKS if (time_ns := file_stamp(path / mark))), default=0)


def find_root(name: str | None, output_dir: Path) -> Path:
    """Find a run or a folder of runs, by path or by name; without one, the folder of all runs.
    Raises RunError where there is none."""
    if name is None:
        if not output_dir.is_dir():
            raise RunError(f"{output_dir.resolve()}: no runs here yet; name a run or a folder")
        return output_dir
    for path in (Path(name), output_dir / name):
        if path.is_dir():
            return path
    raise RunError(f"{name}: no folder of this name, nor a run in {output_dir.resolve()}")
