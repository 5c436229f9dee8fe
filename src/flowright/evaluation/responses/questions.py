"""Questions out of a file, each with its place in it. Nobody is asked here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core.errors import DataError
from flowright.core.tables import parquet_batches
from flowright.data.row_files import UnusableRow, turns_of
from flowright.data.sources.rows import read_table
from flowright.llm.chat import Message

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 10  # problems of a file


@dataclass(frozen=True, slots=True)
class Question:
    """``place`` is the row's in its file, from 0: draws and seeds depend on it, and on nothing that
    changes with how many rows are asked."""

    place: int
    messages: tuple[Message, ...]


def read_questions(
    path: Path, prompt_key: str, start: int = 0, limit: int | None = None
) -> "tuple[pa.Table, list[Question]]":
    """The rows from ``start`` on, ``limit`` of them, with all their columns, and the question of
    each. A prompt is a text, or a conversation that ends with the user. Raises DataError that names
    the rows which have none: an answer has to have its place."""
    import pyarrow as pa  # half a second that --help does without

    if path.suffix == ".parquet":
        table = pa.Table.from_batches([*parquet_batches(path)] or _no_rows(path))
    else:
        rows = [dict(row.values) for row in read_table(path)]
        try:
            table = pa.table(_columns(rows or _no_rows(path)))
        except pa.ArrowException as error:
            why = str(error).splitlines()[0]
            raise DataError(
                f"{path}: a column has values of several types, which parquet has not: {why}"
            ) from None
    if prompt_key not in table.column_names:
        names = ", ".join(table.column_names)
        raise DataError(f"{path}: no column {prompt_key!r}; say --prompt-key, one of {names}")
    chosen = table.slice(start, limit)
    if not chosen.num_rows:
        raise DataError(f"{path}: {table.num_rows} rows, and none from --start {start} on")
    questions: list[Question] = []
    problems: list[str] = []
    for place, prompt in enumerate(chosen[prompt_key].to_pylist(), start=start):
        try:
            questions.append(Question(place, _messages(prompt, prompt_key)))
        except UnusableRow as error:
            problems.append(f"{path}: row {place}: {error.why}")
    if problems:
        more = [f"and {len(problems) - _SHOWN} rows more"] * (len(problems) > _SHOWN)
        raise DataError(*problems[:_SHOWN], *more)
    return chosen, questions


def _messages(prompt: object, key: str) -> tuple[Message, ...]:
    if isinstance(prompt, str) and prompt.strip():
        return (Message("user", prompt),)
    return tuple(Message(turn.role, turn.content) for turn in turns_of(prompt, key, "user"))


def _columns(rows: list[dict[str, Any]]) -> "dict[str, pa.Array]":
    """Of all rows, not of the first alone. Objects that have no name in any row, which parquet
    cannot hold, are null."""
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        column = pa.array(values)
        if "struct<>" in str(column.type):
            column = pa.array([_without_empty(value) for value in values])
        columns[name] = column
    return columns


def _without_empty(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_empty(inner) for key, inner in value.items()} or None
    if isinstance(value, list):
        return [_without_empty(inner) for inner in value]
    return value


def _no_rows(path: Path) -> Any:
    raise DataError(f"{path}: no rows in it")
