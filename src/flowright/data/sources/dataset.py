"""Types of datasets: files with addresses and hashes, parts of splits, preferences."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from flowright.data.preferences import Pair, Rated
from flowright.data.sources.rows import Reader, UpstreamRow, read_upstream
from flowright.data.task import Kind, Problem

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
