"""Attempts found in an index: a page of a selection, its size, and counts over steps and problems.

Pages go by key, so that the thousandth is as quick as the first.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from flowright.core.formatting import Point
from flowright.viewer.index import IndexReader, first_id, step_of
from flowright.viewer.rollout_records import NONE, Combination
from flowright.viewer.selection import Filter, sql_selection

PAGE = 50
MOST_COUNTED = 10_000
"""More of a selection are not counted, which would take long."""
_COLUMNS = (
    "a.id, a.grp, a.idx, a.task, a.combination, a.operators, a.reward, a.advantage, a.tokens, "
    "a.llm_tokens, a.calls, a.seconds, a.program, a.start, a.size"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt as the index knows it."""

    id: int
    group: int
    index: int
    task: int
    combination: int
    operators: int
    reward: float | None
    advantage: float | None
    tokens: int | None
    llm_tokens: int | None
    calls: int | None
    seconds: float | None
    program: int
    start: int
    size: int

    @property
    def step(self) -> int:
        return step_of(self.id)

    @property
    def place(self) -> str:
        """``step/group/index``: its name within the run."""
        return f"{self.step}/{self.group}/{self.index}"


@dataclass(frozen=True, slots=True)
class Page:
    """Attempts, and the key of the page after them; empty on the last."""

    attempts: Sequence[Attempt]
    after: str = ""


class AttemptSearch(IndexReader):
    """An index opened for one answer, with queries for attempts."""

    def attempts(self, where: str, values: Sequence[object]) -> list[Attempt]:
        """The attempts of a condition in SQL, which must not be a reader's text."""
        query = f"SELECT {_COLUMNS} FROM attempts a {where}"
        return [Attempt(*row) for row in self.rows(query, values)]

    def at(self, step: int, group: int, index: int) -> Attempt | None:
        """The attempt of a place."""
        return next((each for each in self.group(step, group) if each.index == index), None)

    def group(self, step: int, group: int) -> list[Attempt]:
        """All attempts of a group, in the order of their numbers."""
        between = (first_id(step), first_id(step + 1), group)
        return self.attempts(
            "WHERE a.id >= ? AND a.id < ? AND a.grp = ? ORDER BY a.idx, a.id", between
        )

    def about(self, attempt: Attempt) -> Combination:
        """Look up the combination of an attempt."""
        return self.combinations.get(attempt.combination, Combination())

    def page(self, chosen: Filter, size: int = PAGE) -> Page:
        """The attempts of a selection from where its page begins."""
        found = self._behind(chosen, chosen.descending, _read_key(chosen.after), size + 1)
        if len(found) <= size:
            return Page(found)
        return Page(found[:size], json.dumps(_key(chosen, found[size - 1])))

    def beside(self, chosen: Filter, attempt: Attempt) -> tuple[Attempt | None, Attempt | None]:
        """The attempts before and after one in a selection."""
        key = _key(chosen, attempt)
        before = self._behind(chosen, not chosen.descending, key, 1, nulls_first=True)
        after = self._behind(chosen, chosen.descending, key, 1)
        return next(iter(before), None), next(iter(after), None)

    def count(self, chosen: Filter) -> tuple[int, bool]:
        """Count the attempts of a selection; True where there are more than were counted."""
        if not chosen.values:
            ((count,),) = self.rows("SELECT coalesce(sum(attempts), 0) FROM files") or [(0,)]
            return count, False
        where = sql_selection(self, chosen)
        if where is None:
            return 0, False
        source, values = where.counted()
        some = f"SELECT 1 FROM {source} LIMIT {MOST_COUNTED + 1}"
        ((count,),) = self.rows(f"SELECT count(*) FROM ({some})", values) or [(0,)]
        return min(count, MOST_COUNTED), count > MOST_COUNTED

    def each(self, chosen: Filter, most: int | None = None) -> Iterator[Attempt]:
        """All attempts of a selection, or the first ``most``, in its order."""
        return islice(self._each(replace(chosen, after="")), most)

    def _each(self, chosen: Filter) -> Iterator[Attempt]:
        while True:
            page = self.page(chosen, 2000)
            yield from page.attempts
            if not page.after:
                return
            chosen = replace(chosen, after=page.after)

    def _behind(
        self,
        chosen: Filter,
        down: bool,
        key: tuple[float | None, int] | None,
        count: int,
        nulls_first: bool = False,
    ) -> list[Attempt]:
        """The first attempts behind a key, by the column of the order and their id; those without
        a value come last."""
        where, column = sql_selection(self, chosen), _column(chosen)
        if where is None:
            return []
        found: list[Attempt] = []
        beyond, order = ("<", "DESC") if down else (">", "ASC")
        by_id, behind_id = f"a.id {order}", f"a.id {beyond} ?"
        # A group of attempts: its condition, its order, and the condition of those behind a key.
        known = (f"a.{column} IS NOT NULL", f"a.{column} {order}, {by_id}",
                 f"(a.{column}, a.id) {beyond} (?, ?)")  # fmt: skip
        unknown = (f"+a.{column} IS NULL", by_id, behind_id)
        groups = [unknown, known] if nulls_first else [known, unknown]
        if column == "id":
            groups = [("1", by_id, behind_id)]
        elif key and (key[0] is None) is not nulls_first:
            groups = groups[1:]
        for condition, ordered, behind in groups:
            values = [] if key is None else [*key] if behind.startswith("(") else [key[1]]
            conditions, limits = where.listed(condition, *([behind] if key else []))
            query = f"{conditions} ORDER BY {ordered} LIMIT ?"
            found += self.attempts(query, [*limits, *values, count - len(found)])
            key = None
            if len(found) >= count:
                break
        return found


def _column(chosen: Filter) -> str:
    """The column by which a selection is sorted."""
    return "id" if chosen.sort == "step" else chosen.sort


def _key(chosen: Filter, attempt: Attempt) -> tuple[float | None, int]:
    return getattr(attempt, _column(chosen)), attempt.id


def _read_key(after: str) -> tuple[float | None, int] | None:
    try:
        value, number = json.loads(after)
    except (ValueError, TypeError, RecursionError):
        return None
    good = (value is None or isinstance(value, int | float)) and isinstance(number, int)
    return (value, number) if good else None


# --- counts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptCounts:
    """The numbers of a run's attempts by step, in all and by combination."""

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
        """Count the wanted attempts of the run."""
        return sum(sum(counts.values()) for about, counts in self.alike.items() if wanted(about))


def count_attempts(found: AttemptSearch) -> AttemptCounts:
    """All counts of the index."""
    steps: dict[int, int] = {}
    alike: dict[Combination, dict[int, int]] = {}
    rows = found.rows("SELECT step, combination, attempts FROM counts ORDER BY step")
    for step, key, count in rows:
        steps[step] = steps.get(step, 0) + count
        alike.setdefault(found.combinations.get(key, Combination()), {})[step] = count
    return AttemptCounts(steps, alike)


@dataclass(slots=True)
class Solved:
    """Numbers of attempts at one problem: with an opinion of gold, right by it, failed by the
    policy's fault, scored; and the sum of their rewards."""

    known: int = 0
    right: int = 0
    failed: int = 0
    scored: int = 0
    reward: float = 0.0

    @property
    def gold(self) -> float | None:
        """The share that is right, failures being wrong; None without an attempt of either kind."""
        count = self.known + self.failed
        return self.right / count if count else None

    @property
    def mean(self) -> float | None:
        return self.reward / self.scored if self.scored else None


def solved_by_task(found: AttemptSearch, ids: tuple[int, int] | None = None) -> dict[str, Solved]:
    """Count by the names of the problems, over the attempts between two ids. A failure of the
    policy is not right; one of ours does not count (law 1)."""
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


def operators_by_step(found: AttemptSearch) -> Mapping[str, list[Point]]:
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
