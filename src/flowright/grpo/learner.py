"""The policy update: advantages and samples in, new adapter weights and metrics out.

A step's prompts and what they begin with alike are computed once
(:mod:`flowright.policy.prefix.tree`); nothing of shape [rows, tokens, vocabulary] is ever made
(:mod:`flowright.policy.prefix.head`).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowright.config import GrpoSection
from flowright.grpo.batch import Group, Trained
from flowright.grpo.objectives import kl_terms, policy_terms, token_weights, truncated_weights
from flowright.grpo.passes import sample_logprobs, score, visit_samples
from flowright.grpo.ranks import ONE, Ranks
from flowright.policy.device import to_device
from flowright.policy.model import Policy, adapter_off, recomputing


class Sums:
    """Sums over the tokens of one or more passes, from which the metrics are made. They stay on the
    device until they are read, so that adding to them does not wait for it."""

    NAMES = ("tokens", "kl", "entropy", "clipped", "loss", "log_ratio", "capped")

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)
        self.steps = 0
        """Optimizer steps, over which ``loss`` is summed."""

    def add(self, name: str, value: Tensor | int) -> None:
        self._sums[self.NAMES.index(name)] += value

    def copy(self) -> "Sums":
        same = Sums(self._sums.device)
        same._sums.copy_(self._sums)
        same.steps = self.steps
        return same

    def read(self, ranks: Ranks) -> dict[str, float]:
        """Over all ranks."""
        total = self._sums.clone()
        ranks.sum([total])
        return dict(zip(self.NAMES, total.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Minibatch:
    """This rank's groups of one optimizer step, their samples numbered in order, with the weight of
    each sample's tokens among all ranks' and with its log-probabilities: the reference's, None
    without a KL term, and those of the policy as it stood before the update, None where they are
    what the first forward pass finds or are not asked for."""

    groups: Sequence[Group]
    weights_S: Tensor
    reference: Sequence[Tensor] | None
    old: Sequence[Tensor] | None

    @property
    def samples(self) -> list[Trained]:
        return [sample for group in self.groups for sample in group.samples]


class Learner:
    """Owns the optimizer. One ``update`` is ``epochs`` passes over a step's groups, each pass in
    ``minibatches`` optimizer steps, each of them accumulated over micro-batches of tokens."""

    def __init__(
        self,
        policy: Policy,
        section: GrpoSection,
        temperature: float,
        seed: int,
        ranks: Ranks = ONE,
    ) -> None:
        self._policy = policy
        self._ranks = ranks
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

    @property
    def device(self) -> torch.device:
        return self._policy.device

    def update(self, groups: Sequence[Group], step: int, longest: int) -> dict[str, float]:
        """Train on the groups of one step, all ranks' groups on every rank: each computes its share
        of them, and their gradients are summed, so that a token weighs the same wherever it is.
        ``longest`` is the token limit of completions.

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
        minibatches = [self._prepare(part, longest, moves) for part in parts]
        first, last = Sums(self._policy.device), Sums(self._policy.device)
        norms: list[Tensor] = []
        start = first
        for epoch in range(self._section.epochs):
            sums = first if epoch == 0 else last
            for minibatch in order.sample(minibatches, len(minibatches)):
                norms.append(self._optimizer_step(minibatch, sums))
                if len(norms) == 1:
                    start = sums.copy()
        before = start.read(self._ranks)  # the first move: the gap between sampler and learner
        metrics = self._metrics(first, last if last.steps else first, norms)
        gap = before["log_ratio"] / before["tokens"]
        return {"policy/lr": rate, "policy/sampler_logp_diff": gap, **metrics}

    def _metrics(self, first: Sums, last: Sums, norms: list[Tensor]) -> dict[str, float]:
        """Loss, entropy and KL as the samples met them; clipping after the last pass had moved.
        What was not computed is left out."""
        section, met = self._section, first.read(self._ranks)
        moved = met if last is first else last.read(self._ranks)
        metrics = {
            "policy/loss": met["loss"] / first.steps,
            "policy/entropy": met["entropy"] / met["tokens"],
            "policy/clip_frac": moved["clipped"] / moved["tokens"],
            "policy/grad_norm": float(torch.stack(norms).mean()),
        }
        if section.kl_coefficient and section.kl_in == "loss":
            metrics["policy/kl"] = met["kl"] / met["tokens"]
        if section.off_policy == "truncated":
            metrics["policy/off_policy_capped_frac"] = met["capped"] / met["tokens"]
        return metrics

    def _split(self, groups: Sequence[Group], order: random.Random) -> list[list[Group]]:
        """Whole groups, dealt at random to ``minibatches`` parts of like size."""
        shuffled = order.sample(groups, len(groups))
        count = min(self._section.minibatches, len(groups))
        return [shuffled[i::count] for i in range(count)]

    def _prepare(self, groups: Sequence[Group], longest: int, moves: int) -> Minibatch:
        """This rank's share, with what is needed of the reference and of the policy before its
        ``moves`` optimizer steps: once for all passes. With a single one, the policy before it is
        the policy in it."""
        section, reference, old = self._section, None, None
        lengths_S = torch.tensor([len(sample.token_ids) for g in groups for sample in g.samples])
        weights = token_weights(section.loss, lengths_S, longest)
        shares = weights.split([len(group.samples) for group in groups])
        mine = self._ranks.mine(groups)
        if section.kl_coefficient and section.kl_in == "loss":
            reference = self._reference(mine)
        if section.off_policy != "ratio" and moves > 1:
            old = score(self._policy, mine, section, self._temperature)
        weights_S = torch.cat([weights[:0], *self._ranks.mine(shares)])
        return Minibatch(mine, weights_S, reference, old)

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

    def _optimizer_step(self, minibatch: Minibatch, sums: Sums) -> Tensor:
        """One optimizer step, its gradient summed over chunks of samples; returns the norm."""
        sums.steps += 1
        samples, weights_S = minibatch.samples, minibatch.weights_S

        def visit(hidden_N: Tensor, numbers: Sequence[int]) -> Tensor:
            chunk = [samples[number] for number in numbers]
            reference_N, old_N = (
                None if known is None else torch.cat([known[number] for number in numbers])
                for known in (minibatch.reference, minibatch.old)
            )
            return self._loss(hidden_N, chunk, weights_S[numbers], reference_N, old_N, sums)

        with recomputing(self._policy):
            visit_samples(self._policy, minibatch.groups, self._section, visit)
        self._sum_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._section.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _sum_gradients(self) -> None:
        """A rank without a group of its own joins with zeros."""
        if self._ranks.size == 1:
            return
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.sum([p.grad for p in self._parameters if p.grad is not None])

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
        sample_N = to_device(torch.arange(len(chunk)).repeat_interleave(lengths), device)
        advantages_S = torch.tensor([sample.advantage for sample in chunk], dtype=torch.float32)
        sampled = [logprob for sample in chunk for logprob in sample.sampled_logprobs]
        sampled_N = to_device(torch.tensor(sampled, dtype=torch.float32), device)
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
            to_device(advantages_S, device)[sample_N],
            sample_N,
            section.clip_low,
            section.clip_high,
        )
        total_N = terms.policy_N
        if section.off_policy == "truncated":
            weight_N = truncated_weights(old_N, sampled_N, section.off_policy_cap)
            total_N = weight_N * total_N
            sums.add("capped", (weight_N >= section.off_policy_cap).sum())
        if reference_N is not None:
            kl_N = kl_terms(logprobs_N, reference_N, section.kl_estimator)
            total_N = total_N + section.kl_coefficient * kl_N
            sums.add("kl", kl_terms(logprobs_N.detach(), reference_N, "k3").sum())
        if section.entropy_coefficient:
            total_N = total_N - section.entropy_coefficient * entropy_N
        loss = (to_device(weights_S, device)[sample_N] * total_N).sum()
        sums.add("tokens", logprobs_N.numel())
        sums.add("entropy", entropy_N.detach().sum())
        sums.add("clipped", terms.clipped_N.sum())
        sums.add("log_ratio", (logprobs_N.detach() - sampled_N).abs().sum())
        sums.add("loss", loss.detach())
        return loss


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
