"""Rewards of verdicts, as pure functions of verdict and label, and the metrics of judging.

Where OpenJudge's rules differ (read at its commit 344e45d, grpo/pointwise/reward_fn.py and
grpo/pairwise/reward_fn.py): a completion without a score counts there as score 0, which earns 1
where the label is 0 and 1 - label/4 above 1; of a score the first digits count, so that -3 is 3;
without a tag its last lines are searched for words such as "response A", and a missing preference
is a tie. Here an unreadable completion earns less than any verdict.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import get_args

from flowright.data.task import SWAPPED, Pair, Preferred
from flowright.environments.judging.frames import Reading, Unread
from flowright.environments.judging.rows import TOP_LABEL
from flowright.environments.judging.synthetic import is_negative
from flowright.environments.judging.tasks import JudgingTask
from flowright.environments.rollout import Reward, Rollout, means


def of_score(verdict: int, label: int) -> float:
    """Return 1 for the right score with the labels 0 and 1, else 0; above them 1 - |score - label|
    / 4."""
    if label <= 1:
        return float(verdict == label)
    return 1 - abs(verdict - label) / TOP_LABEL


def of_preference(
    verdict: Preferred,
    preferred: Preferred,
    strength: float | None = None,
    full_strength: float | None = None,
) -> float:
    """Return 1 for the right one of A, B and tie, else 0. With a ``full_strength`` a right one
    earns ``strength / full_strength``, at most 1; a tie, and a pair without a strength, earn 1.

    The weight matters only if advantages are not divided by the group's standard deviation, which
    takes any scale out.
    """
    if verdict != preferred:
        return 0.0
    if full_strength is None or strength is None or preferred == "tie":
        return 1.0
    return min(1.0, strength / full_strength)


def brier(confidence: float, correct: bool) -> float:
    """Return 1 - (confidence - correct)^2 (Brier 1950): a proper scoring rule, so that in
    expectation nothing beats the true probability of being right.

    By itself it pays a judge that is certainly wrong, with confidence 0, as much as one that is
    right; see :func:`judged`.
    """
    return 1 - (confidence - correct) ** 2


def judged(
    correctness: float, confidence: float | None = None, correct: bool = False, weight: float = 0.0
) -> Reward:
    """The reward of a verdict that was read. A stated confidence pays ``weight`` times its squared
    error, as the part ``calibration`` (0 or below). With a correctness of 0 or 1 and a weight of at
    most 1 the two together are highest for the verdict most likely to be right, stated with its
    probability p: p - weight p (1 - p) rises with p (arXiv 2507.16806)."""
    parts = {"validity": 0.0, "correctness": correctness}
    if confidence is not None:
        parts["calibration"] = weight * (brier(confidence, correct) - 1)
    return Reward(sum(parts.values()), parts)


def unread(value: float) -> Reward:
    """The reward of a completion that cannot be read (``judging.unreadable``)."""
    return Reward(value, {"validity": value, "correctness": 0.0})


def consistency(
    one: Sequence[bool], other: Sequence[bool]
) -> tuple[list[float], list[float]] | None:
    """The verdict-consistency reward of J1 (arXiv 2505.10320): 1 for a verdict that is right and
    whose counterpart in the other order is right, too, else 0.

    ``one`` and ``other`` say which attempts at the two orders of a pair are right; the counterpart
    is that of the same place, and the shorter list goes round. None where an order has no attempt.
    """
    if not one or not other:
        return None

    def against(mine: Sequence[bool], theirs: Sequence[bool]) -> list[float]:
        return [float(right and theirs[i % len(theirs)]) for i, right in enumerate(mine)]

    return against(one, other), against(other, one)


@dataclass(frozen=True, slots=True)
class JudgingDetails:
    """The verdict of a rollout, or the reason that it cannot be read. ``paired``: its reward uses
    an attempt at the other order; None if none is needed."""

    reading: Reading | Unread
    correct: bool
    paired: bool | None = None


def judging_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of some attempts; those without a value are left out.

    - ``judge/accuracy``: share of verdicts that are the label; unreadable ones are not;
    - ``judge/unreadable``, ``judge/unread/<why>``: shares of all;
    - ``judge/mean_absolute_error``: of the scores that were read;
    - ``judge/position_bias``: accuracy where A is the better answer less that where B is;
    - ``judge/consistency``: share of the attempts at a pair that name the answer which the attempt
      of the same place in the other order names, where both orders were played;
    - ``judge/brier_loss``: mean squared error of the stated confidence;
    - ``judge/fooled``: share of the answers of one-token attacks that are not judged as such;
    - ``judge/unpaired``: with ``judging.reward: consistency`` the share of attempts at pairs whose
      reward uses no attempt at the other order;
    - ``train/reward_mean``, ``train/reward_std``: of the rewards.
    """
    known = [
        (r.task, r.details)
        for r in rollouts
        if isinstance(r.task, JudgingTask) and isinstance(r.details, JudgingDetails)
    ]
    rewards = [r.reward.value for r in rollouts if r.reward.value is not None]
    read = [(t, d, d.reading) for t, d in known if isinstance(d.reading, Reading)]
    pairs = [(t, d) for t, d in known if isinstance(t.row, Pair)]
    values: dict[str, Sequence[float]] = {
        "judge/accuracy": [d.correct for _, d in known],
        "judge/unreadable": [isinstance(d.reading, str) for _, d in known],
        **{f"judge/unread/{why}": [d.reading == why for _, d in known] for why in get_args(Unread)},
        "judge/mean_absolute_error": [
            abs(reading.verdict - t.row.label)
            for t, _, reading in read
            if isinstance(reading.verdict, int) and isinstance(t.row.label, int)
        ],
        "judge/consistency": _agreements(pairs),
        "judge/brier_loss": [
            1 - brier(reading.confidence, d.correct)
            for _, d, reading in read
            if reading.confidence is not None
        ],
        "judge/fooled": [not d.correct for t, d in known if is_negative(t.source)],
        "judge/unpaired": [not d.paired for _, d in pairs if d.paired is not None],
        "train/reward_mean": rewards,
    }
    deviation = {"train/reward_std": _deviation(rewards)} if rewards else {}
    return {**means(values), **_position_bias(pairs), **deviation}


def _position_bias(pairs: Sequence[tuple[JudgingTask, JudgingDetails]]) -> dict[str, float]:
    places: Mapping[Preferred, list[float]] = {
        place: [float(d.correct) for t, d in pairs if t.row.label == place]
        for place in ("first", "second")
    }
    if not (places["first"] and places["second"]):
        return {}
    first, second = (sum(right) / len(right) for right in (places["first"], places["second"]))
    return {"judge/position_bias": first - second}


def _agreements(pairs: Sequence[tuple[JudgingTask, JudgingDetails]]) -> list[float]:
    """For attempts of the same place at the two orders of a pair 1 where both name the same answer,
    else 0, also where one cannot be read."""
    attempts: dict[str, tuple[list[Preferred | None], list[Preferred | None]]] = defaultdict(
        lambda: ([], [])
    )
    for task, details in pairs:
        verdict = details.reading.verdict if isinstance(details.reading, Reading) else None
        named = verdict if isinstance(verdict, str) else None
        if task.swapped and named is not None:
            named = SWAPPED[named]
        attempts[task.row.id][task.swapped].append(named)
    return [
        float(one is not None and one == other)
        for orders in attempts.values()
        for one, other in zip(*orders, strict=False)
    ]


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / len(values))
