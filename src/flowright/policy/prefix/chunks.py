"""A step's groups through the policy, chunk by chunk, each token of a shared prefix only once.

The prompts of a step begin alike (the template), each goes on by itself (the problem), and several
completions stand behind each. So there are three levels (:mod:`flowright.policy.prefix.tree`). A
chunk of completions is run forward, its loss is run backward by whoever asked for it, adds its
gradient to what the prompts' keys and values gather, and is gone; at last the prompts are run
backward from there, and then the template. Memory does not grow with the number of completions.

No objective here: what the hidden states are used for is the caller's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flowright.policy.layout import lay_out, packs_of, use
from flowright.policy.model import Policy
from flowright.policy.prefix.tree import Level, predictions, shared_length, tree_attention

IDLE = (0,)
"""The text of a pass that runs only because others need this process' weights: nothing stands
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
    together: bool = False,
) -> Iterator[tuple[Tensor, list[int]]]:
    """Run every completion of the groups, some at a time: gives the hidden states [N, hidden_size]
    that predict their tokens, one completion after the other, and their numbers among all of them.

        for hidden_N, samples in chunks(policy, groups, budget, sharing):
            loss(hidden_N, samples).backward()

    Where gradients are on, run the loss of each chunk backward before you ask for the next one: a
    prefix is run backward when the last chunk behind it has been. So a loop that is left early
    leaves no gradient of prefixes; and until it ends, the model has no attention for other passes.

    ``budget``: tokens of prompts, and of completions, that are in memory at once; a single one may
    be longer. ``sharing`` False: with the model's own attention, on a row for each completion.
    ``together``: a group's completions come in one chunk, as a loss that compares them needs.
    Processes that share one model's weights call this together: they run as many passes as the one
    with the most.
    """
    use(policy.device)
    return (shared_chunks if sharing else plain_chunks)(policy, groups, budget, together)


def shared_chunks(
    policy: Policy, groups: Sequence[PromptGroup], budget: int, together: bool = False
) -> Iterator[tuple[Tensor, list[int]]]:
    """:func:`chunks` by shared prefixes."""
    texts = [ids for group in groups for ids in group.completions]
    length = shared_length([group.prompt_ids for group in groups])
    packs = list(_packs(groups, length, budget, together))
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
    """Prompts, without the template, that are run at once, and what stands behind them by chunk:
    numbers of completions, and of each one's prompt within the pack."""

    prompts: Sequence[Sequence[int]]
    chunks: Sequence[tuple[list[int], list[int]]]
    passes: int  # chunks that go through the model: a single token is its prompt's to predict


def _units(groups: Sequence[PromptGroup], together: bool) -> Iterator[tuple[int, list[int]]]:
    """What is not cut: a group's number, and numbers of completions of it."""
    count = 0
    for index, group in enumerate(groups):
        numbers = list(range(count, count + len(group.completions)))
        yield from [(index, numbers)] if together else ((index, [n]) for n in numbers)
        count += len(numbers)


def _packs(
    groups: Sequence[PromptGroup], length: int, budget: int, together: bool
) -> Iterator[_Pack]:
    owned = [(index, ids) for index, group in enumerate(groups) for ids in group.completions]
    units = list(_units(groups, together))
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
    policy: Policy, groups: Sequence[PromptGroup], budget: int, together: bool = False
) -> Iterator[tuple[Tensor, list[int]]]:
    """:func:`chunks` on rows of a prompt and a completion each: the reference that tests hold the
    shared path to, and what ``grpo.prefix_sharing: false`` runs."""
    rows = [(group.prompt_ids, ids) for group in groups for ids in group.completions]
    units = [numbers for _, numbers in _units(groups, together)]
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
    """Hidden states [N, hidden_size] that predict the completions of (prompt, completion) rows.
    Prompts are computed as often as they have completions."""
    layout = lay_out([(prompt, [completion]) for prompt, completion in rows])
    # Which tokens there are, not who sees whom: the model knows of sliding windows.
    lengths = torch.tensor([[len(prompt) + len(completion)] for prompt, completion in rows])
    mask = torch.arange(layout.input_ids.shape[1]) < lengths
    hidden = policy.causal_lm.model(
        input_ids=layout.input_ids.to(policy.device),
        position_ids=layout.positions.to(policy.device),
        attention_mask=mask.to(policy.device),
        use_cache=False,
    ).last_hidden_state
    return hidden.flatten(0, 1)[torch.cat(layout.sources).to(policy.device)]
