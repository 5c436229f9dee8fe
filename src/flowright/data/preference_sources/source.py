"""What is known of a dataset of preferences: its files, and who turns their rows into pairs. What
upstream wrote into a row is read here, too, strictly; what it means is the converters'.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flowright.data.preferences import Pair, Rated, Turn
from flowright.data.sources.dataset import File
from flowright.data.sources.rows import Reader, UpstreamRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """A file, how its rows are read, and what each becomes. Converters raise DataError for a row
    that cannot be used."""

    path: str
    read: Reader
    convert: Callable[[UpstreamRow], Pair | Rated]


@dataclass(frozen=True, slots=True)
class PreferenceSource:
    """A dataset of preferences. Where it is not ``open``, its authors state no licence: it is
    fetched by its name only, to measure with, and never trained on. Without ``parts`` it is only
    fetched: its rows are no pairs."""

    name: str
    licence: str
    files: tuple[File, ...]
    parts: tuple[Part, ...]
    archive: File | None = None
    open: bool = True


def written(row: UpstreamRow, key: str) -> str:
    """A text that UTF-8 can hold, with Unix line ends; empty is a text. Raises DataError."""
    text = row.text(key)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise row.error(f"{key} has half a character at {error.start} (a lone surrogate)") from None
    return text


def loosely_written(row: UpstreamRow, key: str) -> str:
    """As :func:`written`, of a file that went through a spreadsheet: an empty cell is NaN there,
    and a cell that says True is a boolean."""
    value = row.get(key)
    if isinstance(value, float) and math.isnan(value):
        return ""
    return str(value) if isinstance(value, bool) else written(row, key)


def chosen(row: UpstreamRow, key: str, meanings: Mapping[int, T]) -> T:
    """What the whole number in a field stands for. Raises DataError for any other value."""
    value = row.get(key)
    if type(value) is not int or value not in meanings:  # True is an int to Python
        raise row.error(f"{key} is {value!r}, not one of {', '.join(map(str, meanings))}")
    return meanings[value]


def asked(row: UpstreamRow, *turns: Turn) -> tuple[Turn, ...]:
    """The turns as a conversation. Raises DataError where one of them says nothing."""
    empty = next((turn for turn in turns if not turn.content.strip()), None)
    if empty is not None:
        raise row.error(f"a turn of the {empty.role}'s says nothing")
    return turns
