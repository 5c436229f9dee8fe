"""A step's groups through the policy, chunk by chunk, each token of a shared prefix only once.

The prompts of a step begin alike (the template), each continues by itself (the problem), and
several completions stand behind each: three levels of a tree. A level's texts are packed and run
forward with the keys and values of the levels above as constants, whose gradients add up in
accumulators.

A chunk of completions is run forward, the caller runs its loss backward, which adds to the
accumulators of the prompts, and the chunk is freed; then the prompts are run backward from there,
and at last the template. Memory does not grow with the number of completions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flowright.policy.layout import lay_out, packs_of, to_device, use
from flowright.policy.model import Policy, keeping_activations
from flowright.policy.prefix.attention import NAME, KeysValues, Pass, PrefixBlock

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
    """Return how many tokens all prompts begin with; 0 if they are too few. Each prompt keeps at
    least its last token, whose hidden state predicts the first of a completion."""
    if len(prompts) < 2:
        return 0
    ordered = [tuple(prompt) for prompt in prompts]
    first, last = min(ordered), max(ordered)  # all in between share what these two share
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    length = min(len(prompt) for prompt in prompts) - 1
    length = length if alike is None else min(alike, length)
    return length if length >= SHORTEST_TEMPLATE else 0


class Level:
    """Packed texts that were run forward, each behind text ``owners[i]`` of the level above. For
    the texts behind them, each one's last hidden state is a leaf of the graph, and their keys and
    values are constants with ``accumulators`` for their gradients, from which :meth:`backward`
    continues."""

    def __init__(
        self,
        policy: Policy,
        texts: Sequence[Sequence[int]],
        above: "Level | None" = None,
        owners: Sequence[int] = (),
    ) -> None:
        self.spans = spans_of(texts)
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
        """Return the tokens from the beginning of the prompt to the end of a text, which is the
        first position behind it."""
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
    """Return the hidden states [N, hidden_size] that predict the texts' tokens: the last one of the
    text above, then all of the text's own but the last, which is no input."""
    inputs = [text[:-1] for text in texts]
    firsts = above.last_hidden[to_device(torch.tensor(owners), policy.device)]
    if not any(inputs):
        return firsts
    with keeping_activations(policy):
        hidden, _ = _forward(policy, inputs, above, owners)
    rows = [(firsts[i : i + 1], hidden[a:b]) for i, (a, b) in enumerate(spans_of(inputs))]
    return torch.cat([tensor for pair in rows for tensor in pair])


def spans_of(texts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the start and stop of each text in the pack."""
    spans: list[tuple[int, int]] = []
    stop = 0
    for text in texts:
        start, stop = stop, stop + len(text)
        spans.append((start, stop))
    return spans


def _forward(
    policy: Policy, texts: Sequence[Sequence[int]], above: Level | None, owners: Sequence[int]
) -> tuple[Tensor, list[KeysValues]]:
    """Return the hidden states [N, hidden_size] of packed texts, and their own keys and values by
    layer."""
    spans = spans_of(texts)
    depths = [above.depth(owner) for owner in owners] if above else [0] * len(texts)
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
    return forward(
        policy, texts, depths, blocks, prefixes, accumulators if all(accumulators) else ()
    )


def forward(
    policy: Policy,
    texts: Sequence[Sequence[int]],
    depths: Sequence[int],
    blocks: Sequence[PrefixBlock] = (),
    prefixes: Sequence[Sequence[KeysValues]] = (),
    accumulators: Sequence[Sequence[KeysValues]] = (),
) -> tuple[Tensor, list[KeysValues]]:
    """Return the same of texts that begin at positions ``depths``, behind the prefixes of a
    :class:`flowright.policy.prefix.attention.Pass`."""
    ids = torch.tensor([[token for text in texts for token in text]])
    positions = torch.cat(
        [torch.arange(len(text)) + depth for text, depth in zip(texts, depths, strict=True)]
    )
    tree = Pass(spans_of(texts), blocks, prefixes, accumulators)
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
    """Yield a block for each run of neighbours behind the same text."""
    start = 0
    for place, owner in enumerate(owners):
        if place + 1 < len(owners) and owners[place + 1] == owner:
            continue
        first, last = level.spans[owner]
        stop = spans[place][1]
        if stop > start and last > first:
            yield PrefixBlock(start, stop, prefix, first, last)
        start = stop


IDLE = (0,)
"""The text of a pass that runs only because other processes need this one's weights: nothing is
behind it, and its gradients are 0."""


class PromptGroup(Protocol):
    """A prompt and the completions behind it, as token ids; none of them is empty."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def completions(self) -> Sequence[Sequence[int]]: ...


def chunks(
    policy: Policy,
    groups: Sequence[PromptGroup],
    budget: int,
    sharing: bool,
    whole_groups: bool = False,
) -> Iterator[tuple[Tensor, list[int]]]:
    """Run every completion of the groups, some at a time: yields the hidden states [N, hidden_size]
    that predict their tokens, one completion after the other, and their numbers among all of them.

        for hidden_N, samples in chunks(policy, groups, budget, sharing):
            loss(hidden_N, samples).backward()

    With gradients on, run the loss of each chunk backward before taking the next one: a prefix is
    run backward after the last chunk behind it. So a loop that is left early leaves no gradient of
    prefixes; until it ends, the model's attention serves no other pass.

    ``budget``: tokens of prompts, and of completions, that are in memory at once; a single one may
    be longer. ``sharing=False``: the model's own attention, on a row for each completion.
    ``whole_groups``: a group's completions come in one chunk, for a loss that compares them.
    Processes that share one model's weights call this together and run as many passes as the one
    with the most.
    """
    use(policy.device)
    return (shared_chunks if sharing else plain_chunks)(policy, groups, budget, whole_groups)


def shared_chunks(
    policy: Policy, groups: Sequence[PromptGroup], budget: int, whole_groups: bool = False
) -> Iterator[tuple[Tensor, list[int]]]:
    """Run :func:`chunks` by shared prefixes."""
    texts = [ids for group in groups for ids in group.completions]
    length = shared_length([group.prompt_ids for group in groups])
    packs = list(_packs(groups, length, budget, whole_groups))
    templates, *passes = policy.peers.longest([int(length > 0), *(p.passes for p in packs)])
    packs += [_Pack([IDLE], (), 0)] * (len(passes) - len(packs))
    with tree_attention(policy):
        template = Level(policy, [groups[0].prompt_ids[:length]] if length else [IDLE] * templates)
        above = template if length else None
        for pack, most in zip(packs, passes, strict=True):
            prompts = Level(policy, pack.prompts, above, [0] * len(pack.prompts))
            for numbers, owners in pack.chunks:
                yield predictions(policy, [texts[n] for n in numbers], prompts, owners), numbers
            for _ in range(most - pack.passes):
                Level(policy, [IDLE]).backward()
            prompts.backward()
        template.backward()


@dataclass(frozen=True, slots=True)
class _Pack:
    """Prompts, without the template, that are run at once, and the chunks behind them: numbers of
    completions, and of each one's prompt within the pack."""

    prompts: Sequence[Sequence[int]]
    chunks: Sequence[tuple[list[int], list[int]]]
    passes: int  # chunks that go through the model: a single token is predicted by its prompt


def _units(groups: Sequence[PromptGroup], whole_groups: bool) -> Iterator[tuple[int, list[int]]]:
    """Yield the units that are not cut: a group's number, and numbers of its completions."""
    count = 0
    for index, group in enumerate(groups):
        numbers = list(range(count, count + len(group.completions)))
        yield from [(index, numbers)] if whole_groups else ((index, [n]) for n in numbers)
        count += len(numbers)


def _packs(
    groups: Sequence[PromptGroup], length: int, budget: int, whole_groups: bool
) -> Iterator[_Pack]:
    owned = [(index, ids) for index, group in enumerate(groups) for ids in group.completions]
    units = list(_units(groups, whole_groups))
    for some in packs_of([len(group.prompt_ids) - length for group in groups], budget):
        behind = [numbers for owner, numbers in units if some[0] <= owner <= some[-1]]
        cuts = list(packs_of([sum(len(owned[n][1]) for n in unit) for unit in behind], budget))
        chunks = [[n for i in cut for n in behind[i]] for cut in cuts]
        yield _Pack(
            [groups[index].prompt_ids[length:] for index in some],
            [(chunk, [owned[n][0] - some[0] for n in chunk]) for chunk in chunks],
            sum(any(len(owned[n][1]) > 1 for n in chunk) for chunk in chunks),
        )


def plain_chunks(
    policy: Policy, groups: Sequence[PromptGroup], budget: int, whole_groups: bool = False
) -> Iterator[tuple[Tensor, list[int]]]:
    """Run :func:`chunks` on rows of a prompt and a completion each, for ``grpo.prefix_sharing:
    false`` and as the tests' reference for the shared path."""
    rows = [(group.prompt_ids, ids) for group in groups for ids in group.completions]
    units = [numbers for _, numbers in _units(groups, whole_groups)]
    lengths = [len(prompt) + len(ids) for prompt, ids in rows]
    sizes = [len(unit) * max(lengths[n] for n in unit) for unit in units]
    packs = [[n for i in pack for n in units[i]] for pack in packs_of(sizes, budget, padded=True)]
    (most,) = policy.peers.longest([len(packs)])
    for pack in packs:
        yield plain_predictions(policy, [rows[number] for number in pack]), pack
    for _ in range(most - len(packs)):
        nothing = 0 * plain_predictions(policy, [(IDLE, IDLE)]).sum()
        if nothing.requires_grad:
            nothing.backward()


def plain_predictions(
    policy: Policy, rows: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Tensor:
    """Return the hidden states [N, hidden_size] that predict the completions of (prompt,
    completion) rows. A prompt is computed for each of its completions."""
    layout = lay_out([(prompt, [completion]) for prompt, completion in rows])
    # The mask only marks padding: the model adds causality and sliding windows.
    lengths = torch.tensor([[len(prompt) + len(completion)] for prompt, completion in rows])
    mask = torch.arange(layout.input_ids.shape[1]) < lengths
    with keeping_activations(policy):
        hidden = policy.causal_lm.model(
            input_ids=layout.input_ids.to(policy.device),
            position_ids=layout.positions.to(policy.device),
            attention_mask=mask.to(policy.device),
            use_cache=False,
        ).last_hidden_state
    return hidden.flatten(0, 1)[torch.cat(layout.sources).to(policy.device)]
