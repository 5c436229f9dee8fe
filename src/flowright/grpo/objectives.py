"""The objectives: pure functions of flat tensors of tokens, or of pairs of scores. No model, no
batch layout, no optimizer. Their names in the configuration: :mod:`flowright.config.grpo`.

Shapes: ``_N`` is one entry for each completion token of a batch, whatever the layout; ``sample_N``
is the sample that a token belongs to; ``_K`` is one entry for each pair. Every objective is a sum
of ``weights_N * terms_N``, so that a batch cut into micro-batches has the loss and gradients of the
whole.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from flowright.config.grpo import GrpoSection, PairsSection
from flowright.config.root import Config
from flowright.core.errors import ConfigError
from flowright.core.plugins import Table
from flowright.environments.base import Environment
from flowright.grpo import CORRECTIONS, KL_ESTIMATORS, OBJECTIVES


@dataclass(frozen=True, slots=True)
class Tokens:
    """The inputs of an objective, each of shape [N], and the bounds of the ratio's clipping.
    ``logprobs_N`` has a gradient; the ratio is to ``old_logprobs_N``. ``dual_clip``: see
    :func:`clipped`."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    sample_N: Tensor
    clip_low: float
    clip_high: float
    dual_clip: float | None = None
    selected_N: Tensor | None = None
    """True for the tokens that the objective selected of the batch, if it does."""

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
class Statistics:
    """The tokens of an optimizer step in groups with a signal, all ranks', each of shape [N]: by
    the policy before the update, at the sampling temperature."""

    logprobs_N: Tensor
    entropy_N: Tensor
    advantages_N: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """A value of ``grpo.loss``.

    ``weights(lengths_S, longest)`` are those of each token of each sample [S], from the lengths [S]
    of all scored samples of a step, those of groups without a signal too, and the token limit of
    completions. ``terms`` are minus the objective of each token; they may mix the tokens of a
    sample, as with a ratio ``by_sample``, which off-policy weights then follow. ``clip_low`` and
    ``clip_high`` are the bounds where ``grpo`` has none.
    """

    weights: Callable[[Tensor, int], Tensor]
    terms: Callable[[Tokens], Terms]
    clip_low: float = 0.2
    clip_high: float = 0.2
    fixed_data: bool = False
    """Learns from completions of the data: nothing is sampled, and an advantage is a weight."""
    by_sample: bool = False
    by_turn: bool = False
    """The terms see each turn of an episode as a sample, and the loss is a mean over turns of what
    it else is over samples."""
    selects: Callable[[Statistics, torch.Generator], Tensor] | None = None
    """Tokens of an optimizer step [N] that the terms treat apart. Costs a forward pass."""


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
    """:func:`clipped` with the sample's ratio, exp of the mean of its tokens' log-ratios, whose
    gradient flows through the token (GSPO, arXiv 2507.18071, equation 14)."""
    log_ratio_N, sample_N = tokens.log_ratio_N, tokens.sample_N
    sums_N = _summed(log_ratio_N.detach(), sample_N)
    lengths_N = _summed(torch.ones_like(sums_N), sample_N)
    mean_N = sums_N / lengths_N + log_ratio_N - log_ratio_N.detach()
    return _clipped(mean_N.exp(), tokens)


def capped(tokens: Tokens) -> Terms:
    """-stop_gradient(min(r, 1 + clip_high)) A log p (CISPO, arXiv 2506.13585, equation 4; no lower
    bound, as published). ``grpo.ratio_cap`` is that bound itself."""
    ratio_N, cap = tokens.log_ratio_N.detach().exp(), 1 + tokens.clip_high
    capped_N = ratio_N.clamp(max=cap)
    return Terms(-capped_N * tokens.advantages_N * tokens.logprobs_N, ratio_N > cap)


def clipped_by_geometric_mean(tokens: Tokens) -> Terms:
    """-s A with s = exp(mean over the sample's tokens of their log-ratios), these clipped from
    above where A > 0 and else from below (GMPO, arXiv 2507.20673)."""
    low, high = math.log1p(-tokens.clip_low), math.log1p(tokens.clip_high)
    log_ratio_N, up_N = tokens.log_ratio_N, tokens.advantages_N > 0
    bound_N = torch.where(up_N, log_ratio_N.clamp(max=high), log_ratio_N.clamp(min=low))
    sums_N = _summed(bound_N.detach(), tokens.sample_N)
    lengths_N = _summed(torch.ones_like(sums_N), tokens.sample_N)
    ratio_N = (sums_N / lengths_N + bound_N - bound_N.detach()).exp()
    held_N = (bound_N != log_ratio_N).detach()
    return Terms(-ratio_N * tokens.advantages_N, held_N, log_ratio_N.detach().exp())


def gated(tokens: Tokens, positive: float = 1.0, negative: float = 1.05) -> Terms:
    """-4 / t sigmoid(t (r - 1)) A with the temperature t of the advantage's sign: a gate that
    closes softly as r leaves 1 (SAPO, arXiv 2511.20347)."""
    ratio_N, nothing_N = (
        tokens.log_ratio_N.exp(),
        torch.zeros_like(tokens.sample_N, dtype=torch.bool),
    )
    t_N = torch.where(tokens.advantages_N > 0, positive, negative)
    gate_N = (t_N * (ratio_N - 1)).sigmoid() * 4 / t_N
    return Terms(-gate_N * tokens.advantages_N, nothing_N, ratio_N.detach())


def covariances(statistics: Statistics) -> Tensor:
    """(log p - mean) (A - mean) of each token, by which an update lowers the entropy (arXiv
    2505.22617)."""
    logprobs_N, advantages_N = statistics.logprobs_N, statistics.advantages_N
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def between(
    statistics: Statistics,
    draw: torch.Generator,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """Draw ``share`` of all tokens, at least one, among those with a covariance between the
    bounds (Clip-Cov, arXiv 2505.22617)."""
    cov_N = covariances(statistics)
    chosen_N = torch.zeros_like(cov_N, dtype=torch.bool)
    (places,) = ((cov_N > low) & (cov_N < high)).nonzero(as_tuple=True)
    order = torch.randperm(len(places), generator=draw)
    chosen_N[places[order[: max(1, int(share * len(cov_N)))]]] = True
    return chosen_N


def largest(statistics: Statistics, draw: torch.Generator, share: float = 2e-4) -> Tensor:
    """Return the ``share`` of tokens with the largest covariance, at least one (KL-Cov, arXiv
    2505.22617)."""
    cov_N = covariances(statistics)
    chosen_N = torch.zeros_like(cov_N, dtype=torch.bool)
    chosen_N[cov_N.topk(max(1, int(share * len(cov_N)))).indices] = True
    return chosen_N


def clipped_or_selected(tokens: Tokens) -> Terms:
    """:func:`clipped`, and 0 for the selected tokens (Clip-Cov, arXiv 2505.22617)."""
    terms, selected_N = clipped(tokens), tokens.selected_N
    assert selected_N is not None
    policy_N = terms.policy_N.masked_fill(selected_N, 0.0)
    return replace(terms, policy_N=policy_N, clipped_N=terms.clipped_N | selected_N)


def penalised_or_free(tokens: Tokens, coefficient: float = 1.0) -> Terms:
    """-r A, for the selected tokens plus ``coefficient`` (r - 1 - log r), which estimates KL(old ||
    policy) (KL-Cov, arXiv 2505.22617; verl takes the size of log r)."""
    assert tokens.selected_N is not None
    log_ratio_N = tokens.log_ratio_N
    kl_N = coefficient * (torch.expm1(log_ratio_N) - log_ratio_N)
    policy_N = -log_ratio_N.exp() * tokens.advantages_N + kl_N * tokens.selected_N
    return Terms(policy_N, torch.zeros_like(tokens.selected_N), log_ratio_N.detach().exp())


def high_entropy(statistics: Statistics, share: float) -> Tensor:
    """Return the tokens of the ``share`` with the highest entropy (arXiv 2506.01939)."""
    threshold = torch.quantile(statistics.entropy_N.float(), 1 - share)
    return statistics.entropy_N >= threshold


def supervised(tokens: Tokens) -> Terms:
    """-w log p: the likelihood of fixed data, each sample with its own weight."""
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
GSPO = Objective(over_samples, clipped_by_sample, 3e-4, 4e-4, by_sample=True)
"""Bounds: arXiv 2507.18071, section 5.1. A mean over a sample's tokens moves far less than they."""
CISPO = Objective(over_tokens, capped, clip_high=4.0)
"""The paper tunes the cap and does not print it; 5 is ScaleRL's (arXiv 2510.13786)."""
GSSPO = replace(GSPO, by_turn=True)
"""The mean over an episode's turns of :func:`clipped_by_sample` with the turn's ratio (Workflow-R1,
arXiv 2602.01202; its code is not published, bounds are GSPO's)."""
GMPO = Objective(
    over_samples, clipped_by_geometric_mean, -math.expm1(-0.4), math.expm1(0.4), by_sample=True
)
"""Bounds: exp(-0.4) and exp(0.4), as published."""
SAPO = Objective(over_samples, gated)
CLIP_COV = Objective(over_tokens, clipped_or_selected, selects=between)
KL_COV = Objective(over_tokens, penalised_or_free, selects=largest)
SFT = Objective(over_tokens, supervised, fixed_data=True)


@dataclass(frozen=True, slots=True)
class Correction:
    """A value of ``grpo.off_policy``: a correction for the distance between sampler and learner.

    ``to_sampler``: the ratio is to the policy that sampled, else to the learner before the update,
    as it always is for scaffolded samples. ``weights(log_ratio_N, sample_N, cap)``, if any,
    multiply each token's term [N]: from log p_old - log p_sampler of each token, without a gradient
    and with all tokens of a sample, the sample it belongs to, and ``grpo.off_policy_cap``.
    ``by_sample``: the weights of the same kind that all tokens of a sample share.
    """

    to_sampler: bool
    weights: Callable[[Tensor, Tensor, float], Tensor] | None = None
    by_sample: "Correction | None" = None


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
SEQUENCE_TRUNCATED = Correction(to_sampler=False, weights=sequence_truncated_weights)
SEQUENCE_MASKED = Correction(to_sampler=False, weights=sequence_masked_weights)
TRUNCATED = Correction(False, truncated_weights, by_sample=SEQUENCE_TRUNCATED)
MASKED = Correction(False, masked_weights, by_sample=SEQUENCE_MASKED)
IGNORED = Correction(to_sampler=False)


# Estimates of KL(policy || reference) at each sampled token, d = log p - log p_ref (J. Schulman,
# "Approximating KL divergence", 2020).


def k1(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d. Unbiased, and in the reward (``grpo.kl_in``) so is its gradient. In the loss that has zero
    mean."""
    return logprobs_N - reference_N


def k2(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d^2 / 2. Biased in value; in the loss its gradient is the KL's if the policy itself
    sampled."""
    return 0.5 * (logprobs_N - reference_N).square()


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """exp(-d) - 1 + d, GRPO's (arXiv 2402.03300, equation 4). Unbiased in value; in the loss its
    gradient is that of KL(reference || policy)."""
    difference_N = logprobs_N - reference_N
    return torch.expm1(-difference_N) + difference_N


@dataclass(frozen=True, slots=True)
class Divergence:
    """A value of ``grpo.kl_estimator``: a function of the tokens' log-probabilities under the
    policy and under the reference, [N] each. ``weighted``: in the loss it is multiplied by the
    token's ratio, gradient included, and by the off-policy weight."""

    estimate: Callable[[Tensor, Tensor], Tensor]
    weighted: bool = False


K3_WEIGHTED = Divergence(k3, weighted=True)
"""r k3 with r = p / p_old: the expectation under p_old is that of k3 under p, and so is its
gradient, E[d grad log p] (DeepSeek-V3.2, arXiv 2512.02556)."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scores [K] of the first and of the second answer, with a gradient; whether the first is
    better [K], else neither is; and the margin by which it should lead [K]."""

    first_K: Tensor
    second_K: Tensor
    better_K: Tensor
    margin_K: Tensor


def pairs_of(scores_S: Tensor, wanted_S: Tensor, margin: float) -> Pairs:
    """Pair each two of the scores [S], the better answer first: the one with the larger ``wanted``
    [S], whose difference is the strength of the preference (0: none)."""
    strength_K = wanted_S[::2] - wanted_S[1::2]
    swapped_K = strength_K < 0
    first_K = torch.where(swapped_K, scores_S[1::2], scores_S[::2])
    second_K = torch.where(swapped_K, scores_S[::2], scores_S[1::2])
    return Pairs(first_K, second_K, strength_K != 0, margin * strength_K.abs())


@dataclass(frozen=True, slots=True)
class PairObjective:
    """A value of ``grpo.loss`` for answers that are scored and compared. ``terms`` gives each
    pair's part of the loss [K], to be minimised; pairs weigh the same. The rest is as in
    :class:`Objective`."""

    terms: Callable[[Pairs, PairsSection], Tensor]
    clip_low: float = 0.2
    clip_high: float = 0.2
    fixed_data: bool = True

    def weights(self, lengths_S: Tensor, longest: int) -> Tensor:
        """1 / S for each answer, however long."""
        return torch.full(lengths_S.shape, 1.0 / lengths_S.numel())


def bradley_terry(pairs: Pairs, section: PairsSection) -> Tensor:
    """-log P of people's preference, plus ``centring`` times the square of both scores' sum.

    With d the difference of the scores less the margin, P(first is better) = sigmoid(d) (Bradley
    and Terry 1952; the margin: Llama 2, arXiv 2307.09288, equation 2). Scores have no zero of their
    own; the last term holds them around 0 (arXiv 2312.09244, section 3.1).

    With ``tie_weight`` v above 0 a tie is an outcome of its own (Davidson 1970): P(first) is
    exp(d/2) / Z, P(tie) is v / Z, with Z = exp(d/2) + exp(-d/2) + v. With v = 0 a tie counts half
    as either.
    """
    difference_K = pairs.first_K - pairs.second_K
    led_K = difference_K - pairs.margin_K
    if section.tie_weight > 0:
        log_weight = math.log(section.tie_weight)
        better_K = led_K / 2 - _log_total(led_K, log_weight)
        tie_K = log_weight - _log_total(difference_K, log_weight)
    else:
        better_K = logsigmoid(led_K)
        tie_K = (logsigmoid(difference_K) + logsigmoid(-difference_K)) / 2
    loss_K = -torch.where(pairs.better_K, better_K, tie_K)
    return loss_K + section.centring * (pairs.first_K + pairs.second_K).square()


def _log_total(difference_K: Tensor, log_weight: float) -> Tensor:
    """log(exp(d/2) + exp(-d/2) + v)."""
    half_K = difference_K / 2
    return torch.stack([half_K, -half_K, torch.full_like(half_K, log_weight)]).logsumexp(dim=0)


BRADLEY_TERRY = PairObjective(bradley_terry)


Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Choices:
    """The functions and bounds that section ``grpo`` names."""

    objective: Objective | PairObjective
    correction: Correction
    kl: Divergence
    clip_low: float
    clip_high: float


def choices_of(section: GrpoSection) -> Choices:
    """Load what the section names; an objective with one ratio a sample (GSPO) gets off-policy
    weights by sample, too. Raises ConfigError for a failed import or another kind of object. A
    section that was not resolved (:meth:`flowright.config.root.Config.on`) is taken as
    that of a policy that samples for itself, in turn with its updates."""
    objective = _loaded(OBJECTIVES, section.loss, Objective, PairObjective)
    correction = _loaded(CORRECTIONS, section.off_policy or "ratio", Correction)
    if isinstance(objective, Objective) and objective.by_sample:
        correction = correction.by_sample or correction
    if section.has_teacher and objective.fixed_data:
        raise ConfigError(f"grpo.teacher: {section.loss} samples nothing that it could score")
    kl, cap = KL_ESTIMATORS.load(section.divergence), section.ratio_cap
    high = section.clip_high if cap is None else cap - 1
    return Choices(
        objective,
        correction,
        kl if isinstance(kl, Divergence) else Divergence(kl),
        objective.clip_low if section.clip_low is None else section.clip_low,
        objective.clip_high if high is None else high,
    )


def resolved(config: Config, device: str, environment: Environment) -> Config:
    """Return the configuration of a run on that device in its environment, with every default that
    depends on other keys, those of the objective included."""
    config = environment.with_limits(config).on(device, environment.max_turns)
    found = choices_of(config.grpo)
    bounds = {"clip_low": found.clip_low, "clip_high": found.clip_high}
    return config.model_copy(update={"grpo": config.grpo.model_copy(update=bounds)})


def _loaded(table: Table, choice: str, *kinds: type[Kind]) -> Kind:
    found = table.load(choice)
    if not isinstance(found, kinds):
        names = " or ".join(f"{kind.__module__}.{kind.__name__}" for kind in kinds)
        raise ConfigError(f"{table.kind} {choice}: give a {names}")
    return found
