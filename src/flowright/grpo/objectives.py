"""The objectives: pure functions of flat token tensors. No model, no batch layout, no optimizer.

Shapes: ``_N`` is one entry for each completion token of a batch, whatever the layout; ``sample_N``
says which sample a token belongs to. Every objective is a sum of ``weights_N * terms_N``, so that a
batch cut into micro-batches has the same loss and gradients as the whole.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token terms of the loss (to be minimised) and what was clipped, both of shape [N]."""

    policy_N: Tensor
    clipped_N: Tensor


def token_weights(loss: Loss, lengths: Tensor, longest: int) -> Tensor:
    """The weight of each token of each sample, given the samples' lengths [S]; shape [S].

    "grpo" and "gspo": 1 / (S |o_i|), the mean over samples of the mean over tokens (arXiv
    2402.03300, equation 3; 2507.18071, equation 5). "dr_grpo": 1 / (S longest), which does not
    favour short wrong answers (2503.20783, section 3.2). "dapo" and "cispo": 1 / sum |o_i|, all
    tokens alike (2503.14476, equation 8; 2506.13585, equation 4).
    """
    lengths = lengths.float()
    count = lengths.numel()
    if loss in ("grpo", "gspo"):
        return 1.0 / (count * lengths)
    if loss == "dr_grpo":
        return torch.full_like(lengths, 1.0 / (count * longest))
    return torch.full_like(lengths, 1.0 / float(lengths.sum()))


def policy_terms(
    loss: Loss,
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    sample_N: Tensor,
    clip_low: float,
    clip_high: float,
) -> Terms:
    """Minus the clipped objective of each token.

    "grpo", "dr_grpo", "dapo": -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with the token's
    ratio r = exp(log p - log p_old) (PPO, arXiv 1707.06347, equation 7; two bounds: DAPO, equation
    8). "gspo": the same with the sample's ratio, exp of the mean of its tokens' log-ratios, whose
    gradient flows through the token (GSPO, equation 14). "cispo": -stop_gradient(min(r,
    1 + clip_high)) A log p (CISPO, equation 4; no lower bound, as published).
    """
    log_ratio_N = logprobs_N - old_logprobs_N
    if loss == "gspo":
        log_ratio_N = _sequence_log_ratio(log_ratio_N, sample_N)
    ratio_N = log_ratio_N.exp()
    if loss == "cispo":
        capped_N = ratio_N.detach().clamp(max=1 + clip_high)
        return Terms(-capped_N * advantages_N * logprobs_N, ratio_N.detach() > 1 + clip_high)
    free_N = ratio_N * advantages_N
    bounded_N = ratio_N.clamp(1 - clip_low, 1 + clip_high) * advantages_N
    return Terms(-torch.minimum(free_N, bounded_N), (bounded_N < free_N).detach())


def _sequence_log_ratio(log_ratio_N: Tensor, sample_N: Tensor) -> Tensor:
    """The mean log-ratio of each token's sample, with the gradient of the token's own."""
    # As many as there are tokens, which is enough: to count the samples, a GPU would be waited for.
    zeros = torch.zeros_like(log_ratio_N)
    sums = zeros.index_add(0, sample_N, log_ratio_N.detach())
    lengths = zeros.index_add(0, sample_N, torch.ones_like(log_ratio_N))
    return (sums / lengths)[sample_N] + log_ratio_N - log_ratio_N.detach()


def truncated_weights(old_logprobs_N: Tensor, sampled_logprobs_N: Tensor, cap: float) -> Tensor:
    """min(exp(log p_old - log p_sampler), cap), without a gradient: what each token's term is
    multiplied by where the sampler's policy is not quite the learner's old one.

    Truncated importance sampling (IMPALA, arXiv 1802.01561, section 4.1: rho; between a sampler's
    engine and the learner: F. Yao et al., "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training", 2025).
    """
    return (old_logprobs_N - sampled_logprobs_N).detach().exp().clamp(max=cap)


def kl_terms(logprobs_N: Tensor, reference_N: Tensor, estimator: Estimator) -> Tensor:
    """An estimate of KL(policy || reference) at each sampled token, d = log p - log p_ref.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (J. Schulman, "Approximating KL divergence", 2020;
    k3 is GRPO's, arXiv 2402.03300, equation 4). k1's gradient has zero mean: it belongs in the
    reward (``grpo.kl_in``), and as a loss it only adds noise.
    """
    difference_N = logprobs_N - reference_N
    if estimator == "k1":
        return difference_N
    if estimator == "k2":
        return 0.5 * difference_N.square()
    return torch.expm1(-difference_N) + difference_N
