"""The source of an export, found by its files without loading it: a run or a checkpoint of this
package, a peft adapter, a model's folder, or the files of verl's FSDP; and these files,
``model_world_size_W_rank_R.pt``, put together.

A file is a state dict of tensors that say how they were split (DTensor, of PyTorch's FSDP2 and
newer FSDP1; ShardedTensor, of older FSDP1) or of plain ones, split along their first dimension.
Files are mapped into memory, and one tensor at a time is read. Only tensors and the classes that
describe their split are unpickled: nothing of a file is run. ShardedTensor is read by stand-ins,
which keep what was pickled: torch's class needs a group of processes, and is about to be dropped.
"""

import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from flowright.core.errors import RunError
from flowright.core.files import read_json
from flowright.policy.base_models import model_id
from flowright.policy.export.weights import Weights
from flowright.policy.tuning import CONFIG_FILE
from flowright.runs.run_files import checkpoint_of, find_damage, read_config


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


def export_id(source: ExportSource, base: str | None = None, **settings: Any) -> str:
    """Return a hash of what an export is made of: the source's files, its base and ``settings``."""
    if base is None and source.kind is Kind.ADAPTER:
        with suppress(OSError, ValueError, AttributeError):  # reported where it is read
            base = read_json(source.folder / CONFIG_FILE).get("base_model_name_or_path")
    made_of = {
        "source": model_id(source.folder),
        "base": model_id(base) if base and Path(base).is_dir() else base,
        "quantised": source.quantised,
        **settings,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


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
    roles = [role for role in ("actor", "critic") if is_sharded(path / role)]
    folder = path / roles[0] if roles else path
    if not is_sharded(folder):
        return None
    left = tuple(f"{role}/ beside it is left out: export it by its own path" for role in roles[1:])
    step = folder.absolute()
    while not step.name.startswith("global_step_") and step.name:
        step = step.parent
    return ExportSource(Kind.SHARDS, folder, step.name or folder.absolute().name, beside=left)


_NAME = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


class Record:
    """Stands in for any object: its arguments and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        """Keep a dict, or the pair of dict and slots; a tuple of other things is not needed."""
        for some in state if isinstance(state, tuple) else (state,):
            if isinstance(some, dict):
                self.__dict__.setdefault("fields", {}).update(some)


class ShardParts(Tensor):
    """Stands in for a ShardedTensor: one rank's parts, each with its offset in the whole tensor."""

    local: Sequence[Record]
    whole_size: tuple[int, ...]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} on a part of a tensor")

    def __setstate__(self, state: Any) -> None:
        self.local, metadata, *_ = state
        self.whole_size = tuple(metadata.fields["size"])


def record_class(_owner: object, _name: str) -> type[Record]:
    """Stands in for ``getattr``, by which a class within a class is pickled."""
    return Record


_SHARD = "torch.distributed._shard"
_CLASSES: list[Any] = [
    (ShardParts, f"{_SHARD}.sharded_tensor.api.ShardedTensor"),
    (record_class, "builtins.getattr"),
    *(
        (Record, f"{_SHARD}.{name}")
        for name in (
            "sharded_tensor.shard.Shard",
            "sharded_tensor.metadata.ShardedTensorMetadata",
            "sharded_tensor.metadata.TensorProperties",
            "sharded_tensor.metadata.MEM_FORMAT_ENCODING",
            "metadata.ShardMetadata",
            "sharding_spec.api.EnumerableShardingSpec",
            "sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
        )
    ),
    (Record, "torch.distributed.remote_device._remote_device"),
    # The classes of DTensor under their names before PyTorch 2.5.
    (DTensor, "torch.distributed._tensor.api.DTensor"),
    (DTensor, "torch.distributed.tensor._api.DTensor"),
    (DeviceMesh, "torch.distributed._tensor.device_mesh.DeviceMesh"),
    *(
        (kind, f"torch.distributed._tensor.{module}.{kind.__name__}")
        for module in ("placement_types", "_dtensor_spec")
        for kind in (Shard, Replicate, DTensorSpec, TensorMeta)
    ),
]
"""Allowed classes beside torch's own, by the names in a file; for ``safe_globals``."""


def is_sharded(folder: Path) -> bool:
    """Return whether a folder holds such files."""
    return any(_NAME.fullmatch(path.name) for path in folder.glob("model_world_size_*.pt"))


def shard_files(folder: Path) -> list[Path]:
    """Return the file of each rank, in order. Raises RunError for a missing or a surplus one."""
    found: dict[int, dict[int, Path]] = defaultdict(dict)
    for path in folder.glob("model_world_size_*.pt"):
        if name := _NAME.fullmatch(path.name):
            found[int(name[1])][int(name[2])] = path
    if len(found) > 1:
        sizes = ", ".join(f"{size} ({len(files)} files)" for size, files in sorted(found.items()))
        raise RunError(
            f"{folder}: files of several world sizes: {sizes}; leave those of one training there"
        )
    ((size, files),) = found.items()
    if missing := sorted(set(range(size)) - files.keys()):
        ranks = ", ".join(map(str, missing))
        raise RunError(
            f"{folder}: of {size} ranks the files of rank {ranks} are missing; copy them from the "
            "machines that wrote them"
        )
    if surplus := sorted(files.keys() - set(range(size))):
        raise RunError(
            f"{files[surplus[0]]}: there is no rank {surplus[0]} among {size}; remove the file"
        )
    return [files[rank] for rank in range(size)]


def whole_weights(folder: Path, shapes: Mapping[str, Sequence[int]]) -> Weights:
    """Return every tensor of a folder's files, put together when it is read.

    ``shapes``: the model's sizes, by which plain tensors that were split are known from those that
    every rank has whole; without one, a tensor that is the same on all ranks is whole. Raises
    RunError for files that do not belong together or hold anything else.
    """
    files = shard_files(folder)
    ranks = [_load_file(file) for file in files]
    for file, state in zip(files[1:], ranks[1:], strict=True):
        if alone := sorted(state.keys() ^ ranks[0].keys()):
            raise RunError(
                f"{file}: {alone[0]} is not in all of the files; they are of different trainings"
            )
    return {
        name: partial(_whole, folder, name, [state[name] for state in ranks], shapes.get(name))
        for name in ranks[0]
    }


def _load_file(file: Path) -> dict[str, Tensor]:
    try:
        with safe_globals(_CLASSES), _no_mesh_warnings():
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        with safe_globals(_CLASSES):
            names = sorted(get_unsafe_globals_in_checkpoint(file))
        content = f"holds {', '.join(names[:4])}" if names else "holds more than tensors"
        raise RunError(
            f"{file}: {content}, which is not unpickled here because a file could run anything by "
            "it; merge it where it was written (python -m verl.model_merger merge --backend fsdp) "
            "and give the folder that this leaves"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        first = (str(error).strip().splitlines() or ["empty"])[0][:200]
        message = f"{file}: not a whole file of torch.save ({first}); copy it again"
        raise RunError(message) from error
    if not isinstance(state, dict) or not state:
        raise RunError(f"{file}: not a state dict; give the files that verl's FSDP wrote")
    if other := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise RunError(f"{file}: {other[0]} is no tensor; give the files that verl's FSDP wrote")
    return state


@contextmanager
def _no_mesh_warnings() -> Iterator[None]:
    """Silence torch's warning of a mesh without a process group, once for each rank."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _whole(
    folder: Path, name: str, parts: Sequence[Any], model_shape: Sequence[int] | None
) -> Tensor:
    """Put one tensor of all ranks together."""
    first = parts[0]
    try:
        if len({type(part) for part in parts}) > 1:
            raise ValueError("is split in some of the files and not in others")
        if isinstance(first, DTensor):
            return _placed(parts)
        if isinstance(first, ShardParts):
            return _sharded(parts)
        return _plain(parts, None if model_shape is None else tuple(model_shape))
    except ValueError as error:
        raise RunError(f"{folder}: {name}: {error}") from error


def _placed(parts: Sequence[Any]) -> Tensor:
    """Join DTensors by their placements: one for each dimension of the mesh of ranks, the first of
    which was split first."""
    specs = [part._spec for part in parts]
    placements = tuple(specs[0].placements)
    if any(tuple(other.placements) != placements for other in specs):
        raise ValueError("is split in several ways")
    for placement in placements:
        if type(placement) not in (Shard, Replicate):
            raise ValueError(
                f"is placed as {placement}, of tensor parallelism or a sum that was not made; "
                "merge it where it was written"
            )
    older = vars(specs[0].mesh).get("mesh")  # before PyTorch 2.10 it was an attribute
    mesh = specs[0].mesh.mesh if older is None else older
    if mesh.ndim != len(placements) or int(mesh.max()) >= len(parts):
        raise ValueError(f"its mesh {mesh.tolist()} is not of {len(parts)} ranks")

    def joined(ranks: Tensor, placements: Sequence[Any]) -> Tensor:
        if not placements:
            return parts[int(ranks)]._local_tensor
        placement, *inner = placements
        if isinstance(placement, Replicate):
            return joined(ranks[0], inner)
        return torch.cat([joined(some, inner) for some in ranks], dim=placement.dim)

    whole = joined(mesh, placements)
    if whole.shape != parts[0].shape:
        raise ValueError(f"its parts come to {tuple(whole.shape)}, it was {tuple(parts[0].shape)}")
    return whole


def _sharded(ranks: Sequence[ShardParts]) -> Tensor:
    """Put the parts of all ranks in their places."""
    size = ranks[0].whole_size
    parts = [part.fields for rank in ranks for part in rank.local]
    whole = torch.empty(size, dtype=ranks[0].dtype)
    for part in parts:
        offsets = part["metadata"].fields["shard_offsets"]
        sizes = zip(offsets, part["tensor"].shape, strict=True)
        whole[tuple(slice(start, start + length) for start, length in sizes)] = part["tensor"]
    if sum(part["tensor"].numel() for part in parts) != whole.numel():
        raise ValueError(f"its parts do not come to {size}")
    return whole


def _plain(parts: Sequence[Tensor], wanted: tuple[int, ...] | None) -> Tensor:
    """Return a tensor of the model's size as it is, if it is alike on all ranks; join rows else."""
    first, *others = parts
    alike = all(torch.equal(first, other) for other in others)
    if tuple(first.shape) == wanted or not first.ndim:
        if not alike:
            raise ValueError("is whole in every file, and not the same")
        return first
    if alike and wanted is None:
        return first
    whole = torch.cat(list(parts))
    if wanted is not None and tuple(whole.shape) != wanted:
        raise ValueError(f"its parts come to {tuple(whole.shape)}, the model has {wanted}")
    return whole
