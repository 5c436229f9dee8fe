"""The processes of one run: each rolls out its own share of every batch, and all update alike.

Started by torchrun (or Ray, :mod:`flowright.app.ray_cluster`), one process a GPU. No collective of
the GPUs waits for a rollout: finished shares are exchanged as objects over gloo, and gradients are
summed after that. Without torchrun there is one rank, and torch.distributed is not used.
"""

import asyncio
import os
from bisect import bisect_left
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from flowright.core.errors import ConfigError, PeerLost, RunError
from flowright.policy.model import Peers

Item = TypeVar("Item")

LONGEST_WAIT = timedelta(days=1)
"""Limit for the slowest share of a batch: its rollouts have budgets of their own, and a process
that dies closes its connections, which ends the wait at once."""


@dataclass(frozen=True, slots=True)
class Ranks(Peers):
    """This process among the ``size`` of a run. All processes call its methods, but for
    :meth:`mine`, in the same order; they raise PeerLost when another process has ended."""

    rank: int = 0
    size: int = 1
    store: Any = field(default=None, repr=False)  # that of torchrun, which outlives a rank
    group: Any = field(default=None, repr=False)  # gloo, for objects

    @property
    def is_first(self) -> bool:
        """True for the process that also writes the run directory and the terminal."""
        return self.rank == 0

    def mine(self, items: Sequence[Item]) -> list[Item]:
        """Return this rank's share: every ``size``-th item, from its own number on."""
        return list(items[self.rank :: self.size])

    async def all_gather(self, item: Item) -> list[Item]:
        """Return each rank's item, by rank. Waits in a thread, while rollouts go on."""
        return [item] if self.size == 1 else await asyncio.to_thread(self._gather, item)

    def _gather(self, item: Item) -> list[Item]:
        found: list[Any] = [None] * self.size
        with _peers():
            dist.all_gather_object(found, item, self.group)
        return found

    async def broadcast(self, item: Item) -> Item:
        """Return the first rank's item."""
        return (await self.all_gather(item if self.is_first else None))[0]  # pyright: ignore

    async def gather_results(self, work: Awaitable[Item]) -> list[Item]:
        try:
            mine = [await work], tuple[str, ...]()
        except PeerLost:
            raise
        except RunError as error:
            mine = [], tuple(error.problems)
        shares = await self.all_gather(mine)
        for _, problems in shares:
            if problems:
                raise RunError(*problems)
        return [result for results, _ in shares for result in results]

    def gather(self, item: Item) -> list[Item]:
        """Return each rank's item, by rank, while nothing else runs."""
        return [item] if self.size == 1 else self._gather(item)

    def longest(self, counts: Sequence[int]) -> list[int]:
        found = self.gather(list(counts))
        return [max(several) for several in zip_longest(*found, fillvalue=0)]

    async def gpus_per_node(self) -> int:
        """Return the number of processes on each node. Raises ConfigError where it is 1, or differs
        between nodes."""
        own = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        found = sorted(set(await self.all_gather(own)))
        if len(found) > 1:
            raise ConfigError(
                f"policy.sharded: nodes have {' and '.join(map(str, found))} processes; start as "
                "many on each"
            )
        if own == 1:
            raise ConfigError(
                "policy.sharded: one process on a node cannot share the weights; start "
                "one for each GPU (torchrun --nproc_per_node 4 train.py ...), or set "
                "policy.sharded: false"
            )
        return own

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add up each tensor over the ranks, in place: one message for all of them."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _peers():
            dist.all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, part in zip(tensors, flat.split(sizes), strict=True):
            tensor.copy_(part.view_as(tensor))

    def speaks(self) -> bool:
        """Return whether this process is the first to report a failure: when one fails, all do, and
        one message is enough."""
        return self.store is None or self.store.add("flowright/spoken", 1) == 1


ONE = Ranks()
"""A run in one process."""


class Reporter(Protocol):
    """Shows progress to the person at the terminal."""

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None: ...

    def say(self, line: str) -> None: ...


class Follower:
    """Stand-in for :class:`flowright.runs.directory.RunDirectory` and :class:`Reporter` on ranks
    other than the first, so that nothing is written or shown twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints_path = path / "checkpoints"
        self.changes: list[str] = []

    def _mute(self, *_: Any, **__: Any) -> None: ...

    state = keep_rollouts = record = text = resume_after = close = step = say = _mute


def interleaved(shares: Sequence[Sequence[Item]]) -> list[Item]:
    """Put the ranks' shares (:meth:`Ranks.mine`) together again."""
    longest = max(map(len, shares))
    return [share[place] for place in range(longest) for share in shares if place < len(share)]


Part = tuple[int, int, int]
"""A group's number, and its first sample and the one behind its last in a part of it."""


def even_shares(costs: Sequence[tuple[int, Sequence[int]]], size: int) -> list[list[Part]]:
    """Split groups among ``size`` ranks so that the most costly share is as cheap as it can be with
    all samples in their order. ``costs``: of each group's prompt, which every part of it costs
    again, and of its samples."""

    def split(most: int) -> list[list[Part]]:
        shares, load = list[list[Part]]([[]]), 0
        for group, (prompt, samples) in enumerate(costs):
            start, added = 0, prompt
            for number, sample in enumerate(samples):
                if load and load + added + sample > most:
                    shares[-1] += [(group, start, number)] * (number > start)
                    shares.append([])
                    start, added, load = number, prompt, 0
                load, added = load + added + sample, 0
            shares[-1] += [(group, start, len(samples))] * (len(samples) > start)
        return shares

    total = sum(prompt + sum(samples) for prompt, samples in costs)
    least = bisect_left(range(total), True, key=lambda most: len(split(most)) <= size)
    shares = split(least)
    return shares + [[] for _ in range(size - len(shares))]


@contextmanager
def _peers() -> Iterator[None]:
    """Turn an error of an exchange into PeerLost, where nothing else is done."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for a peer that has gone
        raise _lost() from error


@contextmanager
def peers_of_passes() -> Iterator[None]:
    """Turn torch's error for a lost peer into PeerLost. Where weights are split, any pass gathers
    layers from the other processes and may raise it."""
    try:
        yield
    except RuntimeError as error:
        # gloo has no kind of error for it: "Connection closed by peer", "Connection reset by peer".
        if isinstance(error, dist.DistError) or "by peer" in str(error):
            raise _lost() from error
        raise


def _lost() -> PeerLost:
    return PeerLost(
        "another process of this run has gone, so the run ends (see its message or the system's "
        "log: killed? out of memory?); start again with --resume"
    )


@contextmanager
def open_ranks() -> Iterator[Ranks]:
    """Connect to the other processes of torchrun, if any. Raises ConfigError where there are more
    processes than GPUs."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield ONE
        return
    # Ray has connected them already; it also ends the group and reports failures.
    store = None if dist.is_initialized() else _meet()
    try:
        group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        yield Ranks(dist.get_rank(), dist.get_world_size(), store, group)
    finally:
        if store is not None:
            dist.destroy_process_group()


def _meet() -> Any:
    """Return the store of torchrun's processes, each with a GPU of its own."""
    gpus = torch.cuda.is_available()
    if gpus:
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise ConfigError(
                f"physical_gpus: {count} GPUs for more processes; start as many (--nproc_per_node) "
                "as there are"
            )
        torch.cuda.set_device(local)
    store, rank, size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return store
