"""``journal.jsonl`` of a study: when which run was started, with which settings, and how it ended.
What a run itself did is in its directory.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowright.core.errors import RunError
from flowright.core.files import disk_errors
from flowright.runs.run_files import read_state
from flowright.study.cells import Run

FILE = "journal.jsonl"


@dataclass(slots=True)
class History:
    """Of one run: the settings that it was started with, its processes' seconds and how often it
    failed (an exit that nobody asked for)."""

    config_hash: str
    started: float
    starts: int = 0
    seconds: float = 0.0
    failures: int = 0
    ended: bool = True


@dataclass(slots=True)
class Journal:
    """Appends a line for each event, and reads them back. ``damaged`` are the numbers of lines that
    say nothing, such as one that a power cut tore: what they told of is in the runs' own files, but
    for seconds and failures."""

    path: Path
    histories: dict[str, History] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    _torn: bool = False

    @classmethod
    def read(cls, out: Path) -> "Journal":
        """Of a study's folder."""
        journal = cls(out / FILE)
        if not journal.path.exists():
            return journal
        lines = journal.path.read_text(encoding="utf-8", errors="replace").split("\n")
        journal._torn = bool(lines[-1])
        for number, line in enumerate(lines, start=1):
            try:
                journal._take(json.loads(line)) if line else None
            except (ValueError, KeyError, TypeError):
                journal.damaged.append(number)
        return journal

    def start(self, run: Run) -> None:
        """A process of the run begins."""
        self._write({"event": "start", "run": run.name, "config": run.config_hash})

    def end(self, run: Run, status: int, seconds: float, asked: bool) -> None:
        """It has ended; ``asked``: because the study was told to stop."""
        told = {"status": status, "seconds": round(seconds, 2), "asked": asked}
        self._write({"event": "end", "run": run.name, **told})

    @property
    def first_start(self) -> float | None:
        """When the first run of all was started, in seconds since 1970."""
        return min((history.started for history in self.histories.values()), default=None)

    def _write(self, event: dict[str, Any]) -> None:
        event = {"time": time.time(), **event}
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as out:
            out.write("\n" * self._torn + json.dumps(event) + "\n")
        self._torn = False
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        name = event["run"]
        if event["event"] == "start":
            history = self.histories.setdefault(name, History(event["config"], event["time"]))
            history.starts += 1
            history.ended = False
            return
        history = self.histories[name]
        history.seconds += event["seconds"]
        history.failures += bool(event["status"]) and not event["asked"]
        history.ended = True


def is_finished(folder: Path) -> bool:
    """Whether a run is over and compared, by what it says itself."""
    return read_state(folder).get("status") == "finished"


def left_of(runs: Sequence[Run], journal: Journal) -> list[Run]:
    """The runs that are not finished. Raises RunError for a run that was started with other
    settings than it would have now: what is finished could not be compared."""
    changed = [
        run
        for run in runs
        if (known := journal.histories.get(run.name))
        and known.config_hash not in (run.config_hash, run.former_hash)
    ]
    if changed:
        some = ", ".join(run.name for run in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise RunError(
            f"{journal.path.parent}: {some}{more}: started with other settings than the study has "
            "now; put them back, or start a new study with another --out"
        )
    return [run for run in runs if not is_finished(run.folder)]
