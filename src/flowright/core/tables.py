"""Rows of a file, whatever its format: JSON Lines, JSON, CSV, TSV, parquet; text formats may be
compressed (``.gz``, ``.zst``). Each row comes with its place, which opens every message about it.
"""

import csv
import gzip
import io
import itertools
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from flowright.core.errors import DataError, UserError
from flowright.core.files import disk_errors, is_deeper, replacing

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

LINES = (".jsonl", ".ndjson")

_BATCH = 1024  # rows of parquet at a time
_LONGEST_CELL = 1 << 24  # characters; Python's own limit for a CSV file is 131,072
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, csv.Error)
_SHOWN = 10  # problems of a file


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a row: in JSON Lines and CSV the line, else the row's number; from 1."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}:{self.row}"

    def error(self, why: str) -> DataError:
        return DataError(f"{self}: {why}")


OnBadRow = Callable[[Place, str], None]
"""Called with the place of a row that cannot be read, and the reason."""


def read_rows(path: Path, on_bad: OnBadRow | None = None) -> Iterator[tuple[Place, Row]]:
    """Yield the rows of a file, read by the end of its name; blank lines are skipped.

    Raises DataError for a file that cannot be read, and for a row that cannot be, unless ``on_bad``
    takes it: then the others follow.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] in ([".gz"], [".zst"])
    read = _READERS.get("".join(suffixes[-2:-1] if packed else suffixes[-1:]))
    if packed and read is _parquet:
        read = None
    if read is None:
        raise DataError(f"{path}: not one of {', '.join(_READERS)} (text also .gz and .zst)")
    with read_errors(path):
        for place, row in read(path):
            if not isinstance(row, str):
                yield place, row
            elif on_bad is None:
                raise place.error(row)
            else:
                on_bad(place, row)


def read_object(path: Path) -> Row:
    """Return a file that is one JSON object. Raises DataError."""
    with read_errors(path), _open(path) as file:
        value = parse_row(file.read())
    if isinstance(value, str):
        raise DataError(f"{path}: {value}")
    return value


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading ``path`` into DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except _DAMAGED as error:
        reason = " ".join(str(error).split())  # tarfile's has several lines
        raise DataError(f"{path}: cannot be read: {reason}; fetch it again") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {error.start}; fetch it again, or save a file of your own "
            "as UTF-8"
        ) from None


def raise_problems(problems: Sequence[str], shown: int = _SHOWN) -> None:
    """Raise DataError with the first problems of a file and the count of the others, if any."""
    if problems:
        more = len(problems) - shown
        raise DataError(*problems[:shown], *[f"and {more:,} more"] * (more > 0))


def parquet_batches(path: Path) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a parquet file in batches, with the types of its columns. Raises
    DataError."""
    import pyarrow as pa  # half a second that other files do without
    from pyarrow import parquet

    with read_errors(path):
        try:
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(_BATCH)
        except pa.ArrowException as error:
            why = str(error).splitlines()[0]
            raise DataError(f"{path}: not a parquet file: {why}") from None


def write_rows(
    path: Path, rows: Iterable[Mapping[str, Any]], schema: "pa.Schema | None" = None
) -> None:
    """Replace a file by rows, at once: parquet or JSON Lines, by the end of its name. ``schema``
    types the columns of parquet. Raises UserError for rows that parquet cannot hold, and RunError
    (a full disk)."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            if path.suffix.lower() == ".parquet":
                _write_parquet(path, part, rows, schema)
            else:
                with part.open("w", encoding="utf-8") as out:
                    out.writelines(map(json_line, rows))


def json_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON: half of a surrogate pair, which UTF-8 cannot hold, by its
    number, and values that JSON lacks, such as dates, as text."""
    text = json.dumps(row, ensure_ascii=False, default=str)
    if any("\ud800" <= character <= "\udfff" for character in text):
        text = json.dumps(row, default=str)
    return text + "\n"


# Readers: a row, or the reason why it is none.

_Read = Iterator[tuple[Place, Row | str]]


def _json_lines(path: Path) -> _Read:
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield Place(str(path), number), parse_row(line)


def _json(path: Path) -> _Read:
    """A list of objects, one object that holds such a list, or JSON Lines under another name."""
    with _open(path) as file:
        text = file.read().decode("utf-8-sig")
    if text.lstrip()[:1] == "[":
        yield from _json_array(path, text)
        return
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _json_lines(path)
        return
    lists = [v for v in whole.values() if isinstance(v, list)] if isinstance(whole, dict) else []
    if len(lists) != 1:
        raise DataError(f"{path}: neither a list of rows nor an object that holds one")
    for number, value in enumerate(lists[0], start=1):
        yield Place(str(path), number), _as_row(value)


def _json_array(path: Path, text: str) -> _Read:
    """Decode the rows one at a time: HotpotQA's train file is 566 MB."""
    decoder = json.JSONDecoder()
    position = _next_item(text, text.index("[") + 1)
    for number in itertools.count(1):
        if text[position : position + 1] == "]":
            return
        place = Place(str(path), number)
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            line = text.count("\n", 0, error.pos) + 1
            raise place.error(f"not JSON: {error.msg} (line {line})") from None
        except (ValueError, RecursionError):
            raise place.error(_TOO_LARGE) from None
        yield place, _as_row(value)
        position = _next_item(text, position)


def _next_item(text: str, position: int) -> int:
    while text[position : position + 1] in {" ", "\n", "\r", "\t", ","}:
        position += 1
    return position


def _csv(path: Path) -> _Read:
    """The first line names the columns, between commas, semicolons (as spreadsheets write where a
    comma is decimal) or tabs. An empty cell is none; a cell that is a JSON object, or a list with
    objects or texts in it, is one. A list of numbers stays text: ``[7, 40]`` may be an interval."""
    csv.field_size_limit(_LONGEST_CELL)
    with _open(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
        columns = lines.readline()
        cut = max(",;\t", key=columns.count)
        rows = csv.DictReader(itertools.chain([columns], lines), delimiter=cut)
        for cells in rows:
            values = {name: _cell(text) for name, text in cells.items() if name and text}
            bad = "more cells than columns; put quotes around commas" if None in cells else None
            yield Place(str(path), rows.line_num), bad or values


def _cell(text: str) -> Any:
    begin = text.lstrip()[:1]
    if begin == "{" or (begin == "[" and ('"' in text or not text.strip("[] "))):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _parquet(path: Path) -> _Read:
    """Row by row where a batch holds a value that Python lacks, such as text that is not UTF-8 or
    the year 99999, so that only its own row is lost."""
    count = itertools.count(1)
    for batch in parquet_batches(path):
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError):
            rows = [_parquet_row(batch.slice(i, 1)) for i in range(batch.num_rows)]
        for row in rows:
            yield Place(str(path), next(count)), row


def _parquet_row(batch: "pa.RecordBatch") -> Row | str:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except (ValueError, OverflowError) as error:
        return f"a value is too large: {str(error)[:60]}"


_READERS: Mapping[str, Callable[[Path], _Read]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".ndjson": _json_lines,
}

_TOO_LARGE = "a number is too long, or lists too deep"
_DEEPEST = 100  # lists and objects in each other


def parse_row(text: bytes) -> Row | str:
    """Return a JSON object, or the reason why the text is none."""
    try:
        return _as_row(json.loads(text.decode("utf-8-sig")))
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} (column {error.colno})"
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except (ValueError, RecursionError):
        return _TOO_LARGE


def _as_row(value: object) -> Row | str:
    if not isinstance(value, dict):
        return f"a row is a JSON object, not {type(value).__name__}"
    return _TOO_LARGE if is_deeper(value, _DEEPEST) else value


def _open(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return cast("IO[bytes]", gzip.open(path, "rb"))
        case ".zst":
            return io.BytesIO(_decompressed(path.read_bytes()))
        case _:
            return path.open("rb")


def _decompressed(data: bytes) -> bytes:
    import zstandard

    text = bytearray()
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            text += frame.decompress(data)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        if not frame.eof:
            raise EOFError("the compressed data ends early")
        data = frame.unused_data
    return bytes(text)


def _write_parquet(
    path: Path, part: Path, rows: Iterable[Mapping[str, Any]], schema: "pa.Schema | None"
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{path}: not writable as parquet ({why}); use .jsonl") from None
    parquet.write_table(table, part)
