"""The run directory as the trainer that owns it writes it. No training, no drawing.

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

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.config import Config
from flowright.errors import RunError
from flowright.runs.files import disk_errors, take_lock, write_json, write_text
from flowright.runs.reading import forget_rollouts, read_config, read_metrics, write_rollouts

Record = Mapping[str, Any]


class RunDirectory:
    """A run directory opened by the trainer that owns it.

    Opening takes the lock, so that a second trainer refuses. ``changes`` are the settings in which
    a resumed run differs from what it was, as ``key: before -> now``. Raises RunError when the
    directory is held by another process, when it already holds a run and ``resume`` is False, or
    when ``resume`` finds nothing to go on from.
    """

    def __init__(self, path: Path, config: Config, resume: bool = False) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints_path = path / "checkpoints"
        if resume and not (path / "config.json").exists():
            raise RunError(f"{path}: nothing to resume; start without --resume")
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(path)
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
            write_rollouts(self.path, step, rollouts)

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
            write_text(self.metrics_path, "".join(json.dumps(row) + "\n" for row in kept))
            forget_rollouts(self.path, step)
        if self._events:
            self._events.forget_after(step)

    def close(self) -> None:
        if self._events:
            self._events.close()
        self._lock.close()


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _changes(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old} -> {new}")
    return found


class Events:
    """TensorBoard's event file in the folder ``path``, written without torch so that this layer
    stays light."""

    def __init__(self, path: Path) -> None:
        # Imported here: half a second that a run without TensorBoard and every reader save.
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Generated protobuf modules build their classes at import: no checker sees them.
        self._event: Any = getattr(event_pb2, "Event")  # noqa: B009
        self._session: Any = getattr(event_pb2, "SessionLog")  # noqa: B009
        self._summary: Any = getattr(summary_pb2, "Summary")  # noqa: B009
        self._tensor: Any = getattr(tensor_pb2, "TensorProto")  # noqa: B009
        self._string_type: int = getattr(types_pb2, "DT_STRING")  # noqa: B009
        self._text_metadata = create_summary_metadata("", "")
        self._writer = EventFileWriter(str(path))

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in metrics.items()]
        self._add(step, values)

    def text(self, step: int, name: str, markdown: str) -> None:
        tensor = self._tensor(dtype=self._string_type, string_val=[markdown.encode()])
        tensor.tensor_shape.dim.add(size=1)
        value = self._summary.Value(tag=name, metadata=self._text_metadata, tensor=tensor)
        self._add(step, [value])

    def forget_after(self, step: int) -> None:
        """Have readers drop what earlier files of this folder say of later steps."""
        session = self._session(status=self._session.START)
        self._write(step=step + 1, session_log=session)

    def _add(self, step: int, values: list[Any]) -> None:
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **fields: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), **fields))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
