"""A forward and backward pass over texts that share prefixes, each token of a prefix only once.

The prompts of a step begin alike (the template), each goes on by itself (the problem), and several
texts (the completions) stand behind each. So there are three levels, and a level is computed with
the keys and values of those above it. These are handed down as leaves: a chunk of texts is run
forward and backward, leaves its gradient on them and is gone; at last the prompts are run backward
from what has gathered there, and then the template. Memory does not grow with the number of texts.

No objective here: what the hidden states are used for is the caller's (:class:`Visit`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flowright.policy.device import to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.attention import NAME, KeysValues, Part, Pass, stacks_of

SHORTEST_TEMPLATE = 16
"""Tokens; a beginning that fewer share is left with the prompts."""

IDLE = (0,)
"""The text of a pass that runs only because others need this process' weights: nothing stands
behind it, and its gradients are 0."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A prompt and the texts behind it, as token ids; none of them is empty."""

    prompt_ids: Sequence[int]
    texts: Sequence[Sequence[int]]


class Visit(Protocol):
    """Called for every chunk with the hidden states [N, width] that predict the texts' tokens, one
    text after the other, and with what they are: (branch, text) by index. The loss that it returns
    is run backward at once; None runs nothing."""

    def __call__(self, hidden_N: Tensor, texts: Sequence[tuple[int, int]]) -> Tensor | None: ...


@contextmanager
def tree_attention(policy: Policy) -> Iterator[None]:
    """Let the model attend as :mod:`flowright.policy.prefix.attention` does."""
    config = policy.causal_lm.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def visit_texts(policy: Policy, branches: Sequence[Branch], budget: int, visit: Visit) -> None:
    """Run all texts behind their prompts, forward and, where gradients are on, backward.

    ``budget``: tokens of prompts, and of texts, that are in memory at once; a single prompt or
    text may be longer. Where the weights are split among several processes, these call this
    together, run as many passes as the one with the most, and with gradients on every visit gives
    a loss.
    """
    template = shared_length([branch.prompt_ids for branch in branches])
    packs = list(_packs(branches, template, budget))
    trunks, *passes = policy.peers.longest([int(template > 0), *(p.passes for p in packs)])
    packs += [_Pack([IDLE], ())] * (len(passes) - len(packs))
    with tree_attention(policy):
        texts = [branches[0].prompt_ids[:template]] if template else [IDLE] * trunks
        trunk = Level(policy, texts, 0)
        above = trunk if template else None
        for pack, most in zip(packs, passes, strict=True):
            stems = Level(policy, pack.prompts, template, above, [0] * len(pack.prompts))
            depths = [template + len(prompt) for prompt in pack.prompts]
            for chunk in pack.chunks:
                loss = visit(_hidden(policy, stems, depths, chunk), [leaf.name for leaf in chunk])
                if loss is not None:
                    loss.backward()
            for _ in range(most - pack.passes):
                Level(policy, [IDLE], 0).backward()
            stems.backward()
        trunk.backward()


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with; 0 where it is not worth while. Each keeps at least
    its last token, whose hidden state predicts the first of a text."""
    if len(prompts) < 2:
        return 0
    ordered = [tuple(prompt) for prompt in prompts]
    first, last = min(ordered), max(ordered)  # what these two share, all in between share
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    length = min(len(prompt) for prompt in prompts) - 1
    length = length if alike is None else min(alike, length)
    return length if length >= SHORTEST_TEMPLATE else 0


def packs_of(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in order, cut where their lengths would exceed the budget."""
    pack: list[int] = []
    total = 0
    for index, length in enumerate(lengths):
        if pack and total + length > budget:
            yield pack
            pack, total = [], 0
        pack.append(index)
        total += length
    if pack:
        yield pack


class Level:
    """Packed texts that were run forward, each behind text ``owners[i]`` of the level above. For
    what stands behind them, each one's last hidden state is a leaf, and their keys and values are
    constants with ``sinks`` for their gradients; :meth:`backward` goes on from these."""

    def __init__(
        self,
        policy: Policy,
        texts: Sequence[Sequence[int]],
        depth: int,
        above: "Level | None" = None,
        owners: Sequence[int] = (),
    ) -> None:
        self.spans = _spans(texts)
        self.above = above
        self.owners = owners
        self.prefix: list[KeysValues] = []
        self.sinks: list[KeysValues] = []
        self._kept: list[KeysValues] = []
        if not self.length:
            return  # nothing is shared
        hidden, self._kept = _forward(policy, texts, [depth] * len(texts), above, owners)
        ends = torch.tensor([stop - 1 for _, stop in self.spans])
        self._ends = hidden[to_device(ends, hidden.device)]
        self.last_hidden = self._ends.detach().requires_grad_(self._ends.requires_grad)
        self.prefix = [(k.detach(), v.detach()) for k, v in self._kept]
        if self._ends.requires_grad:
            self.sinks = [(torch.zeros_like(k), torch.zeros_like(v)) for k, v in self.prefix]
            if policy.gpus > 1:  # the last layer is gathered when its output gets a gradient
                self.last_hidden.grad = torch.zeros_like(self._ends)

    @property
    def length(self) -> int:
        """Tokens of all texts."""
        return self.spans[-1][1] if self.spans else 0

    def backward(self) -> None:
        if not self.sinks:
            return
        kept = [root for pair in self._kept for root in pair]
        gathered = [gradient for pair in self.sinks for gradient in pair]
        pairs = [*zip(kept, gathered, strict=True), (self._ends, self.last_hidden.grad)]
        pairs = [(root, grad) for root, grad in pairs if root.requires_grad and grad is not None]
        if pairs:
            roots, grads = zip(*pairs, strict=True)
            torch.autograd.backward(roots, grads)


def _spans(texts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Where each text stands in the pack."""
    spans: list[tuple[int, int]] = []
    stop = 0
    for text in texts:
        start, stop = stop, stop + len(text)
        spans.append((start, stop))
    return spans


def _forward(
    policy: Policy,
    texts: Sequence[Sequence[int]],
    depths: Sequence[int],
    above: Level | None,
    owners: Sequence[int],
) -> tuple[Tensor, list[KeysValues]]:
    """Hidden states [N, width] of packed texts, each at positions from its depth on, and their own
    keys and values by layer."""
    spans = _spans(texts)
    ids = torch.tensor([[token for text in texts for token in text]])
    positions = torch.cat(
        [torch.arange(len(text)) + depth for text, depth in zip(texts, depths, strict=True)]
    )
    parts: list[Part] = []
    levels: list[Level] = []
    level = above
    while level is not None:
        if level.prefix:
            parts += _prefix_parts(spans, owners, level, len(levels))
            levels.append(level)
        if level.above is not None:
            owners = [level.owners[owner] for owner in owners]
        level = level.above
    prefixes, sinks = [level.prefix for level in levels], [level.sinks for level in levels]
    tree = Pass(stacks_of(spans, policy.device), parts, prefixes, sinks if all(sinks) else ())
    hidden = policy.causal_lm.model(
        input_ids=to_device(ids, policy.device),
        position_ids=to_device(positions[None], policy.device),
        use_cache=False,
        tree=tree,
    ).last_hidden_state[0]
    return hidden, tree.take()


def _prefix_parts(
    spans: Sequence[tuple[int, int]], owners: Sequence[int], level: Level, prefix: int
) -> Iterator[Part]:
    """One part for each run of neighbours that stand behind the same text."""
    start = 0
    for place, owner in enumerate(owners):
        if place + 1 < len(owners) and owners[place + 1] == owner:
            continue
        first, last = level.spans[owner]
        stop = spans[place][1]
        if stop > start and last > first:
            yield Part(start, stop, prefix, first, last)
        start = stop


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A text behind prompt ``place`` of the level above; ``name`` is what the visit is told."""

    place: int
    name: tuple[int, int]
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Pack:
    """Prompts, without the template, that are run at once, and the texts behind them by chunk."""

    prompts: Sequence[Sequence[int]]
    chunks: Sequence[Sequence[_Leaf]]

    @property
    def passes(self) -> int:
        """Chunks that go through the model: a text of one token is its prompt's to predict."""
        return sum(any(len(leaf.token_ids) > 1 for leaf in chunk) for chunk in self.chunks)


def _packs(branches: Sequence[Branch], template: int, budget: int) -> Iterator[_Pack]:
    for some in packs_of([len(branch.prompt_ids) - template for branch in branches], budget):
        leaves = [
            _Leaf(place, (index, number), text)
            for place, index in enumerate(some)
            for number, text in enumerate(branches[index].texts)
        ]
        chunks = packs_of([len(leaf.token_ids) for leaf in leaves], budget)
        prompts = [branches[index].prompt_ids[template:] for index in some]
        yield _Pack(prompts, [[leaves[i] for i in chunk] for chunk in chunks])


def _hidden(policy: Policy, stems: Level, depths: Sequence[int], leaves: Sequence[_Leaf]) -> Tensor:
    """What predicts the texts' tokens: the prompt's last hidden state, then all of the text's own
    but the last, which is no input. ``depths``: the lengths of the prompts."""
    inputs = [leaf.token_ids[:-1] for leaf in leaves]
    places = [leaf.place for leaf in leaves]
    firsts = stems.last_hidden[to_device(torch.tensor(places), policy.device)]
    if not any(inputs):
        return firsts
    hidden, _ = _forward(policy, inputs, [depths[place] for place in places], stems, places)
    rows = [(firsts[i : i + 1], hidden[a:b]) for i, (a, b) in enumerate(_spans(inputs))]
    return torch.cat([tensor for pair in rows for tensor in pair])
