"""What an evaluation tells of a policy: the share that is right by gold or, of an environment whose
rewards are a matter of degree, the mean reward. Read off a run's files; nothing is drawn here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flowright.core.formatting import Form, Record, percent
from flowright.viewer.monitoring.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Measured:
    """``key`` of a cell of ``evaluation.json``, of ``val/<key>``, and of the ends of its interval
    (``<key>_low``, ``<key>_high``); ``name`` as in "by gold"; ``change`` of a difference."""

    key: str
    title: str
    name: str
    form: Form
    change: Form

    @property
    def ends(self) -> tuple[str, str]:
        return f"{self.key}_low", f"{self.key}_high"


ACCURACY = Measured(
    "gold",
    "Held-out accuracy, by gold",
    "accuracy by gold",
    percent,
    lambda change: f"{100 * change:+.1f} points",
)
MEAN_REWARD = Measured(
    "reward", "Held-out mean reward", "mean reward", "{:.2f}".format, "{:+.2f}".format
)


def measured_of(snapshot: Snapshot) -> Measured:
    """Of a run, by its evaluation or, before there is one, by its validation."""
    by_reward = tells_rewards(snapshot.compared) or snapshot.series("val/reward")
    return MEAN_REWARD if by_reward else ACCURACY


def tells_rewards(rows: Iterable[Record]) -> bool:
    """Whether the rows of an evaluation have mean rewards."""
    return any("reward" in (row["kinds"].get("all") or {}) for row in rows)
