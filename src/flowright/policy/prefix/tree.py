"""The levels of a tree of prefixes: template, prompts, completions, each behind those above.

A level's texts are packed and run forward with the keys and values of the levels above, which are
constants to it: their gradients add up in accumulators, and a level is run backward when all that
stands behind it has been. In which order levels are run: :mod:`flowright.policy.prefix.chunks`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from flowright.policy.layout import to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.attention import NAME, KeysValues, Pass, PrefixBlock, stacks_of

SHORTEST_TEMPLATE = 16
"""Tokens; a beginning that fewer share is left with the prompts."""


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


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with; 0 where it is not worth while. Each keeps at least
    its last token, whose hidden state predicts the first of a completion."""
    if len(prompts) < 2:
        return 0
    ordered = [tuple(prompt) for prompt in prompts]
    first, last = min(ordered), max(ordered)  # what these two share, all in between share
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    length = min(len(prompt) for prompt in prompts) - 1
    length = length if alike is None else min(alike, length)
    return length if length >= SHORTEST_TEMPLATE else 0


class Level:
    """Packed texts that were run forward, each behind text ``owners[i]`` of the level above. For
    what stands behind them, each one's last hidden state is a leaf of the graph, and their keys and
    values are constants with ``accumulators`` for their gradients; :meth:`backward` goes on from
    these."""

    def __init__(
        self,
        policy: Policy,
        texts: Sequence[Sequence[int]],
        above: "Level | None" = None,
        owners: Sequence[int] = (),
    ) -> None:
        self.spans = _spans(texts)
        self.above = above
        self.owners = owners
        self.keys_values: list[KeysValues] = []
        self.accumulators: list[KeysValues] = []
        self._computed: list[KeysValues] = []
        if not self.length:
            return  # nothing is shared
        hidden, self._computed = _forward(policy, texts, above, owners)
        ends = torch.tensor([stop - 1 for _, stop in self.spans])
        self._ends = hidden[to_device(ends, hidden.device)]
        self.last_hidden = self._ends.detach().requires_grad_(self._ends.requires_grad)
        self.keys_values = [(k.detach(), v.detach()) for k, v in self._computed]
        if self._ends.requires_grad:
            pairs = self.keys_values
            self.accumulators = [(torch.zeros_like(k), torch.zeros_like(v)) for k, v in pairs]
            if policy.gpus > 1:  # the last layer is gathered when its output gets a gradient
                self.last_hidden.grad = torch.zeros_like(self._ends)

    @property
    def length(self) -> int:
        """Tokens of all texts."""
        return self.spans[-1][1] if self.spans else 0

    def depth(self, text: int) -> int:
        """Tokens from the beginning of the prompt to the end of a text: where what stands behind it
        has its first position."""
        start, stop = self.spans[text]
        return stop - start + (self.above.depth(self.owners[text]) if self.above else 0)

    def backward(self) -> None:
        if not self.accumulators:
            return
        computed = [root for pair in self._computed for root in pair]
        added = [gradient for pair in self.accumulators for gradient in pair]
        pairs = [*zip(computed, added, strict=True), (self._ends, self.last_hidden.grad)]
        pairs = [(root, grad) for root, grad in pairs if root.requires_grad and grad is not None]
        if pairs:
            roots, grads = zip(*pairs, strict=True)
            torch.autograd.backward(roots, grads)


def predictions(
    policy: Policy, texts: Sequence[Sequence[int]], above: Level, owners: Sequence[int]
) -> Tensor:
    """Hidden states [N, hidden_size] that predict the texts' tokens: the last one of the text
    above, then all of the text's own but the last, which is no input."""
    inputs = [text[:-1] for text in texts]
    firsts = above.last_hidden[to_device(torch.tensor(owners), policy.device)]
    if not any(inputs):
        return firsts
    hidden, _ = _forward(policy, inputs, above, owners)
    rows = [(firsts[i : i + 1], hidden[a:b]) for i, (a, b) in enumerate(_spans(inputs))]
    return torch.cat([tensor for pair in rows for tensor in pair])


def _spans(texts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Where each text stands in the pack."""
    spans: list[tuple[int, int]] = []
    stop = 0
    for text in texts:
        start, stop = stop, stop + len(text)
        spans.append((start, stop))
    return spans


def _forward(
    policy: Policy, texts: Sequence[Sequence[int]], above: Level | None, owners: Sequence[int]
) -> tuple[Tensor, list[KeysValues]]:
    """Hidden states [N, hidden_size] of packed texts, and their own keys and values by layer."""
    spans = _spans(texts)
    ids = torch.tensor([[token for text in texts for token in text]])
    depths = [above.depth(owner) for owner in owners] if above else [0] * len(texts)
    positions = torch.cat(
        [torch.arange(len(text)) + depth for text, depth in zip(texts, depths, strict=True)]
    )
    blocks: list[PrefixBlock] = []
    levels: list[Level] = []
    level = above
    while level is not None:
        if level.keys_values:
            blocks += _blocks(spans, owners, level, len(levels))
            levels.append(level)
        if level.above is not None:
            owners = [level.owners[owner] for owner in owners]
        level = level.above
    prefixes = [level.keys_values for level in levels]
    accumulators = [level.accumulators for level in levels]
    tree = Pass(
        stacks_of(spans, policy.device), blocks, prefixes, accumulators if all(accumulators) else ()
    )
    hidden = policy.causal_lm.model(
        input_ids=to_device(ids, policy.device),
        position_ids=to_device(positions[None], policy.device),
        use_cache=False,
        tree=tree,
    ).last_hidden_state[0]
    return hidden, tree.take()


def _blocks(
    spans: Sequence[tuple[int, int]], owners: Sequence[int], level: Level, prefix: int
) -> Iterator[PrefixBlock]:
    """One for each run of neighbours that stand behind the same text."""
    start = 0
    for place, owner in enumerate(owners):
        if place + 1 < len(owners) and owners[place + 1] == owner:
            continue
        first, last = level.spans[owner]
        stop = spans[place][1]
        if stop > start and last > first:
            yield PrefixBlock(start, stop, prefix, first, last)
        start = stop
