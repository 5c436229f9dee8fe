"""One GPU kernel each for the element-wise work between a decoder's products: norms with the
residual sum before them, rotary embedding and SwiGLU, and an adapter's share in a product.

torch.compile makes them, not liger-kernel: nothing is installed. Sums and products are rounded
where transformers' modules round them, which compute on CPUs, in layers of other families and where
all weights are trained. ``TORCHDYNAMO_DISABLE=1`` runs the functions uncompiled.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as one kernel, compiled at its first call and for other kinds of tensors
    (one row or more, with gradients or not, more than torch allows by default)."""
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(function, options={"emulate_precision_casts": True})


def sum_norm(x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x + y, or x alone, and its RMS norm."""
    total = x if y is None else x + y
    wide = total.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    return total, weight * wide.to(total.dtype)


def norm_backward(
    grad: Tensor, more: Tensor | None, x: Tensor, weight: Tensor, epsilon: float
) -> Tensor:
    """Return the gradient of x from that of its norm, and ``more`` that x has."""
    wide = x.float()
    rate = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    slope = (grad * weight).float()
    across = (slope * wide).mean(dim=-1, keepdim=True)
    found = (slope * rate - wide * (rate * rate * rate * across)).to(x.dtype)
    return found if more is None else found + more


def rotate(x: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
    """Return [1, heads, N, size], rotated by position, of a product [1, N, heads * size]; ``cos``
    and ``sin`` [1, N, size], both halves alike."""
    x = x if bias is None else x + bias
    x = x.unflatten(-1, (-1, cos.shape[-1])).transpose(1, 2)
    return _turned(x, cos[:, None], sin[:, None])


def rotate_backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _turned(grad, cos[:, None], -sin[:, None]).transpose(1, 2).flatten(2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x * cos + rotate_half(x) * sin; joining halves takes kernels of its own."""
    half = x.shape[-1] // 2
    is_first = torch.arange(2 * half, device=x.device) < half
    return x * cos + x.roll(half, dims=-1) * torch.where(is_first, -sin, sin)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.silu_backward(grad * up, gate), grad * silu(gate)


def rounded_sum(product: Tensor, share: Tensor) -> Tensor:
    """Return the sum of a product in float32 and a ``share``, in the share's precision."""
    return (product + share).to(share.dtype)


class SumNorm(torch.autograd.Function):
    """:func:`sum_norm` with a weight that is not trained."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        total, found = compiled(sum_norm)(x, y, weight, epsilon)
        ctx.epsilon = epsilon
        ctx.save_for_backward(total, weight)
        ctx.set_materialize_grads(False)
        return total, found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found, grad = grads
        if grad is not None:
            found = compiled(norm_backward)(grad, found, *ctx.saved_tensors, ctx.epsilon)
        return found, found if ctx.needs_input_grad[1] else None, None, None


class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return compiled(rotate)(x, bias, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return compiled(rotate_backward)(grads[0], *ctx.saved_tensors), None, None, None


class SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return compiled(swiglu)(gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return compiled(swiglu_backward)(grads[0], *ctx.saved_tensors)
