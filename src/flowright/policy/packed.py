"""Weights in blocks for decoding on a CPU: for products with few rows, oneDNN is up to twice as
fast on blocks that it has ordered itself as on a plain matrix.

The operators are private, those that PyTorch's own compiler uses in frozen graphs; without them,
nothing changes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flowright.policy.head import Head
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy

_ROWS = 16  # that the blocks are chosen for; other numbers of rows multiply with the same ones

WORTH_STEPS = 16
"""Least decoding steps for which blocks are worth making: they cost about two."""

LEAST = 2**18
"""Numbers of a matrix below which a call of oneDNN's takes longer than its blocks save."""


def packed(policy: Policy) -> Policy:
    """Return the base model of a policy that only decodes from now on, if it can be packed: its
    layers keep their weights in blocks alone, so that only the head takes more memory, and adapters
    are left out. The policy passed in cannot be used after this."""
    if not _packable(policy):
        return policy
    for module in _linear(policy):
        layer = _base(module)
        module.forward = layer.forward = _Product(layer)
        layer.weight.data = layer.weight.new_empty(0)
    return replace(policy, output=_packed_head(policy.head))


@contextmanager
def packed_meanwhile(policy: Policy) -> Iterator[Policy]:
    """Yield the policy with blocks beside its larger weights, as these and its adapter are now;
    what is trained meanwhile is not seen. The same policy if it cannot be packed."""
    if not _packable(policy) or isinstance(policy.output, _PackedHead):
        yield policy
        return
    products = {module: made for module in _linear(policy) if (made := _product_of(module))}
    large = policy.head.weight.numel() >= LEAST
    try:
        for module, made in products.items():
            module.forward = made
        yield replace(policy, output=_packed_head(policy.head)) if large else policy
    finally:
        for module in products:
            del module.forward


def _linear(policy: Policy) -> list[Any]:
    """Return the decoder's linear layers; one with an adapter counts as one."""
    modules = list(policy.causal_lm.model.modules())
    adapted = [module for module in modules if isinstance(module, LoraLinear)]
    inside = {part for module in adapted for part in module.modules()}
    return [*adapted, *(m for m in modules if type(m) is nn.Linear and m not in inside)]


def _base(module: Any) -> Any:
    return module.get_base_layer() if isinstance(module, LoraLinear) else module


def _product_of(module: Any) -> Callable[[Tensor], Tensor] | None:
    layer = _base(module)
    if layer.weight.numel() < LEAST:
        return None
    if layer is module or module.disable_adapters:
        return _Product(layer)
    return None if module.halves is None else _AdaptedProduct(module)


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
    """Computes x W' + b, [..., in] to [..., out], in place of a layer's ``forward``."""

    def __init__(self, layer: Any) -> None:
        self._blocks, self._bias = _blocks(layer.weight), layer.bias

    def __call__(self, x: Tensor) -> Tensor:
        return _product(x, self._blocks, self._bias)


class _AdaptedProduct:
    """Computes x W' + b + s (x A') B', rounded once, as in :mod:`flowright.policy.lora`."""

    def __init__(self, module: LoraLinear) -> None:
        layer: Any = module.get_base_layer()
        assert module.halves is not None
        self._a, self._b = module.halves
        (name,) = module.active_adapters
        self._scale = module.scaling[name]
        self._blocks, self._bias = _blocks(layer.weight), layer.bias

    def __call__(self, x: Tensor) -> Tensor:
        share = (x @ self._a.T).mul_(self._scale) @ self._b.T
        return torch.ops.mkldnn._linear_pointwise.binary(x, share, self._blocks, self._bias, "add")


@dataclass(frozen=True, slots=True)
class _PackedHead(Head):
    """A head whose ``blocks`` hold the weights in the precision of its products."""

    blocks: Any = None

    def _products(self, hidden_N: Tensor) -> Tensor:
        hidden = hidden_N.float() if self.in_float32 else hidden_N
        return _product(hidden, self.blocks, None).float()


def _packed_head(head: Head) -> Head:
    weight = head.weight.float() if head.in_float32 else head.weight
    return _PackedHead(head.weight, head.scale, head.in_float32, _blocks(weight))
