"""The files of a run as its readers see them, as plain JSON; a step's rollouts, written and read;
and checkpoints by their files alone: names, damage, the best one. Damaged files raise RunError with
their name. No torch: the content of a checkpoint belongs to flowright.grpo.checkpoint."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard
from pydantic_core import from_json

from flowright.config.loading import without_gone
from flowright.core.errors import RunError
from flowright.core.files import open_regular, parse_json, read_json, write_bytes, write_json
from flowright.core.journal import read_journal

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
