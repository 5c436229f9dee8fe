"""Counts over the steps of a run, and over its problems, from its index."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flowright.core.formatting import Point
from flowright.viewer.facts import NONE, Combination
from flowright.viewer.finding import Found


@dataclass(frozen=True, slots=True)
class Tallies:
    """The attempts of a run: of each step all together, and by what they are counted under."""

    steps: Mapping[int, int]
    alike: Mapping[Combination, Mapping[int, int]]

    def share(self, wanted: Callable[[Combination], bool]) -> list[Point]:
        """The share of each step's attempts that are wanted, the first step first."""
        sums = dict.fromkeys(self.steps, 0)
        for about, counts in self.alike.items():
            if wanted(about):
                for step, count in counts.items():
                    sums[step] += count
        return [(step, count / self.steps[step]) for step, count in sums.items()]

    def total(self, wanted: Callable[[Combination], bool]) -> int:
        """How many attempts of the run are wanted."""
        return sum(sum(counts.values()) for about, counts in self.alike.items() if wanted(about))


def tallies(found: Found) -> Tallies:
    """All counts of the index."""
    steps: dict[int, int] = {}
    alike: dict[Combination, dict[int, int]] = {}
    rows = found.rows("SELECT step, combination, attempts FROM counts ORDER BY step")
    for step, key, count in rows:
        steps[step] = steps.get(step, 0) + count
        alike.setdefault(found.combinations.get(key, Combination()), {})[step] = count
    return Tallies(steps, alike)


@dataclass(slots=True)
class Solved:
    """Attempts at one problem: how many gold has an opinion of, how many of these are right, how
    many failed by the policy's fault, how many were scored, and the sum of their rewards."""

    known: int = 0
    right: int = 0
    failed: int = 0
    scored: int = 0
    reward: float = 0.0

    @property
    def gold(self) -> float | None:
        """The share that is right, failures being wrong; None without an attempt of either kind.
        Whether the problem has gold at all only ``known`` tells."""
        count = self.known + self.failed
        return self.right / count if count else None

    @property
    def mean(self) -> float | None:
        return self.reward / self.scored if self.scored else None


def solved_by_task(found: Found, ids: tuple[int, int] | None = None) -> dict[str, Solved]:
    """By the names of the problems, over the attempts between two ids. A failure of the policy is
    not right; one of ours says nothing (law 1)."""
    between = "WHERE id >= ? AND id < ?" if ids else ""
    rows = found.rows(
        "SELECT task, combination, count(*), count(reward), total(reward) FROM attempts "
        f"{between} GROUP BY task, combination",
        ids or (),
    )
    names = dict(found.rows("SELECT id, name FROM tasks"))
    tasks: dict[str, Solved] = {}
    for task, combination, count, scored, reward in rows:
        each = tasks.setdefault(names.get(task, NONE), Solved())
        about = found.combinations.get(combination, Combination())
        each.scored += scored
        each.reward += reward
        each.failed += count if about.blame == "policy" else 0
        if about.gold != NONE and about.blame == NONE:
            each.known += count
            each.right += count if about.gold == "right" else 0
    return tasks


def operators_by_step(found: Found) -> Mapping[str, list[Point]]:
    """The share of each step's attempts that call an operator, by its name."""
    sums: dict[str, dict[int, int]] = {}
    totals: dict[int, int] = {}
    for step, key, count in found.rows("SELECT step, operators, attempts FROM uses ORDER BY step"):
        totals[step] = totals.get(step, 0) + count
        for name in found.operators.get(key, NONE).split(","):
            if name != NONE:
                each = sums.setdefault(name, {})
                each[step] = each.get(step, 0) + count
    return {
        name: [(step, each.get(step, 0) / count) for step, count in totals.items()]
        for name, each in sorted(sums.items(), key=lambda item: -sum(item[1].values()))
    }
