"""What takes part in an update, and the plain layout of it: one row a sample, prompt and all.

The plain path is the reference that tests hold the shared one
(:mod:`flowright.policy.prefix.tree`) to, and what ``grpo.prefix_sharing: false`` runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.pipeline import Batch
from flowright.policy.layout import lay_out
from flowright.policy.model import Policy
from flowright.policy.sampler import Sample


@dataclass(frozen=True, slots=True)
class Trained:
    """One sample that takes part in the update, with its tokens' log-probabilities under the
    distribution that it was drawn from."""

    token_ids: Sequence[int]
    sampled_logprobs: Sequence[float]
    advantage: float


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and the samples of it that take part."""

    prompt_ids: Sequence[int]
    samples: Sequence[Trained]


def drawn_groups(
    prompts_P: Sequence[Sequence[int]], samples_P_G: Sequence[Sequence[Sample]]
) -> list[Group]:
    """All samples of some prompts, to be scored: their advantages are 0."""
    return [
        Group(prompt, [Trained(s.token_ids, s.logprobs, 0.0) for s in samples_G])
        for prompt, samples_G in zip(prompts_P, samples_P_G, strict=True)
    ]


def trained_groups(
    batch: Batch, advantages_P: Sequence[GroupAdvantages], filter_overlong: bool = False
) -> list[Group]:
    """The groups with a signal, without their unscored samples; without those that were cut at
    their longest, too, if that is asked for (DAPO's overlong filtering, arXiv 2503.14476,
    section 3.4)."""
    groups = []
    for prompt, samples_G, rollouts_G, advantages in zip(
        batch.prompts_P, batch.samples_P_G, batch.rollouts_P_G, advantages_P, strict=True
    ):
        if advantages.signal != "ok":
            continue
        kept = [
            Trained(sample.token_ids, sample.logprobs, advantage)
            for sample, rollout, advantage in zip(
                samples_G, rollouts_G, advantages.values, strict=True
            )
            if rollout.reward.value is not None
            and not (filter_overlong and sample.finish_reason == "length")
        ]
        if kept:
            groups.append(Group(prompt.token_ids, kept))
    return groups


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt with one completion behind it; ``sample`` is its number in the update."""

    sample: int
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """A row for each sample, numbered in order."""
    pairs = [(group.prompt_ids, sample.token_ids) for group in groups for sample in group.samples]
    return [Row(number, prompt, tokens) for number, (prompt, tokens) in enumerate(pairs)]


def packs(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """Cut rows into packs of at most ``budget`` padded tokens (at least one row each), longest
    first, so that rows of like length share a pack."""
    ordered = sorted(rows, key=lambda row: -row.length)
    pack: list[Row] = []
    for row in ordered:
        if pack and pack[0].length * (len(pack) + 1) > budget:
            yield pack
            pack = []
        pack.append(row)
    if pack:
        yield pack


def plain_hidden(policy: Policy, rows: Sequence[Row]) -> Tensor:
    """Hidden states [N, width] that predict the rows' completion tokens, one row after the other.
    Prompts are computed as often as they have completions."""
    layout = lay_out([(row.prompt_ids, [row.token_ids]) for row in rows])
    # Which tokens there are, not who sees whom: the model knows of sliding windows.
    lengths = torch.tensor([[row.length] for row in rows])
    mask = torch.arange(layout.input_ids.shape[1]) < lengths
    hidden = policy.causal_lm.model(
        input_ids=layout.input_ids.to(policy.device),
        position_ids=layout.positions.to(policy.device),
        attention_mask=mask.to(policy.device),
        use_cache=False,
    ).last_hidden_state
    return hidden.flatten(0, 1)[torch.cat(layout.sources).to(policy.device)]
