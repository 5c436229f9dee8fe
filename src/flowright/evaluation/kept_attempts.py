"""Attempts at held-out problems, kept in their run: to be looked at, and what the trained policy
answered for other judges to be asked about later.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from flowright.core.files import disk_errors
from flowright.environments.environment import Environment
from flowright.environments.rollout import Rollout, to_record
from flowright.runs.run_files import write_answers


class Keeper(Protocol):
    """A run, or an evaluation of its own."""

    def keep_rollouts(self, step: int, rollouts: Sequence[dict[str, Any]], part: str) -> None: ...


def keep_attempts(
    run: Keeper,
    environment: Environment,
    part: str,
    step: int,
    key: str,
    groups: Sequence[Sequence[Rollout]],
) -> None:
    """Keep the attempts of an evaluation at ``step`` as a training step's are kept, in ``part`` of
    :data:`flowright.runs.run_files.HELD_OUT`: a group is a problem, and each attempt has its ``key`` as well,
    by which it can be played again. Raises RunError on a full disk."""
    records = [
        to_record(rollout, environment.record(rollout), step, group, index, None)
        | {"key": f"{key}/{rollout.task.id}/{index}"}
        for group, attempts in enumerate(groups)
        for index, rollout in enumerate(attempts)
    ]
    run.keep_rollouts(step, records, part)


def keep_answers(run: Path, environment: Environment, groups: Sequence[Sequence[Rollout]]) -> None:
    """Write ``answers.jsonl.zst``: a line an attempt with ``task``, ``index``, the ``query`` that a
    judge is asked (null where there was no answer), ``gold`` (1, 0 or null), what the run's own
    judge called it (``correct``), and whether a failure of ours ``lost`` it. Nothing where the
    environment has no judge of single answers. Raises RunError on a full disk."""
    if environment.judge_settings() is None:
        return
    rows = []
    for group in groups:
        for index, rollout in enumerate(group):
            query = environment.query(rollout, f"{rollout.task.id}/{index}")
            row = {
                "task": rollout.task.id,
                "index": index,
                "query": None if query is None else asdict(query),
                "gold": rollout.gold_score,
                "correct": None if rollout.verdict is None else rollout.verdict.correct,
                "lost": rollout.lost,
            }
            rows.append(row)
    with disk_errors(run):
        write_answers(run, rows)
