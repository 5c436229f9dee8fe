"""Decoding with a model's own attention and cache. Behind shared prefixes:
:mod:`flowright.policy.prefix.decoding`.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import DynamicCache

from flowright.policy.model import Policy


class PlainDecoding:
    """As :class:`flowright.policy.prefix.decoding.SharedDecoding`, with the model's own attention
    and cache, which grows and repeats a prompt for each completion. For models that the other does
    not know, such as those with sliding windows; what ``grpo.prefix_sharing: false`` samples with.
    """

    joins = False
    """All prompts join at once."""

    def __init__(self, policy: Policy, n: int) -> None:
        self._policy, self._n = policy, n
        self._decoder, self._head = policy.causal_lm.model, policy.head
        self._cache = DynamicCache(config=policy.causal_lm.config)
        # transformers 5.24 renamed the argument; older releases and models from a hub's own code
        # know the other name alone.
        takes = inspect.signature(self._decoder.forward).parameters
        self._cached = {"cache" if "cache" in takes else "past_key_values": self._cache}

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """The logits [prompts * n, vocab_size] of the first tokens. Once."""
        device = self._policy.device
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = torch.tensor(prompt)
            mask[index, longest - len(prompt) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        hidden = self._decoder(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            use_cache=True,
            **self._cached,
        ).last_hidden_state[:, -1]
        logits = self._head.logits(hidden)
        self._cache.batch_repeat_interleave(self._n)
        repeated = (x.repeat_interleave(self._n, dim=0) for x in (logits, mask, positions[:, -1:]))
        logits, mask, positions = repeated
        self._mask, self._positions = mask.to(device), positions.to(device)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed a token to each row [rows] and get the logits [rows, vocab_size] of the next one."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self._positions = self._positions + 1
        hidden = self._decoder(
            input_ids=tokens[:, None],
            attention_mask=self._mask,
            position_ids=self._positions,
            use_cache=True,
            **self._cached,
        ).last_hidden_state[:, -1]
        return self._head.logits(hidden)

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows go on."""
        going = torch.tensor(rows, device=self._mask.device)
        self._cache.batch_select_indices(going)
        self._mask, self._positions = self._mask[going], self._positions[going]


def plain_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]]
) -> AbstractContextManager[Callable[[int, int, int, int], PlainDecoding]]:
    """Waves are made by ``(n, rows, room, longest)``; they share nothing."""

    def made(n: int, rows: int, room: int, longest: int) -> PlainDecoding:
        return PlainDecoding(policy, n)

    return nullcontext(made)
