"""What is measured of presented answers, beside what every environment's rollouts have."""

from collections.abc import Sequence
from typing import cast

from flowright.environments.metrics import mean_of
from flowright.environments.presentation.presenting import PLAIN, PRESENTATIONS
from flowright.environments.presentation.rollouts import details_of
from flowright.environments.presentation.table import WAYS, Kind, best_way
from flowright.environments.rollout import Rollout


def presentation_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of some attempts; those without a value are left out. Of all attempts, those that
    make no choice included:

    - ``presentation/share/<name>``: share that presents so, ``plain`` among them;
    - ``presentation/way/<way>``: share that solves so, ``presentation/best_way``: share that takes
      the way that is right most often for its kind of question;
    - ``presentation/audited``: share whose reward is gold.

    Of those that make a choice ``presentation/words``: mean length of the text that is judged.
    """
    known = [details_of(rollout) for rollout in rollouts]
    names = [details.choice.names if details else [] for details in known]
    ways = [details.choice.way if details else None for details in known]
    best = [best_way(cast(Kind, rollout.task.kind)) for rollout in rollouts]
    return {
        **_shares("presentation/share", (*PRESENTATIONS, PLAIN), names),
        **_shares("presentation/way", WAYS, [[way] for way in ways]),
        **mean_of(
            "presentation/best_way",
            [float(way == other) for way, other in zip(ways, best, strict=True)],
        ),
        **mean_of(
            "presentation/audited", [float(bool(details and details.audited)) for details in known]
        ),
        **mean_of("presentation/words", [float(len(d.text.split())) for d in known if d]),
    }


def _shares(
    prefix: str, names: Sequence[str], found: Sequence[Sequence[str | None]]
) -> dict[str, float]:
    shares: dict[str, float] = {}
    for name in names:
        shares |= mean_of(f"{prefix}/{name}", [float(name in each) for each in found])
    return shares
