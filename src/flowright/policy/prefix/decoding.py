"""Decoding behind shared prefixes: completions grow by a token each, and no prefix is repeated.

The rows of a wave start together and are packed, one token a row, as the learner packs its texts. A
step's queries attend to the template in one call, to their prompt in one call for each prompt, and
to their own tokens in one call, and these are merged as in
:mod:`flowright.policy.prefix.attention`.
Keys and values of template and prompts stay as the prefill left them; those of the completions are
in one tensor, where each row has its place. No drawing here: see :mod:`flowright.policy.local`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from flowright.policy.layout import packs_of
from flowright.policy.model import Policy
from flowright.policy.prefix.attention import KeysValues, merge
from flowright.policy.prefix.kernels import Attended, Kernel, kernel_for
from flowright.policy.prefix.tree import Level, shared_length, tree_attention

PREFILL_TOKENS = 1024
"""Of prompts, in one forward pass; a single prompt may be longer."""


class SharedDecoding:
    """Rows [prompts * n], prompt by prompt, of which each :meth:`step` takes one more token.

    ``logits`` [rows, vocab_size] are those of the first token. ``room``: how many steps there may
    be.
    """

    def __init__(
        self, policy: Policy, template: Level, prompts: Sequence[Sequence[int]], n: int, room: int
    ) -> None:
        self._policy = policy
        self._template = template.keys_values
        self._prompts: list[list[KeysValues]] = []
        hidden_P = self._prefill(template, prompts)
        owners = torch.arange(len(prompts), device=policy.device).repeat_interleave(n)
        self._sizes = [n] * len(prompts)  # rows of each prompt
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=policy.device)
        self._positions = lengths[owners]
        self._length = 0
        key, _ = self._prompts[0][0]
        self._kernel: Kernel = kernel_for(key)
        # [layers, keys and values, rows, key/value heads, room, size]
        self._own = key.new_empty(
            len(self._prompts[0]), 2, len(owners), key.shape[0], room, key.shape[2]
        )
        self.logits = policy.head.logits(hidden_P)[owners]

    def _prefill(self, template: Level, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Keys and values of the prompts behind their template; their last hidden states."""
        own = [prompt[template.length :] for prompt in prompts]
        last = []
        for some in packs_of([len(ids) for ids in own], PREFILL_TOKENS):
            level = Level(self._policy, [own[index] for index in some], template, [0] * len(some))
            last.append(level.last_hidden)
            for start, stop in level.spans:
                self._prompts.append(
                    [(k[:, start:stop], v[:, start:stop]) for k, v in level.keys_values]
                )
        return torch.cat(last)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed a token to each row [rows] and get the logits [rows, vocab_size] of the next one."""
        hidden = self._policy.causal_lm.model(
            input_ids=tokens[None], position_ids=self._positions[None], use_cache=False, tree=self
        ).last_hidden_state[0]
        self._length += 1
        self._positions = self._positions + 1
        return self._policy.head.logits(hidden)

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows go on; in ascending order. Their tokens move up within the cache."""
        for place, row in enumerate(rows):
            if place != row:
                self._own[:, :, place, :, : self._length] = self._own[:, :, row, :, : self._length]
        self._own = self._own[:, :, : len(rows)]
        owners = [prompt for prompt, size in enumerate(self._sizes) for _ in range(size)]
        going = Counter(owners[row] for row in rows)
        self._sizes = [going[prompt] for prompt in range(len(self._sizes))]
        self._positions = self._positions[torch.tensor(rows, device=self._positions.device)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Of one token a row, as a :class:`flowright.policy.prefix.attention.Tree`."""
        own = self._own[layer]
        own[0, :, :, self._length] = k.transpose(0, 1)
        own[1, :, :, self._length] = v.transpose(0, 1)
        rows, heads, size = own.shape[1], own.shape[2], q.shape[-1]
        q = q.transpose(0, 1).reshape(rows, heads, -1, size)
        found = self._attend_to_own(own, q, scale)
        # Heads that share keys lie behind each other as queries: [kv heads, rows * times, size].
        queries = q.transpose(0, 1).reshape(heads, -1, size)
        shared = [self._attend_to_prompts(layer, queries, scale)]
        if self._template:
            shared.append(self._kernel.forward((queries, *self._template[layer]), False, scale))
        for out_i, lse_i in shared:
            out_i = out_i.reshape(heads, rows, -1, size).transpose(0, 1)
            found = merge(found, (out_i, lse_i.reshape(heads, rows, -1).transpose(0, 1)))
        return found[0].reshape(rows, -1, size)

    def _attend_to_own(self, own: Tensor, q: Tensor, scale: float) -> Attended:
        """Each row's attention to its own tokens: [rows, kv heads, times, size]."""
        keys, values = own[:, :, :, : self._length + 1].flatten(1, 2)
        out, lse = self._kernel.forward((q.flatten(0, 1), keys, values), False, scale)
        return out.reshape(q.shape), lse.reshape(q.shape[:-1])

    def _attend_to_prompts(self, layer: int, queries: Tensor, scale: float) -> Attended:
        """Each row's attention to its prompt: [kv heads, rows * times, size]."""
        times = queries.shape[1] // sum(self._sizes)
        queries_P = queries.split([size * times for size in self._sizes], dim=1)
        found = [
            self._kernel.forward((some, *prompt[layer]), False, scale)
            for some, prompt in zip(queries_P, self._prompts, strict=True)
            if some.shape[1]
        ]
        outs, lses = zip(*found, strict=True)
        return torch.cat(outs, dim=1), torch.cat(lses, dim=1)


@contextmanager
def shared_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]]
) -> Iterator[Callable[[Sequence[Sequence[int]], int, int], SharedDecoding]]:
    """Compute what all prompts begin with. Waves are made by ``(prompts, n, room)``, each with n
    rows for some of the prompts."""
    with tree_attention(policy):
        template = Level(policy, [prompts[0][: shared_length(prompts)]])
        yield partial(SharedDecoding, policy, template)
