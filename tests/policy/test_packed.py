"""Weights in blocks: the same model, which decodes the same answers."""

from itertools import chain

import pytest
import torch
from tiny_policy import ARCHITECTURES, tiny_policy

from flowright.policy.local import LocalSampler
from flowright.policy.packed import packed
from flowright.policy.sampler import Sampling

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


def test_in_bfloat16_logits_are_still_those_of_float32() -> None:
    policy = tiny_policy(dtype="bfloat16")
    with torch.inference_mode(), policy.reference():
        hidden = policy.causal_lm.model(input_ids=torch.tensor([PROMPTS[1]])).last_hidden_state[0]
        expected = hidden.float() @ policy.head.weight.float().T * policy.head.scale
        blocks = packed(policy)
        again = policy.causal_lm.model(input_ids=torch.tensor([PROMPTS[1]])).last_hidden_state[0]
        torch.testing.assert_close(again, hidden, rtol=0.02, atol=0.02)
        torch.testing.assert_close(blocks.head.logits(hidden), expected, rtol=1e-5, atol=1e-5)
