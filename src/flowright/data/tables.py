"""Rows of a user's own file, whatever its format: JSON Lines, a JSON list, CSV, TSV, parquet. What
the columns mean is the reader's: :mod:`flowright.data.own`, or whoever judges the rows.
"""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core.errors import DataError
from flowright.data.sources.rows import UpstreamRow, json_array, json_lines, readable

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1024  # rows of Parquet at a time
_LONGEST_CELL = 1 << 24  # characters; Python's own limit for a CSV file is 131,072


def read_table(path: Path) -> Iterator[UpstreamRow]:
    """The rows of a file, read by the end of its name; ``name`` counts them from 1. Raises
    DataError with the place of what cannot be read."""
    suffix = (path.suffixes[-2:] or [""])[0] if path.suffix == ".gz" else path.suffix
    read = _READERS.get(suffix.lower())
    if read is None:
        raise DataError(f"{path}: not one of {', '.join(_READERS)} (or .jsonl.gz)")
    for number, row in enumerate(read(path), start=1):
        yield UpstreamRow(row.values, row.where, str(number))


def _json(path: Path) -> Iterator[UpstreamRow]:
    """A list of objects, one object that holds such a list, or JSON Lines under another name."""
    with readable(path):
        start = path.read_text(encoding="utf-8-sig").lstrip()
    if start.startswith("["):
        yield from json_array(path)
        return
    try:
        whole = json.loads(start)
    except json.JSONDecodeError:
        yield from json_lines(path)
        return
    lists = [value for value in whole.values() if isinstance(value, list)]
    if len(lists) != 1:
        raise DataError(f"{path}: neither a list of rows nor an object that holds one")
    around = UpstreamRow({}, str(path), "")
    for index, value in enumerate(lists[0]):
        row = around.inner(value, f"row {index}")
        yield UpstreamRow(row.values, f"{path}: row {index}", "")


def _csv(path: Path) -> Iterator[UpstreamRow]:
    """Its first line names the columns, between commas, semicolons (as spreadsheets write where a
    comma is decimal) or tabs. An empty cell is none; a cell that is a JSON list or object is one.
    """
    csv.field_size_limit(_LONGEST_CELL)
    with readable(path), path.open(encoding="utf-8-sig", newline="") as lines:
        columns = lines.readline()
        lines.seek(0)
        rows = csv.DictReader(lines, delimiter=max(",;\t", key=columns.count))
        for cells in rows:
            where = f"{path}:{rows.line_num}"
            if None in cells:
                raise DataError(f"{where}: more cells than columns; put quotes around commas")
            yield UpstreamRow({k: _cell(v) for k, v in cells.items() if v}, where, "")


def _cell(text: str) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text


def _parquet(path: Path) -> Iterator[UpstreamRow]:
    values = (row for batch in parquet_batches(path) for row in batch.to_pylist())
    for index, row in enumerate(values):
        yield UpstreamRow(row, f"{path}: row {index}", "")


def parquet_batches(path: Path) -> "Iterator[pa.RecordBatch]":
    """The rows of a Parquet file, some at a time, with the types of its columns. Raises
    DataError."""
    import pyarrow as pa  # half a second that other files do without
    from pyarrow import parquet

    with readable(path):
        try:
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(_BATCH)
        except pa.ArrowException as error:
            said = str(error).splitlines()[0]
            raise DataError(f"{path}: not a parquet file: {said}") from None


_READERS: dict[str, Callable[[Path], Iterator[UpstreamRow]]] = {
    ".jsonl": json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".ndjson": json_lines,
}
