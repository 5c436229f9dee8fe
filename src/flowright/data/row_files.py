"""Files of typed rows: each row is used or reported; the values of rows; documents.

Lists may be numpy's, as pandas reads them. Nothing is repaired.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from flowright.core.errors import DataError, FlowrightError
from flowright.core.tables import Place, read_errors, read_rows
from flowright.data.task import Conversation, Speaker
from flowright.llm.chat import Message


class Fault(StrEnum):
    """Reasons for leaving a row out: a closed list, by which such rows are counted."""

    NOT_A_ROW = "not a row"
    FORM = "form"
    COLUMN = "missing column"
    MESSAGES = "messages"
    ROLES = "roles"
    EMPTY = "empty text"
    CHARACTERS = "characters"
    SOURCE = "source"
    ANSWERS = "answers"
    LABEL = "label"
    PREFERENCE = "preference"
    MARGIN = "margin"
    CONVERSATIONS = "two conversations"
    SAME_ANSWERS = "same answers"
    RUBRIC = "rubric"
    POINTS = "points"
    RULE = "rule"
    CHECKERS = "checkers"
    OVERLONG = "overlong"
    TEMPLATE = "chat template"
    HELD_OUT = "held out"
    BENCHMARK = "benchmark"


class UnusableRow(FlowrightError):
    """A row that cannot be used, and why."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault
        self.why = why


# Messages.


def turns_of(given: object, column: str, ends: Speaker) -> Conversation:
    messages = items_of(given, column)
    turns = tuple(_turn(message, f"{column}[{n}]") for n, message in enumerate(messages))
    spoken = [turn.role for turn in turns]
    if spoken[:1] == ["system"]:
        spoken = spoken[1:]
    wanted = ["user", "assistant"] * (len(spoken) // 2 + 1)
    if spoken != wanted[: len(spoken)]:
        raise UnusableRow(
            Fault.ROLES,
            f"{column}: the roles are {short(' '.join(turn.role for turn in turns))}; after an "
            "optional system message user and assistant take turns",
        )
    if not spoken or spoken[-1] != ends:
        raise UnusableRow(Fault.ROLES, f"{column} does not end with a message of the {ends}")
    return turns


def _turn(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise UnusableRow(Fault.MESSAGES, f"{where} is {short(message)}, not a message")
    role = message.get("role")
    if not isinstance(role, str) or role not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise UnusableRow(Fault.ROLES, f"{where}: role {short(role)} is not one of {known}")
    content = message.get("content")
    if role == "system" and isinstance(content, str) and not content:
        return Message("system", "")
    return Message(_SPEAKERS[role], text_of(content, where))


_SPEAKERS: Mapping[str, Speaker] = {role: role for role in get_args(Speaker)}
_BROKEN = re.compile("[\x00\ud800-\udfff]")
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})  # white space, and signs without a width


def text_of(content: object, where: str) -> str:
    if not isinstance(content, str):
        state = "missing" if content is None else f"{short(content)}, not text"
        raise UnusableRow(Fault.MESSAGES, f"{where}: content is {state}")
    _require_whole(content, where)
    if not any(unicodedata.category(sign) not in _UNSEEN for sign in content):
        raise UnusableRow(Fault.EMPTY, f"{where}: the text is empty")
    return content


def source_of(given: object, otherwise: str) -> str:
    """Return the source that a row names, or ``otherwise``."""
    if given is None or given == "":
        return otherwise
    if not isinstance(given, str):
        raise UnusableRow(Fault.SOURCE, f"source is {short(given)}, not text")
    _require_whole(given, "source")
    return given


def _require_whole(text: str, where: str) -> None:
    if broken := _BROKEN.search(text):
        what = "NUL" if broken[0] == "\x00" else "half of a surrogate pair"
        raise UnusableRow(
            Fault.CHARACTERS, f"{where}: {what} at character {broken.start() + 1} of the text"
        )


# Values.


def column(values: Mapping[str, Any], name: str) -> object:
    value = values.get(name)
    if value is None:
        if name in values:
            raise UnusableRow(Fault.COLUMN, f"{name} is null")
        has = ", ".join(map(str, values)) or "nothing"
        raise UnusableRow(Fault.COLUMN, f"no {name}; the row has {short(has)}")
    return value


def decoded(value: object, name: str) -> object:
    """A column that may be a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "too long or too deep"
        raise UnusableRow(Fault.MESSAGES, f"{name} is a string that is not JSON: {why}") from None


def items_of(value: object, name: str) -> list[Any]:
    items = plain(value)
    if not isinstance(items, list | tuple):
        raise UnusableRow(Fault.MESSAGES, f"{name} is {short(items)}, not a list")
    return list(items)


def plain(value: object) -> object:
    """Numpy's arrays and numbers as Python's; what pandas writes for nothing as None."""
    if not isinstance(value, str | int | float | list | tuple | Mapping):
        listed = getattr(value, "tolist", None)
        value = listed() if callable(listed) else value
    return None if isinstance(value, float) and math.isnan(value) else value


def short(value: object) -> str:
    """A value of a file for a message of one line."""
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = value if isinstance(value, str) else repr(value)
    line = " ".join(text[:200].encode("utf-8", "backslashreplace").decode().split())
    return f"{line[:60]}..." if len(line) > 60 else line or "empty"


def number_of(given: object, name: str) -> float | None:
    number = plain(given)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UnusableRow(Fault.MARGIN, f"{name} is {short(number)}, not a number")
    if not abs(number) <= _LARGEST:
        why = f"{name} is {short(number)}, not a number of at most {_LARGEST:,}"
        raise UnusableRow(Fault.MARGIN, f"{why}; leave it out where it is not known")
    return float(number)


_LARGEST = 1_000_000  # of a difference of scores; one that is larger leaves float32 in the loss


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is not used: ``where`` is file:row (from 1; of JSON Lines the line)."""

    where: str
    fault: Fault
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass(frozen=True, slots=True)
class RowReport:
    """Used and left-out rows of one or several files. ``unread`` answers stood behind the first of
    pointwise rows, which is the one that counts."""

    used: int = 0
    left_out: tuple[LeftOut, ...] = ()
    unread: int = 0

    def __add__(self, other: "RowReport") -> "RowReport":
        return RowReport(
            self.used + other.used, self.left_out + other.left_out, self.unread + other.unread
        )

    def less(self, left_out: tuple[LeftOut, ...]) -> "RowReport":
        """With rows left out that counted as used."""
        return RowReport(self.used - len(left_out), self.left_out + left_out, self.unread)

    @property
    def faults(self) -> Mapping[Fault, int]:
        """Rows left out by reason, the most frequent first."""
        return dict(Counter(row.fault for row in self.left_out).most_common())

    def lines(self, most: int = 3) -> list[str]:
        """One line on all rows, then for each reason the first ``most`` of its rows."""
        rows = self.used + len(self.left_out)
        counted = ", ".join(f"{fault} {n:,}" for fault, n in self.faults.items())
        shown = [
            f"{self.used:,} of {rows:,} rows used" + (f"; left out: {counted}" * bool(counted))
        ]
        if self.unread:
            shown.append(f"  {self.unread:,} answers behind the first of their row are not read")
        for fault in self.faults:
            named = [row for row in self.left_out if row.fault is fault]
            shown += [f"  {row}" for row in named[:most]]
            shown += [f"  and {len(named) - most:,} more: {fault}"] * (len(named) > most)
        return shown


@dataclass(frozen=True, slots=True)
class RowFile(Generic[R]):
    """The rows of files, in their order, and what became of the others."""

    rows: tuple[R, ...]
    report: RowReport


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

    def on_bad(place: Place, why: str) -> None:
        left_out.append(LeftOut(str(place), Fault.NOT_A_ROW, why))

    for path in paths:
        try:
            for place, values in read_rows(path, on_bad):
                try:
                    rows.append(typed(values, str(place), path))
                except UnusableRow as error:
                    left_out.append(LeftOut(str(place), error.fault, error.why))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(*problems)
    report = RowReport(len(rows), tuple(left_out))
    if not rows:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no {called}", *report.lines())
    return RowFile(tuple(rows), report)


_ROWS = (".jsonl", ".ndjson", ".gz", ".zst", ".parquet", ".json", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class Documents:
    """The texts of ``path`` in its order, and ``left_out``: a line for each kind of row that has
    none."""

    path: Path
    texts: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def counted(self) -> str:
        """For people: ``12 documents``."""
        return "1 document" if len(self.texts) == 1 else f"{len(self.texts):,} documents"


def read_documents(path: Path) -> Documents:
    """Raises DataError for a file that cannot be read or has no text."""
    if path.suffix in _ROWS:
        found = read_row_files([path], _row, "document (a row with a column text)")
        left_out = found.report.lines() if found.report.left_out else []
        return Documents(path, found.rows, tuple(left_out))
    with read_errors(path):
        text = path.read_text(encoding="utf-8-sig")
    try:
        return Documents(path, (text_of(text, "the file"),))
    except UnusableRow as error:
        raise DataError(f"{path}: {error.why}") from None


def _row(values: Mapping[str, Any], where: str, path: Path) -> str:
    text = column(values, "text")
    if not isinstance(text, str):
        raise UnusableRow(Fault.COLUMN, f"text is a {type(text).__name__}, not a text")
    return text_of(text, "text")
