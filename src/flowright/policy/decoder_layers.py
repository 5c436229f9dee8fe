"""Decoder layers whose products are joined and whose element-wise work is fused, for a GPU."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowright.core.errors import ConfigError
from flowright.policy.fused import Rotate, SumNorm, SwiGlu, compiled, swiglu
from flowright.policy.lora import Joint

FAMILIES = ("LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layers that :func:`_forward` computes."""


def fuse(decoder: Any, split: bool = False) -> None:
    """Have a decoder's layers computed by :func:`_forward`, if they are of :data:`FAMILIES`.
    ``split``: among processes, later. Raises ConfigError if nothing can be compiled here."""
    some = decoder.norm.weight.new_zeros(2)
    try:
        compiled(swiglu)(some, some)
    except (RuntimeError, ImportError, OSError) as error:
        raise ConfigError(
            f"policy.device: torch.compile fails: {str(error).strip().splitlines()[0]}; install a "
            "C compiler and Triton, or set TORCHDYNAMO_DISABLE=1, which is slower"
        ) from error
    layers: list[Any] = [m for m in decoder.modules() if type(m).__name__ in FAMILIES]
    if not layers or decoder.config.hidden_act != "silu":
        return
    for layer in layers:
        at, mlp, kind = layer.self_attn, layer.mlp, type(layer)
        joined = partial(Joint, split=split)
        layer.joints = joined(at.q_proj, at.k_proj, at.v_proj), joined(mlp.gate_proj, mlp.up_proj)
        for single in (at.o_proj, mlp.down_proj):
            joined(single)  # that it computes by
        # By the class, whose forward transformers wraps where layers are recomputed.
        own = {"forward": _forward, "plain_forward": kind.forward}
        layer.__class__ = type(kind.__name__, (kind,), own)
    torch.cuda.empty_cache()  # of the weights as they lay before
    decoder.norm.forward = partial(_norm, decoder.norm)


Hidden = Tensor | tuple[Tensor, Tensor]
"""Hidden states, or two whose sum they are."""


def _normed(norm: Any, hidden: Hidden) -> tuple[Tensor, Tensor]:
    """Return the hidden states and their norm."""
    x, y = hidden if isinstance(hidden, tuple) else (hidden, None)
    return SumNorm.apply(x, y, norm.weight, norm.variance_epsilon)


def _norm(norm: Any, hidden: Hidden) -> Tensor:
    return _normed(norm, hidden)[1]


def _sum(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return x + bias, never a part of a larger tensor, which it would keep alive."""
    return x.contiguous() if bias is None else x + bias


def _forward(
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
        turned.append(Rotate.apply(part, bias, *position_embeddings))
    v = _sum(*value).unflatten(-1, (-1, at.head_dim)).transpose(1, 2)
    attend = ALL_ATTENTION_FUNCTIONS[at.config._attn_implementation]
    how = {"scaling": at.scaling, "sliding_window": getattr(at, "sliding_window", None), **named}
    out, _ = attend(at, *turned, v, attention_mask, dropout=0.0, **how)
    out = at.o_proj(out.flatten(-2).contiguous())
    x, inner = _normed(layer.post_attention_layernorm, (x, out))
    gate, up = (part if bias is None else part + bias for part, bias in gate_up(inner))
    out = layer.mlp.down_proj(SwiGlu.apply(gate, up))
    return x + out if torch.is_grad_enabled() else (x, out)
