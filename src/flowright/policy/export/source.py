"""Finds what is to be exported by its files, without loading it: a run or a checkpoint of this
package, a peft adapter, a model's folder, or the files of verl's FSDP.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from flowright.core.errors import RunError
from flowright.policy.tuning import CONFIG_FILE
from flowright.runs.checkpoints import checkpoint_of, find_damage
from flowright.runs.run_files import read_config


class Kind(StrEnum):
    """Content of a source."""

    ADAPTER = "adapter"
    MODEL = "model"
    SHARDS = "shards"


@dataclass(frozen=True, slots=True)
class ExportSource:
    """``folder`` holds the weights. ``name``: for people, without the place on this machine.
    ``run``: the configuration of its run, if any. ``quantised``: how the base was packed while the
    adapter was trained. ``beside``: notes on what else is there and is left out."""

    kind: Kind
    folder: Path
    name: str
    run: Mapping[str, Any] = field(default_factory=dict)
    quantised: str | None = None
    beside: tuple[str, ...] = ()


def find_source(path: Path) -> ExportSource:
    """Find the weights of a path. Raises RunError if there are none, and for a damaged
    checkpoint."""
    if not path.is_dir():
        raise RunError(f"{path}: no such folder; give a run, a checkpoint or a model's folder")
    path = _newest_step(checkpoint_of(path))
    if (path / "manifest.json").is_file():
        return _checkpoint(path)
    if (path / CONFIG_FILE).is_file():
        return ExportSource(Kind.ADAPTER, path, path.absolute().name)
    if shards := _shards(path):
        return shards
    if (path / "config.json").is_file():
        return ExportSource(Kind.MODEL, path, path.absolute().name)
    raise RunError(
        f"{path}: no model: no checkpoints/ of a run, no manifest.json of a checkpoint, "
        f"no {CONFIG_FILE} of an adapter, no model_world_size_W_rank_R.pt of verl and no "
        "config.json of a model"
    )


def _checkpoint(path: Path) -> ExportSource:
    if damage := find_damage(path):
        raise RunError(f"{path}: {damage}; export another checkpoint")
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    run = path.absolute().parent.parent
    config = read_config(run) if (run / "config.json").is_file() else {}
    name = f"{run.name}, {path.name}"
    for kind in (Kind.ADAPTER, Kind.MODEL):
        if (path / kind).is_dir():
            return ExportSource(kind, path / kind, name, config, manifest.get("quantised"))
    raise RunError(f"{path}: neither adapter/ nor model/ in it; export another checkpoint")


def _newest_step(path: Path) -> Path:
    """Return the newest step of a training by verl; any other folder as it is."""
    newest = path / "latest_checkpointed_iteration.txt"
    if not newest.is_file():
        return path
    step = path / f"global_step_{newest.read_text(encoding='utf-8').strip()}"
    if not step.is_dir():
        raise RunError(f"{newest}: names {step.name}, which is missing; give a step's path")
    return step


def _shards(path: Path) -> ExportSource | None:
    """Find verl's files in the folder itself, or in the ``actor`` of a step."""
    from flowright.policy.export.shards import is_sharded

    roles = [role for role in ("actor", "critic") if is_sharded(path / role)]
    folder = path / roles[0] if roles else path
    if not is_sharded(folder):
        return None
    left = tuple(f"{role}/ beside it is left out: export it by its own path" for role in roles[1:])
    step = folder.absolute()
    while not step.name.startswith("global_step_") and step.name:
        step = step.parent
    return ExportSource(Kind.SHARDS, folder, step.name or folder.absolute().name, beside=left)
