"""The policy update: advantages and samples in, new adapter weights and metrics out.

A step's prompts and what they begin with alike are computed once
(:mod:`flowright.policy.prefix.chunks`); nothing of shape [rows, tokens, vocab_size] is ever made
(:mod:`flowright.policy.head`).
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.grpo.batch import (
    Asked,
    Group,
    Place,
    Trained,
    chunk_scores,
    sample_logprobs,
    score,
    score_some,
)
from flowright.grpo.choices import choices_of
from flowright.grpo.objectives import Objective, Tokens, k3
from flowright.grpo.optimizer import clipped_step, set_rate
from flowright.grpo.pairs import PairObjective, pairs_of
from flowright.grpo.ranks import ONE, Ranks
from flowright.grpo.schedules import learning_rate
from flowright.grpo.update_metrics import Sums, given_metrics, step_norms, update_metrics
from flowright.policy.layout import to_device
from flowright.policy.model import Policy, recomputing
from flowright.policy.prefix.chunks import chunks


@dataclass(frozen=True, slots=True)
class Minibatch:
    """This rank's groups of one optimizer step, their samples numbered in order, with the weight of
    each sample's tokens among all ranks' and with its log-probabilities: the reference's, none
    without a KL term, and by number those of the policy as it stood before the update, none where
    they are what the first forward pass finds or are not asked for. ``found`` has all of the latter
    once it was trained on, and is None where they are not kept."""

    groups: Sequence[Group]
    samples: Sequence[Trained]
    weights_S: Tensor
    reference: Sequence[Tensor] = ()
    old: Mapping[int, Tensor] = field(default_factory=dict)
    found: dict[int, Tensor] | None = None

    def by_place(self) -> dict[Place, list[float]]:
        """What was found of the samples of a batch."""
        found = (self.found or {}).items()
        named = [(self.samples[number].place, logprobs_T) for number, logprobs_T in found]
        return {place: logprobs_T.tolist() for place, logprobs_T in named if place is not None}


class Learner:
    """Owns the optimizer. One ``update`` is ``epochs`` passes over a step's groups, each pass in up
    to ``minibatches`` optimizer steps, each of them accumulated over micro-batches of tokens."""

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
        self._seed = seed
        self._choices = choices_of(section)
        # What is given was drawn at no temperature: it is learned as it is.
        self._temperature = 1.0 if self.learns_from_given else temperature
        self._parameters = policy.trainable()
        self.optimizer = torch.optim.AdamW(
            self._parameters,
            lr=section.learning_rate,
            betas=(0.9, section.adam_beta2),
            weight_decay=section.weight_decay,
            fused=policy.device.type == "cuda",
        )

    @property
    def learns_from_given(self) -> bool:
        """Whether its objective learns from what the data gives, and nothing is sampled."""
        return self._choices.objective.given

    @property
    def device(self) -> torch.device:
        return self._policy.device

    def update(
        self,
        groups: Sequence[Group],
        step: int,
        longest: int,
        asked: Asked | None = None,
        found: dict[Place, list[float]] | None = None,
    ) -> dict[str, float]:
        """Train on the groups of one step, all ranks' groups on every rank: each computes its share
        of them, and their gradients are summed, so that a token weighs the same wherever it is.
        ``longest`` is the token limit of completions; ``asked`` what these groups are a part of,
        by default all of it. ``found``, if it is given, is filled with the log-probabilities of the
        tokens of this rank's samples under the policy as it stood before the update. That changes
        nothing of the update, and costs a pass of its own where its steps are several and their
        ratios are to what the sampler said.

        An optimizer step whose gradient is not finite is skipped and counted
        (``policy/skipped_updates``); metrics that it made infinite are left out.

        With no groups (every one without a signal) the weights stay and no metric is returned but
        the learning rate.
        """
        rate = learning_rate(self._section, step)
        if not groups:
            return {"policy/lr": rate}
        set_rate(self.optimizer, rate)
        asked = asked or Asked(len(groups), len(groups), ())
        order = random.Random(f"{self._seed}/{step}/minibatches")
        shuffled = order.sample(groups, len(groups))
        count = asked.minibatches(self._section.minibatches, len(groups))
        weights_P = self._weights(shuffled, longest, asked)
        # Whole groups, of like number; each stands for its part of all that was asked for.
        moves = count * self._section.epochs
        minibatches = [
            self._prepare(
                shuffled[i::count],
                [count * w_S for w_S in weights_P[i::count]],
                moves,
                keep=found is not None,
            )
            for i in range(count)
        ]
        steps: list[Sums] = []
        norms: list[float] = []
        for _ in range(self._section.epochs):
            for minibatch in order.sample(minibatches, len(minibatches)):
                steps.append(Sums(self._policy.device))
                norms.append(self._optimizer_step(minibatch, steps[-1]))
        sums_M = torch.stack([sums.values for sums in steps])
        self._ranks.sum([sums_M])
        if found is not None:
            for minibatch in minibatches:
                found |= minibatch.by_place()
        metrics = {"policy/lr": rate, **step_norms(norms), **self._metrics(sums_M, count)}
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def measure(self, groups: Sequence[Group]) -> dict[str, float]:
        """The metrics of :func:`flowright.grpo.update_metrics.given_metrics` on groups that the
        data gives, all ranks' groups on every rank; nothing is trained."""
        weights_P = self._weights(groups, 1, Asked(len(groups), len(groups), ()))
        minibatch = self._minibatch(groups, weights_P)
        sums = Sums(self._policy.device)
        with torch.no_grad():
            for hidden_N, samples in self._chunks(minibatch):
                self._loss(hidden_N, minibatch, samples, sums)
        self._ranks.sum([sums.values])
        return given_metrics(sums.values[None], 1)

    def _metrics(self, sums_M: Tensor, epoch: int) -> dict[str, float]:
        if self._choices.objective.given:
            return given_metrics(sums_M, epoch)
        weighted = self._choices.correction.weights is not None
        return update_metrics(sums_M, epoch, self._kl_in_loss, weighted)

    @property
    def _kl_in_loss(self) -> bool:
        return self._section.kl_coefficient > 0 and self._section.kl_in == "loss"

    def _weights(self, groups: Sequence[Group], longest: int, asked: Asked) -> list[Tensor]:
        """Of each token of each sample, group by group: the objective's over all that was drawn,
        for as much as was asked for."""
        trained = [sample.count for group in groups for sample in group.samples]
        lengths_S = torch.tensor([*trained, *asked.idle])
        weights_S = self._choices.objective.weights(lengths_S, longest)[: len(trained)]
        weights_S = weights_S * (asked.drawn / asked.groups)
        return list(weights_S.split([len(group.samples) for group in groups]))

    def _prepare(
        self,
        groups: Sequence[Group],
        weights_P: Sequence[Tensor],
        moves: int,
        keep: bool,
    ) -> Minibatch:
        """This rank's share, with what is needed of the reference and of the policy before its
        ``moves`` optimizer steps: once for all passes. With a single one, the policy before it is
        the policy in it. ``keep``: what that policy finds is asked for, of all samples."""
        mine, samples = self._ranks.mine(groups), [s for group in groups for s in group.samples]
        # Among all ranks' samples, as all score some or none does.
        before = moves > 1 and any(map(self._is_to_learner, samples))
        old = self._scores(mine, self._is_to_learner) if before else {}
        others = keep and moves > 1 and not all(map(self._is_to_learner, samples))
        rest = self._scores(mine, lambda s: not self._is_to_learner(s)) if others else {}
        return replace(
            self._minibatch(groups, weights_P),
            reference=self._reference(mine) if self._kl_in_loss else (),
            old=old,
            found={**old, **rest} if keep else None,
        )

    def _is_to_learner(self, sample: Trained) -> bool:
        """Whether a sample's ratio is to the learner before the update. What was drawn from a
        scaffold always has that one: what the sampler said of it is another prompt's."""
        return sample.scaffolded or not self._choices.correction.to_sampler

    def _scores(
        self, groups: Sequence[Group], wanted: Callable[[Trained], bool]
    ) -> dict[int, Tensor]:
        return score_some(self._policy, groups, self._section, self._temperature, wanted)

    def _minibatch(self, groups: Sequence[Group], weights_P: Sequence[Tensor]) -> Minibatch:
        mine = self._ranks.mine(groups)
        samples = [sample for group in mine for sample in group.samples]
        return Minibatch(mine, samples, torch.cat([torch.zeros(0), *self._ranks.mine(weights_P)]))

    def _chunks(self, minibatch: Minibatch) -> Iterator[tuple[Tensor, list[int]]]:
        section, together = self._section, isinstance(self._choices.objective, PairObjective)
        budget, sharing = section.micro_batch_tokens, section.prefix_sharing
        return chunks(self._policy, minibatch.groups, budget, sharing, together)

    def _reference(self, groups: Sequence[Group]) -> list[Tensor]:
        with self._policy.reference():
            return score(self._policy, groups, self._section, self._temperature)

    def divergences(self, groups: Sequence[Group]) -> list[float]:
        """An estimate of the KL to the base model for each sample, in nats, in the order of the
        samples: the terms of ``grpo.kl_estimator`` summed over its tokens, under the policy that
        sampled it, or under the policy as it stands where that had a scaffold before it. This is
        what ``grpo.kl_in: reward`` takes from a reward (a penalty for each sample as in arXiv
        2009.01325, section 3.4)."""
        samples = [sample for group in groups for sample in group.samples]
        scaffolded = torch.tensor([sum(s.scaffolded for s in samples)], device=self.device)
        self._ranks.sum([scaffolded])  # all ranks score some or none does
        scored = self._scores(groups, lambda s: s.scaffolded) if int(scaffolded) else {}
        sums = []
        for n, reference_T in enumerate(self._reference(groups)):
            known_T = scored.get(n, torch.tensor(samples[n].sampled_logprobs))
            sums.append(float(self._choices.kl(known_T.cpu(), reference_T.cpu()).sum()))
        return sums

    def _optimizer_step(self, minibatch: Minibatch, sums: Sums) -> float:
        """One optimizer step, its gradient summed over chunks of samples and over ranks; returns
        its norm."""
        with recomputing(self._policy):
            for hidden_N, samples in self._chunks(minibatch):
                self._loss(hidden_N, minibatch, samples, sums).backward()
                del hidden_N  # not while the next is computed
        self._sum_gradients()
        return clipped_step(self.optimizer, self._section.max_grad_norm)

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
        if isinstance(self._choices.objective, PairObjective):
            return self._pair_loss(self._choices.objective, hidden_N, minibatch, numbers, sums)
        return self._token_loss(self._choices.objective, hidden_N, minibatch, numbers, sums)

    def _pair_loss(
        self,
        objective: PairObjective,
        hidden_N: Tensor,
        minibatch: Minibatch,
        numbers: Sequence[int],
        sums: Sums,
    ) -> Tensor:
        """Each two samples are a pair. The advantages' difference is the strength with which the
        one is preferred; the last token of each only stands behind the one that is scored."""
        chunk = [minibatch.samples[number] for number in numbers]
        scores_S = chunk_scores(self._policy, hidden_N, chunk)
        wanted_S = to_device(torch.tensor([s.advantage for s in chunk]), hidden_N.device)
        pairs = pairs_of(scores_S, wanted_S, self._section.pairs.margin)
        weights_K = minibatch.weights_S[numbers].view(-1, 2).sum(dim=1)
        terms_K = objective.terms(pairs, self._section.pairs)
        loss = (to_device(weights_K, hidden_N.device) * terms_K).sum()
        lead_K = (pairs.first_K - pairs.second_K).detach()[pairs.better_K]
        sums.add("pairs", len(terms_K))
        sums.add("decided", pairs.better_K.sum())
        sums.add("right", (lead_K > 0).sum() + 0.5 * (lead_K == 0).sum())
        sums.add("score", scores_S.detach().sum())
        sums.add("lead", lead_K.sum())
        sums.add("loss", loss.detach())
        return loss

    def _token_loss(
        self,
        objective: Objective,
        hidden_N: Tensor,
        minibatch: Minibatch,
        numbers: Sequence[int],
        sums: Sums,
    ) -> Tensor:
        section, device = self._section, hidden_N.device
        chunk = [minibatch.samples[number] for number in numbers]
        lengths = torch.tensor([sample.count for sample in chunk])
        sample_N = to_device(torch.arange(len(chunk)).repeat_interleave(lengths), device)
        advantages_S = torch.tensor([sample.advantage for sample in chunk], dtype=torch.float32)
        logprobs_N, entropy_N = sample_logprobs(
            self._policy, hidden_N, chunk, self._temperature, section.entropy_coefficient != 0
        )
        if minibatch.found is not None:
            parts = logprobs_N.detach().split(lengths.tolist())
            for number, logprobs_T in zip(numbers, parts, strict=True):
                minibatch.found.setdefault(number, logprobs_T)
        sampled_N = logprobs_N.detach()
        if not objective.given:
            sampled = [logprob for sample in chunk for logprob in sample.sampled_logprobs]
            sampled_N = to_device(torch.tensor(sampled, dtype=torch.float32), device)
        scaffolded_N = None
        if any(sample.scaffolded for sample in chunk):
            scaffolded_S = torch.tensor([sample.scaffolded for sample in chunk])
            scaffolded_N = to_device(scaffolded_S, device)[sample_N]
            sums.add("scaffold_tokens", int(lengths[scaffolded_S].sum()))
        old_N = self._old(minibatch, numbers, logprobs_N.detach(), sampled_N)
        advantages_N = to_device(advantages_S, device)[sample_N]
        choices = self._choices
        bounds = choices.clip_low, choices.clip_high, section.dual_clip
        tokens = Tokens(logprobs_N, old_N, advantages_N, sample_N, *bounds)
        terms = objective.terms(tokens)
        total_N = terms.policy_N
        if choices.correction.weights is not None:
            cap, drift_N = section.off_policy_cap, (old_N - sampled_N).detach()
            weight_N = choices.correction.weights(drift_N, sample_N, cap)
            total_N = weight_N * total_N
            sums.add_apart("weight", weight_N, scaffolded_N)
            sums.add_apart("capped", (weight_N >= cap) | (weight_N == 0), scaffolded_N)
        policy_N = total_N.detach()
        if minibatch.reference:
            reference_N = torch.cat([minibatch.reference[number] for number in numbers])
            total_N = total_N + section.kl_coefficient * self._choices.kl(logprobs_N, reference_N)
            sums.add("kl", k3(logprobs_N.detach(), reference_N).sum())
        if section.entropy_coefficient:
            total_N = total_N - section.entropy_coefficient * entropy_N
        weights_S = to_device(minibatch.weights_S[numbers], device)
        loss = (weights_S[sample_N] * total_N).sum()
        sums.add("tokens", logprobs_N.numel())
        sums.add("entropy", entropy_N.detach().sum())
        sums.add_clipping(terms, tokens.log_ratio_N.detach().exp())
        sums.add_apart("log_ratio", (logprobs_N.detach() - sampled_N).abs(), scaffolded_N)
        sums.add("policy", (weights_S[sample_N] * policy_N).sum())
        sums.add("loss", loss.detach())
        return loss

    def _old(
        self, minibatch: Minibatch, numbers: Sequence[int], now_N: Tensor, sampled_N: Tensor
    ) -> Tensor:
        """What the ratio is to, of the tokens of the samples with these numbers."""
        chunk = [minibatch.samples[number] for number in numbers]
        lengths = [sample.count for sample in chunk]
        parts = zip(numbers, chunk, now_N.split(lengths), sampled_N.split(lengths), strict=True)
        return torch.cat(
            [
                minibatch.old.get(number, now) if self._is_to_learner(sample) else sampled
                for number, sample, now, sampled in parts
            ]
        )
