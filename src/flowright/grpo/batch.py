"""What takes part in an update: samples with their advantages, in groups behind their prompts; and
how likely a policy finds their tokens. What is made of that is the caller's: a loss
(:mod:`flowright.grpo.learner`), a divergence, a comparison (:mod:`flowright.grpo.selfcheck`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.pipeline import Batch
from flowright.grpo.scaffolds import is_scaffolded
from flowright.policy.layout import to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.chunks import chunks
from flowright.policy.prompt import Prompt
from flowright.policy.sampler import Sample

Place = tuple[int, int]
"""The number of a sample's task in its batch, and its own among the samples of that."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One sample that takes part in the update, with its tokens' log-probabilities under the
    distribution that it was drawn from; none where it was not drawn but given, and its advantage
    is then its weight. ``learned``: which of its tokens are, all of them by default.
    ``scaffolded``: it was drawn from another prompt than the one it is learned on
    (:mod:`flowright.grpo.scaffolds`). ``place``: where it is in its batch, None where it is of
    none."""

    token_ids: Sequence[int]
    sampled_logprobs: Sequence[float]
    advantage: float
    learned: Sequence[bool] | None = None
    scaffolded: bool = False
    place: Place | None = None

    @property
    def count(self) -> int:
        """Of the tokens that are learned."""
        return len(self.token_ids) if self.learned is None else sum(self.learned)


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and the samples of it that take part."""

    prompt_ids: Sequence[int]
    samples: Sequence[Trained]

    @property
    def completions(self) -> list[Sequence[int]]:
        """As a :class:`flowright.policy.prefix.chunks.PromptGroup`."""
        return [sample.token_ids for sample in self.samples]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the groups of an update are a part of: a step asked for ``groups`` groups, further
    rounds included it drew ``drawn``, and ``idle`` are the lengths of the scored samples that do
    not train, as their group has no signal or as they were cut.

    Weights are normalised over all of that: what a group without a signal adds to the mean is 0,
    and no reason to make more of the others. Unscored samples are no part of it (law 1).
    """

    groups: int
    drawn: int
    idle: Sequence[int]

    def minibatches(self, most: int, trained: int) -> int:
        """Into how many optimizer steps ``trained`` groups go: ``most`` where all that was asked
        for trains, and fewer where less does, so that none has fewer groups than the smallest
        then."""
        return max(1, min(most, trained // max(1, self.groups // most)))


def asked_for(batch: Batch, groups: Sequence[Group], prompts: int) -> Asked:
    """Of a step of so many ``prompts`` whose ``batch`` gave these groups to train on."""
    scored = Counter(
        len(sample.token_ids)
        for samples_G, rollouts_G in zip(batch.samples_P_G, batch.rollouts_P_G, strict=True)
        for sample, rollout in zip(samples_G, rollouts_G, strict=True)
        if rollout.reward.value is not None
    )
    scored.subtract(len(sample.token_ids) for group in groups for sample in group.samples)
    drawn = sum(1 for _ in _forms(batch))
    forms = drawn / max(1, len(batch.prompts_P_G))
    return Asked(round(prompts * forms), drawn, tuple(scored.elements()))


def _forms(batch: Batch) -> Iterator[tuple[int, Prompt, range]]:
    """The task's number, the prompt and the attempts of every form of a batch's tasks."""
    for p, prompts_G in enumerate(batch.prompts_P_G):
        start = 0
        for prompt, same in groupby(prompts_G):
            end = start + sum(1 for _ in same)
            yield p, prompt, range(start, end)
            start = end


def drawn_groups(
    prompts_P: Sequence[Sequence[int]], samples_P_G: Sequence[Sequence[Sample]]
) -> list[Group]:
    """All samples of some prompts, to be scored: their advantages are 0."""
    return [
        Group(prompt, [Trained(s.token_ids, s.logprobs, 0.0) for s in samples_G])
        for prompt, samples_G in zip(prompts_P, samples_P_G, strict=True)
    ]


def whole_groups(batch: Batch) -> list[Group]:
    """:func:`drawn_groups` of a batch, in the order of its samples."""
    return [
        Group(prompt.token_ids, [_trained(batch, p, g, 0.0) for g in attempts])
        for p, prompt, attempts in _forms(batch)
    ]


def _trained(batch: Batch, p: int, g: int, advantage: float) -> Trained:
    sample, shown = batch.samples_P_G[p][g], batch.shown_P_G[p][g]
    scaffolded = is_scaffolded(shown)
    return Trained(
        sample.token_ids, sample.logprobs, advantage, scaffolded=scaffolded, place=(p, g)
    )


def trained_groups(
    batch: Batch, advantages_P: Sequence[GroupAdvantages], filter_overlong: bool = False
) -> list[Group]:
    """A group for each form of the tasks with a signal, without unscored samples; without those
    that were cut at their longest, too, if that is asked for (DAPO's overlong filtering, arXiv
    2503.14476, section 3.4)."""
    groups = []
    for p, prompt, attempts in _forms(batch):
        if advantages_P[p].signal != "ok":
            continue
        kept = [
            _trained(batch, p, g, advantages_P[p].values[g])
            for g in attempts
            if batch.rollouts_P_G[p][g].reward.value is not None
            and not (filter_overlong and batch.samples_P_G[p][g].finish_reason == "length")
        ]
        if kept:
            groups.append(Group(prompt.token_ids, kept))
    return groups


def score(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, temperature: float
) -> list[Tensor]:
    """Log-probabilities of each sample's learned tokens, float32, in the order of the samples.
    Without gradients, under the distribution that was sampled from."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, Tensor] = {}
    budget, sharing = section.micro_batch_tokens, section.prefix_sharing
    with torch.no_grad():
        for hidden_N, numbers in chunks(policy, groups, budget, sharing):
            chunk = [samples[number] for number in numbers]
            logprobs_N, _ = sample_logprobs(policy, hidden_N, chunk, temperature)
            parts = logprobs_N.split([sample.count for sample in chunk])
            found.update(zip(numbers, parts, strict=True))
    return [found[number] for number in range(len(samples))]


def score_some(
    policy: Policy,
    groups: Sequence[Group],
    section: GrpoSection,
    temperature: float,
    wanted: Callable[[Trained], bool],
) -> dict[int, Tensor]:
    """:func:`score` of the wanted samples alone, by their numbers among all."""
    numbered = enumerate(sample for group in groups for sample in group.samples)
    some = [
        Group(group.prompt_ids, kept)
        for group in groups
        if (kept := [sample for sample in group.samples if wanted(sample)])
    ]
    found = score(policy, some, section, temperature)
    return dict(zip((n for n, sample in numbered if wanted(sample)), found, strict=True))


def scalar_scores(policy: Policy, groups: Sequence[Group], section: GrpoSection) -> list[float]:
    """The score of each sample, in their order, by a policy that scores. Without gradients."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, float] = {}
    with torch.no_grad():
        for hidden_N, numbers in chunks(
            policy, groups, section.micro_batch_tokens, section.prefix_sharing
        ):
            scores_S = chunk_scores(policy, hidden_N, [samples[number] for number in numbers])
            found |= dict(zip(numbers, scores_S.tolist(), strict=True))
    return [found[number] for number in range(len(samples))]


def chunk_scores(policy: Policy, hidden_N: Tensor, chunk: Sequence[Trained]) -> Tensor:
    """The scores [S] of samples, from what predicts all of their tokens [N, hidden_size]: that of
    the last one stands behind the text that is scored."""
    ends_S = torch.tensor([len(sample.token_ids) for sample in chunk]).cumsum(0) - 1
    return policy.scalar.scores(hidden_N[to_device(ends_S, hidden_N.device)])


def sample_logprobs(
    policy: Policy,
    hidden_N: Tensor,
    chunk: Sequence[Trained],
    temperature: float,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the samples' learned tokens, from what predicts all of their
    tokens [N, hidden_size]; see :meth:`flowright.policy.head.Head.logprobs`."""
    tokens = [token for sample in chunk for token in sample.token_ids]
    target_N = to_device(torch.tensor(tokens), hidden_N.device)
    if any(sample.learned is not None for sample in chunk):
        masks = [sample.learned or [True] * len(sample.token_ids) for sample in chunk]
        kept_N = to_device(torch.tensor([kept for mask in masks for kept in mask]), hidden_N.device)
        hidden_N, target_N = hidden_N[kept_N], target_N[kept_N]
    return policy.head.logprobs(hidden_N, target_N, temperature, with_entropy)
