"""Laying out groups as tensors: a group's prompt once, its completions behind it.

Two layouts with the same numbers. *Shared*: a row holds [prompt | c_1 | ... | c_G]; a completion
sees the prompt and itself, and its positions go on where the prompt ends. *Plain*: a row holds one
prompt and one completion. The plain one is the reference that tests hold the shared one to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Trained:
    """One sample that takes part in the update."""

    token_ids: Sequence[int]
    old_logprobs: Sequence[float]
    advantage: float


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and the samples of it that take part."""

    prompt_ids: Sequence[int]
    samples: Sequence[Trained]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one forward pass over R rows of T tokens with N completion tokens in all.

    ``source_N`` is the flat position in [R * T] whose hidden state predicts the token. ``mask`` is
    True where the query (second last axis) may see the key (last axis).
    """

    input_ids: Tensor  # [R, T] long
    positions: Tensor  # [R, T] long
    mask: Tensor  # [R, 1, T, T] bool
    source_N: Tensor  # long
    target_N: Tensor  # long
    sample_N: Tensor  # long: index of the sample within the batch
    old_logprobs_N: Tensor  # float32
    advantages_N: Tensor  # float32
    lengths_S: Tensor  # long: completion tokens of each sample

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


def pack(groups: Sequence[Group], shared: bool = True) -> Batch:
    """Lay out groups. Padding sees only itself, so that no row of the softmax is empty."""
    rows = [row for group in groups for row in _rows(group, shared)]
    width = max(row.length for row in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros(len(rows), width, dtype=torch.long)
    segments = torch.full((len(rows), width), -1)
    source, target, sample, old, advantages, lengths = [], [], [], [], [], []
    for index, row in enumerate(rows):
        start = len(row.prompt_ids)
        input_ids[index, :start] = torch.tensor(row.prompt_ids)
        positions[index, :start] = torch.arange(start)
        segments[index, :start] = 0
        for number, item in enumerate(row.samples, start=1):
            length = len(item.token_ids)
            end = start + length
            tokens = torch.tensor(item.token_ids)
            input_ids[index, start:end] = tokens
            positions[index, start:end] = torch.arange(length) + len(row.prompt_ids)
            segments[index, start:end] = number
            before = torch.arange(start - 1, end - 1)
            before[0] = len(row.prompt_ids) - 1
            source.append(before + index * width)
            target.append(tokens)
            sample.append(torch.full((length,), len(lengths)))
            old.append(torch.tensor(item.old_logprobs, dtype=torch.float32))
            advantages.append(torch.full((length,), item.advantage))
            lengths.append(length)
            start = end
    return Batch(
        input_ids,
        positions,
        _mask(segments),
        torch.cat(source),
        torch.cat(target),
        torch.cat(sample),
        torch.cat(old),
        torch.cat(advantages),
        torch.tensor(lengths),
    )


def micro_batches(
    groups: Sequence[Group], budget: int, shared: bool = True
) -> Iterator[list[Group]]:
    """Cut groups into packs of at most ``budget`` padded tokens (at least one group each), longest
    first, so that rows of like length share a pack."""
    ordered = sorted(groups, key=lambda group: -_width(group, shared))
    pack_of: list[Group] = []
    width = rows = 0
    for group in ordered:
        more = 1 if shared else len(group.samples)
        if pack_of and width * (rows + more) > budget:
            yield pack_of
            pack_of, rows = [], 0
        if not pack_of:
            width = _width(group, shared)
        pack_of.append(group)
        rows += more
    if pack_of:
        yield pack_of


@dataclass(frozen=True, slots=True)
class _Row:
    prompt_ids: Sequence[int]
    samples: Sequence[Trained]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + sum(len(item.token_ids) for item in self.samples)


def _rows(group: Group, shared: bool) -> list[_Row]:
    if shared:
        return [_Row(group.prompt_ids, group.samples)]
    return [_Row(group.prompt_ids, [item]) for item in group.samples]


def _width(group: Group, shared: bool) -> int:
    return max(row.length for row in _rows(group, shared))


def _mask(segments: Tensor) -> Tensor:
    """[R, 1, T, T] from segments [R, T]: -1 padding, 0 prompt, 1.. completions."""
    query, key = segments[:, :, None], segments[:, None, :]
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    seen = causal & (((key == query) | (key == 0)) & (query >= 0))
    return (seen | torch.eye(width, dtype=torch.bool))[:, None]
