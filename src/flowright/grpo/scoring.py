"""How likely a policy finds the tokens of samples. What is made of it is the caller's: a loss
(:mod:`flowright.grpo.learner`), a divergence, a comparison (:mod:`flowright.grpo.selfcheck`)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flowright.config import GrpoSection
from flowright.grpo.batch import Group, Trained
from flowright.policy.layout import to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.chunks import chunks
from flowright.policy.prefix.head import token_logprobs


def score(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, temperature: float
) -> list[Tensor]:
    """Log-probabilities of each sample's tokens, float32, in the order of the samples. Without
    gradients, under the distribution that was sampled from."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, Tensor] = {}
    budget, sharing = section.micro_batch_tokens, section.prefix_sharing
    with torch.no_grad():
        for hidden_N, numbers in chunks(policy, groups, budget, sharing):
            chunk = [samples[number] for number in numbers]
            logprobs_N, _ = sample_logprobs(policy, hidden_N, chunk, temperature)
            parts = logprobs_N.split([len(sample.token_ids) for sample in chunk])
            found.update(zip(numbers, parts, strict=True))
    return [found[number] for number in range(len(samples))]


def sample_logprobs(
    policy: Policy,
    hidden_N: Tensor,
    chunk: Sequence[Trained],
    temperature: float,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [N] of the samples' tokens, from what predicts them; see
    :func:`flowright.policy.prefix.head.token_logprobs`."""
    tokens = [token for sample in chunk for token in sample.token_ids]
    weight = policy.causal_lm.get_output_embeddings().weight
    target_N = to_device(torch.tensor(tokens), hidden_N.device)
    return token_logprobs(hidden_N, weight, target_N, temperature, with_entropy)
