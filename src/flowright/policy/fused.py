"""One GPU kernel each for the element-wise work between a decoder's products: norms with the
residual sum before them, rotary embedding and SwiGLU.

torch.compile makes them, not liger-kernel: nothing is installed. The functions are tested on a CPU,
plain and as traced; the kernels were never run on a card. Sums and products are rounded where
transformers' modules round them, which compute on CPUs, in layers of other families and where all
weights are trained. ``TORCHDYNAMO_DISABLE=1`` runs the functions uncompiled.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowright.core.errors import ConfigError
from flowright.policy.lora import Joint

FAMILIES = ("LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layers that :func:`_decoder_layer` computes."""


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


class _SumNorm(torch.autograd.Function):
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


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return compiled(rotate)(x, bias, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return compiled(rotate_backward)(grads[0], *ctx.saved_tensors), None, None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return compiled(swiglu)(gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return compiled(swiglu_backward)(grads[0], *ctx.saved_tensors)


def fuse(decoder: Any) -> None:
    """Have a decoder's layers computed by :func:`_decoder_layer`, if they are of :data:`FAMILIES`.
    Raises ConfigError if nothing can be compiled here."""
    layers: list[Any] = [m for m in decoder.modules() if type(m).__name__ in FAMILIES]
    if not layers or decoder.config.hidden_act != "silu":
        return
    for layer in layers:
        at, mlp, kind = layer.self_attn, layer.mlp, type(layer)
        layer.joints = Joint(at.q_proj, at.k_proj, at.v_proj), Joint(mlp.gate_proj, mlp.up_proj)
        # By the class, whose forward transformers wraps where layers are recomputed.
        own = {"forward": _decoder_layer, "plain_forward": kind.forward}
        layer.__class__ = type(kind.__name__, (kind,), own)
    torch.cuda.empty_cache()  # of the weights as they lay before
    decoder.norm.forward = partial(_norm, decoder.norm)
    try:
        compiled(swiglu)(decoder.norm.weight, decoder.norm.weight)
    except (RuntimeError, ImportError, OSError) as error:
        raise ConfigError(
            f"policy.device: torch.compile fails: {str(error).strip().splitlines()[0]}; install a "
            "C compiler and Triton, or set TORCHDYNAMO_DISABLE=1, which is slower"
        ) from error


Hidden = Tensor | tuple[Tensor, Tensor]
"""Hidden states, or two whose sum they are."""


def _normed(norm: Any, hidden: Hidden) -> tuple[Tensor, Tensor]:
    """Return the hidden states and their norm."""
    x, y = hidden if isinstance(hidden, tuple) else (hidden, None)
    return _SumNorm.apply(x, y, norm.weight, norm.variance_epsilon)


def _norm(norm: Any, hidden: Hidden) -> Tensor:
    return _normed(norm, hidden)[1]


def _sum(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return x + bias, never a part of a larger tensor, which it would keep alive."""
    return x.contiguous() if bias is None else x + bias


def _decoder_layer(
    layer: Any,
    hidden_states: Hidden,
    attention_mask: Tensor | None = None,
    position_embeddings: Any = None,
    **named: Any,
) -> Hidden:
    """Compute a layer as its own ``forward``, which is called where there is a cache. Without
    gradients the next norm computes the last sum; with them a recomputed layer would keep both."""
    if any(named.get(key) is not None for key in ("cache", "past_key_values")):
        named |= {"position_embeddings": position_embeddings}
        return layer.plain_forward(hidden_states, attention_mask, **named)
    at, (queries_keys_values, gate_up) = layer.self_attn, layer.joints
    x, inner = _normed(layer.input_layernorm, hidden_states)
    *queries_keys, value = queries_keys_values(inner)
    turned = []
    for name, (part, bias) in zip(("q_norm", "k_norm"), queries_keys, strict=True):
        if hasattr(at, name):
            heads = _sum(part, bias).unflatten(-1, (-1, at.head_dim))
            part, bias = _norm(getattr(at, name), heads).flatten(-2), None
        turned.append(_Rotate.apply(part, bias, *position_embeddings))
    v = _sum(*value).unflatten(-1, (-1, at.head_dim)).transpose(1, 2)
    attend = ALL_ATTENTION_FUNCTIONS[at.config._attn_implementation]
    how = {"scaling": at.scaling, "sliding_window": getattr(at, "sliding_window", None), **named}
    out, _ = attend(at, *turned, v, attention_mask, dropout=0.0, **how)
    out = at.o_proj(out.flatten(-2).contiguous())
    x, inner = _normed(layer.post_attention_layernorm, (x, out))
    gate, up = (part if bias is None else part + bias for part, bias in gate_up(inner))
    out = layer.mlp.down_proj(_SwiGlu.apply(gate, up))
    return x + out if torch.is_grad_enabled() else (x, out)
