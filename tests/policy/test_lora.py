"""The adapted linear layer computes what peft's does."""

from copy import deepcopy

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora import Linear
from tiny_policy import tiny_policy

from flowright.policy.lora import LoraLinear
from flowright.policy.model import merged


def layers(bias: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Linear, Linear]:
    """peft's layer and ours, with the same weights."""
    torch.manual_seed(0)
    base = torch.nn.Linear(6, 5, bias=bias, dtype=dtype).requires_grad_(False)
    config = LoraConfig(r=3, lora_alpha=6)
    made = [
        kind(deepcopy(base), "default", config, r=3, lora_alpha=6) for kind in (Linear, LoraLinear)
    ]
    b = torch.randn(5, 3)
    a = torch.randn(3, 6)
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
        with merged(policy):
            torch.testing.assert_close(policy.causal_lm(input_ids=ids).logits, adapted)
