"""The policy update: advantages and samples in, new adapter weights and metrics out.

A step's prompts and what they begin with alike are computed once
(:mod:`flowright.policy.tree`); nothing of shape [rows, tokens, vocabulary] is ever made
(:mod:`flowright.policy.head`).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flowright.config import GrpoSection
from flowright.grpo.batch import Group, Trained, packs, plain_hidden, rows_of
from flowright.grpo.loss import kl_terms, policy_terms, token_weights, truncated_weights
from flowright.policy.head import token_logprobs
from flowright.policy.model import Policy, adapter_off, recomputing
from flowright.policy.tree import Branch, visit_texts


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
    capped: float = 0.0


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The groups of one optimizer step, their samples numbered in order, with log-probabilities of
    each sample: the reference's, None without a KL term, and those of the policy as it stood before
    the update, None where they are what the first forward pass finds or are not asked for."""

    groups: Sequence[Group]
    reference: Sequence[Tensor] | None
    old: Sequence[Tensor] | None

    @property
    def samples(self) -> list[Trained]:
        return [sample for group in self.groups for sample in group.samples]


class Visit(Protocol):
    """Given the hidden states [N, width] that predict the tokens of some samples (by number), one
    after the other; returns the loss to run backward, if any."""

    def __call__(self, hidden_N: Tensor, numbers: Sequence[int]) -> Tensor | None: ...


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
        parts = self._split(groups, order)
        moves = len(parts) * self._section.epochs
        minibatches = [self._prepare(part, moves) for part in parts]
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
            **_metrics(self._section, first, last if last.tokens else first, norms),
        }

    def _split(self, groups: Sequence[Group], order: random.Random) -> list[list[Group]]:
        """Whole groups, dealt at random to ``minibatches`` parts of like size."""
        shuffled = order.sample(groups, len(groups))
        count = min(self._section.minibatches, len(groups))
        return [shuffled[i::count] for i in range(count)]

    def _prepare(self, groups: Sequence[Group], moves: int) -> Minibatch:
        """With what is needed of the reference and of the policy before its ``moves`` optimizer
        steps: once for all passes. With a single one, the policy before it is the policy in it."""
        section, reference, old = self._section, None, None
        if section.kl_coefficient and section.kl_in == "loss":
            reference = self._reference(groups)
        if section.off_policy != "ratio" and moves > 1:
            old = score(self._policy, groups, section, self._temperature)
        return Minibatch(groups, reference, old)

    def _reference(self, groups: Sequence[Group]) -> list[Tensor]:
        with adapter_off(self._policy):
            return score(self._policy, groups, self._section, self._temperature)

    def divergences(self, groups: Sequence[Group]) -> list[float]:
        """An estimate of the KL to the base model for each sample, in nats, in the order of the
        samples: the terms of ``grpo.kl_estimator`` summed over its tokens, under the policy that
        sampled it. This is what ``grpo.kl_in: reward`` takes from a reward (a penalty for each
        sample as in arXiv 2009.01325, section 3.4)."""
        samples = [sample for group in groups for sample in group.samples]
        sums = []
        for sample, reference_T in zip(samples, self._reference(groups), strict=True):
            sampled_T = torch.tensor(sample.sampled_logprobs)
            terms_T = kl_terms(sampled_T, reference_T.cpu(), self._section.kl_estimator)
            sums.append(float(terms_T.sum()))
        return sums

    def _optimizer_step(self, minibatch: Minibatch, longest: int, sums: Sums) -> float:
        """One optimizer step, its gradient summed over chunks of samples; returns the norm."""
        sums.steps += 1
        samples = minibatch.samples
        lengths_S = torch.tensor([len(sample.token_ids) for sample in samples])
        weights_S = token_weights(self._section.loss, lengths_S, longest)

        def visit(hidden_N: Tensor, numbers: Sequence[int]) -> Tensor:
            chunk = [samples[number] for number in numbers]
            reference_N, old_N = (
                None if known is None else torch.cat([known[number] for number in numbers])
                for known in (minibatch.reference, minibatch.old)
            )
            return self._loss(hidden_N, chunk, weights_S[numbers], reference_N, old_N, sums)

        with recomputing(self._policy):
            visit_samples(self._policy, minibatch.groups, self._section, visit)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._section.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def _loss(
        self,
        hidden_N: Tensor,
        chunk: Sequence[Trained],
        weights_S: Tensor,
        reference_N: Tensor | None,
        old_N: Tensor | None,
        sums: Sums,
    ) -> Tensor:
        section, device = self._section, hidden_N.device
        lengths = torch.tensor([len(sample.token_ids) for sample in chunk])
        sample_N = torch.arange(len(chunk)).repeat_interleave(lengths).to(device)
        advantages_S = torch.tensor([sample.advantage for sample in chunk], dtype=torch.float32)
        sampled = [logprob for sample in chunk for logprob in sample.sampled_logprobs]
        sampled_N = torch.tensor(sampled, dtype=torch.float32, device=device)
        logprobs_N, entropy_N = sample_logprobs(
            self._policy, hidden_N, chunk, self._temperature, section.entropy_coefficient != 0
        )
        if section.off_policy == "ratio":
            old_N = sampled_N
        elif old_N is None:
            old_N = logprobs_N.detach()
        terms = policy_terms(
            section.loss,
            logprobs_N,
            old_N,
            advantages_S.to(device)[sample_N],
            sample_N,
            section.clip_low,
            section.clip_high,
        )
        total_N = terms.policy_N
        if section.off_policy == "truncated":
            weight_N = truncated_weights(old_N, sampled_N, section.off_policy_cap)
            total_N = weight_N * total_N
            sums.capped += float((weight_N >= section.off_policy_cap).sum())
        if reference_N is not None:
            kl_N = kl_terms(logprobs_N, reference_N, section.kl_estimator)
            total_N = total_N + section.kl_coefficient * kl_N
            sums.kl += float(kl_terms(logprobs_N.detach(), reference_N, "k3").sum())
        if section.entropy_coefficient:
            total_N = total_N - section.entropy_coefficient * entropy_N
        loss = (weights_S.to(device)[sample_N] * total_N).sum()
        sums.tokens += logprobs_N.numel()
        sums.entropy += float(entropy_N.detach().sum())
        sums.clipped += float(terms.clipped_N.sum())
        sums.log_ratio += float((logprobs_N.detach() - sampled_N).abs().sum())
        sums.loss += float(loss.detach())
        return loss


def visit_samples(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, visit: Visit
) -> None:
    """Run every sample of the groups, in chunks of ``section.micro_batch_tokens``: forward, the
    visit, and backward from the loss that it returns."""
    if section.prefix_sharing:
        firsts = [0]
        for group in groups:
            firsts.append(firsts[-1] + len(group.samples))
        branches = [Branch(g.prompt_ids, [s.token_ids for s in g.samples]) for g in groups]

        def numbered(hidden_N: Tensor, texts: Sequence[tuple[int, int]]) -> Tensor | None:
            return visit(hidden_N, [firsts[branch] + text for branch, text in texts])

        visit_texts(policy, branches, section.micro_batch_tokens, numbered)
        return
    for rows in packs(rows_of(groups), section.micro_batch_tokens):
        loss = visit(plain_hidden(policy, rows), [row.sample for row in rows])
        if loss is not None:
            loss.backward()


def score(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, temperature: float
) -> list[Tensor]:
    """Log-probabilities of each sample's tokens, float32, in the order of the samples. Without
    gradients, under the distribution that was sampled from."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, Tensor] = {}

    def visit(hidden_N: Tensor, numbers: Sequence[int]) -> None:
        chunk = [samples[number] for number in numbers]
        logprobs_N, _ = sample_logprobs(policy, hidden_N, chunk, temperature, with_entropy=False)
        parts = logprobs_N.split([len(sample.token_ids) for sample in chunk])
        found.update(zip(numbers, parts, strict=True))

    with torch.no_grad():
        visit_samples(policy, groups, section, visit)
    return [found[number] for number in range(len(samples))]


def sample_logprobs(
    policy: Policy,
    hidden_N: Tensor,
    chunk: Sequence[Trained],
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [N] of the samples' tokens, from what predicts them; see
    :func:`flowright.policy.head.token_logprobs`."""
    tokens = [token for sample in chunk for token in sample.token_ids]
    weight = policy.causal_lm.get_output_embeddings().weight
    target_N = torch.tensor(tokens, device=hidden_N.device)
    return token_logprobs(hidden_N, weight, target_N, temperature, with_entropy)


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


def _metrics(
    section: GrpoSection, first: Sums, last: Sums, norms: Sequence[float]
) -> dict[str, float]:
    """Loss, entropy and KL as the samples met them; clipping after the last pass had moved. What
    was not computed is left out."""
    metrics = {
        "policy/loss": first.loss / first.steps,
        "policy/entropy": first.entropy / first.tokens,
        "policy/clip_frac": last.clipped / last.tokens,
        "policy/grad_norm": sum(norms) / len(norms),
    }
    if section.kl_coefficient and section.kl_in == "loss":
        metrics["policy/kl"] = first.kl / first.tokens
    if section.off_policy == "truncated":
        metrics["policy/off_policy_capped_frac"] = first.capped / first.tokens
    return metrics
