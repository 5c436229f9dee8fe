"""Samples through the policy: by the shared path or the plain one, with and without gradients.

What is made of the hidden states is the caller's: a loss (:mod:`flowright.grpo.learner`), scores, a
comparison of the two paths (:mod:`flowright.grpo.selfcheck`).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from flowright.config import GrpoSection
from flowright.grpo.batch import Group, Row, Trained, packs, plain_hidden, rows_of
from flowright.policy.device import to_device, use
from flowright.policy.model import Policy
from flowright.policy.prefix.head import token_logprobs
from flowright.policy.prefix.tree import Branch, visit_texts

IDLE = Row(0, (0,), (0,))
"""The row of a pass that runs only because others need this process' weights."""


class Visit(Protocol):
    """Given the hidden states [N, width] that predict the tokens of some samples (by number), one
    after the other; returns the loss to run backward, if any."""

    def __call__(self, hidden_N: Tensor, numbers: Sequence[int]) -> Tensor | None: ...


def visit_samples(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, visit: Visit
) -> None:
    """Run every sample of the groups, in chunks of ``section.micro_batch_tokens``: forward, the
    visit, and backward from the loss that it returns. No groups, no visit. Processes that share
    one model's weights call this together, as
    :func:`flowright.policy.prefix.tree.visit_texts` says."""
    use(policy.device)
    if section.prefix_sharing:
        firsts = [0]
        for group in groups:
            firsts.append(firsts[-1] + len(group.samples))
        branches = [Branch(g.prompt_ids, [s.token_ids for s in g.samples]) for g in groups]

        def numbered(hidden_N: Tensor, texts: Sequence[tuple[int, int]]) -> Tensor | None:
            return visit(hidden_N, [firsts[branch] + text for branch, text in texts])

        visit_texts(policy, branches, section.micro_batch_tokens, numbered)
        return
    plan = list(packs(rows_of(groups), section.micro_batch_tokens))
    (most,) = policy.peers.longest([len(plan)])
    for rows in plan:
        loss = visit(plain_hidden(policy, rows), [row.sample for row in rows])
        if loss is not None:
            loss.backward()
    for _ in range(most - len(plan)):
        nothing = 0 * plain_hidden(policy, [IDLE]).sum()
        if nothing.requires_grad:
            nothing.backward()


def score(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, temperature: float
) -> list[Tensor]:
    """Log-probabilities of each sample's tokens, float32, in the order of the samples. Without
    gradients, under the distribution that was sampled from."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, Tensor] = {}

    def visit(hidden_N: Tensor, numbers: Sequence[int]) -> None:
        chunk = [samples[number] for number in numbers]
        logprobs_N, _ = sample_logprobs(policy, hidden_N, chunk, temperature, with_entropy=False)
        parts = logprobs_N.split([len(sample.token_ids) for sample in chunk])
        found.update(zip(numbers, parts, strict=True))

    with torch.no_grad():
        visit_samples(policy, groups, section, visit)
    return [found[number] for number in range(len(samples))]


def sample_logprobs(
    policy: Policy,
    hidden_N: Tensor,
    chunk: Sequence[Trained],
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [N] of the samples' tokens, from what predicts them; see
    :func:`flowright.policy.prefix.head.token_logprobs`."""
    tokens = [token for sample in chunk for token in sample.token_ids]
    weight = policy.causal_lm.get_output_embeddings().weight
    target_N = to_device(torch.tensor(tokens), hidden_N.device)
    return token_logprobs(hidden_N, weight, target_N, temperature, with_entropy)
