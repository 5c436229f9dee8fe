"""Judge a file of answers row by row, resuming where it stopped; ``scripts/judge_file.py``.

Every verdict is appended to the journal ``<out>.progress`` at once; the output is made of it at the
end. A row is identified by its number and a hash of its content, so that a changed row is judged
again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flowright.core.batch_calls import Outcome, ServerDown, call_all
from flowright.core.errors import DataError, RunPaused, UserError
from flowright.core.files import replacing
from flowright.core.journal import Journal
from flowright.core.plugins import suggest
from flowright.core.tables import LINES, parquet_batches, read_rows, write_rows
from flowright.judging.payloads import whole_characters
from flowright.judging.reward.calls import ANSWERS, COMPLETIONS, PROMPTS, query_of, request_of
from flowright.judging.verdict import DOWN, Judge, JudgeQuery

Row = Mapping[str, Any]
Key = tuple[int, str]
"""A row's number, from 1, and its hash."""
Judged = Mapping[str, Any]

ADDED = ("score", "correct", "source", "status", "explanation")
"""Columns added to each row; with the prefix ``judge_`` if the file has one of them already."""

USUAL_MORE = {"answer_type": ("answer_type",), "criteria": ("criteria",)}
MORE = (*USUAL_MORE, "alternatives", "evidence", "rival")
"""Further fields of a request. Only the usual ones are used without being chosen: a column named
``evidence`` may be anything."""

FORMATS = (*LINES, ".json", ".parquet")


def row_hash(row: Row) -> str:
    """Return 32 hexadecimal digits that change with the content of a row."""
    text = json.dumps(row, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def check_out(path: Path) -> None:
    """Raise UserError for a name without the suffix of a format that can be written."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"--out {path}: the name must end in {', '.join(FORMATS)}")


def keyed_rows(path: Path) -> Iterator[tuple[Key, Row]]:
    """Yield the rows of a file with their keys. Raises DataError."""
    for number, (_, row) in enumerate(read_rows(path), start=1):
        yield (number, row_hash(row)), row


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a row. ``more`` maps further fields of a request to columns."""

    prompt: str
    completion: str
    answer: str | None
    more: Mapping[str, str]

    def query(self, row: Row) -> JudgeQuery:
        """Return a row's query; equal rows have equal seeds. Raises ValueError for a row that
        cannot be judged."""
        absent = [name for name in (self.prompt, self.completion) if row.get(name) is None]
        if absent:
            raise ValueError(f"the row has no {' and no '.join(absent)}")
        more = {field: row.get(column) for field, column in self.more.items()}
        reference = row.get(self.answer) if self.answer else None
        asked = request_of(row[self.prompt], row[self.completion], reference, more)
        return query_of({**asked, "request_id": row_hash(row)})


@dataclass(frozen=True, slots=True)
class Survey:
    """Size and columns of a file."""

    rows: int
    columns: Columns
    added: tuple[str, ...]


def survey(path: Path, chosen: Mapping[str, str | None]) -> Survey:
    """Read a file once. ``chosen`` are columns by field, None for the usual names. Raises DataError
    for a line that is no row, and UserError for missing columns."""
    count, seen = 0, dict[str, None]()
    for _, row in read_rows(path):
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


def open_progress(path: Path, asked: Mapping[str, Any]) -> Journal:
    """Open the journal of verdicts. ``asked`` identifies judge and columns: one file never has the
    verdicts of two judges. Raises RunError if it was begun otherwise, or another process holds it.
    """
    remedy = "give another --out, or remove it to judge everything again"
    return Journal(path, asked, header="asked", sync=False, skip_damaged=True, remedy=remedy)


async def judge_rows(
    source: Path,
    columns: Columns,
    judge: Judge,
    progress: Journal,
    concurrency: int,
    retry_failed: bool,
    advance: Callable[[], None],
) -> dict[Key, Judged]:
    """Judge the rows without a verdict (with ``retry_failed``: without a score), ``concurrency`` at
    a time, and return all verdicts. ``advance`` is called for each row, those kept included.

    Raises RunPaused if the judge is down.
    """
    known = {
        key: row for key, row in progress.latest("row", "hash").items() if row.keys() >= {*ADDED}
    }
    kept = {k: row for k, row in known.items() if not (retry_failed and row["score"] is None)}

    def rows() -> Iterator[tuple[Key, tuple[Key, Row]]]:
        for key, row in keyed_rows(source):
            if key in kept:
                advance()
            yield key, (key, row)

    async def judged(item: tuple[Key, Row]) -> Judged:
        try:
            query = columns.query(item[1])
        except ValueError as error:
            empty = dict.fromkeys(ADDED)
            return {**empty, "status": "invalid", "explanation": str(error)}
        verdict = await judge.judge(query)
        return {
            "score": verdict.score,
            "correct": verdict.correct,
            "source": verdict.source,
            "status": verdict.status,
            "explanation": whole_characters(verdict.reason),
        }

    def outcome(result: Judged) -> Outcome:
        if result["status"] in DOWN:
            return "down"
        return "neutral" if result["status"] == "invalid" else "reached"

    try:
        return await call_all(
            rows(),
            judged,
            concurrency=concurrency,
            outcome=outcome,
            why=lambda result: result["explanation"],
            kept=kept,
            keep=lambda key, row: progress.append({"row": key[0], "hash": key[1], **row}),
            progress=advance,
            name="the judge",
            remedy="start it, then give the same command again with --retry-failed",
        )
    except ServerDown as down:
        raise RunPaused(*down.problems) from None


def write_judged(
    source: Path, out: Path, added: Sequence[str], judged: Mapping[Key, Judged]
) -> Counter[str]:
    """Write all rows with the columns ``added``, replacing ``out`` at once; return how many rows
    were right, wrong, tied, and the others by status."""
    counts: Counter[str] = Counter()

    def columns_of(key: Key) -> dict[str, Any]:
        if key not in judged:
            raise UserError(f"{source}: changed while it was judged; give the same command again")
        row = judged[key]
        outcome = {True: "right", False: "wrong", None: "tie"}[row["correct"]]
        counts[outcome if row["score"] is not None else str(row["status"])] += 1
        return {name: row[field] for name, field in zip(added, ADDED, strict=True)}

    if source.suffix.lower() == out.suffix.lower() == ".parquet":
        _extend(source, out, columns_of, added)
    else:
        write_rows(out, ({**row, **columns_of(key)} for key, row in keyed_rows(source)))
    return counts


def _extend(
    source: Path, out: Path, columns_of: Callable[[Key], Mapping[str, Any]], added: Sequence[str]
) -> None:
    """Copy a Parquet file in batches, with the types of its columns, and add columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"score": pa.float64(), "correct": pa.bool_()}
    further = [pa.field(n, types.get(n.removeprefix("judge_"), pa.string())) for n in added]
    before = pq.read_schema(source)
    schema = pa.schema([*before, *further], metadata=before.metadata)
    keys = (key for key, _ in keyed_rows(source))
    with replacing(out) as part, pq.ParquetWriter(part, schema) as writer:
        for batch in parquet_batches(source):
            rows = [columns_of(next(keys)) for _ in range(batch.num_rows)]
            columns = [pa.array([row[f.name] for row in rows], f.type) for f in further]
            writer.write_batch(pa.record_batch([*batch.columns, *columns], schema=schema))
