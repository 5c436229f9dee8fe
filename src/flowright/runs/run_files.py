"""The files of a run as its readers see them, as plain JSON; and a step's rollouts, written and
read. Damaged files raise RunError with their name."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from flowright.config.loading import without_gone
from flowright.core.errors import RunError
from flowright.core.files import write_bytes
from flowright.runs.checkpoints import saved_checkpoints, step_name, step_of

SUFFIX = ".jsonl.zst"
ANSWERS = f"answers{SUFFIX}"


def free_run_name(output_dir: Path, name: str) -> str:
    """Return ``name``, or ``name-2``, ``name-3``... where that directory already holds a run."""
    candidate, number = name, 1
    while holds_run(output_dir / candidate):
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def holds_run(path: Path) -> bool:
    """Return whether steps were recorded or saved there, which a new run must not touch."""
    return (path / "metrics.jsonl").exists() or bool(saved_checkpoints(path / "checkpoints"))


def newest_run(output_dir: Path) -> Path | None:
    """Return the run whose state changed last."""
    states = list(output_dir.glob("*/state.json"))
    return max(states, key=lambda path: path.stat().st_mtime).parent if states else None


def read_state(run: Path) -> dict[str, Any]:
    """Read ``state.json``; an empty mapping where there is none yet."""
    return _read_object(run / "state.json")


def read_config(run: Path) -> dict[str, Any]:
    """Read ``config.json`` as plain JSON, without keys that are gone; an empty mapping where there
    is none."""
    return without_gone(_read_object(run / "config.json"))


def read_evaluation(run: Path) -> dict[str, Any] | None:
    """Read ``evaluation.json``; None where the run has none yet."""
    return _read_object(run / "evaluation.json") or None


def read_calibration(run: Path) -> dict[str, Any]:
    """Read ``calibration.json`` of a run that trained a scoring judge; else an empty mapping."""
    return _read_object(run / "calibration.json")


def read_plan(run: Path) -> dict[str, Any]:
    """Read ``plan.json``: the forecast under ``planned`` and, after the run, ``measured`` and how
    they compare; an empty mapping where there is none."""
    return _read_object(run / "plan.json")


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the complete lines of ``metrics.jsonl``, without a torn last line (killed while
    writing). Raises RunError for other lines that are no object with a step."""
    path = run / "metrics.jsonl"
    try:
        # A byte that is no UTF-8 makes a line invalid JSON, or a name that is never read.
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    rows: list[dict[str, Any]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = _plain_json(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise RunError(f"{path}:{number}: not JSON; take the line out") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise RunError(f"{path}:{number}: no object with a step; take the line out")
        rows.append(row)
    return rows


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, empty where the file is missing. Raises RunError for anything else."""
    try:
        value = _plain_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: a JSON object was expected, not a {type(value).__name__}")
    return value


def _plain_json(text: str) -> Any:
    """Parse standard JSON: NaN, infinities and numbers beyond a float become None."""
    return json.loads(text, parse_float=_finite, parse_constant=lambda _: None)


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


VALIDATION, EVALUATION = "validation", "evaluation"
"""Folders of a run with attempts at held-out problems: while it trains, and in the before/after
table (step 0: untrained). Each has rollouts by step as the run itself."""
HELD_OUT = (VALIDATION, EVALUATION)


def rollouts_path(run: Path, step: int) -> Path:
    """Return the path of a step's rollouts: JSON Lines under zstd, one object each. ``run`` may be
    one of its folders of :data:`HELD_OUT`, here and below."""
    return run / "rollouts" / f"{step_name(step)}{SUFFIX}"


def write_rollouts(run: Path, step: int, rollouts: Iterable[Any]) -> None:
    """Keep a step's rollouts. Raises ValueError for NaN and infinity."""
    path = rollouts_path(run, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_lines(path, rollouts)


def read_rollouts(run: Path, step: int) -> Iterator[dict[str, Any]]:
    """Read the rollouts of a step; none where the step kept none."""
    yield from _read_lines(rollouts_path(run, step))


def write_answers(run: Path, answers: Iterable[Any]) -> None:
    """Keep the trained policy's answers in the before/after table. Raises ValueError for NaN and
    infinity."""
    _write_lines(run / ANSWERS, answers)


def read_answers(run: Path) -> Iterator[dict[str, Any]]:
    """Read the answers of :func:`write_answers`; none where the run kept none."""
    yield from _read_lines(run / ANSWERS)


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    data = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    write_bytes(path, zstandard.ZstdCompressor(level=6).compress(data))


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        for line in data.decode().splitlines():
            yield json.loads(line)


def rollout_steps(run: Path) -> list[int]:
    """Return the steps whose rollouts were kept, ascending."""
    paths = (run / "rollouts").glob(f"step_*{SUFFIX}")
    steps = (step_of(path.name.removesuffix(SUFFIX)) for path in paths)
    return sorted(step for step in steps if step is not None)


def forget_rollouts(run: Path, step: int, into: Path) -> None:
    """Move rollouts after ``step`` into another folder, and remove half-written files."""
    for path in rollouts_after(run, step):
        if path.name.endswith(SUFFIX):
            into.mkdir(parents=True, exist_ok=True)
            path.replace(into / path.name)
        else:
            path.unlink()


def rollouts_after(run: Path, step: int) -> list[Path]:
    """Return the files of rollouts after ``step``."""
    last = rollouts_path(run, step).name if step >= 0 else ""
    return sorted(path for path in (run / "rollouts").glob("*") if path.name > last)
