"""One process of several that write a model as verl's FSDP does; for tests/policy/test_export.py.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python fsdp_writer.py MODEL OUT
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


def main(model_folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("fsdp",))
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.save(model.state_dict(), out / f"model_world_size_{size}_rank_{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # tests make warnings errors, and a process group that closes has some


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
