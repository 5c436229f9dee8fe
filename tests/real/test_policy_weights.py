"""A real server's weights, all exchanged: proven, and the learner's token by token."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from real_vllm import RealVllm
from tiny_policy import shake
from vllm_bench import expected

from flowright.config.policy import PolicySection, VllmSection
from flowright.policy.model import Policy, load_policy
from flowright.policy.sampling import Sample, Sampling
from flowright.policy.vllm.sampler import VllmSampler
from flowright.policy.vllm.server import check_servers

pytestmark = pytest.mark.real

PROMPTS = [list(range(60, 90)), list(range(300, 420))]
MOST = 1e-3
"""Nats a token, of thirty layers in float32."""


def apart(policy: Policy, prompt: list[int], sample: Sample) -> torch.Tensor:
    """Of each token drawn, the server's log-probability beside the learner's."""
    return (torch.tensor(sample.logprobs) - torch.tensor(expected(policy, prompt, sample))).abs()


async def test_all_weights_of_smollm2_are_the_learners_through_exchanges_and_a_restart(
    exchanging: RealVllm, large_folder: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    section = PolicySection(
        train="full",
        device="cpu",
        sampler="vllm",
        max_prompt_tokens=144,
        max_new_tokens=24,
        vllm=VllmSection(
            base_urls=(exchanging.url,), model_name=exchanging.name, wait_seconds=60.0
        ),
    )
    assert await check_servers(section, exchanging.name) == []
    policy = load_policy(large_folder, section, seed=0)
    sampler = VllmSampler(policy, section, exchanging.name, tmp_path)
    how = Sampling(1.0, 1.0, 24, 5)

    async def check(version: int, note: str) -> None:
        groups = await sampler.sample(PROMPTS, 2, how)
        drawn = [(p, s) for p, group in zip(PROMPTS, groups, strict=True) for s in group]
        found = torch.cat([apart(policy, prompt, sample) for prompt, sample in drawn])
        proof = sampler.metrics["policy/proof_gap"]
        figure(
            f"all weights, version {version}{note}: mean {found.mean():.1e}, max {found.max():.1e} "
            f"nats a token over {len(found)} tokens; proof {proof:.1e}"
        )
        assert {sample.version for _, sample in drawn} == {version}
        assert float(found.max()) < MOST

    try:
        await sampler.refresh(0)
        for version in (1, 2):
            shake(policy, seed=version, scale=0.002)
            began = time.monotonic()
            await sampler.refresh(version)
            figure(f"version {version} is served and proven after {time.monotonic() - began:.1f} s")
            assert sampler.metrics["policy/proof_decided"] == 1.0
            await check(version, "")
        ((before,),) = await sampler.untrained().sample(PROMPTS[:1], 1, how)
        assert float(apart(policy, PROMPTS[0], before).max()) > 0.1
        with policy.reference():
            assert float(apart(policy, PROMPTS[0], before).max()) < MOST
        await check(2, ", after the untrained weights")
        exchanging.stop()
        exchanging.start()
        await check(2, ", after a restart")
    finally:
        await sampler.aclose()
