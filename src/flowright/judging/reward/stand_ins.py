"""What a trainer is told that takes numbers only, where there is no verdict: the group's mean.

Law 1 wants an unscored sample out of its group's statistics, with the advantage 0. A trainer that
knows no missing reward cannot leave it out; the mean of the scored siblings is the one number that
leaves the group's mean where it is, so that a sample's own advantage is 0 under every estimator
that subtracts it. It is no verdict and never passes for one: who asks marks such a sample, and too
many of them end in RunPaused. What it cannot mend: the group's standard deviation shrinks.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable

from flowright.core.errors import RunPaused

WINDOW = 256
"""The latest samples of which the share without a verdict is measured."""

_LEAST = 32  # samples before a share says anything
_GROUPS_KEPT = 4096
_SCORES_KEPT = 64  # of one group: no trainer has larger ones, and old attempts fade


class StandIns:
    """The scores of groups as they come in, and their means. Calls may come from several threads,
    and without a lock, which a forked child could find held for ever.

    ``most_unscored`` is the share of the latest ``WINDOW`` samples that may be without a verdict.
    """

    def __init__(self, most_unscored: float = 0.2) -> None:
        self._most = most_unscored
        self._groups: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._latest: deque[float | None] = deque(maxlen=WINDOW)

    def note(self, group: Hashable, score: float | None) -> None:
        """A sample's score, or that it has none."""
        self._latest.append(score)
        if score is None:
            return
        self._groups.setdefault(group, deque(maxlen=_SCORES_KEPT)).append(score)
        if len(self._groups) > _GROUPS_KEPT:
            self._groups.popitem(last=False)

    def mean(self, group: Hashable) -> float:
        """What stands in for a score in this group: its mean, or the latest samples' where none of
        the group has one. Raises RunPaused where no sample has, or too many have none."""
        latest = self._latest.copy()  # at once: others may add to it
        scored = [score for score in latest if score is not None]
        share = 1 - len(scored) / len(latest) if latest else 1.0
        siblings = list(self._groups.get(group, ())) or scored
        if not siblings or (share > self._most and len(latest) >= _LEAST):
            raise RunPaused(
                f"the judge gave no verdict on {share:.0%} of the latest samples (at most "
                f"{self._most:.0%}); look at its /health, then go on from the last checkpoint"
            )
        return sum(siblings) / len(siblings)
