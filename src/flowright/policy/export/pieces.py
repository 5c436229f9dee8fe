"""ShardedTensor, in which PyTorch's FSDP1 wrote the parts of a tensor before it had DTensor, read
without a group of processes. Stand-ins keep what was pickled and run nothing of torch's class,
which PyTorch is about to drop.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
