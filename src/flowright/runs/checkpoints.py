"""The checkpoints of a run by their files alone: names, damage, the best one. No torch; their
content belongs to :mod:`flowright.grpo.checkpoint`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flowright.core.errors import RunError
from flowright.core.files import read_json, write_json

FORMAT = 2
"""Format of a checkpoint's files; a manifest without one is of format 1."""

BEST_BY = ("val/reward", "val/gold", "val/judge", "val/accuracy")
"""Metrics that evaluations are compared by: the mean reward where rewards are graded; gold; the
judge where nothing has a known answer; the share of pairs that a judge ranks as people did."""

BEST = "best.json"
"""File of the run directory with the best evaluation so far, and its checkpoint."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation of a run: its step, and the metric that it is best by."""

    step: int
    metric: str
    value: float

    def __str__(self) -> str:
        value = f"{self.value:.2f}" if self.metric == "val/reward" else f"{self.value:.1%}"
        return f"step {self.step} by {self.metric} {value}"


def best_of(
    rows: Sequence[Mapping[str, float]], max_unscored: float, best: Best | None = None
) -> Best | None:
    """Return the best evaluation among the metrics of steps, in order, and the ``best`` before
    them.

    Evaluations are compared by the first of ``BEST_BY`` that they have. The earlier of equal ones
    wins; those with more than ``max_unscored`` unscored do not count.
    """
    for row in rows:
        metric = next((name for name in BEST_BY if name in row), None)
        if metric is None or row.get("val/unscored", 0.0) > max_unscored:
            continue
        if best is None or (metric == best.metric and row[metric] > best.value):
            best = Best(int(row["step"]), metric, row[metric])
    return best


def keep_best(root: Path, best: Best | None) -> None:
    """Record in the run directory which checkpoint of ``root`` is the best."""
    if best is None:
        (root.parent / BEST).unlink(missing_ok=True)
        return
    path = f"{root.name}/{step_name(best.step)}"
    write_json(root.parent / BEST, {**asdict(best), "checkpoint": path})


def read_best(run: Path) -> Best | None:
    """Return the best evaluation of a run; None where none is recorded or it cannot be read."""
    try:
        known = read_json(run / BEST)
        return Best(int(known["step"]), str(known["metric"]), float(known["value"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def checkpoint_of(path: Path) -> Path:
    """Return a run directory's best checkpoint, or else its newest; any other path itself."""
    root = path / "checkpoints"
    if not root.is_dir():
        return path
    best = read_best(path)
    return root / step_name(best.step) if best is not None else newest_whole(root)[0]


def chosen_as_best(path: Path) -> Best | None:
    """Return the evaluation that made a checkpoint the best of its run, None for others."""
    best = read_best(path.absolute().parent.parent)
    return best if best is not None and path.name == step_name(best.step) else None


def saved_checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints below ``root``, the oldest first."""
    return sorted(root.glob("step_??????"))


def newest_whole(root: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the newest undamaged checkpoint, and a line on the damage of each newer one. Raises
    RunError where there is none, and for a checkpoint of a newer version."""
    passed_over: list[str] = []
    for path in reversed(saved_checkpoints(root)):
        damage = find_damage(path)
        if damage is None:
            return path, tuple(passed_over)
        passed_over.append(f"{path}: {damage}")
    listed = "".join(f"; {problem}" for problem in passed_over)
    raise RunError(f"{root}: no usable checkpoint to resume from{listed}; start a new run")


def find_damage(path: Path) -> str | None:
    """Return the first missing or altered file of a checkpoint as a message; None when it is whole.
    Raises RunError where a newer version of this package wrote it."""
    try:
        manifest = read_json(path / "manifest.json")
        expected: dict[str, str] = dict(manifest["sha256"])
        written = int(manifest.get("format", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"
    if written > FORMAT:
        raise RunError(
            f"{path}: its format is {written}, this version reads up to {FORMAT}; go on with the "
            "version that wrote it"
        )
    for name, digest in expected.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if sha256_of(file) != digest:
            return f"{name} is corrupt"
    return None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def step_name(step: int) -> str:
    """Return ``step_000012`` and the like: names that sort as steps do."""
    return f"step_{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step of a name of :func:`step_name`; None for any other."""
    number = name.removeprefix("step_")
    return int(number) if number != name and number.isdecimal() else None
