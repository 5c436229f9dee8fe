"""The rows of an evaluation as they come, one JSON line each, so that it goes on where it stopped.

The first line says what was measured, to the letter: rows of another configuration, checkpoint or
set of problems are never mixed with these. Nothing is measured or drawn here, and torch is not
needed: whether an evaluation can start is known before anything is loaded.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flowright.core.errors import RunError
from flowright.core.files import Lock, check_writable, disk_errors, write_json, write_text
from flowright.core.journal import changes_of
from flowright.runs.run_files import EVALUATION, holds_run, write_rollouts

Where = Literal["problems", "selection"]
"""The reported problems, or others, on which baselines are chosen."""

_OWNER = ("evaluation", "folder", "--out")


class Ledger:
    """What a folder keeps of one evaluation, ``about`` plain JSON that tells it from others.

    Opening takes the folder's lock and writes nothing. Raises RunError where the folder cannot be
    written, is in use or a training run's, or holds another evaluation, unless that is to be
    replaced (``overwrite``).
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], overwrite: bool = False) -> None:
        self.folder = folder
        self._path, self._result = folder / "rows.jsonl", folder / "evaluation.json"
        self._about = json.loads(json.dumps(about))
        self._lines: list[dict[str, Any]] = []
        check_writable(folder)
        if holds_run(folder):
            raise RunError(f"{folder}: a training run is here; give another --out")
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(folder, _OWNER)
        try:
            if not overwrite:
                self._lines = self._read()
        except BaseException:
            self.close()
            raise

    @property
    def complete(self) -> bool:
        """Whether all was measured and written."""
        return self._result.exists() and {"finished": True} in self._lines

    def words(self) -> str:
        """What to say where it is stopped."""
        count = sum("row" in line for line in self._lines)
        if not count:
            return "nothing was measured yet, start again"
        rows = "1 row is" if count == 1 else f"{count} rows are"
        return f"{rows} kept in {self._path}, the same command goes on"

    def get(self, where: Where, name: str) -> dict[str, Any] | None:
        """A row that was measured, as plain JSON."""
        return next(
            (
                line["row"]
                for line in self._lines
                if line.get("on") == where and line["row"]["name"] == name
            ),
            None,
        )

    def begin(self, config: Mapping[str, Any]) -> None:
        """Keep the configuration, by which attempts are looked at and played again, and forget the
        attempts of which no row is kept. Raises RunError (a full disk)."""
        with disk_errors(self.folder):
            if not self._lines:
                shutil.rmtree(self.folder / EVALUATION, ignore_errors=True)
            write_json(self.folder / "config.json", config)

    def keep_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]], part: str) -> None:
        """Keep the attempts that a row is made of, as a run keeps them. Raises RunError (a full
        disk)."""
        with disk_errors(self.folder):
            write_rollouts(self.folder / part, step, rollouts)

    def put(self, where: Where, row: Mapping[str, Any]) -> None:
        """Keep a row. Raises RunError (a full disk)."""
        self._add({"on": where, "row": dict(row)})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Keep the whole result as evaluation.json. Raises RunError."""
        with disk_errors(self._result):
            write_json(self._result, result)
        self._add({"finished": True})

    def close(self) -> None:
        self._lock.release()

    def _add(self, line: dict[str, Any]) -> None:
        with disk_errors(self._path):
            if not self._lines:
                self._lines = [{"about": self._about}]
                write_text(self._path, json.dumps(self._lines[0], allow_nan=False) + "\n")
            with self._path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, allow_nan=False) + "\n")
                out.flush()
                os.fsync(out.fileno())
        self._lines.append(line)

    def _read(self) -> list[dict[str, Any]]:
        choice = "give another --out, or --overwrite to replace it"
        if not self._path.exists():
            if self._result.exists():
                raise RunError(f"{self._result}: an earlier result is here; {choice}")
            return []
        text = self._path.read_text(encoding="utf-8", errors="replace")
        whole, _, torn = text.rpartition("\n")
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            about = lines[0]["about"] if lines else self._about
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._path}: cannot be read ({error}); {choice}") from None
        changes = changes_of(about, self._about)
        if changes:
            told = [f"{self.folder}: holds another evaluation: {line}" for line in changes[:10]]
            raise RunError(*told[:-1], f"{told[-1]}; {choice}")
        if torn:  # killed while writing
            with disk_errors(self._path):
                write_text(self._path, f"{whole}\n" if whole else "")
        return lines
