"""One step of an optimizer, the same for every kind of training: its rate, its clipped gradient,
and none where that is not finite. Where gradients come from is the learners'.
"""

import math

import torch


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for parameters in optimizer.param_groups:
        parameters["lr"] = rate


def clipped_step(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Move the weights by their gradients, scaled down to ``max_norm``, and drop these; returns the
    norm that they had. What is not finite would never leave the weights again, so then they stay
    as they are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
