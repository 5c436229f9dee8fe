"""Rows of JSON Lines and Parquet files: read one after the other, and written again with further
columns. What the columns mean is not known here.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.data.task import numbered_rows
from flowright.errors import DataError, UserError

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
Added = Callable[[int, Row], Mapping[str, Any]]
"""The further columns of a row, by its number and itself; the same names for every row."""

LINES = (".jsonl", ".ndjson", ".json")
_BATCH = 1024  # rows of Parquet at a time


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows with their numbers: lines of JSON from 1, rows of Parquet from 0. Raises DataError
    for a file that cannot be read, and at the first line that is no object."""
    if _format(path) == "parquet":
        number = 0
        for batch in _batches(path):
            for row in batch.to_pylist():
                yield number, row
                number += 1
        return
    for number, row in numbered_rows(path, "give one with --in"):
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: a row is a JSON object, not {type(row).__name__}")
        yield number, row


def row_hash(row: Row) -> str:
    """What changes with everything in a row; 32 hexadecimal digits."""
    told = json.dumps(row, sort_keys=True, default=str)
    return blake2b(told.encode(), digest_size=16).hexdigest()


def write_rows(source: Path, out: Path, added: Added, names: Sequence[str]) -> None:
    """Write all rows of ``source`` with what is ``added`` to them, replacing ``out`` at once. A
    Parquet file made of another keeps the types of its columns."""
    part = out.with_name(out.name + ".part")
    if _format(out) == "lines":
        with part.open("w", encoding="utf-8") as lines:
            for number, row in rows_of(source):
                lines.write(json_line({**row, **added(number, row)}))
    elif _format(source) == "parquet":
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


def check_name(path: Path, flag: str) -> None:
    """Raises UserError for a name that ends in no known format."""
    if path.suffix.lower() not in (*LINES, ".parquet"):
        raise UserError(f"{flag} {path}: the name must end in {', '.join(LINES)} or .parquet")


def _format(path: Path) -> str:
    return "parquet" if path.suffix.lower() == ".parquet" else "lines"


def _batches(path: Path) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa  # half a second that JSON does without
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: no such file; give one with --in")
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(_BATCH)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not Parquet: {str(error).splitlines()[0]}") from None


def _extend(source: Path, part: Path, added: Added, names: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"score": pa.float64(), "correct": pa.bool_()}
    further = [pa.field(n, types.get(n.removeprefix("judge_"), pa.string())) for n in names]
    before = pq.read_schema(source)
    schema = pa.schema([*before, *further], metadata=before.metadata)
    number = 0
    with pq.ParquetWriter(part, schema) as writer:
        for batch in _batches(source):
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
