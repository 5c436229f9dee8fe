"""Which groups of attempts a report shows: found by reading rollouts, without keeping them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev

from flowright.monitoring.snapshot import load_rollouts
from flowright.rendering.series import Record
from flowright.runs import rollout_steps

SEARCHED_STEPS = 40  # at most: enough to choose from, and a report of a long run stays quick
WIDEST, BEST, WORST, DISPUTED = 3, 2, 2, 4


@dataclass(frozen=True, slots=True)
class Group:
    """All attempts at one problem in one step, best reward first, unscored ones last."""

    attempts: tuple[Record, ...]

    @property
    def step(self) -> int:
        return int(self.attempts[0].get("step") or 0)

    @property
    def task(self) -> Record:
        return self.attempts[0].get("task") or {}

    @property
    def rewards(self) -> list[float]:
        values = [reward_of(attempt) for attempt in self.attempts]
        return [value for value in values if value is not None]

    @property
    def mean(self) -> float:
        return fmean(self.rewards)

    @property
    def spread(self) -> float:
        """Standard deviation of the scored rewards."""
        return pstdev(self.rewards)


@dataclass(frozen=True, slots=True)
class Selection:
    """What was found. ``messages`` holds the newest failure message by reason; ``disputed`` are
    single attempts that the judge called right and gold calls wrong, newest first."""

    widest: Sequence[Group] = ()
    best: Sequence[Group] = ()
    worst: Sequence[Group] = ()
    disputed: Sequence[Record] = ()
    messages: Mapping[str, str] = field(default_factory=dict)
    searched: int = 0
    kept: int = 0


def select_groups(run: Path) -> Selection:
    """Search up to ``SEARCHED_STEPS`` steps, evenly spread, the first and the last included.

    The widest groups come from the whole run, the best and the worst from its last third, where the
    policy is what it became; each list takes another kind of problem first, and no group is shown
    twice.
    """
    steps = rollout_steps(run)
    chosen = _evenly(steps, SEARCHED_STEPS)
    widest = _Shortlist(WIDEST)
    best, worst = _Shortlist(BEST), _Shortlist(WORST)
    disputed: list[Record] = []
    messages: dict[str, str] = {}
    late = chosen[-max(1, len(chosen) // 3)] if chosen else 0
    for step in chosen:
        rollouts = load_rollouts(run, step)
        for rollout in rollouts:
            failure = rollout.get("failure") or {}
            if failure.get("reason"):
                messages[str(failure["reason"])] = str(failure.get("message") or "")
        disputed = [*filter(_is_disputed, rollouts), *disputed][:DISPUTED]
        for group in group_rollouts(rollouts):
            if len(group.rewards) < 2:
                continue
            widest.offer((group.spread, step), group)
            if step >= late:
                best.offer((group.mean, step), group)
                worst.offer((-group.mean, step), group)
    shown: set[int] = set()
    return Selection(
        widest=widest.take(shown),
        worst=worst.take(shown),
        best=best.take(shown),
        disputed=disputed,
        messages=messages,
        searched=len(chosen),
        kept=len(steps),
    )


def group_rollouts(rollouts: Sequence[Record]) -> list[Group]:
    """Rollouts of one step as groups, in the order of their numbers."""
    groups: dict[int, list[Record]] = {}
    for rollout in rollouts:
        groups.setdefault(int(rollout.get("group") or 0), []).append(rollout)
    return [Group(tuple(sorted(attempts, key=_rank))) for _, attempts in sorted(groups.items())]


def reward_of(rollout: Record) -> float | None:
    """The reward, None where the attempt was not scored (law 1)."""
    return (rollout.get("reward") or {}).get("value")


class _Shortlist:
    """The best offers of each kind of problem; holds few groups at any time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_kind: dict[str, list[tuple[tuple[float, int], Group]]] = {}

    def offer(self, score: tuple[float, int], group: Group) -> None:
        ranked = self._by_kind.setdefault(str(group.task.get("kind")), [])
        ranked.append((score, group))
        ranked.sort(key=lambda item: item[0], reverse=True)
        del ranked[self.size + WIDEST + WORST :]  # those that another list may take first

    def take(self, shown: set[int]) -> list[Group]:
        taken: list[Group] = []
        ranks = max(map(len, self._by_kind.values()), default=0)
        for rank in range(ranks):
            row = [ranked[rank] for ranked in self._by_kind.values() if rank < len(ranked)]
            for _, group in sorted(row, key=lambda item: item[0], reverse=True):
                if len(taken) < self.size and id(group) not in shown:
                    taken.append(group)
                    shown.add(id(group))
        return taken


def _is_disputed(rollout: Record) -> bool:
    judged = (rollout.get("verdict") or {}).get("correct")
    return judged is True and (rollout.get("gold") or {}).get("correct") is False


def _rank(rollout: Record) -> tuple[bool, float]:
    reward = reward_of(rollout)
    return (reward is None, -(reward or 0.0))


def _evenly(steps: Sequence[int], count: int) -> list[int]:
    if len(steps) <= count:
        return list(steps)
    return [steps[i * (len(steps) - 1) // (count - 1)] for i in range(count)]
