"""The decoder's frozen weights split among the GPUs of a node, by PyTorch's FSDP2.

Each process holds its part of every layer. A layer's weights are gathered before it runs, forward
and backward, and freed behind it. They have no gradients, so nothing is ever reduced, and since
they never change, nodes need not be kept alike: each gathers within itself. Embedding, head, last
norm and adapter stay whole in every process: the head is read by itself, and the adapter, which is
small, is trained as it is without sharding. Which passes the processes have to run together is
:class:`flowright.policy.model.Peers`'.
"""

from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from flowright.policy.model import Peers, Policy


def shard(policy: Policy, device: torch.device, gpus: int, processes: int, peers: Peers) -> Policy:
    """The same policy with its layers' weights split among ``gpus`` processes of each node, on
    their devices. Called by all ``processes`` of the run, with a policy that is on the CPU: one
    layer at a time is whole on a GPU."""
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    mesh = init_device_mesh(device.type, (processes // gpus, gpus), mesh_dim_names=("node", "gpu"))
    decoder: Any = policy.causal_lm.model
    whole = set(policy.trainable())
    for layer in decoder.layers:
        fully_shard(layer, mesh=mesh["gpu"], ignored_params=whole)
    # The root has no weights of its own: it is what the layers' gathering has in common.
    fully_shard(decoder, mesh=mesh["gpu"], ignored_params=set(decoder.parameters()))
    # Left to itself, FSDP takes what is gathered next from the order of the forward passes, and
    # there are several before one backward. Nothing comes after the first layer, which is there.
    for following, layer in pairwise([decoder.layers[0], *decoder.layers]):
        layer.set_modules_to_backward_prefetch([following])
    for tensor in chain(policy.model.parameters(), policy.model.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device)
    return replace(policy, device=device, gpus=gpus, peers=peers)
