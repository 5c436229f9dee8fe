"""The policy update: advantages and samples in, new adapter weights and metrics out.

A step's prompts and what they begin with alike are computed once
(:mod:`flowright.policy.prefix.chunks`); nothing of shape [rows, tokens, vocab_size] is ever made
(:mod:`flowright.policy.head`).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from flowright.config import GrpoSection
from flowright.config.grpo import CORRECTIONS, KL_ESTIMATORS, OBJECTIVES
from flowright.errors import ConfigError
from flowright.grpo.batch import Group, Trained, sample_logprobs, score
from flowright.grpo.objectives import Correction, Objective, Tokens, k3
from flowright.grpo.ranks import ONE, Ranks
from flowright.grpo.schedules import learning_rate
from flowright.plugins import Table
from flowright.policy.layout import to_device
from flowright.policy.model import Policy, recomputing
from flowright.policy.prefix.chunks import chunks

Kind = TypeVar("Kind")


class Sums:
    """Sums over the tokens of an optimizer step, from which the metrics are made. They stay on the
    device until they are read, so that adding to them does not wait for it."""

    NAMES = ("tokens", "kl", "entropy", "clipped", "loss", "log_ratio", "capped")

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)

    def add(self, name: str, value: Tensor | int) -> None:
        self.values[self.NAMES.index(name)] += value


@dataclass(frozen=True, slots=True)
class Minibatch:
    """This rank's groups of one optimizer step, their samples numbered in order, with the weight of
    each sample's tokens among all ranks' and with its log-probabilities: the reference's, none
    without a KL term, and those of the policy as it stood before the update, none where they are
    what the first forward pass finds or are not asked for."""

    groups: Sequence[Group]
    samples: Sequence[Trained]
    weights_S: Tensor
    reference: Sequence[Tensor]
    old: Sequence[Tensor]


def _loaded(table: Table, choice: str, kind: type[Kind]) -> Kind:
    found = table.load(choice)
    if not isinstance(found, kind):
        raise ConfigError(f"{table.kind} {choice}: give a {kind.__module__}.{kind.__name__}")
    return found


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
        self._objective = _loaded(OBJECTIVES, section.loss, Objective)
        self._correction = _loaded(CORRECTIONS, section.off_policy, Correction)
        self._kl = KL_ESTIMATORS.load(section.kl_estimator)
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

        An optimizer step whose gradient is not finite is skipped and counted
        (``policy/skipped_updates``); metrics that it made infinite are left out.

        With no groups (every one without a signal) the weights stay and no metric is returned but
        the learning rate.
        """
        rate = learning_rate(self._section, step)
        if not groups:
            return {"policy/lr": rate}
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        order = random.Random(f"{self._seed}/{step}/minibatches")
        shuffled = order.sample(groups, len(groups))
        count = min(self._section.minibatches, len(groups))
        parts = [shuffled[i::count] for i in range(count)]  # whole groups, of like number
        moves = count * self._section.epochs
        minibatches = [self._prepare(part, longest, moves) for part in parts]
        steps: list[Sums] = []
        norms: list[float] = []
        for _ in range(self._section.epochs):
            for minibatch in order.sample(minibatches, len(minibatches)):
                steps.append(Sums(self._policy.device))
                norms.append(self._optimizer_step(minibatch, steps[-1]))
        sums_M = torch.stack([sums.values for sums in steps])
        self._ranks.sum([sums_M])
        finite = [norm for norm in norms if math.isfinite(norm)]
        metrics = {
            "policy/lr": rate,
            "policy/grad_norm": sum(finite) / len(finite) if finite else math.nan,
            "policy/skipped_updates": float(len(norms) - len(finite)),
            **self._metrics(sums_M, count),
        }
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _metrics(self, sums_M: Tensor, epoch: int) -> dict[str, float]:
        """From the :class:`Sums` of all M optimizer steps, of which an ``epoch`` has so many: loss,
        entropy and KL as the samples met them; clipping after the first epoch had moved the policy;
        the gap between sampler and learner before anything had. What was not computed is left out.
        """
        section, later = self._section, sums_M[epoch:] if len(sums_M) > epoch else sums_M
        start, met, moved = (
            dict(zip(Sums.NAMES, some_M.sum(dim=0).tolist(), strict=True))
            for some_M in (sums_M[:1], sums_M[:epoch], later)
        )
        metrics = {
            "policy/sampler_logp_diff": start["log_ratio"] / start["tokens"],
            "policy/loss": met["loss"] / epoch,
            "policy/entropy": met["entropy"] / met["tokens"],
            "policy/clip_frac": moved["clipped"] / moved["tokens"],
        }
        if section.kl_coefficient and section.kl_in == "loss":
            metrics["policy/kl"] = met["kl"] / met["tokens"]
        if self._correction.weights is not None:
            metrics["policy/off_policy_capped_frac"] = met["capped"] / met["tokens"]
        return metrics

    def _prepare(self, groups: Sequence[Group], longest: int, moves: int) -> Minibatch:
        """This rank's share, with what is needed of the reference and of the policy before its
        ``moves`` optimizer steps: once for all passes. With a single one, the policy before it is
        the policy in it."""
        section, mine = self._section, self._ranks.mine(groups)
        lengths_S = torch.tensor([len(sample.token_ids) for g in groups for sample in g.samples])
        weights_S = self._objective.weights(lengths_S, longest)
        shares = weights_S.split([len(group.samples) for group in groups])
        by_loss = section.kl_coefficient and section.kl_in == "loss"
        before = not self._correction.to_sampler and moves > 1
        return Minibatch(
            mine,
            [sample for group in mine for sample in group.samples],
            torch.cat([weights_S[:0], *self._ranks.mine(shares)]),
            self._reference(mine) if by_loss else [],
            score(self._policy, mine, section, self._temperature) if before else [],
        )

    def _reference(self, groups: Sequence[Group]) -> list[Tensor]:
        with self._policy.reference():
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
            sums.append(float(self._kl(sampled_T, reference_T.cpu()).sum()))
        return sums

    def _optimizer_step(self, minibatch: Minibatch, sums: Sums) -> float:
        """One optimizer step, its gradient summed over chunks of samples; returns its norm. What is
        not finite would never leave the weights again, so then they stay as they are."""
        policy, section = self._policy, self._section
        budget, sharing = section.micro_batch_tokens, section.prefix_sharing
        with recomputing(policy):
            for hidden_N, samples in chunks(policy, minibatch.groups, budget, sharing):
                self._loss(hidden_N, minibatch, samples, sums).backward()
                del hidden_N  # not while the next is computed
        self._sum_gradients()
        clip = torch.nn.utils.clip_grad_norm_
        norm = float(clip(self._parameters, section.max_grad_norm))  # of all ranks' gradients
        if math.isfinite(norm):
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
        self, hidden_N: Tensor, minibatch: Minibatch, numbers: Sequence[int], sums: Sums
    ) -> Tensor:
        """Of the samples with these numbers, from what predicts their tokens: this chunk's part of
        the minibatch's loss. Adds to the sums."""
        section, device = self._section, hidden_N.device
        chunk = [minibatch.samples[number] for number in numbers]
        lengths = torch.tensor([len(sample.token_ids) for sample in chunk])
        sample_N = to_device(torch.arange(len(chunk)).repeat_interleave(lengths), device)
        advantages_S = torch.tensor([sample.advantage for sample in chunk], dtype=torch.float32)
        sampled = [logprob for sample in chunk for logprob in sample.sampled_logprobs]
        sampled_N = to_device(torch.tensor(sampled, dtype=torch.float32), device)
        logprobs_N, entropy_N = sample_logprobs(
            self._policy, hidden_N, chunk, self._temperature, section.entropy_coefficient != 0
        )
        if self._correction.to_sampler:
            old_N = sampled_N
        elif minibatch.old:
            old_N = torch.cat([minibatch.old[number] for number in numbers])
        else:
            old_N = logprobs_N.detach()
        advantages_N = to_device(advantages_S, device)[sample_N]
        terms = self._objective.terms(
            Tokens(logprobs_N, old_N, advantages_N, sample_N, section.clip_low, section.clip_high)
        )
        total_N = terms.policy_N
        if self._correction.weights is not None:
            weight_N = self._correction.weights(old_N, sampled_N, section.off_policy_cap)
            total_N = weight_N * total_N
            sums.add("capped", (weight_N >= section.off_policy_cap).sum())
        if minibatch.reference:
            reference_N = torch.cat([minibatch.reference[number] for number in numbers])
            total_N = total_N + section.kl_coefficient * self._kl(logprobs_N, reference_N)
            sums.add("kl", k3(logprobs_N.detach(), reference_N).sum())
        if section.entropy_coefficient:
            total_N = total_N - section.entropy_coefficient * entropy_N
        weights_S = to_device(minibatch.weights_S[numbers], device)
        loss = (weights_S[sample_N] * total_N).sum()
        sums.add("tokens", logprobs_N.numel())
        sums.add("entropy", entropy_N.detach().sum())
        sums.add("clipped", terms.clipped_N.sum())
        sums.add("log_ratio", (logprobs_N.detach() - sampled_N).abs().sum())
        sums.add("loss", loss.detach())
        return loss
