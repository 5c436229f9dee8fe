"""A linear layer with its adapter, in three products forward and five backward, and hardly anything
beside.

peft adds the adapter's share to the base's by tensors as large as the output: two more passes over
memory forward, three backward. Here the products add to what is there. The base stays frozen.

An adapter's weights are float32, which small steps need; they multiply in the precision of their
input. peft would turn the input of every layer into float32 and multiply in it: half as much again
to keep for an update in bfloat16, and products that a GPU is slow at.

The adapter's share comes first and the base's is added to it. In half precision the other order
loses a young adapter: what is less than half the distance between two bfloat16 numbers of the
base's output changes none of them (docs/learner.md has the figures). A product adds to what is
there in float32 and rounds once, so that the share is there on average, however small.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn


class LoraLinear(Linear):
    """peft's layer, which computes as :func:`adapted_product` wherever that is the same: one
    adapter, switched on, without dropout, on a plain layer."""

    halves: tuple[Tensor, Tensor] | None = None
    """A and B in the precision of the base, while nobody trains them; see :func:`cast_once`."""

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Tensor:
        adapter = self._only_adapter(x)
        if adapter is None or args or named:
            return super().forward(x, *args, **named)
        base: Any = self.get_base_layer()
        a, b = self.halves or self._cast()
        return adapted_product(x, base.weight, base.bias, a, b, self.scaling[adapter])

    def adapter(self) -> tuple[Tensor, Tensor]:
        """A [rank, in] and B [out, rank] of the one that is active, as they are trained."""
        (name,) = self.active_adapters
        a: Any = self.lora_A[name]
        b: Any = self.lora_B[name]
        return a.weight, b.weight

    def _cast(self) -> tuple[Tensor, Tensor]:
        base: Any = self.get_base_layer()
        a, b = self.adapter()
        return a.to(base.weight.dtype), b.to(base.weight.dtype)

    def _only_adapter(self, x: Tensor) -> str | None:
        """The adapter's name, where it and the base are plain products in x's precision."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        (name,) = self.active_adapters
        if name not in self.lora_A or name in self.lora_variant:
            return None
        weight = self.get_base_layer().weight
        plain = isinstance(self.lora_dropout[name], nn.Identity) and not weight.requires_grad
        alike = x.dtype == weight.dtype
        return name if plain and alike and not torch.is_autocast_enabled(x.device.type) else None


def adapted_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> Tensor:
    """y = x W' + b + s (x A') B' (Hu et al. 2021, arXiv 2106.09685, equation 3), [..., in] to
    [..., out], with gradients of x, A [rank, in] and B [out, rank], all of one precision."""
    return _Adapted.apply(x, weight, bias, a, b, scale)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, s: float
    ) -> Tensor:
        rows = x.flatten(0, -2)
        low = (rows @ a.T).mul_(s)
        out = (low @ b.T).addmm_(rows, weight.T)
        if bias is not None:
            out += bias
        ctx.s, ctx.shape = s, x.shape
        ctx.save_for_backward(rows, low, weight, a, b)
        return out.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, low, weight, a, b = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        low_grad = (grad @ b).mul_(ctx.s)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (low_grad @ a).addmm_(grad, weight).reshape(ctx.shape)
        return dx, None, None, low_grad.T @ rows, grad.T @ low, None


@contextmanager
def cast_once(model: torch.nn.Module) -> Iterator[None]:
    """The adapters' weights as they are now, in their bases' precision: decoding would else cast
    all of them for each token. What is trained meanwhile is not seen."""
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    try:
        with torch.no_grad():
            for layer in layers:
                layer.halves = layer._cast()
        yield
    finally:
        for layer in layers:
            layer.halves = None
