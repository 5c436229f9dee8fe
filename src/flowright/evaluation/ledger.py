"""The folder of an evaluation: rows as they come, so that it goes on where it stopped, the attempts
that they are made of, and the result. No torch.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flowright.core.errors import RunError
from flowright.core.files import Lock, check_writable, disk_errors, write_json
from flowright.core.journal import Journal
from flowright.runs.run_files import HELD_OUT, holds_run, write_rollouts

Where = Literal["problems", "selection"]
"""The reported problems, or those on which baselines are chosen."""

_OWNER = ("evaluation", "folder", "--out")
_REMEDY = "give another --out, or --overwrite to replace it"


class Ledger:
    """The rows of one evaluation, identified by ``about``, plain JSON: rows of another
    configuration, checkpoint or set of problems are never mixed with these.

    Opening takes the folder's lock and changes nothing. Raises RunError where the folder cannot be
    written, is in use, is a training run's, or holds another evaluation, unless ``overwrite``.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], overwrite: bool = False) -> None:
        self.folder = folder
        path, self._result = folder / "rows.jsonl", folder / "evaluation.json"
        check_writable(folder)
        if holds_run(folder):
            raise RunError(f"{folder}: a training run is here; give another --out")
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(folder, _OWNER)
        try:
            if self._result.exists() and not path.exists() and not overwrite:
                raise RunError(f"{self._result}: an earlier result is here; {_REMEDY}")
            self._rows = Journal(path, about, overwrite=overwrite, remedy=_REMEDY)
        except BaseException:
            self._lock.release()
            raise

    @property
    def complete(self) -> bool:
        """True once everything was measured and written."""
        return self._result.exists() and {"finished": True} in self._rows.records

    def summary(self) -> str:
        """Return the line that is shown when the evaluation is interrupted."""
        count = sum("row" in record for record in self._rows.records)
        if not count:
            return "nothing was measured yet, start again"
        rows = "1 row is" if count == 1 else f"{count} rows are"
        return f"{rows} kept in {self._rows.path}, the same command goes on"

    def get(self, where: Where, name: str) -> dict[str, Any] | None:
        """Return a measured row as plain JSON."""
        for record in self._rows.records:
            if record.get("on") == where and record["row"]["name"] == name:
                return record["row"]
        return None

    def begin(self, config: Mapping[str, Any]) -> None:
        """Keep the configuration, which viewing and replaying attempts needs, and drop attempts of
        a replaced evaluation. Raises RunError (a full disk)."""
        with disk_errors(self.folder):
            if not self._rows.records:
                for part in HELD_OUT:
                    shutil.rmtree(self.folder / part, ignore_errors=True)
            write_json(self.folder / "config.json", config)

    def keep_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]], part: str) -> None:
        """Keep the attempts of a row, as a run keeps them. Raises RunError (a full disk)."""
        with disk_errors(self.folder):
            write_rollouts(self.folder / part, step, rollouts)

    def put(self, where: Where, row: Mapping[str, Any]) -> None:
        """Keep a row. Raises RunError (a full disk)."""
        self._rows.append({"on": where, "row": dict(row)})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Keep the result as evaluation.json. Raises RunError (a full disk)."""
        with disk_errors(self._result):
            write_json(self._result, result)
        self._rows.append({"finished": True})

    def close(self) -> None:
        self._rows.close()
        self._lock.release()
