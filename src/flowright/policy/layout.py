"""Rows that hold one prompt and several texts behind it, so that the prompt is computed once.

A text sees the prompt and itself, and its positions go on where the prompt ends. No objective here.
"""

from collections.abc import Sequence
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
    width = max(len(prompt) + sum(map(len, texts)) for prompt, texts in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros(len(rows), width, dtype=torch.long)
    segments = torch.full((len(rows), width), _PADDING)
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
            source = torch.arange(start - 1, end - 1) + index * width
            source[0] = first - 1 + index * width
            sources.append(source)
            start = end
    return Layout(input_ids, positions, _mask(segments), tuple(sources))


def _mask(segments: Tensor) -> Tensor:
    """[R, 1, T, T] from segments [R, T]. Padding sees only itself, so that no row of the softmax
    is empty."""
    query, key = segments[:, :, None], segments[:, None, :]
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    seen = causal & (((key == query) | (key == _PROMPT)) & (query > _PADDING))
    return (seen | torch.eye(width, dtype=torch.bool))[:, None]
