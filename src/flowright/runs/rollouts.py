"""A step's rollouts on the disk: JSON Lines under zstd, one object a rollout. What is in an object
is for whoever made it to say.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from flowright.runs.files import write_bytes

SUFFIX = ".jsonl.zst"


def step_name(step: int) -> str:
    """``step_000012``: names that sort as the steps do."""
    return f"step_{step:06d}"


def rollouts_path(run: Path, step: int) -> Path:
    return run / "rollouts" / f"{step_name(step)}{SUFFIX}"


def write_rollouts(run: Path, step: int, rollouts: Iterable[Any]) -> None:
    """Keep a step's rollouts. Raises ValueError for NaN and infinity."""
    data = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rollouts).encode()
    write_bytes(rollouts_path(run, step), zstandard.ZstdCompressor(level=6).compress(data))


def read_rollouts(run: Path, step: int) -> Iterator[dict[str, Any]]:
    """The rollouts of a step; none where the step kept none."""
    path = rollouts_path(run, step)
    if path.exists():
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        for line in data.decode().splitlines():
            yield json.loads(line)


def rollout_steps(run: Path) -> list[int]:
    """Steps whose rollouts were kept, ascending."""
    names = [path.name for path in (run / "rollouts").glob(f"step_*{SUFFIX}")]
    return sorted(int(name.removeprefix("step_").removesuffix(SUFFIX)) for name in names)


def forget_rollouts(run: Path, step: int) -> None:
    """Remove those after ``step``, also what a kill left half written."""
    for path in (run / "rollouts").iterdir():
        if path.name > rollouts_path(run, step).name:
            path.unlink()
