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
    first has a gradient; the ratio is that to ``old_logprobs_N``. ``dual_clip``: see
    :func:`clipped`."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    sample_N: Tensor
    clip_low: float
    clip_high: float
    dual_clip: float | None = None

    @property
    def log_ratio_N(self) -> Tensor:
        return self.logprobs_N - self.old_logprobs_N


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token terms of the loss (to be minimised) and, for the metrics, which of them a bound
    holds and by which ratio (the token's own unless it is given), all of shape [N]. ``dual_N``:
    those of the clipped ones that the second bound of :func:`clipped` holds."""

    policy_N: Tensor
    clipped_N: Tensor
    ratio_N: Tensor | None = None
    dual_N: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """What ``grpo.loss`` names.

    ``weights(lengths_S, longest)`` are those of each token of each sample [S], given the lengths
    [S] of all scored samples of a step, those of groups without a signal too, and the token limit
    of completions. ``terms`` are minus the objective of each token; they may mix the tokens of a
    sample. ``clip_low`` and ``clip_high`` are the bounds where ``grpo`` gives none.
    """

    weights: Callable[[Tensor, int], Tensor]
    terms: Callable[[Tokens], Terms]
    clip_low: float = 0.2
    clip_high: float = 0.2
    given: bool = False
    """Learns from completions that the data gives: nothing is sampled, an advantage is a weight."""


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
    r = exp(log p - log p_old) (PPO, arXiv 1707.06347, equation 7; two bounds: DAPO, equation 8).

    Where A < 0 that grows with r without a bound, as for a token that an update made much likelier;
    ``dual_clip`` c > 1 is one: max(min(..), c A) (arXiv 1912.09729, equation 5)."""
    return _clipped(tokens.log_ratio_N.exp(), tokens)


def clipped_by_sample(tokens: Tokens) -> Terms:
    """As :func:`clipped` with the sample's ratio, exp of the mean of its tokens' log-ratios, whose
    gradient flows through the token (GSPO, arXiv 2507.18071, equation 14)."""
    log_ratio_N, sample_N = tokens.log_ratio_N, tokens.sample_N
    sums_N = _summed(log_ratio_N.detach(), sample_N)
    lengths_N = _summed(torch.ones_like(sums_N), sample_N)
    mean_N = sums_N / lengths_N + log_ratio_N - log_ratio_N.detach()
    return _clipped(mean_N.exp(), tokens)


def capped(tokens: Tokens) -> Terms:
    """-stop_gradient(min(r, 1 + clip_high)) A log p (CISPO, arXiv 2506.13585, equation 4; no lower
    bound, as published)."""
    ratio_N, cap = tokens.log_ratio_N.detach().exp(), 1 + tokens.clip_high
    capped_N = ratio_N.clamp(max=cap)
    return Terms(-capped_N * tokens.advantages_N * tokens.logprobs_N, ratio_N > cap)


def supervised(tokens: Tokens) -> Terms:
    """-w log p: the likelihood of what is given, each sample with its own weight."""
    held_N = torch.zeros_like(tokens.sample_N, dtype=torch.bool)
    return Terms(-tokens.advantages_N * tokens.logprobs_N, held_N)


def _clipped(ratio_N: Tensor, tokens: Tokens) -> Terms:
    advantages_N, dual_N = tokens.advantages_N, None
    free_N = ratio_N * advantages_N
    bounded_N = ratio_N.clamp(1 - tokens.clip_low, 1 + tokens.clip_high) * advantages_N
    gain_N, held_N = torch.minimum(free_N, bounded_N), bounded_N < free_N
    if tokens.dual_clip is not None:
        least_N = tokens.dual_clip * advantages_N
        dual_N = (advantages_N < 0) & (gain_N < least_N)
        gain_N, held_N = torch.where(dual_N, least_N, gain_N), held_N | dual_N
    return Terms(-gain_N, held_N.detach(), ratio_N.detach(), dual_N)


GRPO = Objective(over_samples, clipped)
DR_GRPO = Objective(over_longest, clipped)
DAPO = Objective(over_tokens, clipped, clip_high=0.28)
"""Bounds: arXiv 2503.14476, section 4.1."""
GSPO = Objective(over_samples, clipped_by_sample, clip_low=3e-4, clip_high=4e-4)
"""Bounds: arXiv 2507.18071, section 5.1. A mean over a sample's tokens moves far less than they."""
CISPO = Objective(over_tokens, capped, clip_high=4.0)
"""The paper tunes the cap and does not print it; 5 is ScaleRL's (arXiv 2510.13786)."""
SFT = Objective(over_tokens, supervised, given=True)


@dataclass(frozen=True, slots=True)
class Correction:
    """What ``grpo.off_policy`` names: how the distance between what sampled and the learner is
    corrected for. ``to_sampler``: the ratio is to the policy that sampled, else to the learner
    before the update, as it always is of what was sampled from a scaffold.
    ``weights(log_ratio_N, sample_N, cap)``, if any, are what each token's term is multiplied by
    besides, [N]: given log p_old - log p_sampler of each token, without a gradient, the sample that
    it belongs to, with all tokens of a sample, and ``grpo.off_policy_cap``."""

    to_sampler: bool
    weights: Callable[[Tensor, Tensor, float], Tensor] | None = None


def truncated_weights(log_ratio_N: Tensor, sample_N: Tensor, cap: float) -> Tensor:
    """min(w, cap) with each token's w = p_old / p_sampler: truncated importance sampling (IMPALA,
    arXiv 1802.01561, section 4.1: rho; between a sampler's engine and the learner: F. Yao et al.,
    "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025; veRL's
    ``rollout_is: token``)."""
    return log_ratio_N.exp().clamp(max=cap)


def masked_weights(log_ratio_N: Tensor, sample_N: Tensor, cap: float) -> Tensor:
    """Each token's w where 1 / cap <= w <= cap, else 0: what the two policies see too differently
    teaches nothing (IcePop, arXiv 2510.18855; veRL's ``rollout_is: token`` with ``rollout_rs:
    token``)."""
    weight_N = log_ratio_N.exp()
    inside_N = (weight_N >= 1 / cap) & (weight_N <= cap)
    return torch.where(inside_N, weight_N, torch.zeros_like(weight_N))


def sequence_truncated_weights(log_ratio_N: Tensor, sample_N: Tensor, cap: float) -> Tensor:
    """:func:`truncated_weights` with one w for all tokens of a sample, the product of theirs: the
    importance weight of the sample as a whole (J. Liu et al., "When Speed Kills Stability:
    Demystifying RL Collapse from the Training-Inference Mismatch", 2025; veRL's ``rollout_is:
    sequence``). Not their geometric mean, which is no importance weight: it hardly leaves 1, so
    that no cap but one such as 1.001 would act on it."""
    return truncated_weights(_summed(log_ratio_N, sample_N), sample_N, cap)


def sequence_masked_weights(log_ratio_N: Tensor, sample_N: Tensor, cap: float) -> Tensor:
    """:func:`masked_weights` with a sample's w, as :func:`sequence_truncated_weights` has it (the
    same source; veRL's ``rollout_is: sequence`` with ``rollout_rs: sequence``)."""
    return masked_weights(_summed(log_ratio_N, sample_N), sample_N, cap)


def _summed(values_N: Tensor, sample_N: Tensor) -> Tensor:
    """The sum over its sample's tokens for each token. Sums have as many places as there are
    tokens, which is enough: to count the samples, a GPU would be waited for."""
    return torch.zeros_like(values_N).index_add(0, sample_N, values_N)[sample_N]


RATIO = Correction(to_sampler=True)
TRUNCATED = Correction(to_sampler=False, weights=truncated_weights)
MASKED = Correction(to_sampler=False, weights=masked_weights)
SEQUENCE_TRUNCATED = Correction(to_sampler=False, weights=sequence_truncated_weights)
SEQUENCE_MASKED = Correction(to_sampler=False, weights=sequence_masked_weights)
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
