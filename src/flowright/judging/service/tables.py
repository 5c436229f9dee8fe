"""The rows of a table with their numbers, and written again with further columns. What the columns
mean is not known here, and how a file is read is :mod:`flowright.data.tables`'.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flowright.core.errors import UserError
from flowright.data.tables import parquet_batches, read_table

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
