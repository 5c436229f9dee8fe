"""What an attempt earns, by the kind of reward that an arm of a study has."""

import random
from collections.abc import Sequence
from dataclasses import replace

from flowright.config.root import Config
from flowright.core.errors import Failure, Reason
from flowright.environments.presentation.config import PresentationSection
from flowright.environments.reward import UNSCORED, Reward, reward_of
from flowright.environments.rollout import Completion, Rollout
from flowright.grading import Gold
from flowright.judging.verdict import Verdict
from flowright.simulation.draws import unit


def is_audited(config: Config, key: str) -> bool:
    """Whether gold decides on this attempt: on all of them, or drawn by a hash of its key."""
    if config.own(PresentationSection).reward == "gold":
        return True
    return unit(config.seed, "audit", key) < config.own(PresentationSection).gold_audit


def rewarded(
    config: Config, failure: Failure | None, verdict: Verdict | None, gold: Gold | None, key: str
) -> tuple[Reward, Failure | None]:
    """The reward of one attempt and what failed; of ``random``, before it is dealt out. The
    policy's ``failure`` earns what it does everywhere."""
    section, scale = config.own(PresentationSection), config.reward
    if failure is not None or verdict is None or gold is None:
        assert failure is not None
        return reward_of(failure, None, scale), failure
    if is_audited(config, key):
        return _scaled(config, float(gold.correct is True)), None
    if verdict.status != "ok":
        if section.failures == "zero":
            return Reward(0.0, {"validity": 0.0, "correctness": 0.0}), None
        lost = Failure(Reason.JUDGE_FAILED, f"{verdict.status}: {verdict.reason}")
        return UNSCORED, lost
    said = float(verdict.correct is True)
    if section.correction == "backward":
        said = backward(said, *error_rates(config))
    return _scaled(config, said), None


def backward(said: float, false_positive: float, false_negative: float) -> float:
    """(R - r0) / (1 - r0 - r1): on average the true reward, where the rates r0 and r1 are those of
    the verifier whatever the answer is like (arXiv 2510.00915, backward correction)."""
    return (said - false_positive) / (1 - false_positive - false_negative)


def error_rates(config: Config) -> tuple[float, float]:
    """Of the embedded judge as configured, biases aside: false positives, false negatives."""
    section = config.simulated
    return section.judge_false_positive, 1 - section.judge_true_positive


def _scaled(config: Config, share: float) -> Reward:
    scale = config.reward
    return Reward(
        value := scale.wrong + (scale.right - scale.wrong) * share,
        {"validity": 0.0, "correctness": value},
    )


def dealt_out(
    rollouts: Sequence[Rollout], completions: Sequence[Completion], seed: int
) -> list[Rollout]:
    """A group with the rewards of its scored attempts dealt out anew among them, by a hash: the
    same rewards, which say nothing of the answers. The policy's own failures keep theirs."""
    scored = [n for n, r in enumerate(rollouts) if r.failure is None and r.reward.value is not None]
    dealt = [*scored]
    keys = "/".join(completions[n].key for n in scored)
    random.Random(f"{seed}/dealt/{keys}").shuffle(dealt)
    found = [*rollouts]
    for taker, giver in zip(scored, dealt, strict=True):
        found[taker] = replace(found[taker], reward=rollouts[giver].reward)
    return found
