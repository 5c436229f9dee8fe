"""The run directory, as written by the trainer that owns it.

::

    outputs/<run>/
      config.json             the resolved configuration
      state.json              status, step and stage of the run now; replaced at every stage
      metrics.jsonl           one flat object a step: {"step": 12, "reward/mean": 0.41, ...}
      rollouts/step_000012.jsonl.zst   one object a rollout
      validation/rollouts/    the same of held-out problems, while training
      evaluation/rollouts/    the same of the before/after table; step 0: the untrained policy
      baselines/rollouts/     the same of its baselines, each under its number
      evaluation.json         the before/after table
      answers.jsonl.zst       the trained policy's answers in it, as a judge is asked about them
      trained_on.json         of a judge: names and hashes of what it is trained on
      best.json               the best evaluation so far, and its checkpoint
      calibration.json        of a judge that scores: how sure its scores may be
      plan.json               what the run was planned to take, and what it took
      tensorboard/            event files
      loggers.json            the name by which the packages of run.loggers know the run
      wandb/                  W&B's own files, unless WANDB_DIR names a folder
      checkpoints/step_000010/
      replaced/step_000010/   what a resume at that step replaced: settings, metrics, rollouts
      report.html

A metric without a value (no scored sample, say) is absent; NaN and infinity are refused (law 1).
"""

import json
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowright.config.loading import comparable
from flowright.config.root import Config
from flowright.core.errors import RunError
from flowright.core.files import (
    Lock,
    atomic_directory,
    check_writable,
    disk_errors,
    write_json,
    write_text,
)
from flowright.core.formatting import is_number
from flowright.core.journal import changes_of
from flowright.runs.loggers import Act, Loggers
from flowright.runs.run_files import (
    BASELINES,
    HELD_OUT,
    forget_rollouts,
    holds_run,
    newest_whole,
    read_config,
    read_metrics,
    read_state,
    rollouts_after,
    saved_checkpoints,
    step_name,
    write_rollouts,
)

Record = Mapping[str, Any]

_PARTS = ("", *HELD_OUT)  # where rollouts are, below a run

_EARLIER: Mapping[str, Any] = {"policy.train": "lora", "policy.quantised": None}
"""Defaults for runs written before these keys existed."""


def _last_kept(part: str, step: int) -> int:
    """Return the last step of a part whose attempts a resume after ``step`` keeps: of baselines,
    whose numbers are no steps of the run, none."""
    return -1 if part == BASELINES else step


def check_path(path: Path, resume: bool = False) -> None:
    """Raise RunError where a new run would meet another, where there is none to resume, or where
    nothing can be written. Writes nothing."""
    check_writable(path)
    if resume and not (path / "config.json").exists():
        raise RunError(f"{path}: nothing to resume; start without --resume")
    if not resume and holds_run(path):
        raise RunError(
            f"{path}: already holds a run; continue it with --resume, or choose another run.name"
        )


def check_checkpoints(path: Path, config: Config) -> None:
    """Raise RunError where a run cannot resume by its files: no undamaged checkpoint, recorded
    steps without any, or checkpoints of another model, adapter or environment. Writes nothing."""
    rows = read_metrics(path)  # read in any case, so that damage is reported now
    if saved_checkpoints(path / "checkpoints"):
        newest_whole(path / "checkpoints")
        _refuse_another_policy(path, read_config(path), json.loads(config.model_dump_json()))
    elif any(row["step"] > 0 for row in rows):
        raise RunError(
            f"{path}: steps are recorded, but there is no checkpoint to resume from; put "
            "checkpoints/ back, or start a new run"
        )


def _refuse_another_policy(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunError with a line for each setting that changes the meaning of a checkpoint."""
    found = []
    keys = ["environment", "strategy_model", *_EARLIER]
    if _value(now, "policy.train") != "full":
        keys.append("policy.lora")
    for key in keys:
        old, new = _value(before, key), _value(now, key)
        if old is None:
            old = _EARLIER.get(key, new)
        if key == "strategy_model" and Path(str(old)).name == Path(str(new)).name:
            continue  # a folder may have moved
        if key == "policy.lora":  # a key that the run lacks is in the adapter's own file
            old = {**new, **old}
        if old != new:
            changes = changes_of({key: old}, {key: new})
            found += [f"{path}: its checkpoints are of another run: {line}" for line in changes]
    if found:
        raise RunError(*found[:-1], f"{found[-1]}; resume with what it had: {path}/config.json")


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _starts(path: Path, now: float) -> dict[str, float]:
    """Return the first start of a resumed run, where its state has one, and that of now."""
    with suppress(RunError):
        if is_number(first := read_state(path).get("started")):
            return {"started": first, "resumed": now}
    return {"started": now}


class RunDirectory:
    """A run directory opened by the trainer that owns it.

    Opening takes the lock, so that a second trainer fails. A new run is written from then on; of a
    resumed one nothing before :meth:`resume_after` accepts its checkpoint, an earlier state
    included. ``changes``: settings of a resumed run that differ, as ``key: before -> now``.
    ``warn`` shows a line where a logger has failed, also kept among the state's warnings. Raises
    RunError as :func:`check_path`, and when another process holds the directory.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        resume: bool = False,
        warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints_path = path / "checkpoints"
        self._resolved = json.loads(config.model_dump_json())
        self._config = config
        self._loggers: Loggers | None = None
        self._warn = warn
        self._warnings: list[str] = []
        self._accepted = False
        self._started: dict[str, float] = {"started": time.time()}
        self._state: dict[str, Any] = {}
        self.changes: list[str] = []
        with disk_errors(path):
            if not path.exists():
                check_path(path, resume)  # before the folder is made
                path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(path)
            try:
                check_path(path, resume)
                if resume:
                    self._started = _starts(path, self._started["started"])
                    self.changes = changes_of(
                        comparable(read_config(path), self._resolved), self._resolved
                    )
                else:
                    self._accept()
            except BaseException:
                self._lock.release()
                raise

    def _accept(self) -> None:
        """Write the directory from here on."""
        self.checkpoints_path.mkdir(exist_ok=True)
        (self.path / "rollouts").mkdir(exist_ok=True)
        write_json(self.path / "config.json", self._resolved)
        self._lock.sign()
        self._accepted = True
        self._loggers = Loggers(self.path, self._config, self._resolved)
        self._report_failures()

    def state(self, **changes: Any) -> None:
        """Record ``status`` (running, finished, paused, interrupted, failed), ``step``, ``steps``,
        ``stage`` and anything else that screens show."""
        self._state.update(changes, pid=os.getpid(), host=socket.gethostname())
        self._state.update(self._started, updated=time.time())
        self._write_state()

    def _write_state(self) -> None:
        if not self._accepted:
            return
        shown = self._state
        if self._warnings:
            shown = {**shown, "warnings": [*shown.get("warnings", ()), *self._warnings]}
        with disk_errors(self.path):
            write_json(self.path / "state.json", shown)

    def keep_rollouts(self, step: int, rollouts: Sequence[Record], part: str = "") -> None:
        """Keep a step's rollouts, before :meth:`record`, so that a metrics line always has them;
        those of held-out problems in a ``part`` of :data:`flowright.runs.run_files.HELD_OUT`."""
        with disk_errors(self.path):
            write_rollouts(self.path / part, step, rollouts)

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
        self._log(lambda logger: logger.scalars(step, metrics))

    def text(self, step: int, name: str, markdown: str) -> None:
        """A text sample for the loggers."""
        self._log(lambda logger: logger.text(step, name, markdown))

    def _log(self, act: Act) -> None:
        if self._loggers is not None:
            self._loggers.do(act)
            self._report_failures()

    def _report_failures(self) -> None:
        """Show loggers that have failed since the last call."""
        failures = self._loggers.failures() if self._loggers is not None else []
        for line in failures:
            self._warn(f"WARNING: {line}")
        self._warnings += failures
        if failures and self._state:
            self._write_state()

    def resume_after(self, step: int) -> None:
        """Go on after ``step`` (-1: from the start) with the current settings. Later records, which
        are made again, and replaced settings are kept under ``replaced/``."""
        rows = read_metrics(self.path)
        with disk_errors(self.path):
            kept = self._keep_replaced(step, [row for row in rows if row["step"] > step])
            self._accept()
            for part in _PARTS:
                last = _last_kept(part, step)
                forget_rollouts(self.path / part, last, kept / part / "rollouts")
            left = [row for row in rows if row["step"] <= step]
            write_text(self.metrics_path, "".join(json.dumps(row) + "\n" for row in left))
        self._log(lambda logger: logger.forget_after(step))
        if self._state:
            self.state()

    def _keep_replaced(self, step: int, rows: Sequence[Record]) -> Path:
        """Keep what is about to be replaced, if anything, and return the folder for it."""
        root = self.path / "replaced"
        name = step_name(max(step, 0))
        taken = len(list(root.glob(f"{name}*")))
        kept = root / (f"{name}-{taken + 1}" if taken else name)
        evaluation = self.path / "evaluation.json"
        attempts = any(rollouts_after(self.path / part, _last_kept(part, step)) for part in _PARTS)
        if not (self.changes or rows or evaluation.exists() or attempts):
            return kept
        with atomic_directory(kept) as part:
            shutil.copyfile(self.path / "config.json", part / "config.json")
            if rows:
                lines = "".join(json.dumps(row) + "\n" for row in rows)
                write_text(part / "metrics.jsonl", lines)
            if evaluation.exists():
                shutil.copyfile(evaluation, part / "evaluation.json")
        return kept

    def close(self) -> None:
        try:
            if self._loggers is not None:
                self._loggers.close(str(self._state.get("status", "")))
                self._report_failures()
        finally:
            self._lock.release()
