"""What is known of a dataset: its files, their addresses and hashes, the parts of its splits."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from flowright.data.sources.rows import Reader, UpstreamRow, json_lines
from flowright.data.task import Kind, Problem

Converter = Callable[[UpstreamRow], Problem]
Mode = Literal["official", "aflow"]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class File:
    """One upstream file. ``path`` is below the data folder. On the Hugging Face hub, ``hub`` has
    the same bytes and ``parquet`` the same rows in the same order, as ``owner/name@revision/path``.
    What is not ``required`` is used when it is there."""

    path: str
    url: str | None = None
    sha256: str | None = None
    hub: str | None = None
    parquet: tuple[str, ...] = ()
    required: bool = True


@dataclass(frozen=True, slots=True)
class SplitPart:
    """How a split is made from a file. ``prefix`` goes in front of the names of its rows; ``also``
    names other files that ``read`` opens."""

    path: str
    read: Reader
    convert: Converter
    prefix: str = ""
    keep: Callable[[UpstreamRow], bool] = lambda row: True
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.also)

    def found_in(self, folder: Path) -> "SplitPart | None":
        """This part, or its rows from the hub in its stead; None if neither is in ``folder``."""
        if all((folder / path).is_file() for path in self.paths):
            return self
        if (folder / hub_rows(self.path)).is_file():
            return replace(self, path=hub_rows(self.path), read=json_lines, also=())
        return None


def hub_rows(path: str) -> str:
    """Where the hub's rows of a file are kept: ``gsm8k/train.hub.jsonl`` for its ``.jsonl``."""
    return re.sub(r"(\.jsonl|\.json|\.gz)+$", "", path) + ".hub.jsonl"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset. ``splits`` lists, for each mode, the parts to try for a split: the first that is
    found is used. ``archive`` holds the files that have no addresses of their own. Problems must
    have ``name`` as their source."""

    name: str
    kind: Kind
    licence: str
    files: tuple[File, ...]
    splits: Mapping[Mode, Mapping[Split, tuple[SplitPart, ...]]] = field(default_factory=dict)
    archive: File | None = None


class Source(Protocol):
    """What can be downloaded: a dataset of problems, or one of preferences."""

    @property
    def name(self) -> str: ...
    @property
    def licence(self) -> str: ...
    @property
    def files(self) -> tuple[File, ...]: ...
    @property
    def archive(self) -> File | None: ...


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
