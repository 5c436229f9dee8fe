"""The head: log-probabilities without logits, in which precision, and whose logits these are."""

import pytest
import torch
from hypothesis import given, strategies as st
from tiny_policy import random_groups, tiny_policy, whole_logits

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection
from flowright.core.errors import ConfigError
from flowright.grpo.batch import score
from flowright.grpo.selfcheck import check_sampler, check_sharing
from flowright.policy.head import VOCABULARY_AT_ONCE, Head

HALF = torch.bfloat16


@given(st.integers(1, 12), st.integers(0, 2**31), st.sampled_from([0.5, 1.0]), st.booleans())
def test_the_head_is_a_softmax(
    count: int, seed: int, temperature: float, with_entropy: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 5, generator=generator, requires_grad=True)
    weight = torch.randn(17, 5, generator=generator)
    target = torch.randint(17, (count,), generator=generator)
    logprobs, entropy = Head(weight).logprobs(hidden, target, temperature, with_entropy)
    every = (hidden @ weight.T / temperature).log_softmax(dim=-1)
    chosen = every.gather(1, target[:, None])[:, 0]
    spread = -(every.exp() * every).sum(dim=-1)
    torch.testing.assert_close(logprobs, chosen)
    torch.testing.assert_close(entropy, spread)
    weights = torch.randn(count, generator=generator)
    share = 0.7 if with_entropy else 0.0
    (found,) = torch.autograd.grad((weights * (logprobs + share * entropy)).sum(), hidden)
    (wanted,) = torch.autograd.grad((weights * (chosen + share * spread)).sum(), hidden)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_head_that_is_trained_is_refused() -> None:
    weight = torch.zeros(4, 2, requires_grad=True)
    with pytest.raises(ValueError, match="the head is trained"):
        Head(weight).logprobs(torch.zeros(1, 2), torch.tensor([0]), 1.0)
    for name in ("lm_head", "embed_tokens"):
        with pytest.raises(ValueError, match=f"{name} stays frozen"):
            LoraSection(target_modules=("q_proj", name))


@pytest.mark.parametrize("p", [0.99, 0.995, 0.998])
def test_in_bfloat16_a_confident_token_has_its_gradient(p: float) -> None:
    """Found by autograd in float32; a difference of two products in bfloat16 is off by up to 1."""
    draw = torch.Generator().manual_seed(0)
    weight = (0.02 * torch.randn(4096, 512, generator=draw)).to(HALF)
    target = torch.arange(16)
    hidden = weight[target].float()
    hidden /= hidden.square().sum(dim=1, keepdim=True)
    low, high = 0.0, 40.0  # how far along its token's weights h has to lie for that probability
    for _ in range(40):
        middle = (low + high) / 2
        logits = middle * hidden @ weight.float().T
        confident = float(logits.softmax(dim=1).gather(1, target[:, None]).mean()) > p
        low, high = (low, middle) if confident else (middle, high)
    given = (middle * hidden).to(HALF).requires_grad_()
    plain = given.detach().float().requires_grad_()
    Head(weight).logprobs(given, target, 1.0)[0].sum().backward()
    every = (plain @ weight.float().T).log_softmax(dim=1)
    every.gather(1, target[:, None]).sum().backward()
    assert given.grad is not None and plain.grad is not None
    assert float((given.grad - plain.grad).norm() / plain.grad.norm()) < 0.01


def test_logits_of_a_bfloat16_model_are_not_rounded_unless_so_configured() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCABULARY_AT_ONCE + 3, 64, generator=draw).to(HALF)
    hidden = torch.randn(5, 64, generator=draw).to(HALF)
    exact = hidden.float() @ weight.float().T
    torch.testing.assert_close(Head(weight).logits(hidden), exact)
    rounded = Head(weight, in_float32=False).logits(hidden)
    assert torch.equal(rounded, rounded.to(HALF).float())
    assert not torch.equal(rounded, exact)
    assert tiny_policy(dtype="bfloat16").head.in_float32
    assert not tiny_policy(dtype="bfloat16", head_dtype="bfloat16").head.in_float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("architecture", "scale"), [("qwen2", 1.0), ("granite", 1 / 8), ("cohere", 1 / 16)]
)
def test_logits_are_those_of_the_model(architecture: str, scale: float, dtype: str) -> None:
    policy = tiny_policy(architecture, dtype=dtype)
    assert policy.head.scale == pytest.approx(scale, rel=1e-3)
    check_sharing(policy, GrpoSection())
    for sharing in (True, False):
        check_sampler(policy, GrpoSection(prefix_sharing=sharing), 0.7)
    (group,) = random_groups(3, [(5, [4])])
    (sample,) = group.samples
    (found,) = score(policy, [group], GrpoSection(), 1.0)
    own = whole_logits(policy, [*group.prompt_ids, *sample.token_ids])[4:-1].float()
    wanted = own.log_softmax(dim=1).gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.0, "atol": 0.3}
    torch.testing.assert_close(found, wanted, **close)


@pytest.mark.parametrize(
    ("architecture", "told"),
    [("gemma3", "Gemma3ForCausalLM caps its logits"), ("phi", "PhiForCausalLM's logits are not")],
)
def test_logits_that_are_something_else_are_refused_by_name(architecture: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"strategy_model: {told}.*choose another"):
        tiny_policy(architecture)
