"""What a sample pays beside its task: for its distance from the base model (``grpo.kl_in:
reward``) and for its length (``grpo.overlong: soft``). Where it enters the advantages:
:func:`flowright.grpo.advantages.group_advantages`.
"""

from collections.abc import Sequence
from dataclasses import replace

from flowright.config.grpo import GrpoSection
from flowright.environments.reward import Reward, with_penalty
from flowright.grpo.pipeline import Batch


def overlong(length: int, longest: int, buffer: int) -> float:
    """Of a completion of ``length`` tokens where ``longest`` is the limit: 0 up to the last
    ``buffer`` tokens before it, 1 at the limit, linear between (DAPO's soft punishment, arXiv
    2503.14476, equation 13, there with a minus)."""
    return min(1.0, max(0.0, (length - (longest - buffer)) / buffer))


def penalised(
    batch: Batch, section: GrpoSection, longest: int, nats_S: Sequence[float] | None
) -> Batch:
    """The batch with its penalties in the rewards. ``nats_S``: the divergence of each sample, None
    where it does not count there. What is unscored stays so."""
    if nats_S is None and section.overlong != "soft":
        return batch
    nats = iter(nats_S or ())

    def paid(reward: Reward, length: int) -> Reward:
        if nats_S is not None:
            reward = with_penalty(reward, "kl", section.kl_coefficient * next(nats))
        if section.overlong == "soft":
            penalty = overlong(length, longest, section.buffer(longest))
            reward = with_penalty(reward, "overlong", penalty)
        return reward

    rollouts_P_G = [
        [rollout.rewarded(paid(rollout.reward, len(rollout.sample.token_ids))) for rollout in group]
        for group in batch.rollouts_P_G
    ]
    return replace(batch, rollouts_P_G=rollouts_P_G)


def task_rewards(batch: Batch) -> list[list[float | None]]:
    """Without penalties, None where unscored."""
    return [[rollout.reward.unpenalised for rollout in group] for group in batch.rollouts_P_G]


def costs(batch: Batch) -> list[list[float]]:
    """What the penalties add to each reward, 0 or below but for noise of the KL's estimate."""
    return [[_cost(rollout.reward) for rollout in group] for group in batch.rollouts_P_G]


def _cost(reward: Reward) -> float:
    return 0.0 if reward.value is None or reward.task is None else reward.value - reward.task
