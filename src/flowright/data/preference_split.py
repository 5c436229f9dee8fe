"""Which preferences are trained on, which validate, which are held out. No file formats here."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.data.contamination import TrainedOn, beginnings, conversation_key, subset_of
from flowright.data.preference_sources import (
    Preferences,
    preference_source,
    read_preferences,
)
from flowright.data.preferences import Pair, Rated

HELD_OUT = ("llmbar/gptinst", "llmbar/gptout", "llmbar/manual", "llmbar/neighbor", "evalbiasbench")
"""What judges trained here are measured on unless something else is asked for."""

Row = Pair | Rated


@dataclass(frozen=True, slots=True)
class PreferenceSplit:
    """Rows to train and to validate on; no conversation is on both sides. ``sha256`` is of which
    conversation is on which side. ``held_out`` counts the rows of the sources that were held out;
    ``left_out`` names, for each reason, the rows that cannot or must not be trained on;
    ``unread`` are the held out sources whose files are not there, so that no text could be compared
    with theirs. ``paths`` are the files that were read, below the folder."""

    train: tuple[Row, ...]
    val: tuple[Row, ...]
    sha256: str
    held_out: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def trained_on(self) -> TrainedOn:
        return TrainedOn.of((*self.train, *self.val))


def split_preferences(
    names: Sequence[str],
    folder: Path,
    *,
    held_out: Sequence[str] = HELD_OUT,
    val_share: float = 0.1,
    seed: int = 0,
) -> PreferenceSplit:
    """Read the sources, hold out, and split by prompt.

    ``held_out`` names sources or subsets, ``llmbar`` or ``llmbar/manual``: they are not trained on,
    and neither is any row that has one of their conversations. ``val_share`` of the conversations
    validate, by a hash of the seed and the text: one never changes sides when other sources are
    added. Raises DataError.
    """
    read = {name: read_preferences(name, folder) for name in _to_train_on(names)}
    benchmarks, unread = held_out_rows(held_out, folder, read)
    rows = [row for one in read.values() for row in (*one.pairs, *one.rated)]
    kept = [row for row in rows if not _is_held_out(row, held_out)]
    _check_left(read, kept)
    sealed = {conversation_key(row.conversation) for row in benchmarks}
    left_out = {"cannot be read": [line for one in read.values() for line in one.unusable]}
    train: list[Row] = []
    val: list[Row] = []
    for row in kept:
        reason = _why_not(row, sealed)
        if reason:
            left_out.setdefault(reason, []).append(f"{row.source}/{row.id}")
        else:
            (val if _validates(row, val_share, seed) else train).append(row)
    if not train or not val:
        raise DataError(
            f"{len(train)} rows to train and {len(val)} to validate on: name more sources, or "
            "give another --val-share or --seed"
        )
    random.Random(f"{seed}/preferences").shuffle(train)
    return PreferenceSplit(
        train=tuple(train),
        val=tuple(val),
        sha256=_hash_of_split(train, val),
        held_out=Counter(subset_of(row) for row in rows if _is_held_out(row, held_out)),
        left_out={reason: tuple(named) for reason, named in left_out.items() if named},
        unread=tuple(unread),
        paths=tuple(path for one in read.values() for path in one.paths),
    )


def _to_train_on(names: Sequence[str]) -> list[str]:
    """The names once each. Raises DataError for sources that are measured on only."""
    closed = [name for name in dict.fromkeys(names) if not preference_source(name).open]
    if closed:
        raise DataError(
            *(f"{name}: no licence is stated: to be measured on only" for name in closed)
        )
    return list(dict.fromkeys(names))


def _is_held_out(row: Row, held_out: Sequence[str]) -> bool:
    return row.source in held_out or subset_of(row) in held_out


def held_out_rows(
    held_out: Sequence[str], folder: Path, read: Mapping[str, Preferences] | None = None
) -> tuple[list[Row], list[str]]:
    """The rows of sources and subsets that are held out, and the sources whose files are not in the
    folder or hold no pairs; ``read`` are those that were read already. Raises DataError for a name
    that is neither a source nor a subset of one."""
    read = read or {}
    rows: list[Row] = []
    unread: list[str] = []
    for source in dict.fromkeys(name.partition("/")[0] for name in held_out):
        if source not in read and not _is_there(source, folder):
            unread.append(source)
            continue
        found = read.get(source) or read_preferences(source, folder)
        everything = [*found.pairs, *found.rated]
        subsets = [source, *dict.fromkeys(map(subset_of, everything))]
        for name in held_out:
            if name.partition("/")[0] == source and name not in subsets:
                raise DataError(f"{name}: no such subset{suggest(name, subsets)}")
        rows += [row for row in everything if _is_held_out(row, held_out)]
    return rows, unread


def _is_there(source: str, folder: Path) -> bool:
    parts = preference_source(source).parts
    return bool(parts) and all((folder / part.path).is_file() for part in parts)


def _check_left(read: Mapping[str, Preferences], kept: Iterable[Row]) -> None:
    """Raise DataError for a source of which nothing is left to train on."""
    left = {row.source for row in kept}
    whole = [name for name in read if name not in left]
    if whole:
        raise DataError(
            *(f"{name}: nothing is left to train on, all of it is held out" for name in whole),
            "leave it away, or say what is held out instead with --hold-out",
        )


def _why_not(row: Row, sealed: set[str]) -> str:
    """Why a row is not trained on, empty where it is."""
    if not sealed.isdisjoint(beginnings(row.conversation)):
        return "its conversation is held out"
    answers = (row.first, row.second) if isinstance(row, Pair) else (row.answer,)
    if not all(answer.strip() for answer in answers):
        return "an answer is empty"
    if isinstance(row, Pair) and row.first == row.second and row.label != "tie":
        return "one of two equal answers is preferred"
    return ""


def _validates(row: Row, val_share: float, seed: int) -> bool:
    return share_of(f"{seed}/{conversation_key(row.conversation)}") < val_share


def share_of(text: str) -> float:
    """A number from 0 to below 1 that is a function of the text alone, evenly spread."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


def _hash_of_split(train: Iterable[Row], val: Iterable[Row]) -> str:
    """The SHA-256 of ``side key`` lines, sorted: of the conversations, not of their order."""
    lines = {f"train {conversation_key(row.conversation)}\n" for row in train}
    lines |= {f"val {conversation_key(row.conversation)}\n" for row in val}
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
