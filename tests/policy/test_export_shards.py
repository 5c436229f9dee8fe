"""The files of verl's FSDP put together: by placements, rows or pieces; and what is refused."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fsdp_shards import as_rank, write_placed, write_plain
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from flowright.core.errors import RunError
from flowright.policy.export.source import shard_files, whole_weights

WEIGHTS = {
    "rows": torch.arange(15.0).reshape(5, 3),
    "columns": torch.arange(14.0).reshape(2, 7),
    "one": torch.arange(4.0),
}


def read(folder: Path, shapes: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    weights = whole_weights(folder, shapes or {})
    return {name: weight() for name, weight in weights.items()}


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in theirs)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_one_dimension_of_ranks(tmp_path: Path, size: int, older: bool) -> None:
    """5 rows among 4 ranks are 2, 2, 1 and none."""
    placements = {"rows": [Shard(0)], "columns": [Shard(1)], "one": [Replicate()]}
    write_placed(tmp_path, WEIGHTS, [size], placements, older)
    assert same(read(tmp_path), WEIGHTS)


@pytest.mark.parametrize("older", [False, True])
def test_two_dimensions_of_ranks(tmp_path: Path, older: bool) -> None:
    """HSDP: copies in ``ddp``, parts in ``fsdp``; and parts of parts."""
    placements = {
        "rows": [Replicate(), Shard(0)],
        "columns": [Shard(0), Shard(1)],
        "one": [Shard(0), Shard(0)],
    }
    write_placed(tmp_path, WEIGHTS, [2, 2], placements, older)
    assert same(read(tmp_path), WEIGHTS)


@settings(max_examples=8)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 5),
    shape=st.sampled_from([[1], [3], [1, 2], [2, 2], [2, 3]]),
    kinds=st.tuples(*[st.sampled_from([Replicate(), Shard(0), Shard(1)])] * 2),
)
def test_any_split_is_undone(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    shape: list[int],
    kinds: tuple[Any, Any],
) -> None:
    folder = tmp_path_factory.mktemp("split")
    weights = {"weight": torch.arange(float(rows * columns)).reshape(rows, columns)}
    write_placed(folder, weights, shape, {"weight": kinds[: len(shape)]})
    assert same(read(folder), weights)


def test_names_of_an_older_pytorch(tmp_path: Path) -> None:
    write_placed(tmp_path / "new", WEIGHTS, [2], {name: [Shard(0)] for name in WEIGHTS}, older=True)
    (tmp_path / "old").mkdir()
    for file in (tmp_path / "new").iterdir():
        with (
            zipfile.ZipFile(file) as new,
            zipfile.ZipFile(tmp_path / "old" / file.name, "w") as old,
        ):
            for name in new.namelist():
                data = new.read(name)
                if name.endswith("data.pkl"):
                    for ours, theirs in (
                        (b"ctorch.distributed.tensor\nDTensor\n", b"_tensor.api\nDTensor\n"),
                        (
                            b"ctorch.distributed.tensor._dtensor_spec\nDTensorSpec\n",
                            b"_tensor.placement_types\nDTensorSpec\n",
                        ),
                        (
                            b"ctorch.distributed.tensor.placement_types\nShard\n",
                            b"_tensor.placement_types\nShard\n",
                        ),
                    ):
                        assert ours in data
                        data = data.replace(ours, b"ctorch.distributed." + theirs)
                old.writestr(name, data)
    assert same(read(tmp_path / "old"), WEIGHTS)


def test_plain_tensors_are_split_by_rows_or_whole(tmp_path: Path) -> None:
    weights = {"rows": WEIGHTS["rows"][:4], "whole": WEIGHTS["columns"], "zero": torch.tensor(2.0)}
    write_plain(tmp_path, weights, 2, ["whole", "zero"])
    assert same(read(tmp_path, {"rows": (4, 3), "whole": (2, 7)}), weights)
    with pytest.raises(RunError, match=r"rows: its parts come to \(4, 3\), the model has \(6, 3\)"):
        read(tmp_path, {"rows": (6, 3), "whole": (2, 7)})
    write_plain(tmp_path, {**weights, "zero": torch.tensor(3.0)}, 2, ["whole", "zero"])
    torch.save({**weights, "rows": weights["rows"][:2]}, tmp_path / "model_world_size_2_rank_0.pt")
    with pytest.raises(RunError, match="zero: is whole in every file, and not the same"):
        read(tmp_path, {"rows": (4, 3), "whole": (2, 7)})


def test_pieces_of_fsdp1_without_its_processes(tmp_path: Path) -> None:
    """A ShardedTensor, written where there is a group and read where there is none."""
    whole = WEIGHTS["rows"]
    for rank, rows in enumerate((slice(0, 3), slice(3, 5))):
        with as_rank(rank, 2), pytest.warns(FutureWarning, match="DTensor"):
            from torch.distributed._shard.metadata import ShardMetadata
            from torch.distributed._shard.sharded_tensor import Shard as Piece, ShardedTensor
            from torch.distributed._shard.sharded_tensor.metadata import (
                ShardedTensorMetadata,
                TensorProperties,
            )

            places = [
                ShardMetadata([0, 0], [3, 3], "rank:0/cpu"),
                ShardMetadata([3, 0], [2, 3], "rank:1/cpu"),
            ]
            metadata = ShardedTensorMetadata(places, whole.shape, TensorProperties(torch.float32))
            piece = Piece(whole[rows].clone(), places[rank])
            split = ShardedTensor._init_from_local_shards_and_global_metadata([piece], metadata)
            torch.save({"rows": split}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    assert not dist.is_initialized()
    assert same(read(tmp_path), {"rows": whole})


def test_missing_surplus_and_mixed_ranks_are_named(tmp_path: Path) -> None:
    write_plain(tmp_path, WEIGHTS, 4, list(WEIGHTS))
    kept = (tmp_path / "model_world_size_4_rank_2.pt").read_bytes()
    for rank in (1, 2):
        (tmp_path / f"model_world_size_4_rank_{rank}.pt").unlink()
    with pytest.raises(RunError, match="of 4 ranks the files of rank 1, 2 are missing"):
        shard_files(tmp_path)
    for rank in (1, 2, 4):
        (tmp_path / f"model_world_size_4_rank_{rank}.pt").write_bytes(kept)
    with pytest.raises(RunError, match=r"rank_4\.pt: there is no rank 4 among 4"):
        shard_files(tmp_path)
    (tmp_path / "model_world_size_2_rank_0.pt").write_bytes(kept)
    with pytest.raises(RunError, match=r"several world sizes: 2 \(1 files\), 4 \(5 files\)"):
        shard_files(tmp_path)


class _Foreign:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_nothing_of_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model_world_size_1_rank_0.pt"
    torch.save({"rows": WEIGHTS["rows"], "more": _Foreign()}, file)
    with pytest.raises(RunError, match=r"holds pathlib.*, which is not unpickled.*model_merger"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists()
    file.write_bytes(pickle.dumps({"rows": 1}))
    with pytest.raises(RunError, match=r"rank_0\.pt: "):
        read(tmp_path)
    file.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(RunError, match=r"not a whole file of torch\.save"):
        read(tmp_path)
    torch.save({"step": 3}, file)
    with pytest.raises(RunError, match="step is no tensor"):
        read(tmp_path)
    torch.save([1], file)
    with pytest.raises(RunError, match="not a state dict"):
        read(tmp_path)


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    write_placed(tmp_path, WEIGHTS, [2], {name: [Shard(0)] for name in WEIGHTS})
    second = tmp_path / "model_world_size_2_rank_1.pt"
    kept = second.read_bytes()
    torch.save({"rows": WEIGHTS["rows"]}, second)
    with pytest.raises(RunError, match=re.escape(f"{second}: columns is not in all of the files")):
        read(tmp_path)
    torch.save(WEIGHTS, second)
    with pytest.raises(RunError, match="rows: is split in some of the files and not in others"):
        read(tmp_path)
    second.write_bytes(kept)
    write_placed(tmp_path / "x", WEIGHTS, [2], {name: [Replicate()] for name in WEIGHTS})
    second.write_bytes((tmp_path / "x" / second.name).read_bytes())
    with pytest.raises(RunError, match="is split in several ways"):
        read(tmp_path)


def test_a_sum_that_was_not_made_is_refused(tmp_path: Path) -> None:
    with as_rank(0, 1):
        mesh = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
        tensor = DTensor.from_local(WEIGHTS["one"], mesh, [Partial()], run_check=False)
        torch.save({"one": tensor}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(RunError, match=r"is placed as .*merge it where it was written"):
        read(tmp_path)
