"""The rows of a table with their numbers, and written again with further columns. What the columns
mean is not known here, and how a file is read is :mod:`flowright.data.tables`'.
"""

import asyncio
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from flowright.core.errors import DataError, RunPaused, UserError
from flowright.core.plugins import suggest
from flowright.data.tables import parquet_batches, read_table
from flowright.judging.payloads import whole_characters
from flowright.judging.reward.calls import ANSWERS, COMPLETIONS, PROMPTS, query_of, request_of
from flowright.judging.verdict import Judge, JudgeQuery, Verdict

Row = Mapping[str, Any]
Added = Callable[[int, Row], Mapping[str, Any]]
"""The further columns of a row, by its number and itself; the same names for every row."""

LINES = (".jsonl", ".ndjson", ".json")


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows with their numbers, from 1. Raises DataError for what cannot be read."""
    for number, row in enumerate(read_table(path), start=1):
        yield number, row.values


def row_hash(row: Row) -> str:
    """What changes with everything in a row; 32 hexadecimal digits."""
    told = json.dumps(row, sort_keys=True, default=str)
    return blake2b(told.encode(), digest_size=16).hexdigest()


def write_rows(source: Path, out: Path, added: Added, names: Sequence[str]) -> None:
    """Write all rows of ``source`` with what is ``added`` to them, replacing ``out`` at once. A
    Parquet file made of another keeps the types of its columns."""
    part = out.with_name(out.name + ".part")
    if not _is_parquet(out):
        with part.open("w", encoding="utf-8") as lines:
            for number, row in rows_of(source):
                lines.write(json_line({**row, **added(number, row)}))
    elif _is_parquet(source):
        _extend(source, part, added, names)
    else:
        _convert(source, part, added)
    part.replace(out)


def json_line(row: Row) -> str:
    """A row as a line; half of a surrogate pair, which UTF-8 can't hold, as its number."""
    text = json.dumps(row, ensure_ascii=False, default=str)
    if any("\ud800" <= character <= "\udfff" for character in text):
        text = json.dumps(row, default=str)
    return text + "\n"


def check_out(path: Path) -> None:
    """Raises UserError for a name that ends in no format that can be written."""
    if path.suffix.lower() not in (*LINES, ".parquet"):
        raise UserError(f"--out {path}: the name must end in {', '.join(LINES)} or .parquet")


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _extend(source: Path, part: Path, added: Added, names: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"score": pa.float64(), "correct": pa.bool_()}
    further = [pa.field(n, types.get(n.removeprefix("judge_"), pa.string())) for n in names]
    before = pq.read_schema(source)
    schema = pa.schema([*before, *further], metadata=before.metadata)
    number = 1
    with pq.ParquetWriter(part, schema) as writer:
        for batch in parquet_batches(source):
            told = [added(number + i, row) for i, row in enumerate(batch.to_pylist())]
            number += len(told)
            columns = [pa.array([row[f.name] for row in told], f.type) for f in further]
            writer.write_batch(pa.record_batch([*batch.columns, *columns], schema=schema))


def _convert(source: Path, part: Path, added: Added) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.Table.from_pylist([{**row, **added(n, row)} for n, row in rows_of(source)])
    except (pa.ArrowException, UnicodeEncodeError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"--out: not writable as Parquet ({why}); give a name in .jsonl") from None
    pq.write_table(table, part)


ADDED = ("score", "correct", "source", "status", "explanation")
"""What each row gets; with ``judge_`` before it where the file has such a column already."""

USUAL_MORE = {"answer_type": ("answer_type",), "criteria": ("criteria",)}
MORE = (*USUAL_MORE, "alternatives", "evidence", "rival")
"""Further fields of a request. Only the usual ones are taken without being chosen: a column that is
called ``evidence`` may be anything."""

_PATIENCE = 32  # failures of transport in a row after which a judge counts as down
_DOWN = ("timeout", "unavailable")

Judged = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Where in a row things stand. ``more`` are further fields of a request by their column."""

    prompt: str
    completion: str
    answer: str | None
    more: Mapping[str, str]

    def query(self, row: Row) -> JudgeQuery:
        """Raises ValueError for a row that cannot be judged. Equal rows have equal seeds."""
        absent = [name for name in (self.prompt, self.completion) if row.get(name) is None]
        if absent:
            raise ValueError(f"the row has no {' and no '.join(absent)}")
        more = {field: row.get(column) for field, column in self.more.items()}
        reference = row.get(self.answer) if self.answer else None
        asked = request_of(row[self.prompt], row[self.completion], reference, more)
        return query_of({**asked, "request_id": row_hash(row)})


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a file before it is judged."""

    rows: int
    columns: Columns
    added: tuple[str, ...]


def survey(path: Path, chosen: Mapping[str, str | None]) -> Survey:
    """Read a file once. ``chosen`` are columns by field, None for the usual names. Raises
    DataError for a line that is no row, and UserError for columns that are not there."""
    count, seen = 0, dict[str, None]()
    for _, row in rows_of(path):
        count += 1
        seen.update(dict.fromkeys(row))
    if not count:
        raise DataError(f"{path}: no row in it")
    usual = {"prompt": PROMPTS, "completion": COMPLETIONS, "answer": ANSWERS, **USUAL_MORE}
    found: dict[str, str] = {}
    problems: list[str] = []
    for field, column in chosen.items():
        names = (column,) if column else usual.get(field, ())
        name = next((name for name in names if name in seen), None)
        if name is not None:
            found[field] = name
        elif column or field in ("prompt", "completion"):
            hint = suggest(column, [*seen]) if column else f"; choose one with --{field}"
            problems.append(f"{path}: no column {' or '.join(names)} among {', '.join(seen)}{hint}")
    if problems:
        raise UserError(*problems)
    more = {field: found[field] for field in MORE if field in found}
    prefix = "judge_" if seen.keys() & {*ADDED} else ""
    columns = Columns(found["prompt"], found["completion"], found.get("answer"), more)
    return Survey(count, columns, tuple(prefix + name for name in ADDED))


class Progress:
    """The verdicts so far, in a file that one process at a time may add to.

    ``asked`` says who judges what; raises UserError where the file was begun otherwise, so that
    verdicts of two judges never stand in one file, and where another process is at it.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path = path
        self._judged: dict[tuple[int, str], Judged] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(json.loads(json.dumps(asked)))
        except BlockingIOError:
            self._file.close()
            raise UserError(f"{path}: another process is judging into it") from None
        except UserError:
            self._file.close()
            raise

    def of(self, number: int, row: Row) -> Judged | None:
        return self._judged.get((number, row_hash(row)))

    def keep(self, number: int, row: Row, judged: Judged) -> None:
        """Add a verdict, at once: a killed process loses none that was kept."""
        key = number, row_hash(row)
        self._judged[key] = judged
        self._append({"row": key[0], "hash": key[1], **judged})

    def close(self) -> None:
        self._file.close()

    def _read(self, asked: Mapping[str, Any]) -> None:
        self._file.seek(0)
        whole = 0
        lines = list(self._file)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
        self._file.truncate(whole)  # a line that was cut short
        kept = [_read_line(line) for line in lines if line.endswith(b"\n")]
        if not kept:
            self._append({"asked": asked})
            return
        before = kept[0].get("asked")
        if before != asked:
            raise UserError(
                f"{self.path}: was begun with another judge or other columns ({before}); give "
                "another --out, or remove it to judge everything again"
            )
        for each in kept[1:]:
            if each.keys() >= {"row", "hash", *ADDED}:
                self._judged[each.pop("row"), each.pop("hash")] = each

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json_line(line).encode()
        while data:  # past Python's buffers, so that it outlives the process
            data = data[os.write(self._file.fileno(), data) :]


def _read_line(line: bytes) -> dict[str, Any]:
    """A line of the progress; nothing for one that a failing disk has spoilt."""
    try:
        read = json.loads(line)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


async def judge_rows(
    source: Path,
    columns: Columns,
    judge: Judge,
    progress: Progress,
    concurrency: int,
    retry_failed: bool,
    tell: Callable[[], None],
) -> int:
    """Judge what has no verdict yet (with ``retry_failed``: no score), ``concurrency`` rows at a
    time; returns how many. ``tell`` is called for each row, those left alone included.

    Raises RunPaused where the judge is down: the rest would be no other.
    """
    count = in_a_row = 0

    def left() -> Iterator[tuple[int, Row]]:
        for number, row in rows_of(source):
            judged = progress.of(number, row)
            if judged is None or (retry_failed and judged["score"] is None):
                yield number, row
            else:
                tell()

    waiting = left()

    async def work() -> None:
        nonlocal count, in_a_row
        for number, row in waiting:
            judged = await _judged(row, columns, judge)
            progress.keep(number, row, judged)
            count += 1
            tell()
            in_a_row = in_a_row + 1 if judged["status"] in _DOWN else 0
            if in_a_row >= _PATIENCE:
                raise RunPaused(
                    f"the judge is down: {in_a_row} rows in a row failed ({judged['explanation']})",
                    "start it, then give the same command again with --retry-failed",
                )

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except* UserError as several:
        raise several.exceptions[0] from None
    return count


async def _judged(row: Row, columns: Columns, judge: Judge) -> Judged:
    try:
        query = columns.query(row)
    except ValueError as error:
        return _invalid(str(error))
    return _told(await judge.judge(query))


def _told(verdict: Verdict) -> Judged:
    return {
        "score": verdict.score,
        "correct": verdict.correct,
        "source": verdict.source,
        "status": verdict.status,
        "explanation": whole_characters(verdict.reason),
    }


def _invalid(why: str) -> Judged:
    return {"score": None, "correct": None, "source": None, "status": "invalid", "explanation": why}


def write_judged(source: Path, out: Path, added: Sequence[str], progress: Progress) -> Counter[str]:
    """Write the output; returns how many rows were right, wrong, tied, and what else by status."""
    counts: Counter[str] = Counter()

    def of(number: int, row: Row) -> Mapping[str, Any]:
        judged = progress.of(number, row)
        if judged is None:
            raise UserError(f"{source}: changed while it was judged; give the same command again")
        outcome = {True: "right", False: "wrong", None: "tie"}[judged["correct"]]
        counts[outcome if judged["score"] is not None else str(judged["status"])] += 1
        return {name: judged[key] for name, key in zip(added, ADDED, strict=True)}

    write_rows(source, out, of, added)
    return counts
