"""Which checkpoints of a run can be gone on from, by their files alone: quick, without torch, and
nothing is loaded or written. What is in them is :mod:`flowright.grpo.checkpoint`'s.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import RunError
from flowright.core.files import write_json

FORMAT = 2
"""Of a checkpoint's files; a manifest without one is of format 1."""


BEST_BY = ("val/gold", "val/reward", "val/judge", "val/accuracy")
"""What evaluations are compared by; the mean reward where that is a matter of degree, the judge
where nothing has a known answer, and the share of pairs that a judge ranks as people did."""

BEST = "best.json"
"""In the run directory: the best evaluation so far, and its checkpoint."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation of a run: its step, and what it is the best by."""

    step: int
    metric: str
    value: float

    def __str__(self) -> str:
        value = f"{self.value:.2f}" if self.metric == "val/reward" else f"{self.value:.1%}"
        return f"step {self.step} by {self.metric} {value}"


def best_of(
    rows: Sequence[Mapping[str, float]], max_unscored: float, best: Best | None = None
) -> Best | None:
    """The best evaluation among the metrics of steps, in their order, and the ``best`` before them.

    By the first of ``BEST_BY`` that it has. The earlier of equal ones;
    none with a larger share of unscored, whose mean is of what was left.
    """
    for row in rows:
        metric = next((name for name in BEST_BY if name in row), None)
        if metric is None or row.get("val/unscored", 0.0) > max_unscored:
            continue
        if best is None or (metric == best.metric and row[metric] > best.value):
            best = Best(int(row["step"]), metric, row[metric])
    return best


def keep_best(root: Path, best: Best | None) -> None:
    """Say in the run directory which of the checkpoints of ``root`` is the best."""
    if best is None:
        (root.parent / BEST).unlink(missing_ok=True)
        return
    path = f"{root.name}/step_{best.step:06d}"
    write_json(root.parent / BEST, {**asdict(best), "checkpoint": path})


def read_best(run: Path) -> Best | None:
    """What :func:`keep_best` said of a run; None where there is none that can be read."""
    try:
        known: dict[str, Any] = json.loads((run / BEST).read_text(encoding="utf-8"))
        return Best(int(known["step"]), str(known["metric"]), float(known["value"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that is meant: of a run directory its best, or else its newest."""
    root = path / "checkpoints"
    if not root.is_dir():
        return path
    best = read_best(path)
    return root / f"step_{best.step:06d}" if best is not None else newest_whole(root)[0]


def chosen_as_best(path: Path) -> Best | None:
    """What a checkpoint was chosen by, where it is the best of its run."""
    best = read_best(path.absolute().parent.parent)
    return best if best is not None and path.name == f"step_{best.step:06d}" else None


def checkpoints(root: Path) -> list[Path]:
    """By step, the oldest first."""
    return sorted(root.glob("step_??????"))


def newest_whole(root: Path) -> tuple[Path, tuple[str, ...]]:
    """The newest checkpoint that is whole, and what is wrong with the newer ones, a line each.
    Raises RunError where there is none, and for one that a newer version wrote: what came before
    that is older than the run."""
    passed_over: list[str] = []
    for path in reversed(checkpoints(root)):
        damage = find_damage(path)
        if damage is None:
            return path, tuple(passed_over)
        passed_over.append(f"{path}: {damage}")
    listed = "".join(f"; {problem}" for problem in passed_over)
    raise RunError(f"{root}: no usable checkpoint to resume from{listed}; start a new run")


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint: a missing or altered file; None when it is whole. Raises
    RunError where a newer version of this package wrote it."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
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
