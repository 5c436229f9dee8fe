"""What a trained policy answered, kept in its run: other judges can be asked about it later."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from flowright.environments.environment import Environment
from flowright.environments.rollout import Rollout
from flowright.runs import disk_errors, write_answers


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
