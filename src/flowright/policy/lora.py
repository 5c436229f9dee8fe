"""Frozen linear layers, in 4 bits if quantised, with a trained adapter beside them.

peft adds the adapter's share to the base's by tensors as large as the output: two more passes over
memory forward, three backward. Here three products forward and five backward add to what is there.

An adapter's weights are float32, which small steps need; they multiply in the precision of their
input. peft would turn the input of every layer into float32 and multiply in it: half as much again
to keep for an update in bfloat16, and products that a GPU is slow at.

The adapter's share comes first and the base's is added to it. In half precision the other order
loses a young adapter: what is less than half the distance between two bfloat16 numbers of the
base's output changes none of them (docs/learner.md has the figures). A product that adds to what is
there in float32 and rounds once has the share on average, however small. On an H100 cuBLAS rounds
the product before it adds. There one product sums both, of rows that have the input and its product
with A one behind the other (:class:`Joint`); other layers compute the base's in float32.

A base in 4 bits (Dettmers et al. 2023, arXiv 2305.14314, section 3: NormalFloat with quantised
scales, by bitsandbytes) is unpacked for each product, and once more backward. Only the decoder's
linear layers are packed: embeddings, norms and head stay as they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer
from torch import Tensor, nn

from flowright.policy.fused import compiled, rounded_sum

BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""Per packed weight: 4, a scale of 8 bits per block of 64, and one of 32 per 256 scales."""


class LoraLinear(Linear):
    """peft's layer, computed as :func:`adapted_product` wherever that is the same: one adapter,
    switched on, without dropout, on a plain layer or one in 4 bits."""

    halves: tuple[Tensor, Tensor] | None = None
    """A and B in the precision of the base, while they do not train; see :func:`cast_once`."""
    joint: "Joint | None" = None

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Tensor:
        adapter = self._only_adapter(x)
        base: Any = self.get_base_layer()
        if adapter is None or args or named:
            return super().forward(x, *args, **named)
        if self.joint is not None and self.joint.is_single:
            ((out, bias),) = self.joint(x)
            return out if bias is None else out.add_(bias)
        a, b = self.halves or self._cast()
        scale = self.scaling[adapter]
        return adapted_product(x, base.weight, base.bias, a, b, scale, self._state)

    @property
    def _state(self) -> Any:
        """The state that unpacks the base's weight; None if it is not packed."""
        return getattr(self.get_base_layer().weight, "quant_state", None)

    @property
    def base_dtype(self) -> torch.dtype:
        """The precision in which the base multiplies."""
        weight: Any = self.get_base_layer().weight
        return weight.dtype if self._state is None else self._state.dtype

    def adapter(self) -> tuple[Tensor, Tensor]:
        """Return A [rank, in] and B [out, rank] of the active adapter, as they are trained."""
        (name,) = self.active_adapters
        a: Any = self.lora_A[name]
        b: Any = self.lora_B[name]
        return a.weight, b.weight

    def _cast(self) -> tuple[Tensor, Tensor]:
        a, b = self.adapter()
        return a.to(self.base_dtype), b.to(self.base_dtype)

    def _only_adapter(self, x: Tensor) -> str | None:
        """Return the adapter's name if it and the base are plain products in x's precision."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        (name,) = self.active_adapters
        if name not in self.lora_A or name in self.lora_variant:
            return None
        weight = self.get_base_layer().weight
        plain = isinstance(self.lora_dropout[name], nn.Identity) and not weight.requires_grad
        alike = x.dtype == self.base_dtype
        return name if plain and alike and not torch.is_autocast_enabled(x.device.type) else None


def adapted_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    scale: float,
    state: Any = None,
) -> Tensor:
    """Return y = x W' + b + s (x A') B' (Hu et al. 2021, arXiv 2106.09685, equation 3), [..., in]
    to [..., out], with gradients of x, A [rank, in] and B [out, rank], all of one precision. With a
    ``state``, ``weight`` is packed (arXiv 2305.14314, equation 5)."""
    (out,) = _Adapted.apply(x, [(weight, state, bias)], a, scale, None, b)
    return out


class _Adapted(torch.autograd.Function):
    """Layers of one input, of ``bases`` (weight, its state, bias), ``a`` [ranks, in] of all, and
    the ``joint`` that has them and all ``bs`` side by side."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bases: Sequence[Any],
        a: Tensor,
        s: float,
        joint: "Joint | None",
        *bs: Tensor,
    ) -> tuple[Tensor, ...]:
        rows = x.flatten(0, -2)
        if joint is not None:
            joint.fill(bs)
            rows, low, outs = joint.products(rows, a, s)
        else:
            low = _scaled(rows @ a.T, s)
            parts = zip(bases, bs, _parts(low, bs), strict=True)
            outs = [_plus_product(part @ b.T, rows, unpacked(*base[:2])) for base, b, part in parts]
        outs = [
            (out if bias is None else out.add_(bias)).unflatten(0, x.shape[:-1])
            for out, (_, _, bias) in zip(outs, bases, strict=True)
        ]
        ctx.s, ctx.shape, ctx.bases = s, x.shape, [base[:2] for base in bases]
        ctx.save_for_backward(rows, low, a, *bs)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rows, low, a, *bs = ctx.saved_tensors
        found = [grad.flatten(0, -2) for grad in grads]
        low_grad = torch.empty_like(low)
        for grad, b, part in zip(found, bs, _parts(low_grad, bs), strict=True):
            torch.mm(grad, b, out=part)
        low_grad = _scaled(low_grad, ctx.s)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = low_grad @ a
            for grad, base in zip(found, ctx.bases, strict=True):
                dx.addmm_(grad, unpacked(*base))
            dx = dx.reshape(ctx.shape)
        db = [grad.T @ part for grad, part in zip(found, _parts(low, bs), strict=True)]
        return dx, None, low_grad.T @ rows, None, None, *db


def _plus_product(share: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Return ``rows @ weight.T`` plus the ``share``, whose memory may be used, rounded once."""
    if share.is_cuda and share.dtype != torch.float32:
        return compiled(rounded_sum)(torch.mm(rows, weight.T, out_dtype=torch.float32), share)
    return share.addmm_(rows, weight.T)


def _parts(low: Tensor, bs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return low.split([b.shape[1] for b in bs], dim=1)


class Joint:
    """Layers of one input: a product with all their A, and one gradient of the input.

    ``whole`` [out, in + ranks]: all weights of the bases and, beside them, all B on a diagonal;
    None where a base is ``split`` among processes or in 4 bits. ``halves``, while they do not
    train: all A and, without ``whole``, all B on a diagonal [out, ranks].
    """

    halves: tuple[Tensor, Tensor | None] | None = None

    def __init__(self, *layers: Any, split: bool = False) -> None:
        self._layers, self._has_adapters = layers, all(isinstance(m, LoraLinear) for m in layers)
        self._own = [layer.get_base_layer() for layer in layers if self._has_adapters]
        self._outs = [m.out_features for m in self._own]
        self.is_single, self.whole = len(layers) == 1, None
        for layer in layers if self._has_adapters else ():
            layer.joint = self
        if self._own and not split and not any(isinstance(m, PackedLinear) for m in self._own):
            self.whole = self._laid_out()

    def _laid_out(self) -> Tensor:
        """Return ``whole``, parts of which are the bases' weights from now on."""
        ranks = sum(len(layer.adapter()[0]) for layer in self._layers)
        first, size = self._own[0].weight, self._own[0].in_features
        stride = -(-(size + ranks) // 8) * 8  # kernels of GPUs read 16 bytes at a time
        whole = first.new_zeros(sum(self._outs), stride)[:, : size + ranks]
        for m, part in zip(self._own, whole.split(self._outs), strict=True):
            part[:, :size] = m.weight.data
            m.weight.data = part[:, :size]
        return whole

    def fill(self, bs: Sequence[Tensor]) -> None:
        """Write the layers' B beside the bases."""
        assert self.whole is not None
        row, column = 0, self._own[0].in_features
        for b in bs:
            self.whole[row : row + len(b), column : column + b.shape[1]] = b
            row, column = row + len(b), column + b.shape[1]

    def products(self, rows: Tensor, a: Tensor, s: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the rows [N, in], their product with A times ``s`` [N, ranks], both parts of a
        larger tensor, and the layers' outputs."""
        assert self.whole is not None
        wide = rows.new_empty(len(rows), self.whole.stride(0))[:, : self.whole.shape[1]]
        wide[:, : rows.shape[1]] = rows
        rows, low = wide.split([rows.shape[1], len(a)], dim=1)
        torch.mm(rows, a.T, out=low)
        _scaled(low, s)
        if self.halves is not None:
            return rows, low, list((wide @ self.whole.T).split(self._outs, dim=1))
        return rows, low, [wide @ part.T for part in self.whole.split(self._outs)]

    def __call__(self, x: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Return each layer's output and the bias that is still to be added."""
        layers, own = self._layers, self._own
        names = [layer._only_adapter(x) if self._has_adapters else None for layer in layers]
        scales = {n and layer.scaling[n] for layer, n in zip(layers, names, strict=True)}
        (scale,) = scales if len(scales) == 1 else (None,)
        if scale is None:
            return [(layer(x), None) for layer in layers]
        bases = [(m.weight, layer._state, None) for m, layer in zip(own, layers, strict=True)]
        if self.halves is None:
            all_a, all_b = zip(*(layer.adapter() for layer in layers), strict=True)
            a, dtype = torch.cat(all_a).to(layers[0].base_dtype), layers[0].base_dtype
            joint = None if self.whole is None else self
            outs = _Adapted.apply(x, bases, a, scale, joint, *(b.to(dtype) for b in all_b))
        else:
            rows, (a, b) = x.flatten(0, -2), self.halves
            if b is None:
                _, _, outs = self.products(rows, a, scale)
            else:
                shares = (_scaled(rows @ a.T, scale) @ b.T).split(self._outs, dim=1)
                pairs = zip(shares, bases, strict=True)
                outs = [_plus_product(share, rows, unpacked(*base[:2])) for share, base in pairs]
            outs = [out.unflatten(0, x.shape[:-1]) for out in outs]
        return [(out, m.bias) for out, m in zip(outs, own, strict=True)]

    def _cast(self) -> tuple[Tensor, Tensor | None]:
        all_a, all_b = zip(*(layer._cast() for layer in self._layers), strict=True)
        if self.whole is None:
            return torch.cat(all_a), torch.block_diag(*all_b)
        self.fill(all_b)
        return torch.cat(all_a), None


def _scaled(x: Tensor, s: float) -> Tensor:
    return x if s == 1 else x.mul_(s)


@contextmanager
def cast_once(model: torch.nn.Module) -> Iterator[None]:
    """Keep the adapters' weights as they are now, in their bases' precision: decoding would cast
    all of them for each token. What is trained meanwhile is not seen."""
    adapted = [module for module in model.modules() if isinstance(module, LoraLinear)]
    layers: set[Any] = {module.joint or module for module in adapted}
    try:
        with torch.no_grad():
            for layer in layers:
                layer.halves = layer._cast()
        yield
    finally:
        for layer in layers:
            layer.halves = None


@contextmanager
def merged(model: PeftModel) -> Iterator[None]:
    """Decode with the adapter merged into copies of the weights: W + s B A, where s is alpha/r or,
    rank-stabilised, alpha/sqrt(r).

    One matrix product per layer instead of three, which is what a decoding step spends its time on.
    The original tensors are put back by reference, so nothing drifts. For float32: in bfloat16,
    W + d is W wherever d is below half the distance to W's neighbours.
    """
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    originals = []
    try:
        for layer in layers:
            weight = layer.get_base_layer().weight
            originals.append((weight, weight.data))
            for adapter in layer.active_adapters:
                delta: Any = layer.get_delta_weight(adapter)  # pyright: ignore[reportCallIssue]
                weight.data = weight.data + delta.to(weight.dtype)
        with model.disable_adapter():
            yield
    finally:
        for weight, data in originals:
            weight.data = data


class PackedLinear(nn.Linear):
    """A frozen layer in 4 bits; its weight is whole only during a product. The library's own layer
    has further kernels, which round otherwise and on a CPU repack the weight for good: sampler,
    learner and reference must multiply by the same numbers."""

    def forward(self, input: Tensor) -> Tensor:
        state = getattr(self.weight, "quant_state", None)
        return nn.functional.linear(input, unpacked(self.weight, state), self.bias)


def quantise(causal_lm: Any) -> None:
    """Have the decoder's linear layers quantised when they are moved to a device next, one weight
    at a time. Needs bitsandbytes."""
    from bitsandbytes.nn import modules  # pyright: ignore[reportMissingImports]  # optional

    params: Any = modules.Params4bit  # its __new__ declares less than it takes
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
    """Replace packed weights by ordinary ones, for good."""
    for layer in causal_lm.modules():
        if isinstance(layer, PackedLinear):
            whole = unpacked(layer.weight, getattr(layer.weight, "quant_state", None))
            layer.weight = nn.Parameter(whole, requires_grad=False)


def unpacked(weight: Tensor, state: Any) -> Tensor:
    """Return the weight as it multiplies: unpacked by its ``state``, or itself without one."""
    if state is None:
        return weight
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(weight.data, state)
