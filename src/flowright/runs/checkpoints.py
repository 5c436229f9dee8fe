"""Which checkpoints of a run can be gone on from, by their files alone: quick, without torch, and
nothing is loaded or written. What is in them is :mod:`flowright.grpo.checkpoint`'s.
"""

import hashlib
import json
from pathlib import Path

from flowright.errors import RunError

FORMAT = 2
"""Of a checkpoint's files; a manifest without one is of format 1."""


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
