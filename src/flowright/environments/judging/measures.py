"""What is measured of the verdicts of a judge that is trained. No statistics of errors: a step's
rollouts are few, and evaluations have their own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import get_args

from flowright.data.preferences import SWAPPED, Pair, Preferred
from flowright.environments.judging.negatives import is_negative
from flowright.environments.judging.reading import Reading, Unread
from flowright.environments.judging.rewards import brier
from flowright.environments.judging.tasks import JudgingTask
from flowright.environments.metrics import mean_of
from flowright.environments.rollout import Rollout


@dataclass(frozen=True, slots=True)
class JudgingDetails:
    """What only judging knows of a rollout: what the judge said, or why it cannot be read.
    ``paired``: whether its reward knows an attempt at the other order; None where none is asked
    for."""

    reading: Reading | Unread
    correct: bool
    paired: bool | None = None


def judging_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of some attempts; those without a value are left out.

    - ``judge/accuracy``: share that says the label; what cannot be read does not;
    - ``judge/unreadable``, ``judge/unread/<why>``: shares of all;
    - ``judge/mean_absolute_error``: of the scores that were read;
    - ``judge/position_bias``: accuracy where A is the better answer less that where B is;
    - ``judge/consistency``: share of the attempts at a pair that name the answer which the attempt
      of the same place in the other order names, where both orders were played;
    - ``judge/brier_loss``: mean squared error of the stated confidence;
    - ``judge/fooled``: share of the answers of one-token attacks that are not judged as such;
    - ``judge/unpaired``: with ``judging.reward: consistency`` the share of attempts at pairs whose
      reward knows no attempt at the other order;
    - ``train/reward_mean``, ``train/reward_std``: of the rewards.
    """
    known = [(r, t, d) for r in rollouts if (t := _task(r)) and (d := _details(r))]
    rewards = [r.reward.value for r in rollouts if r.reward.value is not None]
    read = [(t, d, d.reading) for _, t, d in known if isinstance(d.reading, Reading)]
    errors = [
        float(abs(said.verdict - t.row.label))
        for t, _, said in read
        if isinstance(said.verdict, int) and isinstance(t.row.label, int)
    ]
    sure = [
        1 - brier(said.confidence, d.correct) for _, d, said in read if said.confidence is not None
    ]
    right = [float(d.correct) for _, _, d in known]
    pairs = [(t, d) for _, t, d in known if isinstance(t.row, Pair)]
    return {
        **mean_of("judge/accuracy", right),
        **mean_of("judge/unreadable", [float(isinstance(d.reading, str)) for _, _, d in known]),
        **{
            name: value
            for why in get_args(Unread)
            for name, value in mean_of(
                f"judge/unread/{why}", [float(d.reading == why) for _, _, d in known]
            ).items()
        },
        **mean_of("judge/mean_absolute_error", errors),
        **_position_bias(pairs),
        **mean_of("judge/consistency", _agreements(pairs)),
        **mean_of("judge/brier_loss", sure),
        **mean_of(
            "judge/fooled", [float(not d.correct) for _, t, d in known if is_negative(t.source)]
        ),
        **mean_of(
            "judge/unpaired", [float(not d.paired) for _, d in pairs if d.paired is not None]
        ),
        **mean_of("train/reward_mean", rewards),
        **({"train/reward_std": _deviation(rewards)} if rewards else {}),
    }


def _task(rollout: Rollout) -> JudgingTask | None:
    return rollout.task if isinstance(rollout.task, JudgingTask) else None


def _details(rollout: Rollout) -> JudgingDetails | None:
    return rollout.details if isinstance(rollout.details, JudgingDetails) else None


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
        said = details.reading.verdict if isinstance(details.reading, Reading) else None
        named = said if isinstance(said, str) else None
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
