"""The problems that ``train_dataset`` and ``val_dataset`` name: built offline, read from a file, or
made by a function of a user's own.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from flowright.core.errors import DataError
from flowright.core.plugins import load
from flowright.data.offline import build_offline
from flowright.data.sources import Split
from flowright.data.splits import Splits
from flowright.data.task import Problem, read_tasks

OFFLINE = "offline"


def load_problems(name: str, split: Split) -> Sequence[Problem]:
    """The problems of ``offline`` (of its ``split``), of a JSON Lines file, or of a function that
    ``package.module:function`` names and that takes nothing; maybe none. Raises DataError, and
    ConfigError where the function cannot be imported."""
    if name == OFFLINE:
        return getattr(_offline(), split)
    if ":" not in name or Path(name).is_file():
        return read_tasks(Path(name))
    problems = list(load(name, "dataset")())
    ids: set[str] = set()
    for number, problem in enumerate(problems, start=1):
        if not isinstance(problem, Problem):
            raise DataError(
                f"{name}: number {number} is {type(problem).__name__}, not a "
                "flowright.data.task.Problem"
            )
        if problem.id in ids:
            raise DataError(f"{name}: number {number}: id {problem.id!r} is there already")
        ids.add(problem.id)
    return problems


@lru_cache(maxsize=1)
def _offline() -> Splits:
    return build_offline(0)
