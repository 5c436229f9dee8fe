"""The adapted linear layer computes what peft's does."""

from copy import deepcopy

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora import Linear
from tiny_policy import tiny_policy

from flowright.policy.lora import LoraLinear, merged


def layers(
    bias: bool = True, dtype: torch.dtype = torch.float32, width: int = 0
) -> tuple[Linear, Linear]:
    """peft's layer and ours, with the same weights, from 6 to 5 numbers or of equal ``width``."""
    torch.manual_seed(0)
    wide, high = width or 6, width or 5
    base = torch.nn.Linear(wide, high, bias=bias, dtype=dtype).requires_grad_(False)
    config = LoraConfig(r=3, lora_alpha=6)
    made = [
        kind(deepcopy(base), "default", config, r=3, lora_alpha=6) for kind in (Linear, LoraLinear)
    ]
    b = torch.randn(high, 3)
    a = torch.randn(3, wide)
    for layer in made:
        layer.lora_A["default"].weight.data = a.clone()
        layer.lora_B["default"].weight.data = b.clone()
    return made[0], made[1]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_peft(
    bias: bool, needs: bool, dtype: torch.dtype
) -> None:
    """In bfloat16 peft multiplies in float32, and ours rounds what it multiplies to bfloat16."""
    x = torch.randn(2, 4, 6, dtype=dtype)
    slope = torch.randn(2, 4, 5, dtype=dtype)
    found = []
    for layer in layers(bias, dtype):
        given = x.clone().requires_grad_(needs)
        out = layer(given)
        (out * slope).sum().backward()
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        found.append([out.detach(), a.grad, b.grad, *([given.grad] if needs else [])])
    for wanted, got in zip(*found, strict=True):
        assert got.dtype == wanted.dtype
        noise = {} if dtype == torch.float32 else {"rtol": 0.0, "atol": 0.02 * wanted.abs().max()}
        torch.testing.assert_close(got, wanted, **noise)


@pytest.mark.parametrize("bias", [True, False])
def test_a_first_update_shows_in_bfloat16(bias: bool) -> None:
    """Its share of an output is far below what bfloat16 tells apart there, but not on average; and
    summed the other way, or merged, next to nothing of it is left."""
    _, layer = layers(bias, torch.bfloat16, width=512)
    weight = layer.get_base_layer().weight.data.normal_(0, 0.04)
    a, b = layer.lora_A["default"].weight.data, layer.lora_B["default"].weight.data
    a.uniform_(-0.04, 0.04)
    b.copy_(1e-5 * torch.randn(b.shape).sign())
    x = torch.randn(4096, 512).bfloat16()
    wanted = layer.scaling["default"] * (x.float() @ a.T) @ b.T

    def kept(output: torch.Tensor, base: torch.Tensor) -> float:
        return float(((output.float() - base.float()) * wanted).sum() / wanted.square().sum())

    with torch.no_grad():
        adapted = layer(x)
        layer.enable_adapters(False)
        base = layer(x)
        assert 0.8 < kept(adapted, base) < 1.2
        assert kept(base + wanted.bfloat16(), base) < 0.2
        merged = weight + (layer.scaling["default"] * b @ a).bfloat16()
        assert kept(x @ merged.T, x @ weight.T) < 0.2


def test_a_switched_off_or_merged_adapter_is_left_to_peft() -> None:
    x = torch.randn(3, 6)
    for change in (lambda layer: layer.enable_adapters(False), lambda layer: layer.merge()):
        theirs, ours = layers()
        for layer in (theirs, ours):
            change(layer)
        torch.testing.assert_close(ours(x), theirs(x))


def test_every_adapted_layer_of_a_policy_is_ours() -> None:
    policy = tiny_policy()
    kinds = {type(m) for m in policy.model.modules() if isinstance(m, Linear)}
    assert kinds == {LoraLinear}
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        adapted = policy.causal_lm(input_ids=ids).logits
        with merged(policy.model):
            torch.testing.assert_close(policy.causal_lm(input_ids=ids).logits, adapted)
