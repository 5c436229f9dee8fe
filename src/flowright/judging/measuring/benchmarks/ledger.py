"""What a judge said, as it comes: a line of JSON a row, so that an interrupted measurement goes on.

The first line says what is measured, to the letter; other rows are never mixed with these. Nothing
is asked or counted here.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from flowright.core.errors import RunError
from flowright.core.files import check_writable, disk_errors, write_text
from flowright.core.journal import changes_of

_CHOICE = "give another --json or --out, or --overwrite to start again"


def ledger_path(record: Path) -> Path:
    """Beside the record: ``judged.json`` has ``judged.outcomes.jsonl``."""
    return record.with_name(f"{record.stem}.outcomes.jsonl")


class Ledger:
    """The outcomes kept at ``path``, held by this process. ``about`` is plain JSON that tells this
    measurement from others.

    Raises RunError where the file cannot be written, is held by another process, or holds another
    measurement, unless that is to be replaced (``overwrite``); ``choice`` says what to do then.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        overwrite: bool = False,
        choice: str = _CHOICE,
    ) -> None:
        self.path = path
        self._choice = choice
        self._about = json.loads(json.dumps(about))
        self.said: dict[str, dict[str, Any]] = {}
        check_writable(path.parent)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("a", encoding="utf-8")
        try:
            self._hold()
            if overwrite or not path.stat().st_size:
                self._file.truncate(0)
                self._add({"about": self._about})
            else:
                self._read()
        except BaseException:
            self.close()
            raise

    def put(self, key: str, said: Mapping[str, Any]) -> None:
        """Keep what was said of a row. Raises RunError (a full disk)."""
        self._add({"row": key, "said": dict(said)})
        self.said[key] = dict(said)

    def close(self) -> None:
        self._file.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{self.path}: another process writes into this file; wait for it, or "
                f"{self._choice}"
            ) from None

    def _add(self, line: Mapping[str, Any]) -> None:
        with disk_errors(self.path):
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        whole, _, torn = text.rpartition("\n")
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            about = dict(first["about"])
            self.said = {line["row"]: dict(line["said"]) for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path}: cannot be read ({error}); {self._choice}") from None
        changes = changes_of(about, self._about)
        if changes:
            told = [f"{self.path}: holds another measurement: {line}" for line in changes[:10]]
            raise RunError(*told[:-1], f"{told[-1]}; {self._choice}")
        if torn:  # killed while writing
            self.close()
            with disk_errors(self.path):
                write_text(self.path, f"{whole}\n")
                self._file = self.path.open("a", encoding="utf-8")
            self._hold()
