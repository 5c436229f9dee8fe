"""Group-relative advantages under law 1: what was not graded takes no part."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Literal

from flowright.config.grpo import GrpoSection
from flowright.core.errors import UserError
from flowright.environments.episode import Episode
from flowright.environments.rollout import check_reward
from flowright.grpo import ADVANTAGES

Signal = Literal["ok", "zero_variance", "too_few"]

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of one group, in the order of its samples. An unscored sample has exactly 0.

    ``signal`` other than "ok" leaves the group out of the update but for its KL and entropy
    (``grpo.kl_on``): "too_few" has fewer than two scored samples, "zero_variance" equal rewards.
    """

    values: tuple[float, ...]
    signal: Signal
    turns: tuple[tuple[float, ...], ...] = ()
    """Advantages of each attempt's turns; empty where all have their attempt's."""
    alone: int = 0
    """Turns that had no other to be compared with."""

    def of(self, attempt: int) -> float | Sequence[float]:
        """Return an attempt's advantage, or those of its turns."""
        return self.turns[attempt] if self.turns else self.values[attempt]

    def times(self, weight: float) -> "GroupAdvantages":
        turns = tuple(tuple(weight * value for value in values) for values in self.turns)
        values = tuple(weight * value for value in self.values)
        return GroupAdvantages(values, self.signal, turns, self.alone)


Rewards = Sequence[Sequence[float]]
"""Scored rewards, group by group."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """A value of ``grpo.advantage_scale``. ``across_groups``: a group of equal rewards has a signal
    where others' differ."""

    compute: Callable[[Rewards], list[list[float]]]
    across_groups: bool = False


def advantage_of(scale: str) -> Advantage:
    """Load a value of ``grpo.advantage_scale``."""
    found = ADVANTAGES.load(scale)
    return found if isinstance(found, Advantage) else Advantage(found)


def group_advantages(
    rewards: Sequence[Sequence[float | None]],
    scale: str = "group",
    penalties: Sequence[Sequence[float]] | None = None,
    divergences: Sequence[Sequence[float]] | None = None,
) -> list[GroupAdvantages]:
    """Return the advantages of all groups of a step; a reward of None is an unscored sample.

    ``scale`` is a value of ``grpo.advantage_scale``: a function of the scored rewards of all
    groups, group by group, to their advantages. Its results for groups without a signal are not
    used. Rewards are compared for equality, not by a rounded deviation.

    ``penalties``, of the shape of the rewards and no part of them, are the costs of a sample's
    length or its distance from the base model. They are centred within their group and added
    unscaled: divided by a deviation, a small one would become as large as the difference between
    right and wrong wherever nothing else differs. So the KL has the weight that it has in the loss.
    Penalties are no signal by themselves. ``divergences`` are those penalties, or the part of them,
    that also count in groups without one.
    """
    scored = [[r for r in group if r is not None] for group in rewards]
    costs = penalties or [[0.0] * len(group) for group in rewards]
    for value in (*(r for group in scored for r in group), *(c for group in costs for c in group)):
        check_reward(value)
    advantages, chosen = [], advantage_of(scale)
    computed = chosen.compute(scored)
    always = divergences or [[0.0] * len(group) for group in rewards]
    signals = [*map(_signal, scored)]
    if chosen.across_groups:
        every = _signal([r for group in scored for r in group])
        signals = [every if group else "too_few" for group in scored]
    for group, signal, known, found, cost, least in zip(
        rewards, signals, scored, computed, costs, always, strict=True
    ):
        if signal != "ok":
            found, cost = [0.0] * len(known), least
        if len(found) != len(known) or not all(map(math.isfinite, found)):
            raise ValueError(f"grpo.advantage_scale: {scale} gave {found} for rewards {known}")
        paid = [c for c, r in zip(cost, group, strict=True) if r is not None]
        values = map(add, found, _centred(paid, 1.0))
        advantages.append(
            GroupAdvantages(tuple(0.0 if r is None else next(values) for r in group), signal)
        )
    return advantages


def with_turn_credit(
    found: GroupAdvantages,
    rewards: Sequence[float | None],
    episodes: Sequence[Episode],
    penalties: Sequence[float],
    section: GrpoSection,
) -> GroupAdvantages:
    """Return a group's advantages with one for each turn, by ``grpo.turns.credit``.

    An observation's reward is the part of the attempt's that its turn has earned; the last turn has
    the rest, so that they sum to the attempt's. A turn's return is the sum of its own reward and
    the later ones, each times ``discount`` to the power of its distance.

    ``discounted``: returns of the t-th turns are compared by ``advantage_scale``; penalties count
    for all turns alike. ``gigpo`` (arXiv 2505.10978, equations 6 to 8): the attempt's advantage
    plus ``step_weight`` times the return's lead over the turns of the group that began in the same
    state, divided by their deviation with ``advantage_scale: group``, else not; a function of one's
    own compares them itself. First turns of a form share a state. A turn that is alone in its
    comparison has 0 from it. Unscored attempts have 0. Without any difference, or a second turn,
    the values of ``found`` stay.
    """
    turns, scale = section.turns, section.advantage_scale
    returns = [
        _returns(episode, reward, turns.discount) if reward is not None else []
        for episode, reward in zip(episodes, rewards, strict=True)
    ]
    members: dict[object, list[tuple[int, int]]] = {}
    for g, (episode, values) in enumerate(zip(episodes, returns, strict=True)):
        for t in range(len(values)):
            state = t if turns.credit == "discounted" else _state(episode, t, g)
            members.setdefault(state, []).append((g, t))
    by_scale = turns.credit == "discounted" or scale == "group" or ADVANTAGES.is_path(scale)
    spread = advantage_of(scale if by_scale else "none")
    compared = [[0.0] * len(episode.turns) for episode in episodes]
    for places in members.values():
        if len(places) > 1:
            (values,) = spread.compute([[returns[g][t] for g, t in places]])
            for (g, t), value in zip(places, values, strict=True):
                compared[g][t] = value
    alone = sum(len(places) == 1 for places in members.values())
    has_turns = any(len(episode.turns) > 1 for episode in episodes)
    if not has_turns or not any(value for attempt in compared for value in attempt):
        return replace(found, alone=alone)
    weight, base = turns.step_weight, list(found.values)
    if turns.credit == "discounted":
        paid = [p for p, r in zip(penalties, rewards, strict=True) if r is not None]
        costs = iter(_centred(paid, 1.0))
        weight, base = 1.0, [0.0 if r is None else next(costs) for r in rewards]
    values = tuple(
        tuple(base[g] + weight * value for value in compared[g]) for g in range(len(episodes))
    )
    return GroupAdvantages(found.values, "ok", values, alone)


def _returns(episode: Episode, reward: float, discount: float) -> list[float]:
    earned = [turn.observation.reward if turn.observation else 0.0 for turn in episode.turns[:-1]]
    found = [reward - sum(earned)]
    for value in reversed(earned):
        found.append(value + discount * found[-1])
    return found[::-1]


def _state(episode: Episode, turn: int, attempt: int) -> object:
    """The state in which a turn began; a turn's own where the environment names none."""
    if not turn:
        return "first", episode.task.id, episode.turns[0].context_ids
    seen = episode.turns[turn - 1].observation
    named = seen.state if seen is not None else None
    return (attempt, turn) if named is None else ("state", episode.task.id, named)


def _signal(known: Sequence[float]) -> Signal:
    if len(known) < 2:
        return "too_few"
    return "zero_variance" if all(r == known[0] for r in known) else "ok"


def by_group(rewards: Rewards) -> list[list[float]]:
    """(r_i - mean(r)) / (std(r) + 1e-6) of each group (DeepSeekMath, arXiv 2402.03300, section
    4.1.2). Standard deviations are the sample's (n - 1)."""
    return [_centred(group, _deviation(group) + EPSILON) for group in rewards]


def by_batch(rewards: Rewards) -> list[list[float]]:
    """(r_i - mean(r)) / (std of all groups' rewards + 1e-6) (REINFORCE++, arXiv 2501.03262)."""
    deviation = _deviation([reward for group in rewards for reward in group])
    return [_centred(group, deviation + EPSILON) for group in rewards]


def centred(rewards: Rewards) -> list[list[float]]:
    """r_i - mean(r) (Dr. GRPO, arXiv 2503.20783, section 3.2)."""
    return [_centred(group, 1.0) for group in rewards]


def leave_one_out(rewards: Rewards) -> list[list[float]]:
    """r_i - mean of the group's others, which is n / (n - 1) (r_i - mean(r)) (RLOO, arXiv
    2402.14740, section 3)."""
    return [
        _centred(group, (len(group) - 1) / len(group) if len(group) > 1 else 1.0)
        for group in rewards
    ]


def whitened(rewards: Rewards) -> list[list[float]]:
    """r_i - mean(r) of the group, divided by the deviation of just that over the whole batch
    (REINFORCE++-baseline, arXiv 2501.03262). :func:`by_batch` divides by the deviation of the
    rewards themselves, which grows with the difference between easy problems and hard ones. An
    advantage is a sample's here, and so is the deviation: published code takes it over tokens,
    where long samples count more."""
    centres = centred(rewards)
    deviation = _deviation([value for group in centres for value in group])
    return [[value / (deviation + EPSILON) for value in group] for group in centres]


def by_mean(rewards: Rewards) -> list[list[float]]:
    """(r_i - mean(r)) / mean(r) of each group, which weighs hard problems most: with rewards of 0
    and 1 the expected update is that of the likelihood of being right (MaxRL, arXiv 2602.02710).
    Raises UserError for rewards below 0."""
    for value in (r for group in rewards for r in group):
        if value < 0:
            raise UserError(
                f"grpo.advantage_scale: maxrl: a reward of {value:g}; give rewards of 0 or more "
                "(reward.invalid=0 reward.crashed=0)"
            )
    means = [math.fsum(group) / max(1, len(group)) for group in rewards]
    return [_centred(group, mean or 1.0) for group, mean in zip(rewards, means, strict=True)]


def across_groups(rewards: Rewards) -> list[list[float]]:
    """(r_i - mean) / (std + 1e-6) over the rewards of all groups: no baseline of a group
    (REINFORCE++, arXiv 2501.03262)."""
    every = [reward for group in rewards for reward in group]
    mean, deviation = math.fsum(every) / max(1, len(every)), _deviation(every) + EPSILON
    return [[(reward - mean) / deviation for reward in group] for group in rewards]


ACROSS_GROUPS = Advantage(across_groups, across_groups=True)


def _centred(values: Sequence[float], divisor: float) -> list[float]:
    mean = math.fsum(values) / max(1, len(values))
    return [(value - mean) / divisor for value in values]


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum(v**2 for v in _centred(values, 1.0)) / (len(values) - 1))
