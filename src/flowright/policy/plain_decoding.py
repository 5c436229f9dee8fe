"""Decoding with the model's own attention and cache, which repeat a prompt for each completion.

For models that :mod:`flowright.policy.prefix.decoding` does not know, such as those with sliding
windows; what `grpo.prefix_sharing: false` samples with.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache

from flowright.policy.model import Policy


class PlainDecoding:
    """See :class:`flowright.policy.prefix.decoding.SharedDecoding`; its cache grows."""

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, room: int) -> None:
        self._lm = policy.causal_lm
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = torch.tensor(prompt)
            mask[index, longest - len(prompt) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        self._cache = DynamicCache(config=self._lm.config)
        logits = self._lm(
            input_ids=ids.to(policy.device),
            attention_mask=mask.to(policy.device),
            position_ids=positions.to(policy.device),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        self._cache.batch_repeat_interleave(n)
        repeated = (x.repeat_interleave(n, dim=0) for x in (logits, mask, positions[:, -1:]))
        self.logits, mask, positions = repeated
        self._mask, self._positions = mask.to(policy.device), positions.to(policy.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed a token to each row [rows] and get the logits [rows, vocab_size] of the next one."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self._positions = self._positions + 1
        return self._lm(
            input_ids=tokens[:, None],
            attention_mask=self._mask,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows go on."""
        going = torch.tensor(rows, device=self._mask.device)
        self._cache.batch_select_indices(going)
        self._mask, self._positions = self._mask[going], self._positions[going]


@contextmanager
def plain_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]]
) -> Iterator[Callable[[Sequence[Sequence[int]], int, int], PlainDecoding]]:
    """Waves are made by ``(prompts, n, room)``; they share nothing."""
    yield partial(PlainDecoding, policy)
