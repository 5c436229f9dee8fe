"""A policy, its vLLM sampler and doubles of its servers, for tests/policy/test_vllm_*.py."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny_policy import shake, tiny_policy, weights, whole_logits
from torch import Tensor
from vllm_double import BASE, VllmDouble, configured

from flowright.core.errors import RunError
from flowright.policy.model import Policy
from flowright.policy.sampling import Sample, Sampling
from flowright.policy.vllm.proof import Proof
from flowright.policy.vllm.sampler import VllmSampler

PROMPTS = [[70], [60, 61, 62, 63]]
PLAIN = Sampling(1.0, 1.0, 6, 7)
SMALL = 3e-5
"""A change of the adapter that moves log-probabilities by less than the tolerance."""


class Bench:
    """A policy, its sampler and the servers."""

    def __init__(self, policy: Policy, sampler: VllmSampler, servers: Sequence[VllmDouble]) -> None:
        self.policy = policy
        self.sampler = sampler
        self.servers = servers
        self.server = servers[0]

    @property
    def proofs(self) -> dict[str, Proof]:
        """The newest proof of each server that has given one."""
        name = self.sampler._kept[-1].name
        found = {url: s.proof(name) for url, s in self.sampler._fleet.servers.items()}
        return {url: proof for url, proof in found.items() if proof is not None}

    async def train(self, version: int, scale: float = 0.1) -> None:
        """Change the adapter and publish it."""
        shake(self.policy, seed=version, scale=scale)
        await self.sampler.refresh(version)

    async def draw(self, n: int = 2, sampling: Sampling = PLAIN) -> list[Sample]:
        groups = await self.sampler.sample(PROMPTS, n, sampling)
        assert [len(group) for group in groups] == [n] * len(PROMPTS)
        return [sample for group in groups for sample in group]


@cache
def learner(full: bool = False) -> tuple[Policy, dict[str, Tensor]]:
    """One policy for all tests, and its untrained weights."""
    policy = tiny_policy(trained=False, **({"train": "full"} if full else {}))
    return policy, weights(policy)


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that opens servers and a sampler over them; ``servers`` are doubles to be
    started."""
    async with AsyncExitStack() as stack:

        async def make(*servers: VllmDouble, **section: Any) -> Bench:
            started = [await stack.enter_async_context(s) for s in servers or (VllmDouble(),)]
            policy, fresh = learner(started[0].dev_mode)
            policy.load(fresh)
            policy.causal_lm.generation_config.eos_token_id = 2
            sampler = VllmSampler(policy, configured(*started, **section), BASE, folder)
            stack.push_async_callback(sampler.aclose)
            return Bench(policy, sampler, started)

        yield make


def expected(
    policy: Policy, prompt: Sequence[int], sample: Sample, temperature: float = 1.0
) -> list[float]:
    logits = whole_logits(policy, [*prompt, *sample.token_ids]) / temperature
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return [rows[t, id_].item() for t, id_ in enumerate(sample.token_ids)]


def prompt_of(index: int, n: int = 2) -> list[int]:
    return PROMPTS[index // n]


async def refused(bench: Bench, version: int = 1, scale: float = 0.1) -> str:
    """Return the error of the next refresh; no sample was drawn, the old version stays."""
    before = bench.sampler.version
    with pytest.raises(RunError) as caught:
        await bench.train(version, scale)
    assert bench.sampler.version == before
    assert not any(server.draws for server in bench.servers)
    return str(caught.value)
