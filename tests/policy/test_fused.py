"""The fused work between a decoder's products is what transformers' modules compute."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_policy import ARCHITECTURES, random_groups, tiny_policy
from torch import Tensor, nn
from transformers.models.qwen2 import modeling_qwen2 as theirs

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection
from flowright.grpo.selfcheck import check_adapter, check_sampler
from flowright.policy import decoder_layers, fused
from flowright.policy.lora import LoraLinear, cast_once
from flowright.policy.model import Policy, recomputing
from flowright.policy.prefix.attention import merged
from flowright.policy.prefix.tree import chunks

HALF = torch.bfloat16


def draw(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def calls() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Each fused function, with arguments of sizes that no other has."""
    angles = [torch.cat((x, x), -1) for x in (draw(1, 5, 8).cos(), draw(1, 5, 8).sin())]
    pieces = [(draw(4, 9, 16, seed=n), draw(4, 9, dtype=torch.float32, seed=n)) for n in range(3)]
    return [
        (fused.sum_norm, (draw(1, 11, 64), None, draw(64, seed=1), 1e-6)),
        (fused.sum_norm, (draw(1, 12, 64), draw(1, 12, 64, seed=1), draw(64, seed=2), 1e-6)),
        (
            fused.norm_backward,
            (*(draw(1, 13, 64, seed=n) for n in range(3)), draw(64, seed=4), 1e-6),
        ),
        (fused.rotate, (draw(1, 5, 48), draw(48, seed=1), *angles)),
        (fused.rotate_backward, (draw(1, 7, 5, 16), *angles)),
        (fused.swiglu, (draw(1, 14, 96), draw(1, 14, 96, seed=1))),
        (fused.rounded_sum, (draw(13, 96).float(), draw(13, 96, seed=1))),
        (fused.swiglu_backward, tuple(draw(1, 15, 96, seed=n) for n in range(3))),
        (merged, tuple(pieces)),
    ]


def test_what_is_compiled_computes_the_same() -> None:
    """As traced, before any kernel is written: a C++ compiler is not everywhere, and a test of
    Triton's kernels needs a GPU."""
    functions = [function for function, _ in calls()]
    arguments = [some for _, some in calls()]

    def everything(arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [f(*some) for f, some in zip(functions, arguments, strict=True)]

    found = torch.compile(everything, fullgraph=True, backend="aot_eager")(arguments)
    torch.testing.assert_close(found, everything(arguments), rtol=2**-7, atol=1e-3)


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Functions as ``TORCHDYNAMO_DISABLE=1`` runs them."""
    fused.compiled.cache_clear()
    with torch._dynamo.config.patch(disable=True):
        yield
    fused.compiled.cache_clear()


def grads_of(outputs: Any, inputs: list[Tensor]) -> list[Tensor]:
    roots = [out for out in outputs if out.requires_grad]
    slopes = [draw(*out.shape, dtype=out.dtype, seed=9 + n) for n, out in enumerate(roots)]
    return [*torch.autograd.grad(roots, inputs, slopes)]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_rounding_is_that_of_transformers(dtype: torch.dtype) -> None:
    x, y, gate, up, product = (
        draw(1, 6, 32, dtype=dtype, seed=n).requires_grad_() for n in range(5)
    )
    bias = draw(32, dtype=dtype, seed=6)
    module = theirs.Qwen2RMSNorm(32).to(dtype)
    module.weight = torch.nn.Parameter(draw(32, dtype=dtype, seed=7), requires_grad=False)
    angles = [torch.cat((a, a), -1).to(dtype) for a in (draw(1, 6, 4).cos(), draw(1, 6, 4).sin())]
    heads = (product + bias).unflatten(-1, (-1, 8)).transpose(1, 2)
    rotated = theirs.apply_rotary_pos_emb(heads, heads, *angles)[0]
    wanted = (x + y, module(x + y), module(x), torch.nn.functional.silu(gate) * up, rotated)
    found = (
        *decoder_layers._normed(module, (x, y)),
        decoder_layers._norm(module, x),
        fused.SwiGlu.apply(gate, up),
        fused.Rotate.apply(product, bias, *angles),
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    inputs = [x, y, gate, up, product]
    for one, other in zip(grads_of(found, inputs), grads_of(wanted, inputs), strict=True):
        rtol = 1e-4 if dtype == torch.float32 else 2**-6
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol * float(other.abs().max()))


def is_fused(policy: Policy) -> bool:
    return any(hasattr(module, "joints") for module in policy.model.modules())


def learned(policy: Policy, sharing: bool) -> list[Tensor]:
    """Return hidden states of all completions, and their gradients of the adapter."""
    groups = random_groups(0, [(20, [3, 5]), (24, [4, 1])])
    found = []
    for hidden_N, _ in chunks(policy, groups, 64, sharing):
        (hidden_N * draw(*hidden_N.shape, dtype=hidden_N.dtype)).sum().backward()
        found.append(hidden_N.detach())
    return [*found, *(p.grad for p in policy.trainable() if p.grad is not None)]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_learn_the_same(architecture: str, sharing: bool) -> None:
    policy = tiny_policy(architecture)
    other = deepcopy(policy)
    decoder_layers.fuse(other.causal_lm.model)
    assert is_fused(other)
    with other.reference(), policy.reference(), torch.no_grad():
        ids = torch.arange(5, 20)[None]
        torch.testing.assert_close(other.causal_lm(ids).logits, policy.causal_lm(ids).logits)
    pairs = zip(learned(other, sharing), learned(policy, sharing), strict=True)
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sampler_draws_what_it_learns(architecture: str, dtype: str) -> None:
    policy = tiny_policy(architecture, dtype=dtype)
    decoder_layers.fuse(policy.causal_lm.model)
    check_sampler(policy, GrpoSection(), 0.8)


@pytest.mark.usefixtures("uncompiled")
def test_a_family_that_is_not_known_stays_as_it_is() -> None:
    policy = tiny_policy("granite")
    decoder_layers.fuse(policy.causal_lm.model)
    assert not is_fused(policy)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("fuse", [True, False])
def test_checkpointed_layers_are_recomputed(fuse: bool) -> None:
    policy = tiny_policy(gradient_checkpointing=True)
    decoder = policy.causal_lm.model
    if fuse:
        decoder_layers.fuse(decoder)
    runs: list[int] = []
    decoder.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda *_: runs.append(1))
    with recomputing(policy):
        decoder(torch.arange(5, 20)[None], use_cache=False).last_hidden_state.sum().backward()
    assert len(runs) == 2


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rank", [4, 3])  # 3: rows end between two reads of 16 bytes
def test_layers_of_one_input_multiply_once(rank: int, split: bool) -> None:
    """In bfloat16, with what a first update adds to an adapter, which one rounding leaves."""
    policy = tiny_policy(dtype="bfloat16", lora=LoraSection(rank=rank, alpha=2 * rank))
    layers = policy.causal_lm.model.layers
    plain = [
        [m.weight.clone() for m in layer.modules() if type(m) is nn.Linear] for layer in layers
    ]
    decoder_layers.fuse(policy.causal_lm.model, split)
    check_adapter(policy, 1e-5)
    for layer, before in zip(layers, plain, strict=True):
        after = [m.weight for m in layer.modules() if type(m) is nn.Linear]
        assert all(torch.equal(one, other) for one, other in zip(after, before, strict=True))
        joints = (*layer.joints, layer.self_attn.o_proj.joint, layer.mlp.down_proj.joint)
        for joint in joints:
            assert (joint.whole is None) is split
            x = draw(1, 6, joint._own[0].in_features)
            training = joint(x)
            with torch.no_grad(), cast_once(policy.model):
                decoding = joint(x)
            apart = [LoraLinear.forward(m, x) for m in joint._layers] if len(training) > 1 else []
            for (one, bias), (other, _) in zip(training, decoding, strict=True):
                torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6)
                assert bias is None or apart
            for (one, bias), other in zip(training, apart, strict=False):
                one = one if bias is None else one + bias
                torch.testing.assert_close(one, other, rtol=2**-5, atol=2**-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_fused_policy_is_saved_as_it_is(dtype: str, tmp_path: Path) -> None:
    policies = [tiny_policy(dtype=dtype) for _ in range(2)]
    decoder_layers.fuse(policies[0].causal_lm.model)
    for number, policy in enumerate(policies):
        policy.save_merged(tmp_path / str(number))
    one, other = (load_file(tmp_path / str(n) / "model.safetensors") for n in range(2))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
