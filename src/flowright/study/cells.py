"""The runs of a study: a cell for each arm and dose, a run for each cell and seed."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from flowright.config.loading import expand
from flowright.config.policy import TINY
from flowright.core.errors import ConfigError
from flowright.core.formatting import is_number
from flowright.environments.registry import load_config
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
