"""The files of verl's FSDP checkpoints, made in one process: tensors that were split among ranks
that are not there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """In a group of processes of which there is this one alone."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def write_placed(
    folder: Path,
    weights: Mapping[str, Tensor],
    shape: Sequence[int],
    placements: Mapping[str, Sequence[Any]],
    older: bool = False,
) -> None:
    """Every rank's file, of tensors that a mesh of ``shape`` has by these placements. ``older``:
    with what PyTorch kept of a mesh before version 2.10."""
    folder.mkdir(parents=True, exist_ok=True)
    size = torch.Size(shape).numel()
    names = ("ddp", "fsdp")[-len(shape) :]
    ranks = torch.arange(size).reshape(*shape)
    for rank in range(size):
        with as_rank(rank, size):
            mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)
            place = [int(i) for i in (ranks == rank).nonzero()[0]]
            state = {
                name: _part(tensor, mesh, place, placements[name])
                for name, tensor in weights.items()
            }
            if older:
                mesh.__dict__.clear()
                mesh.__dict__.update(
                    device_type="cuda",
                    mesh=ranks.int(),
                    mesh_dim_names=names,
                    _flatten_mesh_list=tuple(range(size)),
                    _dim_group_infos=[("mesh_fsdp", list(range(size)), "1")],
                    _coordinate_on_dim=place,
                )
            torch.save(state, folder / f"model_world_size_{size}_rank_{rank}.pt")


def _part(
    tensor: Tensor, mesh: DeviceMesh, place: Sequence[int], placements: Sequence[Any]
) -> DTensor:
    local = tensor
    for at, count, placement in zip(place, mesh.shape, placements, strict=True):
        if placement.is_shard():
            pieces = local.chunk(count, placement.dim)
            empty = local.narrow(placement.dim, 0, 0)
            local = pieces[at] if at < len(pieces) else empty
    return DTensor.from_local(
        local.clone(),
        mesh,
        list(placements),
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def write_plain(
    folder: Path, weights: Mapping[str, Tensor], size: int, whole: Sequence[str]
) -> None:
    """Every rank's file of plain tensors, split by their rows but for those in ``whole``."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(size):
        state = {
            name: tensor if name in whole else tensor.chunk(size)[rank].clone()
            for name, tensor in weights.items()
        }
        torch.save(state, folder / f"model_world_size_{size}_rank_{rank}.pt")
