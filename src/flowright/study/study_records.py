"""Records of a study beside its runs: ``claims.json``, fixed before the first run, and
``journal.jsonl``, the starts and ends of the runs' processes."""

import datetime
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowright.core.errors import RunError
from flowright.core.files import disk_errors, read_json, write_json
from flowright.core.journal import Journal, read_journal
from flowright.runs.run_files import read_state
from flowright.study.cells import StudyRun
from flowright.study.config import StudyConfig

CLAIMS_FILE = "claims.json"
_KEYS = {"claims": "id", "arms": "name"}  # lists in the claims, by the key of their entries


def claims_of(study: StudyConfig) -> dict[str, Any]:
    """Collect everything that must not change once results are known: the claims, the control, the
    seeds (adding one until it works would be a choice), the rate of false alarms, and the arms
    that claims name, before variables of the environment are filled in. Other arms may be added."""
    about = {claim.arm for claim in study.claims} | {claim.against for claim in study.claims}
    names = {study.control, *(name.split("@")[0] for name in about if name)}
    arms = [arm for arm in study.arms if arm.name in names]
    return {
        "study": study.name,
        "control": study.control,
        "seeds": list(study.all_seeds),
        "false_alarms": study.false_alarms,
        "arms": [arm.model_dump(mode="json", exclude={"title"}) for arm in arms],
        "claims": [claim.model_dump(mode="json") for claim in study.claims],
    }


def digest(claims: dict[str, Any]) -> str:
    """Return the SHA-256 of the claims in canonical JSON."""
    return hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).hexdigest()


def settle_claims(study: StudyConfig, out: Path, began: bool) -> dict[str, Any]:
    """Write the claims, or compare them with those on disk (with the keys that an older version
    wrote). Raises RunError if they differ and a run ``began``, or if runs exist without claims."""
    now = claims_of(study)
    path = out / CLAIMS_FILE
    before = read_claims(out)
    if before is not None and began:
        now = {key: value for key, value in now.items() if key in before}
    if before is not None and before["sha256"] == digest(now):
        return before
    if began:
        why = "there are none beside its runs" if before is None else _changed(before, now)
        raise RunError(
            f"{path}: the claims were fixed before the first run, and {why}; put them back, or "
            "start a new study with another --out"
        )
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    kept = {"sha256": digest(now), "written": when, **now}
    with disk_errors(path):
        write_json(path, kept)
    return kept


def read_claims(out: Path) -> dict[str, Any] | None:
    """Read the claims; None without any. Raises RunError if their hash does not match."""
    path = out / CLAIMS_FILE
    try:
        kept = read_json(path)
        hashed = {key: kept[key] for key in kept if key not in ("sha256", "written")}
        whole = digest(hashed) == kept["sha256"] and bool(kept["written"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: not as it was written; put it back") from None
    if not whole:
        raise RunError(f"{path}: its SHA-256 is not that of its claims; put it back")
    return kept


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    keys = [key for key in now if now[key] != before.get(key) and key not in _KEYS]
    for listed, key in _KEYS.items():
        old, new = ({each[key]: each for each in some.get(listed, ())} for some in (before, now))
        names = {**old, **new} if listed == "claims" else old.keys() & new.keys()
        keys += [f"{listed}.{name}" for name in names if old.get(name) != new.get(name)]
    return f"{', '.join(keys) or 'their order'} changed since"


@dataclass(slots=True)
class RunHistory:
    """Settings that a run was started with, its processes' seconds and its failures (exits that
    were not caused by stopping the study)."""

    config_hash: str
    started: float
    starts: int = 0
    seconds: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class StudyJournal:
    """Start and end events of runs. ``damaged`` are line numbers that cannot be read, such as a
    torn last one; only their seconds and failures are lost, the rest is in the runs' own files."""

    path: Path
    histories: dict[str, RunHistory] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    _file: Journal | None = None

    @classmethod
    def read(cls, out: Path) -> "StudyJournal":
        """Read the journal of a study's folder."""
        journal = cls(out / "journal.jsonl")
        lines = read_journal(journal.path)
        journal.damaged += lines.damaged
        for number, event in lines.records:
            try:
                journal._take(event)
            except (KeyError, TypeError):
                journal.damaged.append(number)
        if journal.path.exists() and lines.whole < journal.path.stat().st_size:
            with journal.path.open("rb") as file:
                journal.damaged.append(file.read(lines.whole).count(b"\n") + 1)
        return journal

    def start(self, run: StudyRun) -> None:
        """Record that a process of the run starts."""
        self._write({"event": "start", "run": run.name, "config": run.config_hash})

    def end(self, run: StudyRun, status: int, seconds: float, stopped: bool) -> None:
        """Record its exit; ``stopped`` if the study was stopping."""
        values = {"status": status, "seconds": round(seconds, 2), "asked": stopped}
        self._write({"event": "end", "run": run.name, **values})

    def close(self) -> None:
        """Release the file; the next event opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def first_start(self) -> float | None:
        """Start of the first run of all, in seconds since 1970."""
        return min((history.started for history in self.histories.values()), default=None)

    def _write(self, event: dict[str, Any]) -> None:
        event = {"time": time.time(), **event}
        if self._file is None:
            remedy = "start a new study with another --out"
            self._file = Journal(self.path, skip_damaged=True, remedy=remedy)
        self._file.append(event)
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        name = event["run"]
        if event["event"] == "start":
            history = self.histories.setdefault(name, RunHistory(event["config"], event["time"]))
            history.starts += 1
            return
        history = self.histories[name]
        history.seconds += event["seconds"]
        history.failures += bool(event["status"]) and not event["asked"]


def is_finished(folder: Path) -> bool:
    """Return whether a run has ended and was evaluated."""
    return read_state(folder).get("status") == "finished"


def unfinished(runs: Sequence[StudyRun], journal: StudyJournal) -> list[StudyRun]:
    """List the runs that are not finished. Raises RunError if a run was started with other settings
    than it has now: its results could not be compared."""
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
