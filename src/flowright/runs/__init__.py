"""The run directory: what a run writes and what everybody else reads."""

from flowright.runs.directory import Record, RunDirectory
from flowright.runs.files import (
    atomic_directory,
    check_writable,
    disk_errors,
    is_held,
    write_json,
    write_text,
)
from flowright.runs.reading import (
    free_run_name,
    newest_run,
    read_config,
    read_evaluation,
    read_metrics,
    read_rollouts,
    read_state,
    rollout_steps,
    step_name,
    write_rollouts,
)

__all__ = [
    "Record",
    "RunDirectory",
    "atomic_directory",
    "check_writable",
    "disk_errors",
    "free_run_name",
    "is_held",
    "newest_run",
    "read_config",
    "read_evaluation",
    "read_metrics",
    "read_rollouts",
    "read_state",
    "rollout_steps",
    "step_name",
    "write_json",
    "write_rollouts",
    "write_text",
]
