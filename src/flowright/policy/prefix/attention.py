"""Attention of packed texts over the prefixes that they share: each key and value is stored once.

A query sees several pieces: all of the prefixes that it is behind, and its own text up to itself.
Each is attended to by an ordinary kernel that also returns the log-sum-exp of its scores (Dao et
al. 2022, arXiv 2205.14135, section 3.1), and the pieces are merged by these:

    lse = log(sum_i exp(lse_i)),    out = sum_i exp(lse_i - lse) out_i

where for two pieces the second one's share is sigmoid(lse_2 - lse_1).

In the backward pass every piece's kernel gets the merged ``out`` and ``lse``, from which it
computes the probabilities of the softmax over all pieces, so that its gradients are exact. Heads
that share keys (grouped-query attention) are folded into the queries, so that no key is copied for
them. On a GPU one call attends in all texts, and one in all blocks of a prefix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from flowright.policy.fused import compiled
from flowright.policy.layout import to_device
from flowright.policy.prefix.kernels import QKV, Attended, Kernel, Segments, kernel_for, segments_of

NAME = "flowright_tree"
"""This attention's name in transformers."""

LEAST_FILLED = 0.75
"""Texts are attended to in stacks of like length; a shorter one than this share of its stack's
longest begins another."""


@dataclass(frozen=True, slots=True)
class PrefixBlock:
    """A block of the attention matrix: queries from ``start`` to ``stop`` see all keys from
    ``first`` to ``last`` of a prefix; with ``segments``, several blocks one behind the other."""

    start: int
    stop: int
    prefix: int
    first: int
    last: int
    segments: Segments | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Texts of like length as rows of a pack's token indices. ``places`` of the rows, flattened,
    hold the ``tokens`` of the pack; the ``empty`` ones point at some token, and their results are
    not used. Texts of one length, one behind the other, are a ``run`` of tokens, a slice of the
    pack instead of a copy."""

    index: Tensor  # [texts, longest] long
    places: Tensor  # [tokens of the texts] long
    tokens: Tensor  # the same
    empty: Tensor  # [texts * longest - tokens of the texts] long
    run: slice | None = None

    def rows(self, x: Tensor) -> Tensor:
        """Return the pack's [H, N, ...] as [H * texts, longest, ...]."""
        longest = self.index.shape[1]
        if self.run is not None:
            return x[:, self.run].reshape(-1, longest, *x.shape[2:])
        return x[:, self.index].flatten(0, 1)

    def put(self, target: Tensor, rows: Tensor) -> None:
        """Write [H * texts, longest, ...], the form of :meth:`rows`, to the pack's [H, N, ...]."""
        rows = rows.reshape(target.shape[0], -1, *rows.shape[2:])
        if self.run is not None:
            target[:, self.run] = rows
        else:
            target[:, self.tokens] = rows[:, self.places]


KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer [key/value heads, tokens, head size]."""


class Tree(Protocol):
    """The attention of one forward pass, passed through the model as the keyword ``tree``."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Map queries [H, N, D], keys and values [H_kv, N, D] of a pack's tokens to [N, H, D]."""
        ...


class Pass:
    """The :class:`Tree` of one forward pass over packed texts.

    ``spans`` are the texts' starts and stops, one behind the other. ``prefixes`` are keys and
    values by layer, seen as in ``blocks``. ``kept`` receives the texts' own, by layer; :meth:`take`
    them before anything is run backward. Gradients of the prefixes are added in place to
    ``accumulators`` of their shapes, if there are any, and autograd gets none: a sum over many
    passes is written once.

    Not a dataclass: FSDP would look for tensors with a gradient in one (``kept``), and pass a
    sharded layer a copy with others in their place.
    """

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        blocks: Sequence[PrefixBlock] = (),
        prefixes: Sequence[Sequence[KeysValues]] = (),
        accumulators: Sequence[Sequence[KeysValues]] = (),
    ) -> None:
        self.spans = spans
        self.stacks: Sequence[Stack] = ()
        self.segments: Segments | None = None
        self.blocks = blocks
        self.prefixes = prefixes
        self.accumulators = accumulators
        self.kept: dict[int, KeysValues] | None = {}

    def arrange(self, kernel: Kernel, device: torch.device) -> None:
        """Arrange texts and blocks for the kernel, once: as ``segments`` or as ``stacks``."""
        if self.stacks or self.segments is not None:
            return
        if kernel.packs:
            lengths = [stop - start for start, stop in self.spans if stop > start]
            self.segments = segments_of(lengths, lengths, device)
            self.blocks = _joined(self.blocks, device)
        else:
            self.stacks = stacks_of(self.spans, device)

    def take(self) -> list[KeysValues]:
        """Return the texts' keys and values, by layer; nothing is kept from here on.

        The graph of these tensors holds this object, so if they stayed here it would never be
        freed, and recomputing a layer would add its graph, too.
        """
        assert self.kept is not None
        kept, self.kept = self.kept, None
        return [kept[layer] for layer in sorted(kept)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if self.kept is not None:
            self.kept[layer] = (k, v)
        return attend(q, (k, v), self, layer, scale).transpose(0, 1)


def _joined(blocks: Sequence[PrefixBlock], device: torch.device) -> list[PrefixBlock]:
    """Join blocks whose queries and keys lie one behind the other."""
    runs: list[list[PrefixBlock]] = []
    for block in blocks:
        last = runs[-1][-1] if runs else block
        if (last.prefix, last.stop, last.last) == (block.prefix, block.start, block.first):
            runs[-1].append(block)
        else:
            runs.append([block])
    return [
        PrefixBlock(run[0].start, run[-1].stop, run[0].prefix, run[0].first, run[-1].last,
                    segments_of([block.stop - block.start for block in run],
                                [block.last - block.first for block in run], device))
        for run in runs
    ]  # fmt: skip


def stacks_of(spans: Sequence[tuple[int, int]], device: torch.device) -> list[Stack]:
    """Arrange texts, given by start and stop and maybe empty, in stacks."""
    ordered = sorted((span for span in spans if span[1] > span[0]), key=lambda s: s[0] - s[1])
    stacks: list[Stack] = []
    rows: list[tuple[int, int]] = []
    for span in [*ordered, None]:
        if rows and (span is None or span[1] - span[0] < LEAST_FILLED * (rows[0][1] - rows[0][0])):
            stacks.append(_stack(rows, device))
            rows = []
        if span is not None:
            rows.append(span)
    return stacks


def _stack(rows: Sequence[tuple[int, int]], device: torch.device) -> Stack:
    starts = torch.tensor([[start] for start, _ in rows])
    stops = torch.tensor([[stop] for _, stop in rows])
    index = starts + torch.arange(rows[0][1] - rows[0][0])
    holds = (index < stops).flatten()
    index = torch.minimum(index, stops - 1)
    places, empty = holds.nonzero()[:, 0], (~holds).nonzero()[:, 0]
    made = (index, places, index.flatten()[places], empty)
    index, places, tokens, empty = (to_device(tensor, device) for tensor in made)
    return Stack(index, places, tokens, empty, _run(rows))


def _run(rows: Sequence[tuple[int, int]]) -> slice | None:
    """Return the tokens of texts of one length that are one behind the other; None for others."""
    first, length = rows[0][0], rows[0][1] - rows[0][0]
    expected = [(first + i * length, first + (i + 1) * length) for i in range(len(rows))]
    return slice(first, rows[-1][1]) if list(rows) == expected else None


class _Merged(torch.autograd.Function):
    """Attention over all pieces. Inputs: q [H, N, D], then keys and values of the texts themselves
    and of each prefix [H_kv, S, D]; H is a multiple of H_kv."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, tree: Pass, layer: int, scale: float, q: Tensor, *sources: Tensor
    ) -> Tensor:
        tree.arrange(kernel, q.device)
        own = (q, sources[0], sources[1])
        if tree.segments is not None:
            out, lse = kernel.forward(own, True, scale, tree.segments)
        else:
            out = torch.empty_like(q)
            lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
            for stack in tree.stacks:
                out_i, lse_i = kernel.forward(_stacked(stack, *own), True, scale)
                stack.put(out, out_i)
                stack.put(lse, lse_i)
        for block in tree.blocks:
            queries, (k, v) = slice(block.start, block.stop), _seen(block, sources)
            q_i, merged = q[:, queries], (out[:, queries], lse[:, queries])
            found = kernel.forward((q_i, k, v), False, scale, block.segments)
            if q_i.shape == q.shape:
                out, lse = merge(merged, found)
            else:
                out[:, queries], lse[:, queries] = merge(merged, found)
        ctx.kernel, ctx.tree, ctx.layer, ctx.scale = kernel, tree, layer, scale
        ctx.save_for_backward(q, out, lse, *sources)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        q, out, lse, *sources = ctx.saved_tensors
        own = (q, sources[0], sources[1])
        if ctx.tree.segments is not None:
            dq, dk, dv = ctx.kernel.backward(
                grad, own, (out, lse), True, ctx.scale, ctx.tree.segments
            )
        else:
            dq, dk, dv = (torch.empty_like(x) for x in own)
        for stack in ctx.tree.stacks:
            grad_i = stack.rows(grad)
            if stack.empty.numel():  # so that an empty place changes no key
                grad_i.unflatten(0, (len(q), -1)).flatten(1, 2).index_fill_(1, stack.empty, 0)
            stacked, merged = _stacked(stack, *own), (stack.rows(out), stack.rows(lse))
            dq_i, *others = ctx.kernel.backward(grad_i, stacked, merged, True, ctx.scale, None)
            stack.put(dq, dq_i)
            for target, gradient in zip((dk, dv), others, strict=True):
                stack.put(target, _summed(gradient, len(target), len(q)))
        shared = [x for prefix in ctx.tree.accumulators for x in prefix[ctx.layer]]
        found = shared or [torch.zeros_like(source) for source in sources[2:]]
        for block in ctx.tree.blocks:
            queries, keys = slice(block.start, block.stop), slice(block.first, block.last)
            k, v = _seen(block, sources)
            grad_i, q_i, *merged = (x[:, queries] for x in (grad, q, out, lse))
            dq_i, dk_i, dv_i = ctx.kernel.backward(
                grad_i, (q_i, k, v), merged, False, ctx.scale, block.segments
            )
            # Not +=, which would then write the sum to itself.
            dq[:, queries].add_(dq_i)
            found[2 * block.prefix][:, keys].add_(dk_i)
            found[2 * block.prefix + 1][:, keys].add_(dv_i)
        returned = [None] * len(found) if shared else found
        return None, None, None, None, dq, dk, dv, *returned


def merged(one: Attended, *others: Attended) -> Attended:
    out, lse = one
    for out_i, lse_i in others:
        share = (lse_i - lse).sigmoid()[..., None]
        out = torch.lerp(out.float(), out_i.float(), share).to(out.dtype)
        lse = torch.logaddexp(lse, lse_i)
    return out, lse


def merged_outs(*pieces: Attended) -> Tensor:
    return merged(*pieces)[0]


def merge(*pieces: Attended, by: Callable[..., Any] = merged) -> Any:
    """Merge attention over pieces, in float32: on GPUs two kernels, or one ``by`` merged_outs."""
    is_fused = len(pieces) > 1 and pieces[0][0].is_cuda
    return (compiled(by) if is_fused else by)(*pieces)


def _stacked(stack: Stack, q: Tensor, k: Tensor, v: Tensor) -> QKV:
    """Return queries, keys and values [H * texts, longest, D]. Keys are repeated for the heads that
    share them: folded into the queries, heads would lose the order of their tokens."""
    times = len(q) // len(k)
    k, v = (stack.rows(x.repeat_interleave(times, dim=0)) for x in (k, v))
    return stack.rows(q), k, v


def _summed(gradient: Tensor, kv_heads: int, heads: int) -> Tensor:
    """Sum [H * texts, longest, D] over the heads that share keys: [H_kv * texts, longest, D]."""
    texts = len(gradient) // heads
    split = gradient.reshape(kv_heads, heads // kv_heads, texts, *gradient.shape[1:])
    return split.sum(dim=1).flatten(0, 1)


def _seen(block: PrefixBlock, sources: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a block."""
    k, v = (s[:, block.first : block.last] for s in sources[2 + 2 * block.prefix :][:2])
    return k, v


def attend(
    q: Tensor, own: KeysValues, tree: Pass, layer: int, scale: float, kernel: Kernel | None = None
) -> Tensor:
    """Return the attention [H, N, D] of packed texts, differentiable in queries, keys and
    values."""
    sources = [*own, *(x for prefix in tree.prefixes for x in prefix[layer])]
    return _Merged.apply(kernel or kernel_for(q), tree, layer, scale, q, *sources)


def _tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    tree: Tree | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Implement transformers' interface for a batch of one: [1, heads, N, size] to [1, N, heads,
    size]."""
    if tree is None or attention_mask is not None or dropout:
        raise ValueError(f"{NAME} wants a tree, no mask and no dropout")
    # Not by index, whose gradient is a copy among zeros.
    q, k, v = (x.squeeze(0) for x in (query, key, value))
    return tree.attend(module.layer_idx, q, k, v, scaling)[None], None


AttentionInterface.register(NAME, _tree_attention)
