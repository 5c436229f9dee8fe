"""Files of rows, parquet or JSON Lines, of which each row is used or named. What a row means is its
reader's (:mod:`flowright.environments.judging.files`, :mod:`flowright.criteria.rubrics.rows`).
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from flowright.core.errors import DataError
from flowright.data.row_values import Fault, UnusableRow, short
from flowright.data.sources.rows import readable
from flowright.data.tables import parquet_batches, read_table

R = TypeVar("R")

_LINES = (".jsonl", ".ndjson", ".gz")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is not used: ``where`` is file:row (from 1; of JSON Lines the line)."""

    where: str
    fault: Fault
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the rows of one or several files. ``unread`` answers stood behind the first of
    pointwise rows, which is the one that counts."""

    used: int = 0
    left_out: tuple[LeftOut, ...] = ()
    unread: int = 0

    def __add__(self, other: "Report") -> "Report":
        return Report(
            self.used + other.used, self.left_out + other.left_out, self.unread + other.unread
        )

    def less(self, left_out: tuple[LeftOut, ...]) -> "Report":
        """With rows left out that counted as used."""
        return Report(self.used - len(left_out), self.left_out + left_out, self.unread)

    @property
    def faults(self) -> Mapping[Fault, int]:
        """How many rows were left out for each reason, the most frequent first."""
        return dict(Counter(row.fault for row in self.left_out).most_common())

    def lines(self, most: int = 3) -> list[str]:
        """One line on all rows, then for each reason the first ``most`` of its rows."""
        rows = self.used + len(self.left_out)
        counted = ", ".join(f"{fault} {n:,}" for fault, n in self.faults.items())
        told = [f"{self.used:,} of {rows:,} rows used" + (f"; left out: {counted}" * bool(counted))]
        if self.unread:
            told.append(f"  {self.unread:,} answers behind the first of their row are not read")
        for fault in self.faults:
            named = [row for row in self.left_out if row.fault is fault]
            told += [f"  {row}" for row in named[:most]]
            told += [f"  and {len(named) - most:,} more: {fault}"] * (len(named) > most)
        return told


@dataclass(frozen=True, slots=True)
class RowFile(Generic[R]):
    """The rows of files, in their order, and what became of the others."""

    rows: tuple[R, ...]
    report: Report


def read_row_files(
    paths: Sequence[Path], typed: Callable[[Mapping[str, Any], str, Path], R], called: str
) -> RowFile[R]:
    """The rows of files. ``typed`` makes one of its columns, its place (file:row) and its file, or
    raises UnusableRow, and the row is left out by name; ``called`` is what such a row is.

    Raises DataError for files that cannot be read, all of them at once, and where no row is left.
    """
    rows: list[R] = []
    left_out: list[LeftOut] = []
    problems: list[str] = []
    for path in paths:
        try:
            for where, values in _raw(path):
                try:
                    if isinstance(values, UnusableRow):
                        raise values
                    rows.append(typed(values, where, path))
                except UnusableRow as error:
                    left_out.append(LeftOut(where, error.fault, error.why))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(*problems)
    report = Report(len(rows), tuple(left_out))
    if not rows:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no {called}", *report.lines())
    return RowFile(tuple(rows), report)


def _raw(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | UnusableRow]]:
    """Each row with its place, from 1; one that is no row as the error that says so."""
    if path.suffix in _LINES:
        yield from _json_lines(path)
    elif path.suffix == ".parquet":
        for number, values in enumerate(_parquet(path), start=1):
            yield f"{path}:{number}", values
    else:
        for row in read_table(path):
            yield f"{path}:{row.name}", row.values


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | UnusableRow]]:
    with readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}:{number}", _object(line)


def _object(line: bytes) -> Mapping[str, Any] | UnusableRow:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        why = f"not JSON: {error.msg} (column {error.colno})"
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start}"
    except (ValueError, RecursionError):
        why = "a number is too long, or lists too deep"
    else:
        if isinstance(value, dict):
            return value
        why = f"a row is a JSON object, not {type(value).__name__}"
    return UnusableRow(Fault.NOT_A_ROW, why)


def _parquet(path: Path) -> Iterator[Mapping[str, Any] | UnusableRow]:
    """Row by row where a batch holds what Python has no value for, such as text that is not UTF-8
    or the year 99999, so that only its own row is lost."""
    for batch in parquet_batches(path):
        try:
            yield from batch.to_pylist()
        except (ValueError, OverflowError):
            for number in range(batch.num_rows):
                try:
                    yield from batch.slice(number, 1).to_pylist()
                except UnicodeDecodeError as error:
                    yield UnusableRow(Fault.NOT_A_ROW, f"not UTF-8 at byte {error.start}")
                except (ValueError, OverflowError) as error:
                    yield UnusableRow(Fault.NOT_A_ROW, f"a value is too large: {short(str(error))}")
