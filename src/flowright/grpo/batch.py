"""What takes part in an update: samples with their advantages, in groups behind their prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.pipeline import Batch
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

    @property
    def completions(self) -> list[Sequence[int]]:
        """As a :class:`flowright.policy.prefix.chunks.PromptGroup`."""
        return [sample.token_ids for sample in self.samples]


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
