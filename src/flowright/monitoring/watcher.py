"""Reading a run's files into snapshots, again and again while it goes on. Nothing is concluded
here.
"""

import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from flowright.monitoring.snapshot import Snapshot
from flowright.rendering.series import Record, is_number
from flowright.runs import (
    is_held,
    read_config,
    read_evaluation,
    read_metrics,
    read_rollouts,
    read_state,
)


class Watcher:
    """Takes snapshots of one run again and again, reading only what changed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._rows: list[Record] = []
        self._rows_stamp: tuple[int, int] | None = None
        self._rollouts: list[Record] = []
        self._rollouts_step: int | None = None
        self._dead_since: object = None

    def look(self) -> Snapshot:
        """Raises RunError when a file of the run is damaged."""
        state = read_state(self.run)
        stamp = _stamp(self.run / "metrics.jsonl")
        if stamp != self._rows_stamp:
            self._rows, self._rows_stamp = merge_steps(read_metrics(self.run)), stamp
        updated = state.get("updated")
        return Snapshot(
            run=self.run,
            state=state,
            rows=self._rows,
            evaluation=read_evaluation(self.run),
            config=read_config(self.run),
            alive=self._alive(state),
            quiet_seconds=max(0.0, time.time() - updated) if is_number(updated) else 0.0,
        )

    def rollouts(self, step: int) -> list[Record]:
        """The rollouts of a step, kept until another step is asked for."""
        if step != self._rollouts_step:
            self._rollouts = load_rollouts(self.run, step)
            self._rollouts_step = step if self._rollouts else None
        return self._rollouts

    def _alive(self, state: Record) -> bool | None:
        # The lock, not the process id: ids are reused, and containers number on their own. A dead
        # run is asked about once, so that a trainer resuming it never meets our hand on the lock.
        if state.get("status") != "running":
            return None
        identity = (state.get("pid"), state.get("updated"))
        if self._dead_since == identity:
            return False
        if state.get("host") not in (None, socket.gethostname()):
            return None
        held = is_held(self.run)
        if held is False:
            self._dead_since = identity
        return held


def take_snapshot(run: Path) -> Snapshot:
    """One look at a run. Raises RunError when a file of it is damaged."""
    return Watcher(run).look()


def load_rollouts(run: Path, step: int) -> list[Record]:
    """A step's rollouts; none when they were pruned meanwhile or cannot be read any more."""
    try:
        return list(read_rollouts(run, step))
    except (OSError, ValueError, zstandard.ZstdError):
        return []


def merge_steps(rows: Iterable[Record]) -> list[Record]:
    """One row a step, ascending: rows of the same step, such as an evaluation's, are joined."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row.get("step", 0), {}).update(row)
    return [{"step": step, **row} for step, row in sorted(merged.items())]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
