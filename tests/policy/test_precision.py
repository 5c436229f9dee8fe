"""What is computed in which precision."""

from typing import Any

import pytest
import torch
from tiny_policy import random_groups, tiny_policy
from torch.utils._python_dispatch import TorchDispatchMode

from flowright.config.grpo import GrpoSection
from flowright.grpo.learner import Learner
from flowright.grpo.selfcheck import check_sharing
from flowright.policy.model import recomputing
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
