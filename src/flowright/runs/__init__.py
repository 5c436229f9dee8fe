"""The run directory: what a run writes and what everybody else reads."""

from flowright.runs.checkpoints import FORMAT, checkpoints, find_damage, newest_whole, sha256_of
from flowright.runs.directory import Record, RunDirectory, changes_of, look_at, look_at_checkpoints
from flowright.runs.files import (
    Lock,
    atomic_directory,
    check_writable,
    disk_errors,
    is_held,
    nearest,
    write_json,
    write_text,
)
from flowright.runs.reading import (
    free_run_name,
    newest_run,
    read_config,
    read_evaluation,
    read_metrics,
    read_plan,
    read_rollouts,
    read_state,
    rollout_steps,
    step_name,
    write_rollouts,
)

__all__ = [
    "FORMAT",
    "Lock",
    "Record",
    "RunDirectory",
    "atomic_directory",
    "changes_of",
    "check_writable",
    "checkpoints",
    "disk_errors",
    "find_damage",
    "free_run_name",
    "is_held",
    "look_at",
    "look_at_checkpoints",
    "nearest",
    "newest_run",
    "newest_whole",
    "read_config",
    "read_evaluation",
    "read_metrics",
    "read_plan",
    "read_rollouts",
    "read_state",
    "rollout_steps",
    "sha256_of",
    "step_name",
    "write_json",
    "write_rollouts",
    "write_text",
]
