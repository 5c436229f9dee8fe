"""A frozen base in 4 bits, by bitsandbytes: NormalFloat with quantised scales, 4.13 bits a weight
(Dettmers et al. 2023, arXiv 2305.14314, section 3).

The linear layers of the decoder alone: embeddings, norms and head stay as they are. What is beside
them is :mod:`flowright.policy.lora`'s.
"""

from typing import Any

from torch import Tensor, nn

BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""Of a weight: itself; of each block of 64 a scale in 8 bits; of each 256 of these one in 32."""


class PackedLinear(nn.Linear):
    """A frozen layer in 4 bits; its weight is whole for a product, then no more. The library's own
    layer has kernels besides, which round otherwise and on a CPU repack the weight for good:
    sampler, learner and reference are to multiply by one and the same numbers."""

    def forward(self, input: Tensor) -> Tensor:
        state = getattr(self.weight, "quant_state", None)
        return nn.functional.linear(input, unpacked(self.weight, state), self.bias)


def quantise(causal_lm: Any) -> None:
    """Have the decoder's linear layers quantised when they are moved to a device next, one weight
    at a time. Needs bitsandbytes."""
    from bitsandbytes.nn import modules  # pyright: ignore[reportMissingImports]  # optional

    params: Any = modules.Params4bit  # its __new__ says less than it takes
    decoder: nn.Module = causal_lm.model
    for path, layer in [*decoder.named_modules()]:
        if not isinstance(layer, nn.Linear):
            continue
        packed = PackedLinear(layer.in_features, layer.out_features, bias=False, device="meta")
        packed.weight = params(layer.weight.data, requires_grad=False, quant_type="nf4")
        packed.bias = layer.bias
        above, _, name = path.rpartition(".")
        setattr(decoder.get_submodule(above), name, packed)


def unpack(causal_lm: nn.Module) -> None:
    """Have ordinary weights in the place of packed ones, for good."""
    for layer in causal_lm.modules():
        if isinstance(layer, PackedLinear):
            whole = unpacked(layer.weight, getattr(layer.weight, "quant_state", None))
            layer.weight = nn.Parameter(whole, requires_grad=False)


def unpacked(weight: Tensor, state: Any) -> Tensor:
    """The weight as it multiplies: of its packed numbers and their ``state``, or itself."""
    if state is None:
        return weight
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(weight.data, state)
