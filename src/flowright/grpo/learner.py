"""The policy update: advantages and samples in, new adapter weights and metrics out.

Nothing of shape [rows, tokens, vocabulary] is ever made: only the positions that predict a
completion token go through the head, a chunk at a time.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from flowright.config import GrpoSection
from flowright.grpo.batch import Batch, Group, micro_batches, pack
from flowright.grpo.loss import kl_terms, policy_terms, token_weights
from flowright.policy.model import Policy, adapter_off, recomputing

HEAD_CHUNK = 2048
"""Positions that go through the head at once: at 152,000 words, 1.2 GB of fp32 logits."""


@dataclass(slots=True)
class Sums:
    """Sums over the tokens of one or more passes, from which the metrics are made; ``loss`` is
    summed over the optimizer steps."""

    steps: int = 0
    tokens: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    loss: float = 0.0
    log_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A micro-batch and the reference's log-probabilities [N]; None without a KL term."""

    batch: Batch
    reference_N: Tensor | None


class Learner:
    """Owns the optimizer. One ``update`` is ``epochs`` passes over a step's groups, each pass in
    ``minibatches`` optimizer steps, each of them accumulated over micro-batches of tokens."""

    def __init__(self, policy: Policy, section: GrpoSection, temperature: float, seed: int) -> None:
        self._policy = policy
        self._section = section
        self._temperature = temperature
        self._seed = seed
        self._parameters = policy.trainable()
        self.optimizer = torch.optim.AdamW(
            self._parameters,
            lr=section.learning_rate,
            betas=(0.9, section.adam_beta2),
            weight_decay=section.weight_decay,
            fused=policy.device.type == "cuda",
        )

    def update(self, groups: Sequence[Group], step: int, longest: int) -> dict[str, float]:
        """Train on the groups of one step. ``longest`` is the token limit of completions.

        With no groups (every one without a signal) the weights stay and no metric is returned but
        the learning rate.
        """
        rate = learning_rate(self._section, step)
        if not groups:
            return {"policy/lr": rate}
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        order = random.Random(f"{self._seed}/{step}/minibatches")
        minibatches = [self._prepare(part) for part in self._split(groups, order)]
        first, last, norms = Sums(), Sums(), []
        sampler_gap = 0.0
        for epoch in range(self._section.epochs):
            sums = first if epoch == 0 else last
            for minibatch in order.sample(minibatches, len(minibatches)):
                norms.append(self._optimizer_step(minibatch, longest, sums))
                if len(norms) == 1:  # before the first move: of sampler and learner, not of updates
                    sampler_gap = first.log_ratio / first.tokens
        return {
            "policy/lr": rate,
            "policy/sampler_logp_diff": sampler_gap,
            **_metrics(first, last if last.tokens else first, norms),
        }

    def _split(self, groups: Sequence[Group], order: random.Random) -> list[list[Group]]:
        """Whole groups, dealt at random to ``minibatches`` parts of like size."""
        shuffled = order.sample(groups, len(groups))
        count = min(self._section.minibatches, len(groups))
        return [shuffled[i::count] for i in range(count)]

    def _prepare(self, groups: Sequence[Group]) -> list[Prepared]:
        """Micro-batches, with the reference policy's log-probabilities: once for all passes."""
        shared, budget = self._section.prefix_sharing, self._section.micro_batch_tokens
        parts = micro_batches(groups, budget, shared)
        batches = [pack(part, shared).to(self._policy.device) for part in parts]
        if self._section.kl_coefficient == 0:
            return [Prepared(batch, None) for batch in batches]
        with torch.no_grad(), adapter_off(self._policy):
            return [
                Prepared(batch, score(self._policy, batch, self._temperature)[0])
                for batch in batches
            ]

    def _optimizer_step(self, minibatch: Sequence[Prepared], longest: int, sums: Sums) -> float:
        """One optimizer step, its gradient summed over micro-batches; returns the norm."""
        sums.steps += 1
        lengths = torch.cat([item.batch.lengths_S for item in minibatch])
        weights = token_weights(self._section.loss, lengths, longest)
        parts = weights.split([item.batch.lengths_S.numel() for item in minibatch])
        for item, weights_S in zip(minibatch, parts, strict=True):
            with recomputing(self._policy):
                loss = self._loss(item, weights_S[item.batch.sample_N], sums)
                loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._section.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def _loss(self, item: Prepared, weights_N: Tensor, sums: Sums) -> Tensor:
        section, batch, reference_N = self._section, item.batch, item.reference_N
        logprobs_N, entropy_N = score(self._policy, batch, self._temperature)
        terms = policy_terms(
            section.loss,
            logprobs_N,
            batch.old_logprobs_N,
            batch.advantages_N,
            batch.sample_N,
            section.clip_low,
            section.clip_high,
        )
        total_N = terms.policy_N
        if reference_N is not None:
            kl_N = kl_terms(logprobs_N, reference_N, section.kl_estimator)
            total_N = total_N + section.kl_coefficient * kl_N
            sums.kl += float(kl_terms(logprobs_N.detach(), reference_N, "k3").sum())
        if section.entropy_coefficient:
            total_N = total_N - section.entropy_coefficient * entropy_N
        loss = (weights_N * total_N).sum()
        sums.tokens += logprobs_N.numel()
        sums.entropy += float(entropy_N.detach().sum())
        sums.clipped += float(terms.clipped_N.sum())
        sums.log_ratio += float((logprobs_N.detach() - batch.old_logprobs_N).abs().sum())
        sums.loss += float(loss.detach())
        return loss


def score(policy: Policy, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats) of each completion token, both float32 of shape [N].

    Under the distribution that was sampled from: logits divided by the temperature.
    """
    hidden = policy.causal_lm.model(
        input_ids=batch.input_ids,
        position_ids=batch.positions,
        attention_mask=batch.mask,
        use_cache=False,
    ).last_hidden_state
    hidden_N = hidden.flatten(0, 1)[batch.source_N]
    weight = policy.causal_lm.get_output_embeddings().weight
    pairs = [
        _through_head(hidden_N[i : i + HEAD_CHUNK], weight, target, temperature)
        for i, target in zip(
            range(0, batch.target_N.numel(), HEAD_CHUNK),
            batch.target_N.split(HEAD_CHUNK),
            strict=True,
        )
    ]
    logprobs, entropies = zip(*pairs, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _through_head(hidden: Tensor, weight: Tensor, target: Tensor, temperature: float) -> Any:
    """A chunk's logits live only inside this call, and are made again in the backward pass."""
    if not torch.is_grad_enabled():
        return _head(hidden, weight, target, temperature)
    return checkpoint(_head, hidden, weight, target, temperature, use_reentrant=False)


def _head(
    hidden: Tensor, weight: Tensor, target: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = (hidden @ weight.T).float() / temperature
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, target[:, None])[:, 0], entropy


def learning_rate(section: GrpoSection, step: int) -> float:
    """The rate of a step (the first is 1): linear warm-up, then constant, linear or cosine to 0.

    A function of the step alone, so that a resumed run needs no scheduler state.
    """
    if step <= section.warmup_steps:
        return section.learning_rate * step / section.warmup_steps
    span = max(1, section.steps - section.warmup_steps)
    done = min(1.0, (step - section.warmup_steps - 1) / span)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }[section.schedule]
    return section.learning_rate * factor


def _metrics(first: Sums, last: Sums, norms: Sequence[float]) -> dict[str, float]:
    """Loss, entropy and KL as the samples met them; clipping after the last pass had moved."""
    return {
        "policy/loss": first.loss / first.steps,
        "policy/entropy": first.entropy / first.tokens,
        "policy/kl": first.kl / first.tokens,
        "policy/clip_frac": last.clipped / last.tokens,
        "policy/grad_norm": sum(norms) / len(norms),
    }
