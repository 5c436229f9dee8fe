"""A linear layer with its adapter, in four products forward and five backward, and nothing beside.

peft adds the adapter's share to the base's by tensors as large as the output: two more passes over
memory forward, three backward. Here the products add to what is there. The base stays frozen.

An adapter's weights are float32, which small steps need; they multiply in the precision of their
input. peft would turn the input of every layer into float32 and multiply in it: half as much again
to keep for an update in bfloat16, and products that a GPU is slow at.
"""

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn


class LoraLinear(Linear):
    """peft's layer, which computes as :class:`_Adapted` wherever that is the same: one adapter,
    switched on, without dropout, on a plain layer."""

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Tensor:
        adapter = self._only_adapter(x)
        if adapter is None or args or named:
            return super().forward(x, *args, **named)
        base = self.get_base_layer()
        a, b = (half[adapter].weight.to(x.dtype) for half in (self.lora_A, self.lora_B))
        return _Adapted.apply(x, base.weight, base.bias, a, b, self.scaling[adapter])

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


class _Adapted(torch.autograd.Function):
    """y = x W' + b + s (x A') B' (Hu et al. 2021, arXiv 2106.09685, equation 3), [..., in] to
    [..., out], with gradients of x, A [rank, in] and B [out, rank]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, s: float
    ) -> Tensor:
        rows = x.flatten(0, -2)
        out = rows @ weight.T if bias is None else torch.addmm(bias, rows, weight.T)
        low = rows @ a.T
        out.addmm_(low, b.T, alpha=s)
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
            dx = (grad @ weight).addmm_(low_grad, a).reshape(ctx.shape)
        return dx, None, None, low_grad.T @ rows, (low.T @ grad).mul_(ctx.s).T, None
