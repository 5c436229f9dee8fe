"""The run directory: what a run writes and what everybody else reads. No training, no drawing.

::

    outputs/<run>/
      config.json             the resolved configuration
      state.json              status, step and stage of the run now; replaced at every stage
      metrics.jsonl           one flat object a step: {"step": 12, "reward/mean": 0.41, ...}
      rollouts/step_000012.jsonl.zst   one object a rollout
      evaluation.json         the before/after table
      tensorboard/            event files
      checkpoints/step_000010/
      report.html

A metric without a value (no scored sample, say) is absent; NaN and infinity are refused (law 1).
"""

import errno
import fcntl
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import zstandard

from flowright.config import Config
from flowright.errors import RunError
from flowright.events import Events

Record = Mapping[str, Any]


class RunDirectory:
    """A run directory opened by the trainer that owns it.

    Opening takes a lock, so that a second trainer refuses; the kernel drops it with the process,
    even after ``kill -9``. ``changes`` are the settings in which a resumed run differs from what it
    was, as ``key: before -> now``. Raises RunError when the directory is held by another process,
    when it already holds a run and ``resume`` is False, or when ``resume`` finds nothing to go on
    from.
    """

    def __init__(self, path: Path, config: Config, resume: bool = False) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints_path = path / "checkpoints"
        if resume and not (path / "config.json").exists():
            raise RunError(f"{path}: nothing to resume; start without --resume")
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(path)
            if self.metrics_path.exists() and not resume:
                self._lock.close()
                raise RunError(
                    f"{path}: already holds a run; continue it with --resume, "
                    "or choose another run.name"
                )
            self.checkpoints_path.mkdir(exist_ok=True)
            (path / "rollouts").mkdir(exist_ok=True)
            resolved = json.loads(config.model_dump_json())
            self.changes = _changes(read_config(path), resolved) if resume else []
            write_json(path / "config.json", resolved)
        self._events = Events(path / "tensorboard") if config.run.tensorboard else None
        self._started = time.time()
        self._state: dict[str, Any] = {}

    def state(self, **changes: Any) -> None:
        """Say where the run is: ``status`` (running, finished, paused, interrupted, failed),
        ``step``, ``steps``, ``stage`` and whatever the screens show."""
        self._state.update(changes, pid=os.getpid(), host=socket.gethostname())
        self._state.update(started=self._started, updated=time.time())
        with disk_errors(self.path):
            write_json(self.path / "state.json", self._state)

    def keep_rollouts(self, step: int, rollouts: Sequence[Record]) -> None:
        """Keep a step's rollouts. Before :meth:`record`: a metrics line always has its rollouts."""
        with disk_errors(self.path):
            write_rollouts(self.path / "rollouts" / f"{step_name(step)}.jsonl.zst", rollouts)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep a step's metrics. Raises ValueError for NaN and infinity."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise ValueError(f"step {step}: {name} is {value}; leave out what has no value")
        line = json.dumps({"step": step, **metrics}, allow_nan=False)
        with disk_errors(self.path), self.metrics_path.open("a", encoding="utf-8") as out:
            out.write(line + "\n")
            out.flush()
            os.fsync(out.fileno())
        if self._events:
            self._events.scalars(step, metrics)

    def text(self, step: int, name: str, markdown: str) -> None:
        """A text sample for TensorBoard."""
        if self._events:
            self._events.text(step, name, markdown)

    def truncate(self, step: int) -> None:
        """Forget what was recorded after ``step``: a resumed run does those steps again."""
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        with disk_errors(self.path):
            temporary = self.metrics_path.with_suffix(".part")
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            temporary.replace(self.metrics_path)
            for path in (self.path / "rollouts").iterdir():
                if path.name > f"{step_name(step)}.jsonl.zst":
                    path.unlink()
        if self._events:
            self._events.forget_after(step)

    def close(self) -> None:
        if self._events:
            self._events.close()
        self._lock.close()


def step_name(step: int) -> str:
    return f"step_{step:06d}"


def free_run_name(output_dir: Path, name: str) -> str:
    """``name``, or ``name-2``, ``name-3``... where that directory already holds a run."""
    candidate, number = name, 1
    while (output_dir / candidate / "metrics.jsonl").exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def newest_run(output_dir: Path) -> Path | None:
    """The run whose state changed last."""
    states = list(output_dir.glob("*/state.json"))
    return max(states, key=lambda path: path.stat().st_mtime).parent if states else None


def read_state(run: Path) -> dict[str, Any]:
    """``state.json``, or an empty mapping where there is none yet."""
    return _read_object(run / "state.json")


def read_config(run: Path) -> dict[str, Any]:
    """``config.json`` as plain JSON, or an empty mapping: a reader needs no more than values."""
    return _read_object(run / "config.json")


def read_evaluation(run: Path) -> dict[str, Any] | None:
    """``evaluation.json``, or None where the run has none (yet)."""
    return _read_object(run / "evaluation.json") or None


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


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All complete lines of ``metrics.jsonl``; a torn last line (killed while writing) is not."""
    try:
        text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rows: list[dict[str, Any]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise RunError(f"{run}/metrics.jsonl:{number}: not JSON: {error.msg}") from None
    return rows


def write_rollouts(path: Path, rollouts: Iterable[Record]) -> None:
    """Rollouts of one step as zstd-compressed JSON Lines, renamed into place."""
    temporary = path.with_suffix(".part")
    data = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rollouts).encode()
    temporary.write_bytes(zstandard.ZstdCompressor(level=6).compress(data))
    temporary.replace(path)


def read_rollouts(run: Path, step: int) -> Iterator[dict[str, Any]]:
    """The rollouts of a step; none where the step kept none."""
    path = run / "rollouts" / f"{step_name(step)}.jsonl.zst"
    if path.exists():
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        for line in data.decode().splitlines():
            yield json.loads(line)


def rollout_steps(run: Path) -> list[int]:
    """Steps whose rollouts were kept, ascending."""
    paths = (run / "rollouts").glob("step_*.jsonl.zst")
    return sorted(int(path.name.removeprefix("step_").split(".")[0]) for path in paths)


def write_json(path: Path, value: Any) -> None:
    """As :func:`write_text`, for JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file at once: a reader sees the old one or the new one."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, renamed to ``path`` once everything in it is on the disk."""
    temporary = path.with_name(path.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with disk_errors(path):
            temporary.mkdir(parents=True)
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _fsync(file)
            _fsync(temporary)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            _fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_UNWRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"{path}: the disk is full; free some space and continue with --resume"
            ) from error
        if error.errno in _UNWRITABLE:
            raise RunError(f"{path}: cannot write here ({error.strerror})") from error
        raise


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file. Raises RunError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: a JSON object was expected, not a {type(value).__name__}")
    return value


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _changes(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old} -> {new}")
    return found


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_lock(path: Path) -> IO[str]:
    lock = (path / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise RunError(
            f"{path}: another trainer (process {holder}) is using this run directory; "
            "wait for it or choose another run.name"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
