"""What is computed in which precision."""

from typing import Any

import pytest
import torch
from tiny_policy import SHAPE, random_groups, tiny_policy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Qwen2Config

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import RunError
from flowright.grpo.learner import Learner
from flowright.grpo.selfcheck import check_sharing
from flowright.policy.model import Policy, policy_of, recomputing
from flowright.policy.prefix.tree import chunks


class Products(TorchDispatchMode):
    """Notes in which precision matrices are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.dtypes.add(args[0].dtype)
        return func(*args, **kwargs or {})


def test_in_bfloat16_the_adapter_is_float32_and_its_products_are_not() -> None:
    policy = tiny_policy(dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.trainable()} == {torch.float32}
    with Products() as products:
        for hidden_N, _ in chunks(policy, random_groups(0, [(3, [2])]), 16, sharing=True):
            hidden_N.sum().backward()
    assert products.dtypes == {torch.bfloat16}
    gradients = [parameter.grad for parameter in policy.trainable()]
    assert all(g is not None and g.dtype == torch.float32 for g in gradients)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_the_self_check_passes_in_bfloat16(gradient_checkpointing: bool) -> None:
    policy = tiny_policy(dtype="bfloat16", gradient_checkpointing=gradient_checkpointing)
    with recomputing(policy):
        check_sharing(policy, GrpoSection())


def deep_policy(seed: int, depth: int = 24) -> Policy:
    """A random model in bfloat16 whose every layer multiplies the rounding of those below it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = SHAPE | {"num_hidden_layers": depth, "initializer_range": 0.3}
        base = AutoModelForCausalLM.from_config(Qwen2Config(**shape)).to(torch.bfloat16)
    section = PolicySection(device="cpu", dtype="bfloat16", lora=LoraSection(rank=4, alpha=8))
    return policy_of(base, tiny_policy().tokenizer, section, 0, "deep")


def test_a_deep_model_in_bfloat16_passes_the_self_check() -> None:
    """Whose paths, both sound, differ by far more than 10 % of their largest gradient."""
    for seed in (0, 1):
        policy = deep_policy(seed)
        before = [weight.clone() for weight in policy.model.parameters()]
        numbers = [layer.self_attn.layer_idx for layer in policy.causal_lm.model.layers]
        check_sharing(policy, GrpoSection())
        after = [*policy.model.parameters()]
        assert all(
            torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, after, strict=True)
        )
        assert [layer.self_attn.layer_idx for layer in policy.causal_lm.model.layers] == numbers
    groups = random_groups(0, [(30, [4, 6, 7]), (25, [9])])
    paths = []
    for sharing in (True, False):
        for hidden_N, _ in chunks(policy, groups, 64, sharing):
            hidden_N.float().square().sum().backward()
        paths.append(torch.cat([p.grad.flatten() for p in policy.trainable()]))
        policy.model.zero_grad()
    assert float((paths[0] - paths[1]).abs().max() / paths[1].abs().max()) > 0.1


@pytest.mark.parametrize("number", [0, 9, 23])
def test_an_error_of_5_percent_in_one_layer_of_a_deep_model_is_refused(number: int) -> None:
    policy = deep_policy(0)

    def wrong(module: object, arguments: object, keywords: dict, output: tuple) -> tuple:
        return (output[0] * 1.05, *output[1:]) if "tree" in keywords else output

    layer = policy.causal_lm.model.layers[number].self_attn
    layer.register_forward_hook(wrong, with_kwargs=True)
    with pytest.raises(RunError, match=f"layer {number}: gradients differ from float32's"):
        check_sharing(policy, GrpoSection())


def test_small_steps_are_not_lost_in_bfloat16() -> None:
    """Of 1e-5 on weights of 0.1, which bfloat16 could not hold."""
    policy = tiny_policy(dtype="bfloat16")
    before = [parameter.detach().clone() for parameter in policy.trainable()]
    section = GrpoSection(learning_rate=1e-5, kl_coefficient=0.0)
    Learner(policy, section, 1.0, 0).update(random_groups(0, [(5, [3, 4])]), 1, 8)
    moved = [(a != b).float().mean() for a, b in zip(before, policy.trainable(), strict=True)]
    assert torch.stack(moved).mean() > 0.9


def test_products_in_float32_are_exact() -> None:
    tiny_policy()
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
