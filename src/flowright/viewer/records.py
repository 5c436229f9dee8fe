"""Rollout records as they lie in a run's files: where each is, and one of them by its place.

Reading is forgiving where a file may be half written or half copied: what is whole is read, and
what is not is counted. What a record says is not known here.
"""

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from pydantic_core import from_json

from flowright.core.errors import UserError
from flowright.runs import rollout_steps, rollouts_path

_CHUNK = 1 << 20
MOST_STEPS = 1 << 34
"""Steps that an attempt's id has room for."""


@dataclass(frozen=True, slots=True)
class Line:
    """A whole line of a step's file: its first byte and its bytes, as they are decompressed."""

    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StepFile:
    """The rollouts of a step. ``size`` and ``mtime_ns`` tell whether it was replaced."""

    step: int
    path: Path
    size: int
    mtime_ns: int


def step_files(run: Path) -> list[StepFile]:
    """Of all steps whose rollouts were kept, ascending."""
    found: list[StepFile] = []
    for step in rollout_steps(run):
        path = rollouts_path(run, step)
        try:
            told = path.stat()
        except OSError:  # removed by a resume since it was listed
            continue
        if stat.S_ISREG(told.st_mode) and step < MOST_STEPS:
            found.append(StepFile(step, path, told.st_size, told.st_mtime_ns))
    return found


def lines(path: Path) -> Iterator[Line]:
    """All lines of a file, in order; a last one without its end is among them, for the reader to
    try. Stops where the compressed data break off."""
    start, held = 0, bytearray()
    for chunk in _chunks(path):
        held += chunk
        *whole, rest = bytes(held).split(b"\n") if b"\n" in chunk else (bytes(held),)
        for data in whole:
            yield Line(start, data)
            start += len(data) + 1
        held = bytearray(rest)
    if held:
        yield Line(start, bytes(held))


def parsed(data: bytes) -> dict[str, Any] | None:
    """The record of a line, None where it is none: cut off, or no object."""
    try:
        record = from_json(data, cache_strings="keys")
    except ValueError:
        try:  # half of a surrogate pair, say, which the quick reader refuses
            record = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def record_at(run: Path, step: int, start: int, size: int) -> dict[str, Any]:
    """One record by its place. Raises UserError where it is not there any more."""
    path = rollouts_path(run, step)
    try:
        data = _part(path, start, size)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    record = parsed(data)
    if record is None:
        raise UserError(f"{path}: no record there any more; the index will be brought up to date")
    return record


def _part(path: Path, start: int, size: int) -> bytes:
    at, parts = 0, []
    for chunk in _chunks(path):
        if at + len(chunk) > start:
            parts.append(chunk[max(0, start - at) : start + size - at])
        at += len(chunk)
        if at >= start + size:
            break
    return b"".join(parts)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        while True:
            try:
                chunk = reader.read(_CHUNK)
            except zstandard.ZstdError:  # what follows is damaged
                return
            if not chunk:
                return
            yield chunk
