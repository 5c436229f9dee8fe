"""A step's batch on its way to the loss: prompts, episodes and rollouts; penalties in their
rewards; and the groups that train, with the log-probabilities that a policy gives their tokens.

What is made of those is the caller's: a loss (:mod:`flowright.grpo.learner`), a divergence, a
comparison (:mod:`flowright.grpo.selfcheck`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import TypeVar

import torch
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.environments.episode import Episode
from flowright.environments.rollout import Reward, Rollout, with_penalty
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.problems import ShownPrompt, is_scaffolded
from flowright.grpo.ranks import interleaved
from flowright.policy.layout import to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.tree import chunks
from flowright.policy.sampling import Prompt, Sample

Logprobs = Sequence[float]
"""Log-probabilities of a sample's tokens."""

Place = tuple[int, int]
"""An episode's task and its attempt, both by number in the batch."""

TurnPlace = tuple[int, int, int]
"""An episode's :data:`Place`, and the number of one of its turns."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts, episodes and rollouts: lists over P tasks, the inner ones over G attempts.

    Attempts at one form of a task have the same prompt and follow each other; that prompt is
    trained on. ``shown_P_G``: the prompts they were sampled from, None without scaffolds.
    ``teacher_P_G``: the teacher's log-probabilities, or the reason of its failure; empty without a
    teacher.
    """

    prompts_P_G: list[list[Prompt]]
    shown_P_G: list[list[ShownPrompt | None]]
    episodes_P_G: list[list[Episode]]
    rollouts_P_G: list[list[Rollout]]
    teacher_P_G: list[list[Logprobs | str]] = field(default_factory=list)

    @property
    def teacher_failures(self) -> list[str]:
        """Reasons of the teacher's failures, one for each sample that it did not score."""
        return [one for group in self.teacher_P_G for one in group if isinstance(one, str)]

    def logprobs_of_teacher(self, p: int, g: int) -> Logprobs | None:
        found = self.teacher_P_G[p][g] if self.teacher_P_G else None
        return None if isinstance(found, str) else found

    def can_train(self, p: int, g: int, needs_rewards: bool) -> bool:
        """Return whether a sample has all scores that it trains by (law 1)."""
        if self.teacher_P_G and self.logprobs_of_teacher(p, g) is None:
            return False
        return not needs_rewards or self.rollouts_P_G[p][g].reward.value is not None

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.rollouts_P_G for rollout in group]

    @property
    def rewards_P_G(self) -> list[list[float | None]]:
        """Rewards with their penalties, None where unscored."""
        return [[rollout.reward.value for rollout in group] for group in self.rollouts_P_G]

    @property
    def task_rewards_P_G(self) -> list[list[float | None]]:
        """Rewards without penalties, None where unscored."""
        return [[rollout.reward.unpenalised for rollout in group] for group in self.rollouts_P_G]

    @property
    def penalties_P_G(self) -> list[list[float]]:
        """Added to each task reward; 0 or below but for noise of the KL's estimate."""
        return [[_penalty(rollout.reward) for rollout in group] for group in self.rollouts_P_G]

    @property
    def divergences_P_G(self) -> list[list[float]]:
        """The part of the penalties that is the KL's."""
        return [[r.reward.parts.get("kl", 0.0) for r in group] for group in self.rollouts_P_G]

    def followed_by(self, more: "Batch") -> "Batch":
        return Batch(
            self.prompts_P_G + more.prompts_P_G,
            self.shown_P_G + more.shown_P_G,
            self.episodes_P_G + more.episodes_P_G,
            self.rollouts_P_G + more.rollouts_P_G,
            self.teacher_P_G + more.teacher_P_G,
        )


def _penalty(reward: Reward) -> float:
    return 0.0 if reward.value is None or reward.task is None else reward.value - reward.task


def whole(shares: Sequence[Batch]) -> Batch:
    """Join the ranks' shares of a batch."""
    return Batch(
        interleaved([share.prompts_P_G for share in shares]),
        interleaved([share.shown_P_G for share in shares]),
        interleaved([share.episodes_P_G for share in shares]),
        interleaved([share.rollouts_P_G for share in shares]),
        interleaved([share.teacher_P_G for share in shares]),
    )


def penalised(
    batch: Batch, section: GrpoSection, longest: int, nats_S: Sequence[float] | None
) -> Batch:
    """Add to the rewards what ``grpo.kl_in: reward`` and ``grpo.overlong: soft`` take from them.

    ``nats_S``: the divergence of each sample, None where it does not count there. An unscored
    sample stays unscored.
    """
    if nats_S is None and section.overlong != "soft":
        return batch
    nats = iter(nats_S or ())

    def reduced(reward: Reward, length: int) -> Reward:
        if nats_S is not None:
            reward = with_penalty(reward, "kl", section.kl_coefficient * next(nats))
        if section.overlong == "soft":
            penalty = overlong(length, longest, section.buffer(longest))
            reward = with_penalty(reward, "overlong", penalty)
        return reward

    rollouts_P_G = [
        [r.rewarded(reduced(r.reward, r.length)) for r in group] for group in batch.rollouts_P_G
    ]
    return replace(batch, rollouts_P_G=rollouts_P_G)


def overlong(length: int, longest: int, buffer: int) -> float:
    """Penalty of a completion of ``length`` tokens where ``longest`` is the limit: 0 up to the last
    ``buffer`` tokens before it, 1 at the limit, linear between (DAPO's soft punishment, arXiv
    2503.14476, equation 13, there with a minus)."""
    return min(1.0, max(0.0, (length - (longest - buffer)) / buffer))


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """The learned tokens of one turn of an episode, numbered from 0, and their advantage.
    ``share``: the turn's part of its episode in a mean over turns, as a factor of the weight that a
    token has in the mean over tokens."""

    turn: int
    tokens: int
    advantage: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Trained:
    """One sample of an update, with its learned tokens' log-probabilities under the distribution
    that they were drawn from.

    A sample of fixed data has no log-probabilities, and its advantage is its weight. ``learned``
    marks the tokens that train, None: all. ``credits``: the turns of an episode of several, whose
    advantages they are; the tokens between them are the environment's. ``scaffolded``: drawn from
    another prompt than the one it trains on (:mod:`flowright.grpo.problems`). ``place``: its place
    in the batch, if any.
    ``teacher_logprobs``: of the teacher, at temperature 1, None without one.
    """

    token_ids: Sequence[int]
    sampled_logprobs: Sequence[float]
    advantage: float
    learned: Sequence[bool] | None = None
    scaffolded: bool = False
    place: Place | None = None
    teacher_logprobs: Logprobs | None = None
    credits: Sequence[TurnCredit] = ()

    @property
    def turns(self) -> Sequence[TurnCredit]:
        """The ``credits``; a completion by itself is one turn."""
        return self.credits or (TurnCredit(0, self.count, self.advantage),)

    @property
    def count(self) -> int:
        """Number of tokens that train."""
        return len(self.token_ids) if self.learned is None else sum(self.learned)


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and its samples that train; without a signal only by their KL and entropy.
    ``others``: turns of the same episodes whose contexts do not begin with the prompt."""

    prompt_ids: Sequence[int]
    samples: Sequence[Trained]
    has_signal: bool = True
    others: Sequence["Group"] = ()

    @property
    def trained(self) -> list[Trained]:
        """All samples, those of the ``others`` included."""
        return [sample for group in (self, *self.others) for sample in group.samples]

    @property
    def completions(self) -> list[Sequence[int]]:
        """Token ids of the samples (:class:`flowright.policy.prefix.tree.PromptGroup`)."""
        return [sample.token_ids for sample in self.samples]


@dataclass(frozen=True, slots=True)
class Requested:
    """The whole that an update's groups are a part of, over which weights are normalised.

    ``groups`` were requested and ``drawn`` were drawn, further rounds included. ``idle``: lengths
    of the scored samples that do not train, because their group has no signal or they were
    filtered; they add 0 to the mean and give the others no more weight. Unscored samples are left
    out (law 1).
    """

    groups: int
    drawn: int
    idle: Sequence[int]

    def minibatches(self, most: int, trained: int) -> int:
        """Return the number of optimizer steps for ``trained`` groups with a signal: ``most`` if
        all requested groups have one, else fewer, so that no step has fewer groups than the
        smallest would then."""
        return max(1, min(most, trained // max(1, self.groups // most)))


def requested(
    batch: Batch, groups: Sequence[Group], prompts: int, needs_rewards: bool = True
) -> Requested:
    """Return the whole of a step of ``prompts`` prompts whose ``batch`` gave these groups."""
    trained = {sample.place for group in groups for sample in group.trained}
    idle = tuple(
        episode.length
        for p, episodes_G in enumerate(batch.episodes_P_G)
        for g, episode in enumerate(episodes_G)
        if batch.can_train(p, g, needs_rewards) and (p, g) not in trained
    )
    drawn = sum(1 for _ in _forms(batch))
    forms = drawn / max(1, len(batch.prompts_P_G))
    return Requested(round(prompts * forms), drawn, idle)


def flattened(groups: Sequence[Group]) -> list[Group]:
    """Return the groups, each with its ``others`` behind it and no longer in it."""
    return [one for group in groups for one in (replace(group, others=()), *group.others)]


def by_episode(groups: Sequence[Group], values: Sequence[T]) -> dict[Place, list[T]]:
    """Return a value of each sample of ``groups``, their order that of :func:`flattened`, by
    episode, in the order of the batch and of the turns."""
    samples = [sample for group in groups for sample in group.trained]
    found: dict[Place, dict[int, T]] = {}
    for sample, value in zip(samples, values, strict=True):
        assert sample.place is not None
        found.setdefault(sample.place, {})[sample.turns[0].turn] = value
    return {place: [some[turn] for turn in sorted(some)] for place, some in sorted(found.items())}


def _forms(batch: Batch) -> Iterator[tuple[int, Prompt, range]]:
    """Yield the task's number, the prompt and the attempts of every form of a batch's tasks."""
    for p, prompts_G in enumerate(batch.prompts_P_G):
        start = 0
        for prompt, same in groupby(prompts_G):
            end = start + sum(1 for _ in same)
            yield p, prompt, range(start, end)
            start = end


def drawn_groups(
    prompts_P: Sequence[Sequence[int]], samples_P_G: Sequence[Sequence[Sample]]
) -> list[Group]:
    """Group all samples by prompt for scoring, with advantage 0."""
    return [
        Group(prompt, [Trained(s.token_ids, s.logprobs, 0.0) for s in samples_G])
        for prompt, samples_G in zip(prompts_P, samples_P_G, strict=True)
    ]


def whole_groups(batch: Batch) -> list[Group]:
    """Group all samples of a batch for scoring, in their order, with advantage 0."""
    groups = [
        _group(prompt.token_ids, [_trained(batch, p, g, 0.0) for g in attempts])
        for p, prompt, attempts in _forms(batch)
    ]
    return flattened(groups)


Placed = tuple[Sequence[int] | None, Trained]
"""A sample and its prompt, None for that of its group."""


def _group(
    prompt_ids: Sequence[int], attempts: Sequence[Sequence[Placed]], has_signal: bool = True
) -> Group:
    """Group the samples of attempts at one prompt."""
    placed = [one for attempt in attempts for one in attempt]
    samples = [sample for prompt, sample in placed if prompt is None]
    others = [Group(p, [sample], has_signal) for p, sample in placed if p is not None]
    return Group(prompt_ids, samples, has_signal, others)


def _trained(
    batch: Batch, p: int, g: int, advantage: float | Sequence[float], mask_failed: bool = False
) -> list[Placed]:
    """Return the samples of an attempt: one, unless the chat template has rewritten earlier turns,
    and none without a turn to train on. ``advantage``: of the attempt or of each of its turns."""
    episode, scaffolded = batch.episodes_P_G[p][g], is_scaffolded(batch.shown_P_G[p][g])
    turns, of_teacher = episode.turns, batch.logprobs_of_teacher(p, g)
    values = advantage if isinstance(advantage, Sequence) else [advantage] * len(turns)
    kept = [not (mask_failed and turn.is_failed) for turn in turns]
    if len(turns) == 1:
        sample = episode.sample
        whole = Trained(
            sample.token_ids, sample.logprobs, values[0], None, scaffolded, (p, g), of_teacher
        )
        return [(None, whole)] if kept[0] else []
    prompt_ids = batch.prompts_P_G[p][g].token_ids
    lengths = [len(turn.sample.token_ids) for turn in turns]
    starts = [0, *accumulate(lengths)]
    counts = [length * keep for length, keep in zip(lengths, kept, strict=True)]
    found: list[Placed] = []
    for numbers in episode.chains():
        first = turns[numbers[0]].context_ids
        behind = first[: len(prompt_ids)] == prompt_ids
        ids = [*first[len(prompt_ids) :]] if behind else []
        learned = [False] * len(ids)
        credits, logprobs, teacher = list[TurnCredit](), list[float](), list[float]()
        for number in numbers:
            turn, count = turns[number], counts[number]
            ids += turn.sample.token_ids
            learned += [kept[number]] * lengths[number]
            if number != numbers[-1]:
                ids += turn.answer_ids
                learned += [False] * len(turn.answer_ids)
            if count:
                share = sum(counts) / (sum(map(bool, counts)) * count)
                credits.append(TurnCredit(number, count, values[number], share))
                logprobs += turn.sample.logprobs
                teacher += (of_teacher or ())[starts[number] : starts[number + 1]]
        if credits:
            theirs = None if of_teacher is None else teacher
            made = Trained(
                ids, logprobs, values[numbers[0]], learned, False, (p, g), theirs, credits
            )
            found.append((None if behind else first, made))
    return found


def trained_groups(
    batch: Batch,
    advantages_P: Sequence[GroupAdvantages],
    filter_overlong: bool = False,
    trains_all: bool = False,
    needs_rewards: bool = True,
    mask_failed: bool = False,
) -> list[Group]:
    """Return a group for each form of the tasks with a signal, or of ``trains_all`` tasks, without
    unscored samples. A teacher is a signal of every group. ``mask_failed`` leaves out turns that
    could not be parsed.

    ``filter_overlong`` also leaves out completions cut at the token limit (DAPO's overlong
    filtering, arXiv 2503.14476, section 3.4).
    """
    groups = []
    for p, prompt, attempts in _forms(batch):
        has_signal = bool(batch.teacher_P_G) or advantages_P[p].signal == "ok"
        if not (has_signal or trains_all):
            continue
        kept = [
            _trained(batch, p, g, advantages_P[p].of(g), mask_failed)
            for g in attempts
            if batch.can_train(p, g, needs_rewards)
            and not (filter_overlong and batch.episodes_P_G[p][g].is_cut)
        ]
        if any(kept):
            groups.append(_group(prompt.token_ids, kept, has_signal))
    return groups


def score(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, temperature: float
) -> list[Tensor]:
    """Return the log-probabilities of each sample's learned tokens, float32, in the order of the
    samples: without gradients, at the sampling temperature."""
    return [logprobs_T for logprobs_T, _ in measured(policy, groups, section, temperature)]


def measured(
    policy: Policy, groups: Sequence[Group], section: GrpoSection, temperature: float
) -> list[tuple[Tensor, Tensor]]:
    """Return :func:`score` with the entropies of the tokens' distributions, in nats."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, tuple[Tensor, Tensor]] = {}
    budget, sharing = section.chunk_tokens, section.prefix_sharing
    with torch.no_grad():
        for hidden_N, numbers in chunks(policy, groups, budget, sharing):
            chunk = [samples[number] for number in numbers]
            both = sample_logprobs(policy, hidden_N, chunk, temperature)
            lengths = [sample.count for sample in chunk]
            parts = zip(*(values_N.split(lengths) for values_N in both), strict=True)
            found.update(zip(numbers, parts, strict=True))
    return [found[number] for number in range(len(samples))]


def score_some(
    policy: Policy,
    groups: Sequence[Group],
    section: GrpoSection,
    temperature: float,
    wanted: Callable[[Trained], bool],
) -> dict[int, Tensor]:
    """Score the wanted samples alone; the result is keyed by their numbers among all."""
    numbered = enumerate(sample for group in groups for sample in group.samples)
    some = [
        Group(group.prompt_ids, kept)
        for group in groups
        if (kept := [sample for sample in group.samples if wanted(sample)])
    ]
    found = score(policy, some, section, temperature)
    return dict(zip((n for n, sample in numbered if wanted(sample)), found, strict=True))


def scalar_scores(policy: Policy, groups: Sequence[Group], section: GrpoSection) -> list[float]:
    """Return the score of each sample by a policy with a scalar head, without gradients."""
    samples = [sample for group in groups for sample in group.samples]
    found: dict[int, float] = {}
    with torch.no_grad():
        for hidden_N, numbers in chunks(
            policy, groups, section.chunk_tokens, section.prefix_sharing
        ):
            scores_S = chunk_scores(policy, hidden_N, [samples[number] for number in numbers])
            found |= dict(zip(numbers, scores_S.tolist(), strict=True))
    return [found[number] for number in range(len(samples))]


def chunk_scores(policy: Policy, hidden_N: Tensor, chunk: Sequence[Trained]) -> Tensor:
    """Return the scores [S] of samples, from the hidden states that predict all of their tokens
    [N, hidden_size]; the state before the last token stands at the end of the scored text."""
    ends_S = torch.tensor([len(sample.token_ids) for sample in chunk]).cumsum(0) - 1
    return policy.scalar.scores(hidden_N[to_device(ends_S, hidden_N.device)])


def sample_logprobs(
    policy: Policy,
    hidden_N: Tensor,
    chunk: Sequence[Trained],
    temperature: float,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of the samples' learned tokens, from the hidden states
    that predict all of their tokens [N, hidden_size]; see
    :meth:`flowright.policy.head.Head.logprobs`."""
    tokens = [token for sample in chunk for token in sample.token_ids]
    target_N = to_device(torch.tensor(tokens), hidden_N.device)
    if any(sample.learned is not None for sample in chunk):
        masks = [sample.learned or [True] * len(sample.token_ids) for sample in chunk]
        kept_N = to_device(torch.tensor([kept for mask in masks for kept in mask]), hidden_N.device)
        hidden_N, target_N = hidden_N[kept_N], target_N[kept_N]
    return policy.head.logprobs(hidden_N, target_N, temperature, with_entropy)


def unscored_share(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward.value is None for rollout in rollouts) / len(rollouts)
