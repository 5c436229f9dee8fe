"""Weights in blocks: the same model, which decodes the same answers."""

from itertools import chain

import pytest
import torch
from tiny_policy import ARCHITECTURES, tiny_policy

from flowright.policy import packed as packing
from flowright.policy.local import LocalSampler
from flowright.policy.packed import packed, packed_meanwhile
from flowright.policy.sampling import Sampling

PROMPTS = [[70], [60, 61, 62, 63, 64, 65, 66], [90, 91, 92]]


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_packed_policy_is_the_base_model(architecture: str, sharing: bool) -> None:
    policy = tiny_policy(architecture)
    sampling = Sampling(1.0, 1.0, 12, 7)
    before = LocalSampler(policy, 3, trained=False, sharing=sharing).draw(PROMPTS, 2, sampling)
    layers = policy.causal_lm.model.layers
    blocks = packed(policy)
    assert not any(
        parameter.numel()
        for name, parameter in layers.named_parameters()
        if name.endswith("proj.base_layer.weight")
    ), "the weights are there once"
    after = LocalSampler(blocks, 3, trained=False, sharing=sharing).draw(PROMPTS, 2, sampling)
    for one, other in zip(*(chain.from_iterable(x) for x in (before, after)), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("trained", [True, False])
def test_blocks_are_the_weights_of_the_moment_and_go_again(
    dtype: str, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with the adapter, or those before training; then the policy is as it was."""
    monkeypatch.setattr(packing, "LEAST", 1)
    policy = tiny_policy(dtype=dtype)
    decoder, ids = policy.causal_lm.model, torch.tensor([PROMPTS[1]])
    with torch.inference_mode():
        alone = decoder(input_ids=ids).last_hidden_state[0]
        with policy.decoding() if trained else policy.reference():
            expected = decoder(input_ids=ids).last_hidden_state[0]
            with packed_meanwhile(policy) as blocks:
                found = decoder(input_ids=ids).last_hidden_state[0]
                logits = blocks.head.logits(expected)
            close = 1e-5 if dtype == "float32" else 0.02
            torch.testing.assert_close(found, expected, rtol=close, atol=close)
            torch.testing.assert_close(logits, policy.head.logits(expected), rtol=1e-4, atol=1e-4)
        assert torch.equal(decoder(input_ids=ids).last_hidden_state[0], alone)
    assert blocks is not policy and blocks.head is not policy.head


def test_small_layers_stay_as_they_are() -> None:
    policy = tiny_policy()
    with policy.decoding(), packed_meanwhile(policy) as same:
        assert same is policy
        layers = [m for m in policy.causal_lm.model.modules() if "forward" in vars(m)]
        assert not layers


def test_in_bfloat16_logits_are_still_those_of_float32() -> None:
    policy = tiny_policy(dtype="bfloat16")
    with torch.inference_mode(), policy.reference():
        hidden = policy.causal_lm.model(input_ids=torch.tensor([PROMPTS[1]])).last_hidden_state[0]
        expected = hidden.float() @ policy.head.weight.float().T * policy.head.scale
        blocks = packed(policy)
        again = policy.causal_lm.model(input_ids=torch.tensor([PROMPTS[1]])).last_hidden_state[0]
        torch.testing.assert_close(again, hidden, rtol=0.02, atol=0.02)
        torch.testing.assert_close(blocks.head.logits(hidden), expected, rtol=1e-5, atol=1e-5)
