"""Sampling from vLLM servers that get each step's weights and must prove that they use them.

Weights that never reach the sampler cause no error: rewards continue, and nothing is learnt. So
each version has a path and a name of its own (an adapter's are the keys of vLLM's prefix cache),
every server scores a probe text before it samples, and every reply is checked. Weights without
proof end the run and are never sampled from (:mod:`flowright.policy.vllm.proof`).
"""

import asyncio
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from flowright.config.policy import PolicySection
from flowright.core.batch_calls import all_of
from flowright.core.errors import RunError
from flowright.core.files import disk_errors
from flowright.llm.counters import Counters
from flowright.llm.transport import CONNECT_SECONDS
from flowright.policy.model import Peers, Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Draw, Sample, Sampling
from flowright.policy.vllm.proof import (
    ROUNDING,
    Known,
    Probe,
    Proof,
    Weights,
    learner_scores,
    probe_texts,
    trial_scores,
)
from flowright.policy.vllm.requests import Drawn
from flowright.policy.vllm.server import ROLE, PolicyFleet, PolicyServer
from flowright.runs.run_files import step_name


class VllmSampler:
    """A :class:`flowright.policy.sampling.Sampler` over one or several servers, which serve
    ``model``, the policy's base. ``folder`` belongs to this run alone, and the servers see it under
    the same path. For one event loop.

    Of several ``peers`` the first writes each adapter. Those that share its servers do not
    ``publish`` but take over its proofs; a server that restarts is made ready by any of them."""

    batches = False

    def __init__(
        self,
        policy: Policy,
        section: PolicySection,
        model: str,
        folder: Path,
        peers: Peers | None = None,
        publishes: bool = True,
    ) -> None:
        self._policy = policy
        self._peers = peers or Peers()
        self._publishes = publishes
        self._model = model
        self._folder = folder.absolute()
        self._most = 1 if section.train == "full" else section.vllm.max_loras
        self._fleet = PolicyFleet(section, model)
        self.counters: Sequence[Counters] = (self._fleet.counters,)
        self._texts = tuple(tuple(text) for text in probe_texts(policy))
        self._trial: Weights | None = None
        self._base: Weights | None = None
        self._kept: list[Weights] = []  # on the servers, the newest last
        self._earlier: list[Known] = []
        self._in_use: Counter[str] = Counter()

    @property
    def version(self) -> int:
        return self._kept[-1].version if self._kept else 0

    async def aclose(self) -> None:
        """Remove this run's adapters from the servers that can be reached, and all weights from the
        disk."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._drop(set())
        await self._fleet.aclose()
        if self._peers.is_first:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def refresh(self, version: int) -> None:
        """Write the weights to a new folder, have them loaded and proven, then drop the oldest.

        Raises RunError if no server proves within ``wait_seconds`` that it serves them, and at once
        if one serves something else. Until this returns, samples are drawn from the version before,
        and the weights must not change. Called by all ``peers``.
        """
        if self._trial is None:
            trial = await self._written(self._save_trial)
            # Under names of their own, several processes can try a server at the same time.
            self._trial = replace(trial, name=f"flowright-trial-{secrets.token_hex(4)}")
        weights = await self._written(partial(self._save, f"version {version}", version))
        shares = await self._peers.gather_results(self._published(weights))
        if not self._publishes:
            for url, proof in shares[0][0].items():
                self._fleet.servers[url].shared_proofs[weights.name] = proof
            await self._fleet.publish(weights, self._probe())
        self._kept.append(weights)
        self._earlier.append(weights.known)
        await self._retire({name for _, in_use in shares for name in in_use})

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
        weights: Weights | None = None,
    ) -> list[list[Sample]]:
        """See :class:`flowright.policy.sampling.Sampler`: one request a completion, each with a
        seed of its own, from ``weights`` or else the version that is served when the call begins;
        with ``sampling.part_tokens`` one a part, from the version that is served when it begins.
        Raises RunPaused and RunError as :meth:`flowright.policy.vllm.fleet.Fleet.ask`."""
        if weights is None:
            if not self._kept:
                raise RunError("policy.sampler: nothing was published yet; refresh comes first")
            weights = self._kept[-1]
        else:
            sampling = replace(sampling, part_tokens=0)
        await self.base_weights()
        probe = self._probe()
        places = range(len(prompts)) if places is None else places
        with self._using(weights):
            samples = await all_of(
                self._one(weights, probe, prompt, replace(sampling, seed=seed))
                for p, prompt in zip(places, prompts, strict=True)
                for seed in (_seed(sampling.seed, p, g) for g in range(n))
            )
        return [samples[i : i + n] for i in range(0, len(samples), n)]

    def for_episodes(self, sets: int) -> Draw:
        """The servers keep what they computed of earlier turns."""
        return self.sample

    def untrained(self) -> "UntrainedSampler":
        """Return a sampler of the base model, on the same servers."""
        return UntrainedSampler(self)

    async def _one(
        self, weights: Weights, probe: Probe, prompt: Sequence[int], sampling: Sampling
    ) -> Sample:
        """Draw a completion, part by part: a part's prompt ends with the parts before it, and its
        seed depends on their length."""
        most, seed = sampling.part_tokens or sampling.max_new_tokens, sampling.seed
        drawn, versions = Drawn((), (), "length"), Counter[int]()
        while drawn.finish_reason == "length" and len(drawn.token_ids) < sampling.max_new_tokens:
            begun = len(drawn.token_ids)
            if begun:
                weights, probe, seed = self._kept[-1], self._probe(), _seed(sampling.seed, begun)
            size = min(most, sampling.max_new_tokens - begun)
            how = replace(sampling, max_new_tokens=size, seed=seed)
            part = await self._part(weights, probe, (*prompt, *drawn.token_ids), how)
            drawn = part.behind(drawn)
            versions[weights.version] += len(part.token_ids)
        self._fleet.counters.role(ROLE).replied(len(prompt), len(drawn.token_ids))
        return Sample(
            drawn.token_ids,
            drawn.logprobs,
            self._policy.text_of(drawn.token_ids),
            drawn.finish_reason,
            min(versions),
            tuple(versions.items()) if len(versions) > 1 else (),
        )

    async def _part(
        self, weights: Weights, probe: Probe, prompt: Sequence[int], sampling: Sampling
    ) -> Drawn:
        async def work(server: PolicyServer) -> Drawn:
            return await server.draw(weights, probe, prompt, sampling)

        with self._using(weights):
            return await self._fleet.ask(str(sampling.seed), work)

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._fleet.proof_metrics(self._kept[-1].name) if self._kept else {}

    async def _written(self, save: Callable[[], Weights]) -> Weights:
        """Return what the first process saved. Raises RunError if another has other weights."""
        found = await self._peers.gather_results(on_model_thread(save))
        scores = [weights.known.scores for weights in found]
        apart = max(float((one - scores[0]).square().mean()) ** 0.5 for one in scores)
        if not apart <= ROUNDING:
            raise RunError(
                "policy.sampler: the processes of this run have different weights, "
                f"{apart:.3g} nats a token apart; go on from a checkpoint with --resume"
            )
        return found[0]

    async def _published(self, weights: Weights) -> tuple[Mapping[str, Proof], list[str]]:
        """Return the servers' proofs, and the names that this process samples from."""
        if self._publishes:
            await self._fleet.publish(weights, self._probe())
        return self._fleet.proofs(weights.name), [name for name, n in self._in_use.items() if n]

    def _save(self, name: str, version: int, known: Known | None = None) -> Weights:
        """Score the weights as they are; the first process saves them in a folder of their own.
        ``name`` is for people."""
        folder = f"{step_name(version) if known is None else 'trial'}-{secrets.token_hex(4)}"
        path = self._folder / folder
        # Before anything that may fail: with split weights, all processes run this together.
        known = known or learner_scores(self._policy, self._texts, name)
        served = self._policy.tuning.served()
        if not self._peers.is_first:
            return Weights("", version, known)
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._policy.save(path, served)
        return Weights(f"flowright-{folder}", version, known, path)

    def _save_trial(self) -> Weights:
        """Save weights with a large effect: a server that ignores them, or a part of them, is found
        before the first update."""
        base = self._score_base().known
        size, known = trial_scores(self._policy, self._texts, base, "trial weights")
        with self._policy.tuning.trial(size):
            return self._save("", 0, known)

    def _probe(self) -> Probe:
        assert self._base is not None
        earlier = tuple(self._earlier)
        return Probe(self._texts, self._base.known, earlier, self._policy.end_ids, self._trial)

    async def base_weights(self) -> Weights:
        """Return the base model's weights, which never change and are scored once."""
        return self._base or await on_model_thread(self._score_base)

    def _score_base(self) -> Weights:
        if self._base is None:
            with self._policy.reference():
                known = learner_scores(self._policy, self._texts, "the base model")
            self._base = Weights(self._model, 0, known)
        return self._base

    @contextmanager
    def _using(self, weights: Weights) -> Iterator[None]:
        self._in_use[weights.name] += 1
        try:
            yield
        finally:
            self._in_use[weights.name] -= 1

    async def _retire(self, in_use: set[str]) -> None:
        """Drop all but the newest weights and those in use, on the servers first, which may read a
        folder again."""
        newest = {weights.name for weights in self._kept[-self._most :]}
        self._kept = [w for w in self._kept if w.name in newest | in_use]
        # A server that has restarted may be at its trial just now.
        folders = {w.path for w in (*self._kept, self._trial) if w and w.path}
        await self._drop(folders)
        for path in self._folder.iterdir() if self._peers.is_first else ():
            if path not in folders:
                await asyncio.to_thread(shutil.rmtree, path)

    async def _drop(self, keep: Collection[Path]) -> None:
        if self._publishes:
            await all_of(s.drop(self._folder, keep) for s in self._fleet.servers.values())


class UntrainedSampler:
    """The policy before training: the servers' base model, proven to be the learner's; loaded again
    where all weights are exchanged."""

    batches = False
    version = 0
    metrics: Mapping[str, float] = {}

    def __init__(self, sampler: VllmSampler) -> None:
        self._sampler = sampler
        self.counters = sampler.counters

    async def refresh(self, version: int) -> None:
        """The base model never changes."""

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """See :meth:`VllmSampler.sample`."""
        base = await self._sampler.base_weights()
        return await self._sampler.sample(prompts, n, sampling, places, base)

    def for_episodes(self, sets: int) -> Draw:
        return self.sample


def _seed(*parts: int) -> int:
    """Return a seed for one completion, below 2**63 as vLLM requires."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1
