"""Decoding: completions grow by a token each, behind shared prefixes or with a model's own cache.

Behind shared prefixes, rows are packed, one token a row, as the learner packs its texts; they join
and leave at any step and may differ in length. A step's queries attend to the template in one call,
to their prompt in one call for each prompt (on a GPU for all), and to their own tokens in one call,
and these are merged as in :mod:`flowright.policy.prefix.attention`. A prompt with a single row is
not shared: it is written before the row's own tokens, and one call attends to both; what is kept of
it from an earlier turn is copied. Keys and values of template and prompts stay as the prefill left
them, on a GPU prompts one behind the other; those of the completions are in one tensor, with a
place for each row.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache

from flowright.policy.layout import packs_of, to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.attention import KeysValues, PrefixBlock, merge, merged_outs
from flowright.policy.prefix.kept import Kept
from flowright.policy.prefix.kernels import (
    Attended,
    Kernel,
    Seen,
    Segments,
    kernel_for,
    segments_of,
    segments_of_rows,
)
from flowright.policy.prefix.tree import forward, shared_length, spans_of, tree_attention

PREFILL_TOKENS = 1024
"""Tokens of prompts in one forward pass; a single prompt may be longer."""

LONG_TEMPLATE = 128
"""Tokens; a shorter template is copied to each row that has a prompt of its own: attending to it
apart and merging takes longer."""


def apart_length(prompts: Sequence[Sequence[int]], n: int) -> int:
    """Return the tokens of the template that are held once for all rows."""
    length = shared_length(prompts)
    return 0 if n == 1 and length < LONG_TEMPLATE else length


class SharedDecoding:
    """Rows, ``n`` for each prompt that joins, which get another token at each :meth:`step`. There
    are places for ``rows`` of up to ``room`` tokens each; ``longest``: of the prompts. ``kept``:
    what earlier turns computed."""

    joins = True
    """Prompts may join while others are decoded."""

    def __init__(
        self,
        policy: Policy,
        template: Sequence[KeysValues],
        kept: Kept,
        n: int,
        rows: int,
        room: int,
        longest: int,
    ) -> None:
        self._policy, self._kept = policy, kept
        self._n, self._alone = n, n == 1
        self._shared, self._depth = template, _length(template)
        copied = n == 1 and self._depth < LONG_TEMPLATE
        self._template: Sequence[KeysValues] = [] if copied else template
        self._begins = 0 if copied else self._depth  # the position of a row's first place
        self._prompts: list[list[KeysValues]] = []
        self._owners: list[int] = []  # of each row, its prompt's place among these
        self._packed: list[KeysValues] = []  # on a GPU, by layer: those of all prompts
        self._segments: Segments | None = None
        self._room = room + (longest - self._begins if self._alone else 0)
        self._rows = rows
        self._own = torch.empty(0)  # [layers, keys and values, rows, kv heads, room, size]
        self._filled = torch.empty(0, dtype=torch.long, device=policy.device)
        self._lengths: list[int] = []  # the same, and what comes before them is not counted
        self._positions = self._filled

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Add rows for more prompts behind all others; return the logits [prompts * n, vocab_size]
        of their first tokens."""
        depths = [self._depth] * len(prompts)
        if self._alone:
            depths = [self._begin(row, ids) for row, ids in enumerate(prompts, len(self._lengths))]
        keys_values, hidden_P = self._prefill(prompts, depths)
        self._make_places(len(keys_values[0]), keys_values[0][0][0])
        lengths = [len(prompt) for prompt in prompts for _ in range(self._n)]
        filled = [length - self._begins if self._alone else 0 for length in lengths]
        if self._alone:
            for row, (prompt, depth) in enumerate(
                zip(keys_values, depths, strict=True), len(self._lengths)
            ):
                self._write(row, prompt, depth - self._begins)
        else:
            first = len(self._prompts)
            self._prompts += keys_values
            self._owners += [first + i for i in range(len(prompts)) for _ in range(self._n)]
            self._packed, self._segments = [], None
        self._lengths += filled
        device = self._policy.device
        self._filled = torch.cat([self._filled, to_device(torch.tensor(filled), device)])
        self._positions = torch.cat([self._positions, to_device(torch.tensor(lengths), device)])
        return self._policy.head.logits(hidden_P).repeat_interleave(self._n, dim=0)

    def _begin(self, row: int, prompt: Sequence[int]) -> int:
        """Write what is known of a prompt to its row: what is kept, if that is more than the
        template, or the template, if that is copied. Return the tokens known."""
        text, known = self._kept.find(prompt), self._shared
        if text.length > self._depth:
            known = text.keys_values(0, text.length)
        own = [(k[:, self._begins :], v[:, self._begins :]) for k, v in known]
        if _length(own):
            self._make_places(len(own), own[0][0])
            self._write(row, own, 0)
        return _length(known)

    def _prefill(
        self, prompts: Sequence[Sequence[int]], depths: Sequence[int]
    ) -> tuple[list[list[KeysValues]], Tensor]:
        """Return the keys and values of the prompts' tokens from ``depths`` on, before which are
        the template and what their rows hold; and their last hidden states."""
        own = [prompt[depth:] for prompt, depth in zip(prompts, depths, strict=True)]
        found: list[list[KeysValues]] = []
        last = []
        for some in packs_of([len(ids) for ids in own], PREFILL_TOKENS):
            texts = [own[index] for index in some]
            spans = spans_of(texts)
            blocks: list[PrefixBlock] = []
            prefixes: list[Sequence[KeysValues]] = []
            if self._depth:
                blocks.append(PrefixBlock(0, spans[-1][1], 0, 0, self._depth))
                prefixes.append(self._shared)
            for index, (start, stop) in zip(some, spans, strict=True):
                if depths[index] > self._depth:
                    places = self._depth - self._begins, depths[index] - self._begins
                    blocks.append(PrefixBlock(start, stop, len(prefixes), *places))
                    prefixes.append(_layers(self._own[:, :, len(self._lengths) + index]))
            depths_here = [depths[index] for index in some]
            hidden, keys_values = forward(self._policy, texts, depths_here, blocks, prefixes)
            ends = torch.tensor([stop - 1 for _, stop in spans])
            last.append(hidden[to_device(ends, hidden.device)])
            for start, stop in spans:
                found.append([(k[:, start:stop], v[:, start:stop]) for k, v in keys_values])
        return found, torch.cat(last)

    def _make_places(self, layers: int, like: Tensor) -> None:
        """Make the rows' places, at first, for keys as ``like`` [kv heads, tokens, size]."""
        if self._own.numel():
            return
        self._kernel: Kernel = kernel_for(like)
        # Places behind a row's end are read, if others are longer, and multiplied by 0: any number
        # but NaN will do.
        heads, _, size = like.shape
        self._own = like.new_zeros(layers, 2, self._rows, heads, self._room, size)

    def _write(self, row: int, keys_values: Sequence[KeysValues], start: int) -> None:
        """Write keys and values to a row, from place ``start`` on."""
        stop = start + _length(keys_values)
        for layer, (k, v) in enumerate(keys_values):
            self._own[layer, 0, row, :, start:stop] = k
            self._own[layer, 1, row, :, start:stop] = v

    def remember(self, row: int, ids: Sequence[int]) -> None:
        """Keep the keys and values of a row that ends with the last of these ``ids``, which begin
        with its prompt."""
        if not self._kept.most:
            return
        prompt = [] if self._alone else self._prompts[self._owners[row]]
        own = _layers(self._own[:, :, row, :, : self._lengths[row]])
        self._kept.add(ids, (self._template, prompt, own))

    def step(self, tokens: Tensor) -> Tensor:
        """Feed a token to each row [rows]; return the logits [rows, vocab_size] of the next one."""
        logits = self.compute(tokens)
        self.count()
        return logits

    def compute(self, tokens: Tensor) -> Tensor:
        """Run :meth:`step` on the device alone."""
        self._begin_step()
        hidden = self._policy.causal_lm.model(
            input_ids=tokens[None], position_ids=self._positions[None], use_cache=False, tree=self
        ).last_hidden_state[0]
        # A row that is decoded on behind its end stays at its last place.
        self._filled.add_(1).clamp_(max=self._room - 1)
        self._positions.add_(1)
        return self._policy.head.logits(hidden)

    def count(self) -> None:
        """Count a token more in each row."""
        self._lengths = [length + 1 for length in self._lengths]

    @property
    def rows(self) -> int:
        return len(self._lengths)

    @property
    def repeats(self) -> bool:
        """Check that :meth:`compute` runs the same kernels on the same memory each time, but the
        first, while the rows stay."""
        return self._kernel.packs

    def _begin_step(self) -> None:
        """Compute what all layers share."""
        rows, self._used = len(self._lengths), max(self._lengths) + 1
        self._sizes = [self._owners.count(prompt) for prompt in range(len(self._prompts))]
        self._at = torch.arange(rows, device=self._filled.device)
        self._seen: Seen = None
        if self._kernel.packs:
            self._used = self._room
        elif min(self._lengths) + 1 < self._used:
            places = torch.arange(self._used, device=self._filled.device)
            self._seen = self._own.new_zeros(rows, 1, 1, self._used).masked_fill_(
                (places > self._filled[:, None])[:, None, None], -torch.inf
            )

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order, the rows of a prompt one behind the other. None may
        move to a place whose own row moves to a later one: their tokens move within the cache."""
        device = self._filled.device
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        if len(moved) > 2 * len(self._own):  # fewer calls by layer, each through a copy
            longest = max(self._lengths[row] for _, row in moved)
            to, at = to_device(torch.tensor(moved).T, device)
            for own in self._own:
                own[:, to, :, :longest] = own[:, at, :, :longest]
        else:
            for place, row in moved:
                filled = self._lengths[row]
                self._own[:, :, place, :, :filled] = self._own[:, :, row, :, :filled]
        going = to_device(torch.tensor(rows, dtype=torch.long), device)
        self._filled, self._positions = self._filled[going], self._positions[going]
        self._lengths = [self._lengths[row] for row in rows]
        if not self._alone:
            owners = [self._owners[row] for row in rows]
            still = sorted(set(owners))
            self._packed = self._packed if len(still) == len(self._prompts) else []
            self._segments = None
            self._prompts = [self._prompts[owner] for owner in still]
            self._owners = [still.index(owner) for owner in owners]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend with one token a row, as a :class:`flowright.policy.prefix.attention.Tree`."""
        own = self._own[layer]
        rows, heads, size = len(self._at), own.shape[2], q.shape[-1]
        if self._seen is None and not self._kernel.packs:  # all rows are of one length
            own[0, :rows, :, self._used - 1] = k.transpose(0, 1)
            own[1, :rows, :, self._used - 1] = v.transpose(0, 1)
        else:
            own[0][self._at, :, self._filled] = k.transpose(0, 1)
            own[1][self._at, :, self._filled] = v.transpose(0, 1)
        q = q.transpose(0, 1).reshape(rows, heads, -1, size)
        keys, values = own[:, :rows, :, : self._used]
        if self._seen is None and self._kernel.packs:
            self._seen = segments_of_rows(self._filled + 1, heads, q.shape[2], self._room)
        pieces = [self._kernel.rows((q, keys, values), self._seen, scale)]
        shared = []
        # Heads that share keys are folded into the queries: [kv heads, rows * times, size].
        if self._template or not self._alone:
            queries = q.transpose(0, 1).reshape(heads, -1, size)
            if not self._alone:
                shared.append(self._attend_to_prompts(layer, queries, scale))
            if self._template:
                shared.append(self._kernel.forward((queries, *self._template[layer]), False, scale))
        for found in shared:
            out_i, lse_i = (x.unflatten(1, (rows, -1)).transpose(0, 1) for x in found)
            pieces.append((out_i, lse_i))
        return merge(*pieces, by=merged_outs).reshape(rows, -1, size)

    def _attend_to_prompts(self, layer: int, queries: Tensor, scale: float) -> Attended:
        """Return each row's attention to its prompt: [kv heads, rows * times, size]."""
        times = queries.shape[1] // len(self._owners)
        sizes = [size * times for size in self._sizes]
        if self._kernel.packs:
            if len(self._packed) == layer:
                self._packed.append(self._pack(layer))
            if self._segments is None:
                lengths = [prompt[layer][0].shape[1] for prompt in self._prompts]
                self._segments = segments_of(sizes, lengths, queries.device)
            qkv = (queries, *self._packed[layer])
            return self._kernel.forward(qkv, False, scale, self._segments)
        queries_P = queries.split(sizes, dim=1)
        found = [
            self._kernel.forward((some, *prompt[layer]), False, scale)
            for some, prompt in zip(queries_P, self._prompts, strict=True)
        ]
        outs, lses = zip(*found, strict=True)
        return torch.cat(outs, dim=1), torch.cat(lses, dim=1)

    def _pack(self, layer: int) -> KeysValues:
        """Write the prompts' keys and values one behind the other; each one's are a part."""
        k, v = (torch.cat(x, dim=1) for x in zip(*(p[layer] for p in self._prompts), strict=True))
        stop = 0
        for prompt in self._prompts:
            start, stop = stop, stop + prompt[layer][0].shape[1]
            prompt[layer] = (k[:, start:stop], v[:, start:stop])
        return k, v


def _layers(keys_values: Tensor) -> list[KeysValues]:
    return [(k, v) for k, v in keys_values]


def _length(keys_values: Sequence[KeysValues]) -> int:
    return keys_values[0][0].shape[1] if keys_values else 0


@contextmanager
def shared_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]], kept: Kept
) -> Iterator[Callable[[int, int, int, int], SharedDecoding]]:
    """Compute the beginning that all prompts share; yield a factory of rows for some of them, by
    ``(n, rows, room, longest)``."""
    with tree_attention(policy):
        yield partial(SharedDecoding, policy, _template(policy, prompts, kept), kept)


def _template(policy: Policy, prompts: Sequence[Sequence[int]], kept: Kept) -> Sequence[KeysValues]:
    """Return keys and values of the beginning that all prompts share, computed unless all of it is
    kept."""
    shared = prompts[0][: shared_length(prompts)]
    if not shared:
        return []
    text = max(map(kept.find, prompts), key=lambda text: text.length)
    if text.length >= len(shared):
        return text.keys_values(0, len(shared))
    return forward(policy, [shared], [0])[1]


class PlainDecoding:
    """The same as :class:`SharedDecoding` with the model's own attention and cache, which grows and
    repeats a prompt for each completion. For ``grpo.prefix_sharing: false`` and other attention,
    such as sliding windows."""

    joins = False
    """All prompts join at once."""

    def __init__(self, policy: Policy, n: int) -> None:
        self._policy, self._n = policy, n
        self._decoder, self._head = policy.causal_lm.model, policy.head
        self._cache = DynamicCache(config=policy.causal_lm.config)
        # transformers 5.24 renamed the argument; older releases and models with code from the hub
        # have the other name alone.
        takes = inspect.signature(self._decoder.forward).parameters
        self._cached = {"cache" if "cache" in takes else "past_key_values": self._cache}

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits [prompts * n, vocab_size] of the first tokens. Called once."""
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
        """Feed a token to each row [rows]; return the logits [rows, vocab_size] of the next one."""
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
        """Keep only these rows."""
        going = torch.tensor(rows, device=self._mask.device)
        self._cache.batch_select_indices(going)
        self._mask, self._positions = self._mask[going], self._positions[going]

    def remember(self, row: int, ids: Sequence[int]) -> None:
        """Keep nothing."""


def plain_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]], kept: Kept
) -> AbstractContextManager[Callable[[int, int, int, int], PlainDecoding]]:
    """Yield a factory as :func:`shared_decoding`; its rows share nothing."""

    def made(n: int, rows: int, room: int, longest: int) -> PlainDecoding:
        return PlainDecoding(policy, n)

    return nullcontext(made)
