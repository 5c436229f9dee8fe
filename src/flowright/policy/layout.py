"""Input of a forward pass: packs of texts, padded rows of a prompt and the texts behind it, and
copies to the device.

A text sees the prompt and itself, and its positions continue where the prompt ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_PADDING, _PROMPT = -1, 0  # segments of a row; the texts are 1, 2 and so on


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors of one forward pass over R rows of T tokens.

    ``mask`` is True where the query (second last axis) may see the key (last axis). ``sources``
    has for each text, row by row, the flat positions in [R * T] whose hidden states predict its
    tokens: the prompt's last, then all of its own but the last.
    """

    input_ids: Tensor  # [R, T] long
    positions: Tensor  # [R, T] long
    mask: Tensor  # [R, 1, T, T] bool
    sources: tuple[Tensor, ...]


def lay_out(rows: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> Layout:
    """Lay out (prompt, texts) pairs of token ids, none of them empty, one row each."""
    longest = max(len(prompt) + sum(map(len, texts)) for prompt, texts in rows)
    input_ids = torch.zeros(len(rows), longest, dtype=torch.long)
    positions = torch.zeros(len(rows), longest, dtype=torch.long)
    segments = torch.full((len(rows), longest), _PADDING)
    sources: list[Tensor] = []
    for index, (prompt, texts) in enumerate(rows):
        start = first = len(prompt)
        input_ids[index, :start] = torch.tensor(prompt)
        positions[index, :start] = torch.arange(start)
        segments[index, :start] = _PROMPT
        for number, text in enumerate(texts, start=1):
            end = start + len(text)
            input_ids[index, start:end] = torch.tensor(text)
            positions[index, start:end] = torch.arange(len(text)) + first
            segments[index, start:end] = number
            source = torch.arange(start - 1, end - 1) + index * longest
            source[0] = first - 1 + index * longest
            sources.append(source)
            start = end
    return Layout(input_ids, positions, _mask(segments), tuple(sources))


def _mask(segments: Tensor) -> Tensor:
    """Return [R, 1, T, T] of segments [R, T]. Padding sees only itself, so that no row of the
    softmax is empty."""
    query, key = segments[:, :, None], segments[:, None, :]
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = causal & (((key == query) | (key == _PROMPT)) & (query > _PADDING))
    return (seen | torch.eye(length, dtype=torch.bool))[:, None]


def packs_of(lengths: Sequence[int], budget: int, padded: bool = False) -> Iterator[list[int]]:
    """Yield indices in order, cut where their lengths would exceed the budget, at least one each.
    If they are ``padded`` to the longest of their pack: longest first, so that like ones share."""
    order = range(len(lengths))
    pack: list[int] = []
    total = 0
    for index in sorted(order, key=lambda index: -lengths[index]) if padded else order:
        total = lengths[pack[0]] * (len(pack) + 1) if padded and pack else total + lengths[index]
        if pack and total > budget:
            yield pack
            pack, total = [], lengths[index]
        pack.append(index)
    if pack:
        yield pack


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device without waiting for a GPU; on the CPU it is the same one.

    An ordinary copy ends only after all earlier work of the GPU; one from page-locked memory, which
    PyTorch keeps until the copy is done, is queued behind it.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def use(device: torch.device) -> None:
    """Make a GPU this thread's current one, whose streams FSDP uses; each thread begins with the
    first GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
