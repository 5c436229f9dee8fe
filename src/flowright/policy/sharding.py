"""Weights split among the processes of a run by PyTorch's FSDP2: an adapter's frozen base, or all
trained weights with their gradients and optimizer; and their whole form, for checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from flowright.policy.model import Peers, Policy
from flowright.policy.tuning import FullTuning, local


def shard(policy: Policy, device: torch.device, gpus: int, processes: int, peers: Peers) -> Policy:
    """Split the layers' weights: frozen ones among ``gpus`` processes of each node, trained ones
    among all ``processes`` of the run. Called by all with a policy on the CPU; each gets it on its
    device.

    A layer's weights are gathered before it runs, forward and backward, and freed behind it.
    Frozen ones never change, so each node gathers within itself, and the small adapter is trained
    as without sharding. Embedding, head and scoring row stay whole: they are read by themselves.
    """
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    decoder: Any = policy.causal_lm.model
    if isinstance(policy.tuning, FullTuning):
        gpus, mesh = processes, init_device_mesh(device.type, (processes,))
        parts = policy.tuning.split(mesh, policy.offload == "all")
    else:
        grid = init_device_mesh(device.type, (processes // gpus, gpus), mesh_dim_names=("", "gpu"))
        mesh, parts, adapter = grid["gpu"], decoder.layers, set(policy.trainable())
        for layer in parts:
            fully_shard(layer, mesh=mesh, ignored_params=adapter)
    # The root has no weights of its own: it is what the parts' gathering has in common.
    fully_shard(decoder, mesh=mesh, ignored_params=set(decoder.parameters()))
    # Left to itself, FSDP takes what is gathered next from the order of the forward passes, and
    # there are several before one backward. Nothing comes after the first layer, which is there.
    for following, part in pairwise([decoder.layers[0], *parts]):
        part.set_modules_to_backward_prefetch([following])
    for tensor in chain(policy.model.parameters(), policy.model.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device)
    # FSDP's root has the parts that its first pass finds, and a self-check runs a few layers.
    with torch.no_grad():
        decoder(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)
    return replace(policy, device=device, gpus=gpus, peers=peers)


def hollow(tree: Any, like: Any) -> Any:
    """Return a tree with None for each tensor that is split in ``like``, a tree of the same form or
    what all below it is like."""
    if isinstance(tree, Mapping):
        return {name: hollow(part, _below(like, name)) for name, part in tree.items()}
    fits = isinstance(like, DTensor) and isinstance(tree, Tensor) and tree.shape == like.shape
    return None if fits else tree


def filled(hollowed: Any, tree: Any, like: Any) -> Any:
    """Return the tree that the first process has (others: None), split as in ``like``. Called by
    all processes, with the first one's :func:`hollow` tree."""
    if isinstance(hollowed, Mapping):
        return {
            name: filled(part, None if tree is None else tree[name], _below(like, name))
            for name, part in hollowed.items()
        }
    if hollowed is not None or not isinstance(like, DTensor):
        return hollowed
    if tree is None:
        tree = torch.empty(like.shape, dtype=like.dtype, device=like.device_mesh.device_type)
    mesh, placements = like.device_mesh, like.placements
    part = distribute_tensor(tree.to(like.dtype), mesh, placements).to_local()
    part = part.to(local(like).device)  # offloaded weights are in main memory
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _below(like: Any, name: Any) -> Any:
    return like.get(name) if isinstance(like, Mapping) else like


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> float:
    """Scale gradients down to ``max_norm``, split ones by the norm of the whole; return the norm
    that they had."""
    kinds = [[p for p in parameters if isinstance(p, DTensor) == is_split] for is_split in (0, 1)]
    if not kinds[1]:
        return float(clip_grad_norm_(parameters, max_norm))
    grads = [[local(p.grad) for p in some if p.grad is not None] for some in kinds]
    own, part = (get_total_norm(some).square().cpu() for some in grads)
    first: Any = kinds[1][0]
    mesh = first.device_mesh
    part = part.to(mesh.device_type)
    dist.all_reduce(part, group=mesh.get_group())
    total = (own + part.cpu()).sqrt()
    for some in kinds:
        clip_grads_with_norm_(some, max_norm, total)
    return float(total)
