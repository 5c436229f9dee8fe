"""The policy update: advantages and samples in, new adapter weights and metrics out.

Prompts and their common beginnings are computed once (:mod:`flowright.policy.prefix.tree`);
nothing of shape [rows, tokens, vocab_size] is ever made (:mod:`flowright.policy.head`).
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from flowright.config.grpo import GrpoSection
from flowright.grpo import SCHEDULES
from flowright.grpo.batch import (
    Group,
    Requested,
    Trained,
    TurnPlace,
    chunk_scores,
    flattened,
    measured,
    sample_logprobs,
    score,
    score_some,
)
from flowright.grpo.objectives import (
    Objective,
    PairObjective,
    Statistics,
    Tokens,
    choices_of,
    high_entropy,
    k3,
    pairs_of,
)
from flowright.grpo.ranks import ONE, Ranks, even_shares, interleaved
from flowright.grpo.step_record import (
    StepSums,
    fixed_data_metrics,
    step_norms,
    teacher_metrics,
    update_metrics,
)
from flowright.policy.layout import to_device
from flowright.policy.model import Policy, recomputing
from flowright.policy.prefix.tree import chunks, shared_length
from flowright.policy.sharding import clip_gradients


@dataclass(frozen=True, slots=True)
class Minibatch:
    """This rank's groups of one optimizer step, their samples numbered in order.

    ``weights_S``: the weight of each sample's tokens among all ranks'. ``reference``: log-probs of
    the reference, empty without a KL. ``old``: log-probs before the update by sample number,
    empty if the first forward pass computes them. ``found``: all of the latter once trained on,
    None where they are not kept. ``regular``: factor of the weights for KL and entropy.
    ``selected`` and ``learned``: by sample, the tokens that the objective selected and those that
    the policy learns from; empty without a selection.
    """

    groups: Sequence[Group]
    samples: Sequence[Trained]
    weights_S: Tensor
    reference: Sequence[Tensor] = ()
    old: Mapping[int, Tensor] = field(default_factory=dict)
    found: dict[int, Tensor] | None = None
    regular: float = 1.0
    selected: Sequence[Tensor] = ()
    learned: Sequence[Tensor] = ()

    @property
    def silent(self) -> list[bool]:
        """True for each sample whose group has no signal."""
        return [not group.has_signal for group in self.groups for _ in group.samples]

    def by_place(self) -> dict[TurnPlace, list[float]]:
        """Return the log-probs found for the turns of episodes that have a place in a batch."""
        found: dict[TurnPlace, list[float]] = {}
        for number, logprobs_T in (self.found or {}).items():
            sample = self.samples[number]
            if sample.place is not None:
                parts = logprobs_T.split([credit.tokens for credit in sample.turns])
                for credit, part_T in zip(sample.turns, parts, strict=True):
                    found[*sample.place, credit.turn] = part_T.tolist()
        return found


class Learner:
    """Owner of the optimizer. One ``update`` is ``epochs`` passes over a step's groups, each in up
    to ``minibatches`` optimizer steps, each of them accumulated over micro-batches of tokens."""

    def __init__(
        self,
        policy: Policy,
        section: GrpoSection,
        temperature: float,
        seed: int,
        ranks: Ranks = ONE,
        top_p: float = 1.0,
    ) -> None:
        self._policy = policy
        self._cuts = top_p < 1  # samples have log-probs of a nucleus, not of the policy
        self._ranks = ranks
        self._section = section
        self._seed = seed
        self._choices = choices_of(section)
        # Fixed data was drawn at no temperature: it is learned as it is.
        self._temperature = 1.0 if self._choices.objective.fixed_data else temperature
        self._parameters = policy.trainable()
        self.reference_state: dict[str, Tensor] | None = None
        """Trained weights of the KL's reference; None for the base model."""
        self.optimizer = torch.optim.AdamW(
            self._parameters,
            lr=section.learning_rate,
            betas=(0.9, section.adam_beta2),
            weight_decay=section.weight_decay,
            # A scoring row stays whole, and one kernel takes no whole weights beside split ones.
            fused=policy.device.type == "cuda" and len(set(map(type, self._parameters))) == 1,
        )
        if policy.offload == "optimizer":
            self.optimizer.register_step_pre_hook(partial(_move_means, device=policy.device))
            self.optimizer.register_step_post_hook(partial(_move_means, device="cpu"))

    @property
    def device(self) -> torch.device:
        return self._policy.device

    def update(
        self,
        groups: Sequence[Group],
        step: int,
        longest: int,
        requested: Requested | None = None,
        found: dict[TurnPlace, list[float]] | None = None,
    ) -> dict[str, float]:
        """Train on the groups of one step, all ranks' groups on every rank; return its metrics.

        Each rank computes its share and gradients are summed, so that a token weighs the same
        wherever it is. ``longest`` is the token limit of completions, ``requested`` the whole that
        the groups are a part of (default: themselves). ``found``, if given, is filled with the
        log-probs of this rank's samples before the update. That does not change the update; it
        costs a pass of its own where there are several steps whose ratios are to the sampler.

        An optimizer step whose gradient is not finite is skipped and counted
        (``policy/skipped_updates``); metrics that it made infinite are left out. Without groups the
        weights stay, and the learning rate is the only metric. Groups without a signal are spread
        evenly over the optimizer steps, whose number is that of the others.
        """
        rate = learning_rate(self._section, step)
        if not groups:
            return {"policy/lr": rate}
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        requested = requested or Requested(len(groups), len(groups), ())
        order = random.Random(f"{self._seed}/{step}/minibatches")
        signal, silent = (
            order.sample(some, len(some))
            for some in ([g for g in groups if g.has_signal == kind] for kind in (True, False))
        )
        count = requested.minibatches(self._section.minibatches, len(signal))
        weights_P = self._weights([*signal, *silent], longest, requested)
        of_signal_P, of_silent_P = weights_P[: len(signal)], weights_P[len(signal) :]
        # Whole groups, of like number; each stands for its part of all that was requested.
        moves = count * self._section.epochs
        reads_reference = self._reads_reference(step)
        # KL and entropy of all groups are a mean over all that was drawn, replaced groups included.
        regular = requested.groups / requested.drawn if self._section.kl_on == "all" else 1.0
        minibatches = [
            replace(
                self._prepare(
                    *_with_others(
                        [*signal[i::count], *silent[i::count]],
                        [count * w_S for w_S in (*of_signal_P[i::count], *of_silent_P[i::count])],
                    ),
                    moves,
                    reads_reference=reads_reference,
                    keep=found is not None,
                    draw=f"{self._seed}/{step}/selected/{i}",
                ),
                regular=regular,
            )
            for i in range(count)
        ]
        steps: list[StepSums] = []
        norms: list[float] = []
        for _ in range(self._section.epochs):
            for minibatch in order.sample(minibatches, len(minibatches)):
                steps.append(StepSums(self._policy.device))
                norms.append(self._optimizer_step(minibatch, steps[-1]))
        sums_M = torch.stack([sums.values for sums in steps])
        self._ranks.sum([sums_M])
        every = self._section.reference_every
        if every is not None and step % every == 0:
            self.reference_state = self._trained_weights()
        if found is not None:
            for minibatch in minibatches:
                found |= minibatch.by_place()
        metrics = {"policy/lr": rate, **step_norms(norms)}
        metrics |= self._metrics(sums_M, count, reads_reference)
        if not self._choices.objective.fixed_data:
            trained = sum(sample.count for group in groups for sample in group.trained)
            metrics["policy/covered_frac"] = trained / (trained + sum(requested.idle))
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def measure(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return :func:`flowright.grpo.step_record.fixed_data_metrics` of groups of fixed data, all
        ranks' groups on every rank, without training."""
        weights_P = self._weights(groups, 1, Requested(len(groups), len(groups), ()))
        minibatch = self._minibatch(groups, weights_P)
        sums = StepSums(self._policy.device)
        with torch.no_grad():
            for hidden_N, samples in self._chunks(minibatch):
                self._loss(hidden_N, minibatch, samples, sums)
        self._ranks.sum([sums.values])
        return fixed_data_metrics(sums.values[None], 1)

    def _metrics(self, sums_M: Tensor, epoch: int, with_kl: bool) -> dict[str, float]:
        if self._choices.objective.fixed_data:
            return fixed_data_metrics(sums_M, epoch)
        weighted = self._choices.correction.weights is not None
        found = update_metrics(sums_M, epoch, with_kl, weighted, self._cuts)
        return found | (teacher_metrics(sums_M, epoch) if self._section.has_teacher else {})

    @property
    def _kl_in_loss(self) -> bool:
        return self._section.kl_coefficient > 0 and self._section.kl_in == "loss"

    def _reads_reference(self, step: int) -> bool:
        """Return whether the loss has a KL, or its metric is due."""
        every, fixed = self._section.kl_every, self._choices.objective.fixed_data
        return self._kl_in_loss or (every > 0 and step % every == 0 and not fixed)

    def _weights(self, groups: Sequence[Group], longest: int, requested: Requested) -> list[Tensor]:
        """Return the weight of each sample's tokens, group by group, with those of its ``others``:
        the objective's over all that was drawn, scaled to what was requested. An episode in several
        samples is one to the objective."""
        samples_P = [group.trained for group in groups]
        owners, lengths = [], dict[object, int]()
        for sample in (sample for samples in samples_P for sample in samples):
            owners.append(sample.place if sample.credits else id(sample))
            lengths[owners[-1]] = lengths.get(owners[-1], 0) + sample.count
        lengths_S = torch.tensor([*lengths.values(), *requested.idle])
        weights_S = self._choices.objective.weights(lengths_S, longest)
        weights_S = weights_S * (requested.drawn / requested.groups)
        numbers = {owner: number for number, owner in enumerate(lengths)}
        weights_S = weights_S[[numbers[owner] for owner in owners]]
        return list(weights_S.split([len(samples) for samples in samples_P]))

    def _prepare(
        self,
        groups: Sequence[Group],
        weights_P: Sequence[Tensor],
        moves: int,
        reads_reference: bool,
        keep: bool,
        draw: str,
    ) -> Minibatch:
        """Return this rank's share with log-probs of the reference, if they are read, and of the
        policy before its ``moves`` optimizer steps, computed once for all passes. With a single
        step they are those of its forward pass. ``keep``: those of all samples are wanted.
        ``draw``: the seed of what the objective selects."""
        made = self._minibatch(groups, weights_P)
        mine, samples = made.groups, [s for group in groups for s in group.samples]
        if reads_reference:
            made = replace(made, reference=self._reference(mine))
        if self._selects:
            return self._selected(made, moves, keep, draw)
        # Among all ranks' samples, as all score some or none does.
        before = moves > 1 and any(map(self._is_to_learner, samples))
        old = self._scores(mine, self._is_to_learner) if before else {}
        others = keep and moves > 1 and not all(map(self._is_to_learner, samples))
        rest = self._scores(mine, lambda s: not self._is_to_learner(s)) if others else {}
        return replace(made, old=old, found={**old, **rest} if keep else None)

    @property
    def _selects(self) -> bool:
        """True where tokens are selected among those of an optimizer step, before it."""
        objective = self._choices.objective
        if not isinstance(objective, Objective) or objective.fixed_data:
            return False
        return objective.selects is not None or self._section.top_entropy < 1

    def _selected(self, made: Minibatch, moves: int, keep: bool, draw: str) -> Minibatch:
        """Return the minibatch with the log-probs before its steps, and with the tokens that are
        selected among all ranks' in groups with a signal."""
        found = measured(self._policy, made.groups, self._section, self._temperature)
        rows = [
            torch.stack([logprobs_T, entropy_T, self._advantages([sample], logprobs_T)]).cpu()
            for (logprobs_T, entropy_T), sample in zip(found, made.samples, strict=True)
        ]
        each = iter(rows)
        mine_P = [
            torch.cat(
                [torch.zeros(3, 0), *([next(each) for _ in group.samples] * group.has_signal)], 1
            )
            for group in made.groups
        ]
        every_P = interleaved(self._ranks.gather(mine_P))  # the same on every number of ranks
        marks_N = self._marks(Statistics(*torch.cat(every_P, dim=1)), draw)
        marks_P = self._ranks.mine(marks_N.split([part.shape[1] for part in every_P], dim=1))
        marks: list[Tensor] = []
        for group, marks_M in zip(made.groups, marks_P, strict=True):
            counts = [sample.count for sample in group.samples]
            silent = torch.tensor([[False], [True]]).expand(2, sum(counts))
            marks += (marks_M if group.has_signal else silent).split(counts, dim=1)
        logprobs = {n: logprobs_T for n, (logprobs_T, _) in enumerate(found)}
        old = {n: logprobs[n] for n, s in enumerate(made.samples) if self._is_to_learner(s)}
        return replace(
            made,
            old=old if moves > 1 else {},
            found=logprobs if keep else None,
            selected=[selected_T for selected_T, _ in marks],
            learned=[learned_T for _, learned_T in marks],
        )

    def _marks(self, statistics: Statistics, draw: str) -> Tensor:
        """Return the tokens that the objective selects and those that the policy learns from, as
        two rows of truth values."""
        objective, share = self._choices.objective, self._section.top_entropy
        assert isinstance(objective, Objective)
        learned_N = torch.ones(statistics.logprobs_N.shape, dtype=torch.bool)
        selected_N = ~learned_N
        if learned_N.numel() and objective.selects is not None:
            generator = torch.Generator().manual_seed(random.Random(draw).getrandbits(63))
            selected_N = objective.selects(statistics, generator)
        if learned_N.numel() and share < 1:
            learned_N = high_entropy(statistics, share)
        return torch.stack([selected_N, learned_N])

    def _is_to_learner(self, sample: Trained) -> bool:
        """Return whether a sample's ratio is to the learner before the update. It always is where
        the sampler's log-probs belong to another prompt (a scaffold) or to a nucleus."""
        return sample.scaffolded or self._cuts or not self._choices.correction.to_sampler

    def _scores(
        self, groups: Sequence[Group], wanted: Callable[[Trained], bool]
    ) -> dict[int, Tensor]:
        return score_some(self._policy, groups, self._section, self._temperature, wanted)

    def _minibatch(self, groups: Sequence[Group], weights_P: Sequence[Tensor]) -> Minibatch:
        mine = self._share(groups, weights_P)
        samples = [sample for group, _ in mine for sample in group.samples]
        weights = [torch.zeros(0), *(weights_S for _, weights_S in mine)]
        return Minibatch([group for group, _ in mine], samples, torch.cat(weights))

    def _share(
        self, groups: Sequence[Group], weights_P: Sequence[Tensor]
    ) -> list[tuple[Group, Tensor]]:
        """Return this rank's groups, or parts of them, with the weights of their samples: as many
        tokens as other ranks have."""
        if self._ranks.size == 1 or self._selects:  # what is selected depends on the order
            return self._ranks.mine(list(zip(groups, weights_P, strict=True)))
        shared = shared_length([group.prompt_ids for group in groups])
        whole = isinstance(self._choices.objective, PairObjective)
        costs: list[tuple[int, list[int]]] = []
        for group in groups:
            prompt, samples = len(group.prompt_ids) - shared, [*map(len, group.completions)]
            if not self._section.prefix_sharing:
                prompt, samples = 0, [len(group.prompt_ids) + length for length in samples]
            costs.append((prompt, [sum(samples)] if whole else samples))
        return [
            (groups[n], weights_P[n])
            if whole
            else (replace(groups[n], samples=groups[n].samples[i:j]), weights_P[n][i:j])
            for n, i, j in even_shares(costs, self._ranks.size)[self._ranks.rank]
        ]

    def _chunks(self, minibatch: Minibatch) -> Iterator[tuple[Tensor, list[int]]]:
        section, together = self._section, isinstance(self._choices.objective, PairObjective)
        budget, sharing = section.chunk_tokens, section.prefix_sharing
        return chunks(self._policy, minibatch.groups, budget, sharing, together)

    def _reference(self, groups: Sequence[Group]) -> list[Tensor]:
        if self.reference_state is None:
            with self._policy.reference():
                return score(self._policy, groups, self._section, self._temperature)
        now = self._trained_weights()
        try:
            self._policy.load(self.reference_state)
            return score(self._policy, groups, self._section, self._temperature)
        finally:
            self._policy.load(now)

    def _trained_weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._policy.state().items()}

    def divergences(self, groups: Sequence[Group]) -> list[float]:
        """Estimate each sample's KL to the base model, in nats: ``grpo.kl_estimator`` summed over
        its tokens, under the policy that sampled it, or under the current one for a sample of a
        scaffold or a nucleus. ``grpo.kl_in: reward`` takes it from the reward (a penalty for each
        sample as in arXiv 2009.01325, section 3.4)."""
        samples = [sample for group in groups for sample in group.samples]
        wanted = torch.tensor([sum(s.scaffolded or self._cuts for s in samples)])
        wanted = wanted.to(self.device)
        self._ranks.sum([wanted])  # all ranks score some or none does
        scored = self._scores(groups, lambda s: s.scaffolded or self._cuts) if int(wanted) else {}
        sums = []
        for n, reference_T in enumerate(self._reference(groups)):
            known_T = scored.get(n, torch.tensor(samples[n].sampled_logprobs))
            sums.append(float(self._choices.kl.estimate(known_T.cpu(), reference_T.cpu()).sum()))
        return sums

    def _optimizer_step(self, minibatch: Minibatch, sums: StepSums) -> float:
        """Take one optimizer step, its gradient summed over chunks of samples and over ranks;
        return the gradient's norm."""
        with recomputing(self._policy):
            for hidden_N, samples in self._chunks(minibatch):
                self._loss(hidden_N, minibatch, samples, sums).backward()
                del hidden_N  # not while the next is computed
        self._sum_gradients()
        return clipped_step(self.optimizer, self._section.max_grad_norm)

    def _sum_gradients(self) -> None:
        """Add up gradients over ranks, but those of split weights, which each backward pass adds
        up; a rank without a group joins with zeros."""
        if self._ranks.size == 1:
            return
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [p.grad for p in self._parameters if p.grad is not None]
        self._ranks.sum([grad for grad in grads if not isinstance(grad, DTensor)])

    def _loss(
        self, hidden_N: Tensor, minibatch: Minibatch, numbers: Sequence[int], sums: StepSums
    ) -> Tensor:
        """Return this chunk's part of the minibatch's loss, of the samples with these numbers, from
        the hidden states that predict their tokens. Adds to the sums."""
        chunk, objective = [minibatch.samples[n] for n in numbers], self._choices.objective
        if isinstance(objective, PairObjective):
            weights_S = minibatch.weights_S[numbers]
            return self._pair_loss(objective, hidden_N, chunk, weights_S, sums)
        return self._token_loss(objective, hidden_N, chunk, minibatch, numbers, sums)

    def _pair_loss(
        self,
        objective: PairObjective,
        hidden_N: Tensor,
        chunk: Sequence[Trained],
        weights_S: Tensor,
        sums: StepSums,
    ) -> Tensor:
        """Each two samples are a pair, and the difference of their advantages is the strength of
        the preference. The last token of each follows the one that is scored."""
        scores_S = chunk_scores(self._policy, hidden_N, chunk)
        wanted_S = to_device(torch.tensor([s.advantage for s in chunk]), hidden_N.device)
        pairs = pairs_of(scores_S, wanted_S, self._section.pairs.margin)
        weights_K = weights_S.view(-1, 2).sum(dim=1)
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
        chunk: Sequence[Trained],
        minibatch: Minibatch,
        numbers: Sequence[int],
        sums: StepSums,
    ) -> Tensor:
        section, device = self._section, hidden_N.device
        lengths = torch.tensor([sample.count for sample in chunk])
        sample_N = to_device(torch.arange(len(chunk)).repeat_interleave(lengths), device)
        unit_N, share_N = sample_N, None
        if objective.by_turn:
            parts = [sample.turns for sample in chunk]
            sizes = torch.tensor([turn.tokens for turns in parts for turn in turns])
            shares = torch.tensor([turn.share for turns in parts for turn in turns])
            unit_N = to_device(torch.arange(len(sizes)).repeat_interleave(sizes), device)
            share_N = to_device(shares.repeat_interleave(sizes), device)
        logprobs_N, entropy_N = sample_logprobs(
            self._policy, hidden_N, chunk, self._temperature, section.entropy_coefficient != 0
        )
        if minibatch.found is not None:
            parts = logprobs_N.detach().split(lengths.tolist())
            for number, logprobs_T in zip(numbers, parts, strict=True):
                minibatch.found.setdefault(number, logprobs_T)
        sampled_N = logprobs_N.detach()
        if not objective.fixed_data:
            sampled = [logprob for sample in chunk for logprob in sample.sampled_logprobs]
            sampled_N = to_device(torch.tensor(sampled, dtype=torch.float32), device)
        scaffolded_N = None
        if any(sample.scaffolded for sample in chunk):
            scaffolded_S = torch.tensor([sample.scaffolded for sample in chunk])
            scaffolded_N = to_device(scaffolded_S, device)[sample_N]
            sums.add("scaffold_tokens", int(lengths[scaffolded_S].sum()))
        old_N = self._old(minibatch, numbers, logprobs_N.detach(), sampled_N)
        advantages_N = self._advantages(chunk, logprobs_N.detach())
        choices = self._choices
        bounds = choices.clip_low, choices.clip_high, section.dual_clip
        selected_N = learned_N = None
        if minibatch.selected:
            marks = [
                torch.cat([m[n] for n in numbers]) for m in (minibatch.selected, minibatch.learned)
            ]
            selected_N, learned_N = (to_device(mark_N, device) for mark_N in marks)
        tokens = Tokens(logprobs_N, old_N, advantages_N, unit_N, *bounds, selected_N)
        terms = objective.terms(tokens)
        total_N, weight_N = terms.policy_N, None
        if learned_N is not None:
            total_N = total_N * learned_N
        if choices.correction.weights is not None:
            cap, drift_N = section.off_policy_cap, (old_N - sampled_N).detach()
            weight_N = choices.correction.weights(drift_N, unit_N, cap)
            total_N = weight_N * total_N
            sums.add_apart("weight", weight_N, scaffolded_N)
            sums.add_apart("capped", (weight_N >= cap) | (weight_N == 0), scaffolded_N)
        policy_N = total_N.detach()
        if minibatch.reference:
            reference_N = torch.cat([minibatch.reference[number] for number in numbers])
            if self._kl_in_loss:
                kl_N = choices.kl.estimate(logprobs_N, reference_N)
                if choices.kl.weighted:
                    kl_N = kl_N * tokens.log_ratio_N.exp()
                    kl_N = kl_N if weight_N is None else kl_N * weight_N
                total_N = total_N + minibatch.regular * section.kl_coefficient * kl_N
            sums.add("kl", k3(logprobs_N.detach(), reference_N).sum())
        if section.entropy_coefficient:
            total_N = total_N - minibatch.regular * section.entropy_coefficient * entropy_N
        weights_N = to_device(minibatch.weights_S[numbers], device)[sample_N]
        if share_N is not None:
            weights_N = weights_N * share_N
        loss = (weights_N * total_N).sum()
        if self._section.has_teacher:
            sums.add("teacher_kl", _lead(chunk, logprobs_N.detach()).sum())
        sums.add("tokens", logprobs_N.numel())
        sums.add("entropy", entropy_N.detach().sum())
        silent_S = torch.tensor([minibatch.silent[number] for number in numbers])
        sums.add("signal_tokens", int(lengths[~silent_S].sum()))
        silent_N = to_device(silent_S, device)[sample_N] if bool(silent_S.any()) else None
        sums.add_clipping(terms, tokens.log_ratio_N.detach().exp(), silent_N)
        if self._cuts:
            sums.add_apart("nucleus", (old_N - sampled_N).detach().exp(), scaffolded_N)
        sums.add_apart("log_ratio", (logprobs_N.detach() - sampled_N).abs(), scaffolded_N)
        sums.add("policy", (weights_N * policy_N).sum())
        sums.add("loss", loss.detach())
        if any(sample.credits for sample in chunk):
            sums.add_gaps(chunk, (logprobs_N.detach() - sampled_N).abs())
        return loss

    def _advantages(self, chunk: Sequence[Trained], logprobs_N: Tensor) -> Tensor:
        """Return the tokens' advantages: their sample's, minus the weighted lead over the teacher.

        The gradient of E[-A log p] with A = log p_teacher - log p of the moment, held fixed, is
        that of KL(policy || teacher) at each token, given the tokens before it; that a token
        changes what follows is left out, as a reward that only its own token is credited with
        (discount 0). One-sample estimate k1, as in K. Lu et al., "On-Policy Distillation", 2025."""
        turns = [turn for sample in chunk for turn in sample.turns]
        lengths = torch.tensor([turn.tokens for turn in turns])
        advantages_S = torch.tensor([turn.advantage for turn in turns], dtype=torch.float32)
        advantages_N = to_device(advantages_S.repeat_interleave(lengths), logprobs_N.device)
        if not self._section.has_teacher:
            return advantages_N
        return advantages_N - self._section.teacher.weight * _lead(chunk, logprobs_N)

    def _old(
        self, minibatch: Minibatch, numbers: Sequence[int], now_N: Tensor, sampled_N: Tensor
    ) -> Tensor:
        """Return the log-probs that the ratio is to, for the tokens of these samples."""
        chunk = [minibatch.samples[number] for number in numbers]
        lengths = [sample.count for sample in chunk]
        parts = zip(numbers, chunk, now_N.split(lengths), sampled_N.split(lengths), strict=True)
        return torch.cat(
            [
                minibatch.old.get(number, now) if self._is_to_learner(sample) else sampled
                for number, sample, now, sampled in parts
            ]
        )


def _with_others(
    groups: Sequence[Group], weights_P: Sequence[Tensor]
) -> tuple[list[Group], list[Tensor]]:
    """Return the groups with their ``others`` behind them, and the weights of each one's
    samples."""
    parts = [
        weights_S.split([len(one.samples) for one in flattened([group])])
        for group, weights_S in zip(groups, weights_P, strict=True)
    ]
    return flattened(groups), [weights_S for some in parts for weights_S in some]


def _lead(chunk: Sequence[Trained], logprobs_N: Tensor) -> Tensor:
    """log p - log p_teacher of the samples' tokens [N]."""
    teacher = [value for sample in chunk for value in sample.teacher_logprobs or ()]
    return logprobs_N - to_device(torch.tensor(teacher, dtype=torch.float32), logprobs_N.device)


def _move_means(optimizer: torch.optim.Optimizer, *_: object, device: torch.device | str) -> None:
    """Move the optimizer's state to a device; what is a single number stays."""
    for state in optimizer.state.values():
        state.update({name: value.to(device) for name, value in state.items() if value.ndim})


def clipped_step(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Move the weights by their gradients, scaled down to ``max_norm``, drop these and return the
    norm that they had. A norm that is not finite moves nothing, since the weights would keep it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = clip_gradients(parameters, max_norm)
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def learning_rate(section: GrpoSection, step: int) -> float:
    """Return the rate of a step (the first is 1): linear warm-up, then ``schedule``. It depends on
    the step alone, so that a resumed run needs no state."""
    share = section.warmup_share
    warmup = section.warmup_steps if share is None else round(share * section.steps)
    if step <= warmup:
        return section.learning_rate * step / warmup
    span = max(1, section.steps - warmup)
    done = min(1.0, (step - warmup - 1) / span)
    return section.learning_rate * SCHEDULES.load(section.schedule)(done)


# Schedules: functions of the share of the run that is done after the warm-up, 0 to 1.


def constant(done: float) -> float:
    return 1.0


def linear(done: float) -> float:
    """Fall to 0."""
    return 1.0 - done


def cosine(done: float) -> float:
    """Fall to 0 by half a wave."""
    return 0.5 * (1.0 + math.cos(math.pi * done))
