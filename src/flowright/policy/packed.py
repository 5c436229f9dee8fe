"""Weights laid out for decoding on a CPU: for products with few rows, oneDNN is up to twice as fast
on blocks that it has ordered itself as on a matrix as it lies.

The operators are those that PyTorch's own compiler puts into what it freezes, and private; where
they are not there, everything stays as it is.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flowright.policy.head import Head
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy

_ROWS = 16  # that the blocks are chosen for; other numbers of rows multiply with the same ones


def packed(policy: Policy) -> Policy:
    """The base model of a policy that only decodes from now on: its layers keep their weights in
    blocks and nothing else, so that no more memory is taken but for the head, and adapters are
    left out. The policy that was given is of no use after this, where it can be packed at all.
    """
    if not _packable(policy):
        return policy
    decoder = policy.causal_lm.model
    adapted = [module for module in decoder.modules() if isinstance(module, LoraLinear)]
    of_adapters = {part for module in adapted for part in module.modules()}
    plain = [m for m in decoder.modules() if type(m) is nn.Linear and m not in of_adapters]
    for module in [*adapted, *plain]:
        layer: Any = module.get_base_layer() if isinstance(module, LoraLinear) else module
        module.forward = layer.forward = _Product(layer)
        layer.weight.data = layer.weight.new_empty(0)
    return replace(policy, output=_packed_head(policy.head))


def _packable(policy: Policy) -> bool:
    dtype = policy.causal_lm.dtype
    return (
        policy.device.type == "cpu"
        and not policy.quantised
        and isinstance(policy.output, Head)
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (dtype == torch.float32 or (dtype == torch.bfloat16 and _has_bfloat16()))
    )


def _has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _blocks(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)


def _product(x: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "")


class _Product:
    """x W' + b, [..., in] to [..., out], in place of a layer's ``forward``."""

    def __init__(self, layer: Any) -> None:
        self._blocks, self._bias = _blocks(layer.weight), layer.bias

    def __call__(self, x: Tensor) -> Tensor:
        return _product(x, self._blocks, self._bias)


@dataclass(frozen=True, slots=True)
class _PackedHead(Head):
    """``blocks`` hold the weights in the precision that its products are computed in."""

    blocks: Any = None

    def _products(self, hidden_N: Tensor) -> Tensor:
        hidden = hidden_N.float() if self.in_float32 else hidden_N
        return _product(hidden, self.blocks, None).float()


def _packed_head(head: Head) -> Head:
    weight = head.weight.float() if head.in_float32 else head.weight
    return _PackedHead(head.weight, head.scale, head.in_float32, _blocks(weight))
