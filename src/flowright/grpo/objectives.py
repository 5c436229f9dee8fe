"""The objectives: pure functions of flat token tensors. No model, no batch layout, no optimizer.

Shapes: ``_N`` is one entry for each completion token of a batch, whatever the layout; ``sample_N``
says which sample a token belongs to. Every objective is a sum of ``weights_N * terms_N``, so that a
batch cut into micro-batches has the same loss and gradients as the whole. Which name in the
configuration is which: :mod:`flowright.config.grpo`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an objective may look at, each of shape [N], and the bounds of the ratio's clipping. The
    first has a gradient; the ratio is that to ``old_logprobs_N``."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    sample_N: Tensor
    clip_low: float
    clip_high: float

    @property
    def log_ratio_N(self) -> Tensor:
        return self.logprobs_N - self.old_logprobs_N


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token terms of the loss (to be minimised) and what was clipped, both of shape [N]."""

    policy_N: Tensor
    clipped_N: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """What ``grpo.loss`` names.

    ``weights(lengths_S, longest)`` are those of each token of each sample [S], given the samples'
    lengths [S], all ranks' samples of an optimizer step, and the token limit of completions.
    ``terms`` are minus the objective of each token; they may mix the tokens of a sample.
    """

    weights: Callable[[Tensor, int], Tensor]
    terms: Callable[[Tokens], Terms]


def over_samples(lengths_S: Tensor, longest: int) -> Tensor:
    """1 / (S |o_i|): the mean over samples of the mean over tokens (arXiv 2402.03300, equation 3;
    2507.18071, equation 5)."""
    return 1.0 / (lengths_S.numel() * lengths_S.float())


def over_longest(lengths_S: Tensor, longest: int) -> Tensor:
    """1 / (S longest): no favour for short wrong answers (arXiv 2503.20783, section 3.2)."""
    return torch.full(lengths_S.shape, 1.0 / (lengths_S.numel() * longest))


def over_tokens(lengths_S: Tensor, longest: int) -> Tensor:
    """1 / sum |o_i|: all tokens alike (arXiv 2503.14476, equation 8; 2506.13585, equation 4)."""
    return torch.full(lengths_S.shape, 1.0 / float(lengths_S.sum()))


def clipped(tokens: Tokens) -> Terms:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with the token's ratio
    r = exp(log p - log p_old) (PPO, arXiv 1707.06347, equation 7; two bounds: DAPO, equation 8)."""
    return _clipped(tokens.log_ratio_N.exp(), tokens)


def clipped_by_sample(tokens: Tokens) -> Terms:
    """As :func:`clipped` with the sample's ratio, exp of the mean of its tokens' log-ratios, whose
    gradient flows through the token (GSPO, arXiv 2507.18071, equation 14)."""
    log_ratio_N, sample_N = tokens.log_ratio_N, tokens.sample_N
    # As many as there are tokens, which is enough: to count the samples, a GPU would be waited for.
    zeros = torch.zeros_like(log_ratio_N)
    sums = zeros.index_add(0, sample_N, log_ratio_N.detach())
    lengths = zeros.index_add(0, sample_N, torch.ones_like(log_ratio_N))
    mean_N = (sums / lengths)[sample_N] + log_ratio_N - log_ratio_N.detach()
    return _clipped(mean_N.exp(), tokens)


def capped(tokens: Tokens) -> Terms:
    """-stop_gradient(min(r, 1 + clip_high)) A log p (CISPO, arXiv 2506.13585, equation 4; no lower
    bound, as published)."""
    ratio_N, cap = tokens.log_ratio_N.detach().exp(), 1 + tokens.clip_high
    capped_N = ratio_N.clamp(max=cap)
    return Terms(-capped_N * tokens.advantages_N * tokens.logprobs_N, ratio_N > cap)


def _clipped(ratio_N: Tensor, tokens: Tokens) -> Terms:
    free_N = ratio_N * tokens.advantages_N
    bounded_N = ratio_N.clamp(1 - tokens.clip_low, 1 + tokens.clip_high) * tokens.advantages_N
    return Terms(-torch.minimum(free_N, bounded_N), (bounded_N < free_N).detach())


GRPO = Objective(over_samples, clipped)
DR_GRPO = Objective(over_longest, clipped)
DAPO = Objective(over_tokens, clipped)
GSPO = Objective(over_samples, clipped_by_sample)
CISPO = Objective(over_tokens, capped)


@dataclass(frozen=True, slots=True)
class Correction:
    """What ``grpo.off_policy`` names: how the distance between what sampled and the learner is
    corrected for. ``to_sampler``: the ratio is to the policy that sampled, else to the learner
    before the update. ``weights(old_logprobs_N, sampled_logprobs_N, cap)``, if any, are what each
    token's term is multiplied by besides."""

    to_sampler: bool
    weights: Callable[[Tensor, Tensor, float], Tensor] | None = None


def truncated_weights(old_logprobs_N: Tensor, sampled_logprobs_N: Tensor, cap: float) -> Tensor:
    """min(exp(log p_old - log p_sampler), cap), without a gradient: what each token's term is
    multiplied by where the sampler's policy is not quite the learner's old one.

    Truncated importance sampling (IMPALA, arXiv 1802.01561, section 4.1: rho; between a sampler's
    engine and the learner: F. Yao et al., "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training", 2025).
    """
    return (old_logprobs_N - sampled_logprobs_N).detach().exp().clamp(max=cap)


RATIO = Correction(to_sampler=True)
TRUNCATED = Correction(to_sampler=False, weights=truncated_weights)
IGNORED = Correction(to_sampler=False)


# Estimates of KL(policy || reference) at each sampled token, d = log p - log p_ref (J. Schulman,
# "Approximating KL divergence", 2020).


def k1(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d. Its gradient has zero mean: it belongs in the reward (``grpo.kl_in``), and as a loss it
    only adds noise."""
    return logprobs_N - reference_N


def k2(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d^2 / 2."""
    return 0.5 * (logprobs_N - reference_N).square()


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """exp(-d) - 1 + d, GRPO's (arXiv 2402.03300, equation 4)."""
    difference_N = logprobs_N - reference_N
    return torch.expm1(-difference_N) + difference_N
