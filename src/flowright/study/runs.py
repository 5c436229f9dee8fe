"""The runs of a study: a cell for each arm and dose, a run for each cell and seed; beside them
``claims.json``, fixed before the first run, and ``journal.jsonl``, the starts and ends of the runs'
processes."""

import datetime
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from flowright.config.loading import expand
from flowright.config.policy import TINY
from flowright.core.errors import ConfigError, RunError
from flowright.core.files import disk_errors, read_json, write_json
from flowright.core.formatting import is_number
from flowright.core.journal import Journal, read_journal
from flowright.environments.registry import load_config
from flowright.runs.run_files import read_state
from flowright.study.config import ArmSection, StudyConfig

_PARAMETER = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class StudyCell:
    """An arm at one dose; ``overrides`` are set over the base."""

    name: str
    arm: str
    title: str
    dose: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    shortcut: str | None = None
    remedy_for: str | None = None

    @property
    def dose_value(self) -> float | None:
        """The dose as a number, None if it is none."""
        values = [*self.dose.values()]
        return float(values[0]) if len(values) == 1 and is_number(values[0]) else None


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One training run in ``folder``. ``config_hash`` is that of the settings that decide its
    results, ``former_hash`` the hash of older versions; ``embedded`` runs train the embedded
    policy."""

    cell: StudyCell
    seed: int
    folder: Path
    config_hash: str
    former_hash: str
    overrides: tuple[str, ...]
    embedded: bool = False

    @property
    def name(self) -> str:
        return f"{self.cell.name}/seed_{self.seed}"


def cells_of(study: StudyConfig) -> list[StudyCell]:
    """List all cells, the control first. Raises ConfigError for unused parameters, for claims and
    remedies about missing arms, and for doses of one name."""
    problems: list[str] = []
    arms = sorted(study.arms, key=lambda arm: arm.name != study.control)
    cells = [cell for arm in arms for cell in _of_arm(arm, problems)]
    names = [cell.name for cell in cells]
    problems += [
        f"arms.{name.split('@')[0]}.over: two doses are both called {name}; change or leave out one"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    dosed = {
        arm.name for arm in study.arms if len(arm.over) == 1 and _has_slope(arm, study.control)
    }
    for claim in study.claims:
        for key, name in (("arm", claim.arm), ("against", claim.against or study.control)):
            if name in names or (key == "arm" and name in dosed and claim.test != "log_rank"):
                continue
            problems.append(f"claims.{claim.id}.{key}: no {name!r}; one of {', '.join(names)}")
    problems += [
        f"arms.{arm.name}.remedy_for: no {arm.remedy_for!r}; one of {', '.join(names)}"
        for arm in study.arms
        if arm.remedy_for not in (None, *names)
    ]
    if problems:
        raise ConfigError(*problems)
    return cells


def _has_slope(arm: ArmSection, control: str) -> bool:
    (values,) = arm.over.values()
    known = [*values, *([arm.control_at] if arm.control_at is not None else [])]
    return all(map(is_number, known)) and len(known) > 1 and arm.name != control


def _of_arm(arm: ArmSection, problems: list[str]) -> Iterator[StudyCell]:
    used: set[str] = set()
    for values in product(*arm.over.values()):
        dose = dict(zip(arm.over, values, strict=True))
        suffix = ",".join(re.sub(r"[^\w.+-]", "_", str(value)) for value in values)
        where = f"arms.{arm.name}.set"
        yield StudyCell(
            name=f"{arm.name}@{suffix}" if dose else arm.name,
            arm=arm.name,
            title=arm.title or arm.name.replace("_", " "),
            dose=dose,
            overrides={
                key: _filled(value, dose, f"{where}.{key}", used, problems)
                for key, value in arm.set.items()
            },
            shortcut=arm.shortcut,
            remedy_for=arm.remedy_for,
        )
    problems += [
        f"arms.{arm.name}.over.{name}: nothing in set has ${{{name}}}"
        for name in arm.over
        if name not in used
    ]


def _filled(
    value: Any, dose: Mapping[str, Any], where: str, used: set[str], problems: list[str]
) -> Any:
    """Fill in a value's parameters; a string that is one parameter takes its type."""
    if isinstance(value, dict):
        return {k: _filled(v, dose, f"{where}.{k}", used, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_filled(v, dose, where, used, problems) for v in value]
    if not isinstance(value, str):
        return value
    if ":-" in value:  # ${NAME:-default} of the environment, such as an address
        value = str(expand({where: value}, os.environ, "")[where])
    names = _PARAMETER.findall(value)
    used.update(names)
    if missing := [name for name in names if name not in dose]:
        line = f"{where}: ${{{missing[0]}}} is not in over; add its values there"
        if line not in problems:
            problems.append(line)
        return value
    if whole := _PARAMETER.fullmatch(value):
        return dose[whole[1]]
    return _PARAMETER.sub(lambda match: str(dose[match[1]]), value)


_SET: Mapping[str, Any] = {"exclude_defaults": True, "exclude": {"run"}}
"""Without defaults: a key that is new in a later version changes nothing."""
_ADDRESSES = frozenset({"api_key", "base_url", "base_urls", "judge_url"})
_DATASETS = frozenset({"train_dataset", "val_dataset"})


def _deciding(value: Any) -> Any:
    """Strip what differs from machine to machine: addresses of servers and folders of files."""
    if isinstance(value, Mapping):
        kept = {key: v for key, v in value.items() if key not in _ADDRESSES}
        return {k: Path(v).name if k in _DATASETS else _deciding(v) for k, v in kept.items()}
    if isinstance(value, list | tuple):
        return [_deciding(each) for each in value]
    return value.name if isinstance(value, Path) else value


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def runs_of(study: StudyConfig, cells: Sequence[StudyCell], out: Path) -> list[StudyRun]:
    """List all runs, seed by seed over all cells, so that an interrupted study is balanced. Raises
    ConfigError for settings that ``train.py`` would refuse, each mistake once, with its arm."""
    problems: dict[str, str] = {}
    runs: list[StudyRun] = []
    for seed in study.all_seeds:
        for cell in cells:
            folder = out / "runs" / cell.name
            settings = {**study.set, **cell.overrides}
            overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
            overrides += [f"seed={seed}", f"run.output_dir={folder}", f"run.name=seed_{seed}"]
            overrides += (
                ["physical_gpus=null"] if study.gpus is not None else []
            )  # set at its start
            try:
                config = load_config(study.base, overrides)
            except ConfigError as error:
                problems |= {line: f"arms.{cell.arm}: {line}" for line in error.problems}
                continue
            runs.append(
                StudyRun(
                    cell=cell,
                    seed=seed,
                    folder=folder / f"seed_{seed}",
                    config_hash=_digest(_deciding(config.model_dump(**_SET))),
                    former_hash=_digest(config.model_dump(mode="json", **_SET)),
                    overrides=tuple(overrides),
                    embedded=config.strategy_model == TINY,
                )
            )
    if problems:
        raise ConfigError(*problems.values())
    return runs


# Claims and journal.

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


@dataclass(frozen=True, slots=True)
class LoadedStudy:
    """A study with its cells, runs and journal."""

    study: StudyConfig
    cells: list[StudyCell]
    runs: list[StudyRun]
    journal: StudyJournal
    out: Path
