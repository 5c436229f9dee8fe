"""A real server's adapters: loaded while it runs, proven, and the learner's token by token."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from real_vllm import POLICY, RealVllm, served_models
from tiny_policy import shake, weights, whole_logits

from flowright.config.policy import LoraSection, PolicySection, VllmSection
from flowright.core.errors import RunError
from flowright.policy.model import Policy, load_policy
from flowright.policy.sampling import Sample, Sampling
from flowright.policy.vllm.sampler import VllmSampler
from flowright.policy.vllm.server import check_servers

pytestmark = pytest.mark.real

PROMPTS = [list(range(60, 90)), list(range(300, 420))]
SIZES = ((4, 0.003), (8, 0.01), (16, 0.03), (64, 0.05))
"""Ranks of adapters, and the spread of their random weights."""


def section(server: RealVllm, rank: int = 8, temperature: float = 1.0) -> PolicySection:
    return PolicySection(
        device="cpu",
        sampler="vllm",
        max_prompt_tokens=144,
        max_new_tokens=24,
        lora=LoraSection(rank=rank, alpha=2 * rank),
        vllm=VllmSection(base_urls=(server.url,), model_name=POLICY, wait_seconds=30.0),
        temperature=temperature,
    )


@asynccontextmanager
async def sampled(
    policy: Policy, server: RealVllm, folder: Path, rank: int = 8, temperature: float = 1.0
) -> AsyncIterator[VllmSampler]:
    sampler = VllmSampler(policy, section(server, rank, temperature), POLICY, folder)
    try:
        yield sampler
    finally:
        await sampler.aclose()


def opened(folder: str, server: RealVllm, rank: int = 8) -> Policy:
    return load_policy(folder, section(server, rank), seed=rank)


def apart(policy: Policy, prompt: list[int], sample: Sample, temperature: float) -> torch.Tensor:
    """Of each token drawn, the server's log-probability beside the learner's."""
    logits = whole_logits(policy, [*prompt, *sample.token_ids])[len(prompt) - 1 : -1]
    rows = (logits.double() / temperature).log_softmax(-1)
    ours = rows.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
    return (torch.tensor(sample.logprobs, dtype=torch.float64) - ours).abs()


async def test_the_server_can_be_trained_against(policy_server: RealVllm) -> None:
    assert await check_servers(section(policy_server, temperature=0.7), POLICY) == []


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_four_adapters_are_the_learners_token_by_token(
    temperature: float,
    policy_server: RealVllm,
    policy_folder: str,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    for rank, spread in SIZES:
        policy = opened(policy_folder, policy_server, rank)
        shake(policy, seed=rank, scale=spread)
        server = sampled(policy, policy_server, tmp_path / str(rank), rank, temperature)
        async with server as sampler:
            await sampler.refresh(1)
            drawn = await sampler.sample(PROMPTS, 4, Sampling(temperature, 1.0, 24, seed=rank))
        found = torch.cat(
            [
                apart(policy, prompt, sample, temperature)
                for prompt, group in zip(PROMPTS, drawn, strict=True)
                for sample in group
            ]
        )
        figure(
            f"adapter of rank {rank}, spread {spread:g}, temperature {temperature:g}: mean "
            f"{found.mean():.1e}, max {found.max():.1e} nats a token over {len(found)} tokens"
        )
        assert len(found) > 50 and float(found.max()) < 1e-4
    assert served_models(policy_server.url) == [POLICY], "each is gone with its sampler"


async def test_each_version_is_sampled_from_and_the_base_beside_it(
    policy_server: RealVllm, policy_folder: str, tmp_path: Path
) -> None:
    policy = opened(policy_folder, policy_server)
    plain = Sampling(1.0, 1.0, 24, 0)
    async with sampled(policy, policy_server, tmp_path) as sampler:
        for version in range(4):
            shake(policy, seed=version, scale=0.02)
            await sampler.refresh(version)
            ((sample,),) = await sampler.sample(PROMPTS[:1], 1, plain)
            assert sample.version == version
            assert float(apart(policy, PROMPTS[0], sample, 1.0).max()) < 1e-4
        ((before,),) = await sampler.untrained().sample(PROMPTS[:1], 1, plain)
        adapters = [name for name in served_models(policy_server.url) if name != POLICY]
        assert len(adapters) == 2, "policy.vllm.max_loras"
    assert float(apart(policy, PROMPTS[0], before, 1.0).max()) > 0.1
    with policy.reference():
        assert float(apart(policy, PROMPTS[0], before, 1.0).max()) < 1e-4


def stuck(policy: Policy, kept: list[dict[str, torch.Tensor]]) -> Policy:
    """The same learner, whose files hold what is ``kept``, once something is."""

    class Stuck(Policy):
        def save(self, folder: Path, state: Mapping[str, torch.Tensor] | None = None) -> None:
            now = weights(policy)
            policy.load(kept[0] if kept else now)
            policy.save(folder)
            policy.load(now)

    return Stuck(**{field.name: getattr(policy, field.name) for field in fields(policy)})


async def test_an_adapter_that_is_not_the_learners_is_refused(
    policy_server: RealVllm, policy_folder: str, tmp_path: Path
) -> None:
    kept: list[dict[str, torch.Tensor]] = []
    policy = stuck(opened(policy_folder, policy_server), kept)
    async with sampled(policy, policy_server, tmp_path) as sampler:
        await sampler.refresh(0)
        kept.append(weights(policy))
        shake(policy, scale=0.03)
        with pytest.raises(RunError, match="it does not serve version 1"):
            await sampler.refresh(1)


async def test_another_base_model_is_refused(
    policy_server: RealVllm, policy_folder: str, tmp_path: Path
) -> None:
    policy = opened(policy_folder, policy_server)
    with torch.no_grad():
        policy.causal_lm.get_input_embeddings().weight.mul_(1.5)
    async with sampled(policy, policy_server, tmp_path) as sampler:
        with pytest.raises(RunError, match="its base model is not the learner's"):
            await sampler.refresh(0)


async def test_a_rank_above_the_servers_is_named(
    policy_server: RealVllm, policy_folder: str, tmp_path: Path
) -> None:
    policy = opened(policy_folder, policy_server, rank=96)
    async with sampled(policy, policy_server, tmp_path, rank=96) as sampler:
        with pytest.raises(RunError, match=r"--max-lora-rank 128 or above, or lower policy\.lora"):
            await sampler.refresh(0)
