"""What an update says of itself: sums over its tokens, and the metrics that they give. What is
summed is the learner's to say (:mod:`flowright.grpo.learner`).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flowright.grpo.objectives import Terms


class Sums:
    """Sums over the tokens, or over the pairs, of an optimizer step, from which the metrics are
    made. They stay on the device until they are read, so that adding to them does not wait for it.
    """

    NAMES = (
        *("tokens", "kl", "entropy", "loss", "policy", "log_ratio", "ratio", "ratio_square"),
        *("clipped_low", "clipped_high", "clipped_dual", "weight", "capped"),
        *("pairs", "decided", "right", "score", "lead"),
        *("scaffold_tokens", "scaffold_log_ratio", "scaffold_weight", "scaffold_capped"),
    )

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)

    def add(self, name: str, value: Tensor | int) -> None:
        self.values[self.NAMES.index(name)] += value

    def add_apart(self, name: str, values_N: Tensor, scaffolded_N: Tensor | None) -> None:
        """The values of samples that were drawn from a scaffold under a name of their own; None
        where none was."""
        if scaffolded_N is None:
            self.add(name, values_N.sum())
            return
        self.add(name, values_N.masked_fill(scaffolded_N, 0).sum())
        self.add(f"scaffold_{name}", values_N.masked_fill(~scaffolded_N, 0).sum())

    def add_clipping(self, terms: Terms, ratio_N: Tensor) -> None:
        """Which bounds hold the terms, and the ratios they are made of: ``ratio_N`` where the terms
        have none of their own."""
        ratio_N = ratio_N if terms.ratio_N is None else terms.ratio_N
        high_N = terms.clipped_N & (ratio_N > 1)
        if terms.dual_N is not None:
            self.add("clipped_dual", terms.dual_N.sum())
            high_N = high_N & ~terms.dual_N
        self.add("clipped_low", (terms.clipped_N & (ratio_N <= 1)).sum())
        self.add("clipped_high", high_N.sum())
        off_N = ratio_N.double() - 1
        self.add("ratio", off_N.sum())
        self.add("ratio_square", off_N.square().sum())


def given_metrics(sums_M: Tensor, epoch: int) -> dict[str, float]:
    """Of an update on what the data gives, from its :class:`Sums` as :func:`update_metrics`: the
    loss as the samples met it. Where pairs were scored, the share of those with a preference whose
    better answer has the higher score (equal scores count half), the mean score, and the mean of
    how far the better one leads."""
    met = dict(zip(Sums.NAMES, sums_M[:epoch].sum(dim=0).tolist(), strict=True))
    metrics = {"policy/loss": met["loss"] / epoch}
    if met["tokens"]:
        metrics["policy/entropy"] = met["entropy"] / met["tokens"]
    if met["pairs"]:
        metrics["policy/score_mean"] = met["score"] / (2 * met["pairs"])
    if met["decided"]:
        metrics["policy/accuracy"] = met["right"] / met["decided"]
        metrics["policy/lead_mean"] = met["lead"] / met["decided"]
    return metrics


def update_metrics(sums_M: Tensor, epoch: int, with_kl: bool, weighted: bool) -> dict[str, float]:
    """From the :class:`Sums` [M, names] of all optimizer steps, of which an ``epoch`` has so many:
    loss (``pg_loss``: without KL and entropy), entropy and KL as the samples met them; clipping and
    ratios over all of them; the gap between sampler and learner before the first moved anything.
    ``weighted``: an off-policy correction has weights. Gap and weights of samples that were drawn
    from a scaffold (``scaffold_*``) are apart: there it is that between two prompts, too."""
    start, met, whole = (
        dict(zip(Sums.NAMES, some_M.sum(dim=0).tolist(), strict=True))
        for some_M in (sums_M[:1], sums_M[:epoch], sums_M)
    )
    tokens = whole["tokens"]
    off = whole["ratio"] / tokens
    variance = whole["ratio_square"] / tokens - off * off
    clipped = {name: whole[f"clipped_{name}"] / tokens for name in ("low", "high", "dual")}
    metrics = {
        **_apart("sampler_logp_diff", "scaffold_logp_diff", start, "log_ratio"),
        "policy/loss": met["loss"] / epoch,
        "policy/pg_loss": met["policy"] / epoch,
        "policy/entropy": met["entropy"] / met["tokens"],
        "policy/clip_frac": sum(clipped.values()),
        **{f"policy/clip_{name}": share for name, share in clipped.items()},
        "policy/ratio_mean": 1 + off,
        "policy/ratio_std": math.sqrt(max(variance, 0.0)),
    }
    if with_kl:
        metrics["policy/kl"] = met["kl"] / met["tokens"]
    if weighted:
        metrics |= _apart("off_policy_weight", "scaffold_weight", met, "weight")
        metrics |= _apart("off_policy_capped_frac", "scaffold_capped_frac", met, "capped")
    return metrics


def _apart(bare: str, scaffolded: str, sums: Mapping[str, float], name: str) -> dict[str, float]:
    """The means over the tokens of both kinds of samples, where there are some."""
    count = sums["scaffold_tokens"]
    metrics = {}
    if sums["tokens"] > count:
        metrics[f"policy/{bare}"] = sums[name] / (sums["tokens"] - count)
    if count:
        metrics[f"policy/{scaffolded}"] = sums[f"scaffold_{name}"] / count
    return metrics


def step_norms(norms: Sequence[float]) -> dict[str, float]:
    """Of the gradients of the optimizer steps, before clipping; those that are not finite moved
    nothing (``policy/skipped_updates``)."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {
        "policy/grad_norm": sum(finite) / len(finite) if finite else math.nan,
        "policy/skipped_updates": float(len(norms) - len(finite)),
    }
