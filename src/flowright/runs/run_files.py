"""The files of a run as its readers see them, as plain JSON; and a step's rollouts, written and
read. Damaged files raise RunError with their name."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from pydantic_core import from_json

from flowright.config.loading import without_gone
from flowright.core.errors import RunError
from flowright.core.files import open_regular, parse_json, read_json, write_bytes
from flowright.core.journal import read_journal
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
    lines = read_journal(path)
    damaged = [n for n, row in lines.records if not isinstance(row.get("step"), int)]
    if damaged or lines.damaged:
        number = min((*damaged, *lines.damaged))
        raise RunError(f"{path}:{number}: no JSON object with a step; take the line out")
    return [row for _, row in lines.records]


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, empty where the file is missing. Raises RunError for anything else."""
    try:
        value = read_json(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: a JSON object was expected, not a {type(value).__name__}")
    return value


VALIDATION, EVALUATION, BASELINES = "validation", "evaluation", "baselines"
"""Folders of a run with attempts at held-out problems: while it trains, in the before/after table
(step 0: untrained), and the baselines of that table (their numbers stand for steps). Each has
rollouts by step as the run itself."""
HELD_OUT = (VALIDATION, EVALUATION, BASELINES)


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
    """Read the rollouts of a step; none where the step kept none. Raises OSError, ZstdError and
    ValueError for a damaged file."""
    yield from _read_records(rollouts_path(run, step))


def write_answers(run: Path, answers: Iterable[Any]) -> None:
    """Keep the trained policy's answers in the before/after table. Raises ValueError for NaN and
    infinity."""
    _write_lines(run / ANSWERS, answers)


def read_answers(run: Path) -> Iterator[dict[str, Any]]:
    """Read the answers of :func:`write_answers`; none where the run kept none."""
    yield from _read_records(run / ANSWERS)


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    data = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    write_bytes(path, zstandard.ZstdCompressor(level=6).compress(data))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a compressed file: its first byte and its bytes, as they are decompressed."""

    start: int
    data: bytes


_CHUNK = 1 << 20
MOST_UNPACKED, MOST_LINE, MOST_LINES = 1 << 34, 1 << 26, 1 << 18
"""Bytes and lines of a file, and bytes of one line, that are read: a few kilobytes of zstd can hold
any number."""


def read_lines(path: Path, whole: bool = False) -> Iterator[Line]:
    """Read the lines of a file of rollouts, in order; a last one without its end is among them, for
    the reader to try. Stops where the data break off, are damaged or beyond the bounds; then a file
    to be read ``whole`` raises ZstdError."""
    start, count, held = 0, 0, bytearray()
    try:
        for chunk in unpacked(path):
            *ended, rest = chunk.split(b"\n")
            count += len(ended)
            if len(held) > MOST_LINE or count > MOST_LINES:
                raise zstandard.ZstdError("more or longer lines than a step has")
            for data in ended:
                line = bytes(held + data) if held else data
                held.clear()
                yield Line(start, line)
                start += len(line) + 1
            held += rest
    except zstandard.ZstdError:
        if whole:
            raise
    if held:
        yield Line(start, bytes(held))


def unpacked(path: Path) -> Iterator[bytes]:
    """Decompress a file in parts. Raises OSError, and ZstdError for damaged data."""
    total = 0
    with open_regular(path) as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        size = zstandard.frame_content_size(file.read(18))
        file.seek(0)
        while chunk := reader.read(_CHUNK):
            yield chunk
            total += len(chunk)
            if total > MOST_UNPACKED:
                raise zstandard.ZstdError("larger than a step can be")
        if total < size:
            raise zstandard.ZstdError("the data end early")


def parse_record(data: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None where it is none: cut off, or no object."""
    try:
        record = from_json(data, cache_strings="keys")
    except ValueError:
        try:  # half of a surrogate pair, say, which the quick reader refuses
            record = parse_json(data.decode())
        except ValueError:
            return None
    return record if isinstance(record, dict) else None


def _read_records(path: Path) -> Iterator[dict[str, Any]]:
    for line in read_lines(path, whole=True) if path.exists() else ():
        record = parse_record(line.data)
        if record is None:
            raise ValueError(f"{path}: not a JSON object at byte {line.start}")
        yield record


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
