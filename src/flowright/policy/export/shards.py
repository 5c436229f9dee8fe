"""What several processes wrote of one model: files ``model_world_size_W_rank_R.pt``, as verl's FSDP
leaves them, and the whole tensors that their parts come to. No LoRA and no names of layers here.

A file is a state dict: tensors that say how they were split (DTensor, of PyTorch's FSDP2 and newer
FSDP1; ShardedTensor, of older FSDP1), or plain ones, which were split along their first dimension.
Files are mapped into memory, so that one tensor at a time is read. Of what they pickle, only
tensors and the classes that say how these were split are let in: nothing of a file is run.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from flowright.policy.export.weights import Weights

_ROOM = "torch.distributed._shard"


class Record:
    """What was kept of any object: its arguments and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        """A dict, the pair of dict and slots, or a tuple that nobody needs here."""
        for some in state if isinstance(state, tuple) else (state,):
            if isinstance(some, dict):
                self.__dict__.setdefault("fields", {}).update(some)


class Pieces(Tensor):
    """One rank's parts of a tensor: each with where it begins in the whole one."""

    local: Sequence[Record]
    whole_size: tuple[int, ...]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} on a part of a tensor")

    def __setstate__(self, state: Any) -> None:
        self.local, metadata, *_ = state
        self.whole_size = tuple(metadata.fields["size"])

    @staticmethod
    def whole(ranks: Sequence["Pieces"]) -> Tensor:
        """All ranks' parts in their places. Raises ValueError where they leave a gap or overlap."""
        first = ranks[0]
        parts = [piece.fields for rank in ranks for piece in rank.local]
        whole = torch.empty(first.whole_size, dtype=first.dtype)
        for part in parts:
            begins = part["metadata"].fields["shard_offsets"]
            place = tuple(
                slice(begin, begin + length)
                for begin, length in zip(begins, part["tensor"].shape, strict=True)
            )
            whole[place] = part["tensor"]
        if sum(part["tensor"].numel() for part in parts) != whole.numel():
            raise ValueError(f"its parts do not come to {first.whole_size}")
        return whole


def nested_class(_owner: object, _name: str) -> type[Record]:
    """In the place of ``getattr``, by which a class within a class is pickled."""
    return Record


CLASSES: list[Any] = [
    (Pieces, f"{_ROOM}.sharded_tensor.api.ShardedTensor"),
    (nested_class, "builtins.getattr"),
    *(
        (Record, f"{_ROOM}.{name}")
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
]
"""What its files name, each with its stand-in; for ``torch.serialization.safe_globals``."""


_NAME = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")

_OLDER: list[Any] = [
    (DTensor, "torch.distributed._tensor.api.DTensor"),
    (DTensor, "torch.distributed.tensor._api.DTensor"),
    (DeviceMesh, "torch.distributed._tensor.device_mesh.DeviceMesh"),
    *(
        (kind, f"torch.distributed._tensor.{module}.{kind.__name__}")
        for module in ("placement_types", "_dtensor_spec")
        for kind in (Shard, Replicate, DTensorSpec, TensorMeta)
    ),
]
"""Where PyTorch had these classes before version 2.5."""


def is_sharded(folder: Path) -> bool:
    """Whether a folder holds such files."""
    return any(_NAME.fullmatch(path.name) for path in folder.glob("model_world_size_*.pt"))


def shard_files(folder: Path) -> list[Path]:
    """The file of each rank, in their order. Raises RunError where one is missing or too many."""
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
            f"{files[surplus[0]]}: there is no rank {surplus[0]} among {size}; take the file away"
        )
    return [files[rank] for rank in range(size)]


def whole_weights(folder: Path, shapes: Mapping[str, Sequence[int]]) -> Weights:
    """Every tensor of a folder's files, put together when it is read. ``shapes``: the sizes that
    the model has, which tell plain tensors that were split from those that every rank has whole;
    without one, a tensor that is the same on all ranks is whole.
    Raises RunError for files that do not belong together or hold what is not read here."""
    files = shard_files(folder)
    ranks = [_opened(file) for file in files]
    for file, state in zip(files[1:], ranks[1:], strict=True):
        if alone := sorted(state.keys() ^ ranks[0].keys()):
            raise RunError(
                f"{file}: {alone[0]} is not in all of the files; they are of different trainings"
            )
    return {
        name: _Split(str(folder), name, tuple(state[name] for state in ranks), shapes.get(name))
        for name in ranks[0]
    }


def _opened(file: Path) -> dict[str, Tensor]:
    try:
        with safe_globals([*_OLDER, *CLASSES]), _quiet():
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        raise RunError(f"{file}: {_foreign(file)}") from error
    except (RuntimeError, EOFError, ValueError) as error:
        first = (str(error).strip().splitlines() or ["empty"])[0][:200]
        raise RunError(f"{file}: not a whole file of torch.save ({first}); copy it again") from (
            error
        )
    if not isinstance(state, dict) or not state:
        raise RunError(f"{file}: not a state dict; give the files that verl's FSDP wrote")
    if other := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise RunError(f"{file}: {other[0]} is no tensor; give the files that verl's FSDP wrote")
    return state


def _foreign(file: Path) -> str:
    """Why a file is not opened, and what to do."""
    with safe_globals([*_OLDER, *CLASSES]):
        names = sorted(get_unsafe_globals_in_checkpoint(file))
    what = f"holds {', '.join(names[:4])}" if names else "holds more than tensors"
    return (
        f"{what}, which is not unpickled here because a file could run anything by it; merge it "
        "where it was written (python -m verl.model_merger merge --backend fsdp) and give the "
        "folder that this leaves"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No process group is meant to be there: torch warns of that once for each rank."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@dataclass(frozen=True, slots=True)
class _Split:
    """One tensor of all ranks; called, the whole of it."""

    folder: str
    name: str
    parts: tuple[Tensor, ...]
    shape: Sequence[int] | None

    def __call__(self) -> Tensor:
        first = self.parts[0]
        if len({type(part) for part in self.parts}) > 1:
            raise self._error("is split in some of the files and not in others")
        if isinstance(first, DTensor):
            whole, shape = self._placed(), tuple(first.shape)
        elif isinstance(first, Pieces):
            try:
                return Pieces.whole([part for part in self.parts if isinstance(part, Pieces)])
            except ValueError as error:
                raise self._error(str(error)) from error
        else:
            whole, shape = self._plain(), None
        if shape is not None and tuple(whole.shape) != shape:
            raise self._error(f"its parts come to {tuple(whole.shape)}, it was {shape}")
        return whole

    def _placed(self) -> Tensor:
        """As its placements say: one for each dimension of the mesh of ranks, the first of which
        was split first."""
        specs: list[Any] = [part._spec for part in self.parts if isinstance(part, DTensor)]
        spec = specs[0]
        placements = tuple(spec.placements)
        if any(tuple(other.placements) != placements for other in specs):
            raise self._error("is split in several ways")
        for placement in placements:
            if type(placement) not in (Shard, Replicate):
                raise self._error(
                    f"is placed as {placement}, of tensor parallelism or a sum that was not made; "
                    "merge it where it was written"
                )
        mesh = _mesh(spec)
        if mesh.ndim != len(placements) or int(mesh.max()) >= len(self.parts):
            raise self._error(f"its mesh {mesh.tolist()} is not of {len(self.parts)} ranks")
        return self._joined(mesh, placements)

    def _joined(self, ranks: Tensor, placements: Sequence[Any]) -> Tensor:
        if not placements:
            part: Any = self.parts[int(ranks)]
            return part._local_tensor
        placement, *inner = placements
        if isinstance(placement, Replicate):
            return self._joined(ranks[0], inner)
        return torch.cat([self._joined(some, inner) for some in ranks], dim=placement.dim)

    def _plain(self) -> Tensor:
        """Whole on every rank where it has the model's size, else split by its rows."""
        first, *others = self.parts
        wanted = None if self.shape is None else tuple(self.shape)
        alike = all(torch.equal(first, other) for other in others)
        if tuple(first.shape) == wanted or not first.ndim:
            if not alike:
                raise self._error("is whole in every file, and not the same")
            return first
        if alike and wanted is None:
            return first
        whole = torch.cat(self.parts)
        if wanted is not None and tuple(whole.shape) != wanted:
            raise self._error(f"its parts come to {tuple(whole.shape)}, the model has {wanted}")
        return whole

    def _error(self, what: str) -> RunError:
        return RunError(f"{self.folder}: {self.name}: {what}")


def _mesh(spec: Any) -> Tensor:
    """The ranks in the form of their mesh. Before PyTorch 2.10 it was an attribute."""
    older = vars(spec.mesh).get("mesh")
    return spec.mesh.mesh if older is None else older
