"""Laying out groups as tensors: a group's prompt once, its completions behind it.

Two layouts with the same numbers. *Shared*: a row holds [prompt | c_1 | ... | c_G]; a completion
sees the prompt and itself, and its positions go on where the prompt ends. *Plain*: a row holds one
prompt and one completion. The plain one is the reference that tests hold the shared one to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowright.policy.layout import lay_out


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
    """Lay out groups, one row each or, if not ``shared``, one row for each sample."""
    rows = [row for group in groups for row in _rows(group, shared)]
    samples = [sample for row in rows for sample in row.samples]
    layout = lay_out([(row.prompt_ids, [s.token_ids for s in row.samples]) for row in rows])
    lengths = torch.tensor([len(sample.token_ids) for sample in samples])
    advantages = torch.tensor([sample.advantage for sample in samples], dtype=torch.float32)
    return Batch(
        layout.input_ids,
        layout.positions,
        layout.mask,
        torch.cat(layout.sources),
        torch.tensor([token for sample in samples for token in sample.token_ids]),
        torch.arange(len(samples)).repeat_interleave(lengths),
        torch.tensor([old for s in samples for old in s.old_logprobs], dtype=torch.float32),
        advantages.repeat_interleave(lengths),
        lengths,
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
