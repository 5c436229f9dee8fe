"""A journal: JSON objects, one a line, appended as they come and read back to resume."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

from flowright.core.errors import RunError
from flowright.core.files import check_writable, disk_errors, hold, parse_json, read_bytes

Record = dict[str, Any]

_REMEDY = "give another --out, or --overwrite to start again"
_SHOWN = 10  # changed settings in a message


@dataclass(frozen=True, slots=True)
class JournalLines:
    """The content of a journal: ``records`` with the number of each one's line (from 1),
    ``damaged`` the numbers of complete lines that are no JSON object, ``whole`` the bytes before a
    torn last line."""

    records: tuple[tuple[int, Record], ...]
    damaged: tuple[int, ...]
    whole: int


def read_journal(path: Path) -> JournalLines:
    """Read a journal without holding it; a missing file is empty. The header is a record,
    too. Raises RunError."""
    try:
        return _parse(read_bytes(path))
    except FileNotFoundError:
        return JournalLines((), (), 0)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from None


class Journal:
    """The journal at ``path``, held by this process until it is closed.

    ``about`` is plain JSON that identifies the settings; it stands in the first line, under the key
    ``header``. Opening changes nothing but for a torn last line, which is cut off; header and
    ``overwrite`` take effect with the first record. ``sync`` waits for the disk after each record.

    Raises RunError for a file that cannot be written, that another process holds, of other
    settings, or with a damaged line. With ``skip_damaged`` such lines are in ``damaged`` instead.
    ``remedy`` ends the messages.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any] | None = None,
        *,
        header: str = "about",
        overwrite: bool = False,
        sync: bool = True,
        skip_damaged: bool = False,
        remedy: str = _REMEDY,
    ) -> None:
        self.path = path
        self.records: list[Record] = []
        self.damaged: tuple[int, ...] = ()
        self._remedy = remedy
        self._sync = sync
        self._pending = b""  # the header, until the first record
        check_writable(path.parent)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._hold()
        try:
            if about is not None:
                about = json.loads(json.dumps(about))
                self._pending = _line({header: about})
            lines = _parse(b"" if overwrite else path.read_bytes())
            self._size = lines.whole
            if self._size and about is not None:
                self._pending = b""
                lines = self._without_header(lines, header, about)
            if lines.damaged and not skip_damaged:
                raise RunError(
                    f"{path}:{lines.damaged[0]}: cannot be read; take the line out, or {remedy}"
                )
            self.records = [record for _, record in lines.records]
            self.damaged = lines.damaged
            if self._size:
                with disk_errors(path):
                    self._file.truncate(self._size)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self, *fields: str) -> dict[Any, Record]:
        """Return the last record for each value of a field, or tuple of values of several;
        records without them are left out."""
        if len(fields) == 1:
            return {each[fields[0]]: each for each in self.records if fields[0] in each}
        return {
            tuple(each[field] for field in fields): each
            for each in self.records
            if each.keys() >= {*fields}
        }

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record at once: a killed process loses none. Raises RunError (a full disk) and
        ValueError for NaN and infinity."""
        data = self._pending + _line(record)
        with disk_errors(self.path):
            try:
                if not self._size:
                    self._file.truncate(0)
                left = data
                while left:
                    left = left[self._file.write(left) :]
                if self._sync:
                    os.fsync(self._file.fileno())
            except BaseException:
                with suppress(OSError):  # the next record must not continue half a line
                    self._file.truncate(self._size)
                raise
        self._size += len(data)
        self._pending = b""
        self.records.append(dict(record))

    def close(self) -> None:
        """Release the file; one without a line is removed."""
        if self._file.closed:
            return
        with suppress(OSError):
            if not os.fstat(self._file.fileno()).st_size:
                self.path.unlink()
        self._file.close()

    def _hold(self) -> FileIO:
        try:
            return hold(self.path)
        except BlockingIOError:
            holder = _holder(self.path.stat().st_ino)
            raise RunError(
                f"{self.path}: another process writes into this file{holder}; wait for it, or "
                f"{self._remedy}"
            ) from None

    def _without_header(
        self, lines: JournalLines, header: str, about: Mapping[str, Any]
    ) -> JournalLines:
        number, first = lines.records[0] if lines.records else (0, {})
        before = first.get(header)
        if number != 1 or not isinstance(before, dict):
            raise RunError(
                f"{self.path}:1: cannot be read: no settings under {header!r}; {self._remedy}"
            )
        changes = changes_of(before, about)
        if changes:
            problems = [f"{self.path}: has other settings: {line}" for line in changes[:_SHOWN]]
            raise RunError(*problems[:-1], f"{problems[-1]}; {self._remedy}")
        return JournalLines(lines.records[1:], lines.damaged, lines.whole)


def changes_of(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the differences of two nested mappings as ``key.sub: before -> now``; a missing key
    equals None."""
    found: list[str] = []
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes_of(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old} -> {new}")
    return found


def _parse(data: bytes) -> JournalLines:
    whole, end, _ = data.rpartition(b"\n")
    records: list[tuple[int, Record]] = []
    damaged: list[int] = []
    for number, line in enumerate(whole.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line.decode())
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append((number, record))
        else:
            damaged.append(number)
    return JournalLines(tuple(records), tuple(damaged), len(whole) + len(end))


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _holder(inode: int) -> str:
    """Name the process that holds a file, where the system shows it."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and fields[4] != "0":
                return f" (process {fields[4]})"
    return ""
