"""Types of datasets: files with addresses and hashes, parts of splits, preferences; and their rows
with typed fields, where every error names ``file:row``.
"""

import csv
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from flowright.core.errors import DataError
from flowright.core.tables import parse_row, read_errors, read_object, read_rows
from flowright.data.task import Kind, Pair, Problem, Rated


@dataclass(frozen=True, slots=True)
class UpstreamRow:
    """One row. ``where`` is its place for messages; ``name`` is its address in the file, such as
    ``"12"`` or ``"anatomy/3"``, for sources whose rows carry no id."""

    values: Mapping[str, Any]
    where: str
    name: str

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, message: str) -> DataError:
        return DataError(f"{self.where}: {message}")

    def get(self, key: str) -> Any:
        """Return a field of any type. Raises DataError if it is absent or null."""
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
        """Return a string field with Unix line ends. Raises DataError if it is not one."""
        return self._typed(key, str, "a string").replace("\r\n", "\n")

    def integer(self, key: str) -> int:
        return self._typed(key, int, "a whole number")

    def table(self, key: str) -> Mapping[str, Any]:
        return self._typed(key, Mapping, "an object")

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list, "a list")

    def texts(self, key: str) -> list[str]:
        """Return a list of strings, each with Unix line ends and no white space around it."""
        values = self.items(key)
        if not all(isinstance(value, str) for value in values):
            raise self.error(f"{key} holds something that is not a string")
        return [value.replace("\r\n", "\n").strip() for value in values]

    def inner(self, value: object, name: str, **extra: Any) -> "UpstreamRow":
        """Return a row nested in this one, at the same place in the file."""
        if not isinstance(value, Mapping):
            raise self.error(f"{name} is {type(value).__name__}, not an object")
        return UpstreamRow({**value, **extra}, self.where, name)


Reader = Callable[[Path], Iterator[UpstreamRow]]


def read_upstream(path: Path, first: int = 0) -> Iterator[UpstreamRow]:
    """Yield the rows of a file; their names count them from ``first``. Raises DataError with the
    place of what cannot be read."""
    for number, (place, values) in enumerate(read_rows(path), start=first):
        yield UpstreamRow(values, str(place), str(number))


def read_table(path: Path) -> Iterator[UpstreamRow]:
    """Yield the rows of a user's own file; their names count them from 1. Raises DataError, also
    for a file without rows."""
    row = None
    for row in read_upstream(path, first=1):
        yield row
    if row is None:
        raise DataError(
            f"{path}: {'no rows in it' if path.stat().st_size else 'the file is empty'}"
        )


def json_table(path: Path) -> UpstreamRow:
    """Read a whole file that is one JSON object."""
    return UpstreamRow(read_object(path), str(path), "")


def zip_member(path: Path, member: str) -> UpstreamRow:
    """Read a file inside a zip archive that is one JSON object."""
    where = f"{path}:{member}"
    with read_errors(path), zipfile.ZipFile(path) as archive:
        if member not in archive.namelist():
            raise DataError(f"{path}: holds no {member}")
        value = parse_row(archive.read(member))
    if isinstance(value, str):
        raise DataError(f"{where}: {value}")
    return UpstreamRow(value, where, "")


def tar_csv(path: Path, folders: Sequence[str], columns: Sequence[str]) -> Iterator[UpstreamRow]:
    """Yield the rows of all ``data/<folder>/*.csv`` members of a tar, in the order of their names.

    ``name`` is ``<file stem>/<index>``; the member's stem without its split suffix is ``subject``.
    """
    with read_errors(path), tarfile.open(path) as archive:
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


# Datasets.

Converter = Callable[[UpstreamRow], Problem]
Mode = Literal["official", "aflow"]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class File:
    """One upstream file. ``path`` is below the data folder. On the Hugging Face hub, ``hub`` has
    the same bytes and ``parquet`` the same rows in the same order, as ``owner/name@revision/path``.
    What is not ``required`` is used when it is there. ``upstream`` is its path in upstream's own
    folder ``data``, where a data folder ``data/raw`` gets a copy."""

    path: str
    url: str | None = None
    sha256: str | None = None
    hub: str | None = None
    parquet: tuple[str, ...] = ()
    required: bool = True
    upstream: str | None = None


@dataclass(frozen=True, slots=True)
class SplitPart:
    """A file that makes a split. ``prefix`` goes in front of the names of its rows; ``also`` names
    other files that ``read`` opens."""

    path: str
    convert: Converter
    prefix: str = ""
    read: Reader = read_upstream
    keep: Callable[[UpstreamRow], bool] = lambda row: True
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.also)

    def found_in(self, folder: Path) -> "SplitPart | None":
        """Return this part, or its rows at another path; None if neither is in ``folder``."""
        if all((folder / path).is_file() for path in self.paths):
            return self
        for path in other_names(self.path):
            if (folder / path).is_file():
                return replace(self, path=path, read=read_upstream, also=())
        return None


_OTHER_NAMES = {"hotpotqa/hotpot_dev_distractor_v1.json": ("hotpotqa/dev_distractor.json",)}
"""Files as other repositories name them, row for row."""


def other_names(path: str) -> tuple[str, ...]:
    """Return the paths at which the rows of a file may be, too: the hub's, and other names."""
    return (hub_rows(path), *_OTHER_NAMES.get(path, ()))


def hub_rows(path: str) -> str:
    """Return the path of the hub's rows of a file: ``gsm8k/train.hub.jsonl`` for its ``.jsonl``."""
    return re.sub(r"(\.jsonl|\.json|\.gz)+$", "", path) + ".hub.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files to download; of prompts with criteria, whose rows are read by those who score them, all
    that there is. ``archive`` holds the files that have no addresses of their own."""

    name: str
    licence: str
    files: tuple[File, ...]
    archive: File | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Source):
    """Problems. ``splits`` lists, for each mode, the parts to try for a split: the first that is
    found is used. Problems must have ``name`` as their source."""

    kind: Kind
    splits: Mapping[Mode, Mapping[Split, tuple[SplitPart, ...]]] = field(default_factory=dict)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class PreferencePart:
    """A file of preferences: ``convert`` makes a pair or a rated answer of a row, or raises
    DataError for an unusable one."""

    path: str
    convert: Callable[[UpstreamRow], Pair | Rated]
    read: Reader = read_upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceSource(Source):
    """Preferences. A source that is not ``open`` has no stated licence: it is fetched by its name
    only, to measure with, and never trained on. Without ``parts`` it is only fetched."""

    parts: tuple[PreferencePart, ...]
    open: bool = True
