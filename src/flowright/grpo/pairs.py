"""Objectives over the scores of two answers to one conversation: pure functions of flat tensors. No
model, no batch layout, no optimizer.

Shapes: ``_K`` is one entry for each pair.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from flowright.config.grpo import PairsSection


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two answers each: the scores [K] of the first and of the second, with a gradient; whether the
    first is the better one [K], else neither is; and by how much it should lead [K]."""

    first_K: Tensor
    second_K: Tensor
    better_K: Tensor
    margin_K: Tensor


def pairs_of(scores_S: Tensor, wanted_S: Tensor, margin: float) -> Pairs:
    """Each two of the scores [S] as a pair, the better answer first: the one of which more is
    ``wanted`` [S], by how much is the strength of the preference, and no difference is none."""
    strength_K = wanted_S[::2] - wanted_S[1::2]
    swapped_K = strength_K < 0
    first_K = torch.where(swapped_K, scores_S[1::2], scores_S[::2])
    second_K = torch.where(swapped_K, scores_S[::2], scores_S[1::2])
    return Pairs(first_K, second_K, strength_K != 0, margin * strength_K.abs())


@dataclass(frozen=True, slots=True)
class PairObjective:
    """What ``grpo.loss`` names where answers are scored and compared, not written. ``terms`` gives
    each pair's part of the loss [K], to be minimised; pairs weigh the same. The rest is as an
    :class:`flowright.grpo.objectives.Objective` has it."""

    terms: Callable[[Pairs, PairsSection], Tensor]
    clip_low: float = 0.2
    clip_high: float = 0.2
    given: bool = True

    def weights(self, lengths_S: Tensor, longest: int) -> Tensor:
        """1 / S for each answer, however long."""
        return torch.full(lengths_S.shape, 1.0 / lengths_S.numel())


def bradley_terry(pairs: Pairs, section: PairsSection) -> Tensor:
    """-log P of what people said, plus ``centring`` times the square of both scores' sum.

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
