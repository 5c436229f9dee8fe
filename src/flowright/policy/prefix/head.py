"""From hidden states to the log-probabilities of given tokens, without keeping any logits.

The head is frozen, so its only gradient goes to the hidden states, and what that needs of the
vocabulary is found while the logits of a chunk are there: the backward pass does not see the
vocabulary again.
"""

from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = {"cpu": 2**20, "cuda": 2**28}
"""Numbers in the logits that exist at once, in two copies: 4 MB each in float32, which a CPU's
cache still holds, or 1 GB."""

LEAST_ROWS = 64
"""Of logits at once, however large the vocabulary: with fewer, its weights are read too often."""


def token_logprobs(
    hidden_N: Tensor, weight: Tensor, target_N: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution (nats), float32 [N].

    ``hidden_N`` [N, hidden_size], ``weight`` [vocab_size, hidden_size] without a gradient, logits
    divided by the temperature. Gradients flow to ``hidden_N``: those of the entropy only
    ``with_entropy``, as they cost one more product with the vocabulary.
    """
    if weight.requires_grad:
        raise ValueError("the head is trained: its gradient is not computed here")
    needs = hidden_N.requires_grad and torch.is_grad_enabled()
    logprobs, entropy = _Head.apply(hidden_N, weight, target_N, temperature, needs, with_entropy)
    return logprobs, entropy


class _Head(torch.autograd.Function):
    """With z = h W' / t, p = softmax(z), L = log p and H = -sum p L:

    dL_y / dh = (W_y - p W) / t        dH / dh = -((p (L + H)) W) / t
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_N: Tensor,
        weight: Tensor,
        target_N: Tensor,
        temperature: float,
        needs_grad: bool,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, slopes, bends = [], [], [], []
        at_once = LOGITS_AT_ONCE["cpu" if hidden_N.device.type == "cpu" else "cuda"]
        size = max(LEAST_ROWS, at_once // weight.shape[0])
        for hidden, target in zip(hidden_N.split(size), target_N.split(size), strict=True):
            # z less its largest, so that no exp overflows; exp(z) is p times its sum.
            z = (hidden @ weight.T).float()
            if temperature != 1:
                z /= temperature
            z -= z.amax(dim=-1, keepdim=True)
            exps = z.exp()
            total = exps.sum(dim=-1)
            log_total = total.log()
            logprobs.append(z.gather(1, target[:, None])[:, 0] - log_total)
            entropy = log_total - (exps * z).sum(dim=-1) / total
            entropies.append(entropy)
            if needs_grad:
                scale = (total * temperature)[:, None].to(weight.dtype)
                mean = (exps.to(weight.dtype) @ weight) / scale
                slopes.append(weight[target] / temperature - mean)
                if with_entropy:
                    bent = exps * (z + (entropy - log_total)[:, None])
                    bends.append(-(bent.to(weight.dtype) @ weight) / scale)
        ctx.save_for_backward(*(torch.cat(x) for x in (slopes, bends) if x))
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope, *bend = ctx.saved_tensors
        found = grads[0][:, None].to(slope.dtype) * slope
        if bend:
            found = found + grads[1][:, None].to(slope.dtype) * bend[0]
        return found, None, None, None, None, None
