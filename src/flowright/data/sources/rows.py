"""Upstream files read row by row, every row knowing where it stands. Nothing is converted here.

All problems are DataError with a location: ``file:line`` for JSON Lines and CSV, ``file: row n``
for one large JSON array.
"""

import csv
import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from flowright.core.errors import DataError


@dataclass(frozen=True, slots=True)
class UpstreamRow:
    """One upstream row. ``where`` is for messages; ``name`` is the row's address among the rows of
    its file, such as ``"12"`` or ``"anatomy/3"``, for sources whose rows carry no id."""

    values: Mapping[str, Any]
    where: str
    name: str

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, message: str) -> DataError:
        return DataError(f"{self.where}: {message}")

    def get(self, key: str) -> Any:
        """A field of any type. Raises DataError if it is absent or null."""
        value = self.values.get(key)
        if value is None:
            raise self.error(f"the row lacks {key!r}; it has {', '.join(self.values) or 'nothing'}")
        return value

    def _typed(self, key: str, kind: type, called: str) -> Any:
        value = self.get(key)
        if not isinstance(value, kind):
            raise self.error(f"{key} is {type(value).__name__}, not {called}")
        return value

    def text(self, key: str) -> str:
        """A string field with Unix line ends. Raises DataError if it is not one."""
        return self._typed(key, str, "a string").replace("\r\n", "\n")

    def integer(self, key: str) -> int:
        return self._typed(key, int, "a whole number")

    def table(self, key: str) -> Mapping[str, Any]:
        return self._typed(key, Mapping, "an object")

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list, "a list")

    def texts(self, key: str) -> list[str]:
        """A list of strings, each with Unix line ends and no white space around it."""
        values = self.items(key)
        if not all(isinstance(value, str) for value in values):
            raise self.error(f"{key} holds something that is not a string")
        return [value.replace("\r\n", "\n").strip() for value in values]

    def inner(self, value: object, name: str, **extra: Any) -> "UpstreamRow":
        """A row nested in this one, at the same place in the file."""
        if not isinstance(value, Mapping):
            raise self.error(f"{name} is {type(value).__name__}, not an object")
        return UpstreamRow({**value, **extra}, self.where, name)


Reader = Callable[[Path], Iterator[UpstreamRow]]
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, csv.Error)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what can go wrong while reading ``path`` into a DataError."""
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


def json_lines(path: Path) -> Iterator[UpstreamRow]:
    """The rows of a ``.jsonl`` or ``.jsonl.gz`` file; blank lines are skipped."""
    with readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        index = 0
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield UpstreamRow(_object(line, f"{path}:{number}"), f"{path}:{number}", str(index))
                index += 1


def json_array(path: Path) -> Iterator[UpstreamRow]:
    """The rows of one large JSON array, decoded one at a time: HotpotQA's train file is 566 MB."""
    with readable(path):
        text = path.read_text(encoding="utf-8")
    decoder = json.JSONDecoder()
    position, index = _next_item(text, 0), 0
    if text[position : position + 1] != "[":
        raise DataError(f"{path}: not a JSON array")
    position = _next_item(text, position + 1)
    while text[position : position + 1] != "]":
        where = f"{path}: row {index}"
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            line = text.count("\n", 0, error.pos) + 1
            raise DataError(f"{path}:{line}: row {index} is not JSON: {error.msg}") from None
        yield UpstreamRow({}, where, str(index)).inner(value, str(index))
        position, index = _next_item(text, position), index + 1


def json_table(path: Path) -> UpstreamRow:
    """A whole file that is one JSON object."""
    with readable(path):
        return UpstreamRow(_object(path.read_bytes(), str(path)), str(path), "")


def zip_member(path: Path, member: str) -> UpstreamRow:
    """A file inside a zip archive that is one JSON object."""
    where = f"{path}:{member}"
    with readable(path), zipfile.ZipFile(path) as archive:
        if member not in archive.namelist():
            raise DataError(f"{path}: holds no {member}")
        return UpstreamRow(_object(archive.read(member), where), where, "")


def tar_csv(path: Path, folders: Sequence[str], columns: Sequence[str]) -> Iterator[UpstreamRow]:
    """The rows of all ``data/<folder>/*.csv`` members of a tar, in the order of their names.

    ``name`` is ``<file stem>/<index>``; the member's stem without its split suffix is ``subject``.
    """
    with readable(path), tarfile.open(path) as archive:
        members = {PurePosixPath(member.name): member for member in archive if member.isfile()}
        for folder in folders:
            names = [n for n in members if n.parent.name == folder and n.suffix == ".csv"]
            for name in sorted(names):
                stream = archive.extractfile(members[name])
                assert stream is not None, "a regular member has content"
                subject = name.stem.removesuffix(f"_{folder}")
                lines = csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""))
                for index, cells in enumerate(lines):
                    where = f"{path}:{name}:{lines.line_num}"
                    if len(cells) != len(columns):
                        raise DataError(f"{where}: {len(cells)} cells, not {len(columns)}")
                    values = dict(zip(columns, cells, strict=True))
                    yield UpstreamRow({**values, "subject": subject}, where, f"{subject}/{index}")


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: a row is a JSON object, not {type(value).__name__}")
    return value


def _next_item(text: str, position: int) -> int:
    while text[position : position + 1] in {" ", "\n", "\r", "\t", ","}:
        position += 1
    return position
