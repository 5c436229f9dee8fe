"""Attempts found in an index: a page of a selection, its size, and counts over steps and problems.

Pages go by key, so that the thousandth is as quick as the first.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowright.core.formatting import Point
from flowright.viewer.index import Reading, step_of
from flowright.viewer.rollout_records import NONE, Combination
from flowright.viewer.selection import Filter, Where, wheres

PAGE = 50
MOST_COUNTED = 10_000
"""More of a selection are not counted: it costs, and helps nobody."""
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


class Found(Reading):
    """An index that is open for one answer, and what is found in it."""

    def attempts(self, where: str, values: Sequence[object]) -> list[Attempt]:
        """Those of a condition, which is ours and not a reader's."""
        query = f"SELECT {_COLUMNS} FROM attempts a WHERE {where}"
        return [Attempt(*row) for row in self.rows(query, values)]

    def about(self, attempt: Attempt) -> Combination:
        """Look up the combination of an attempt."""
        return self.combinations.get(attempt.combination, Combination())

    # --- a selection --------------------------------------------------------------------------

    def page(self, chosen: Filter, size: int = PAGE) -> Page:
        """The attempts of a selection from where its page begins."""
        column = _column(chosen)
        found = self._merged(chosen, chosen.descending, _read_key(chosen.after), size + 1)
        if len(found) <= size:
            return Page(found)
        last = found[size - 1]
        return Page(found[:size], json.dumps([getattr(last, column), last.id]))

    def beside(self, chosen: Filter, attempt: Attempt) -> tuple[Attempt | None, Attempt | None]:
        """Those before and after an attempt in a selection."""
        key = (getattr(attempt, _column(chosen)), attempt.id)
        before = self._merged(chosen, not chosen.descending, key, 1, nulls_first=True)
        after = self._merged(chosen, chosen.descending, key, 1)
        return next(iter(before), None), next(iter(after), None)

    def count(self, chosen: Filter) -> tuple[int, bool]:
        """How many attempts a selection has, and whether there are more than were counted."""
        if not chosen.values:
            ((count,),) = self.rows("SELECT coalesce(sum(attempts), 0) FROM files") or [(0,)]
            return count, False
        ids: set[int] = set()
        for where in wheres(self, chosen):
            query = f"SELECT a.id FROM {where.source} {where.sql(*where.joined)} LIMIT ?"
            values = [*where.values, *where.join_values, MOST_COUNTED + 1]
            ids.update(number for (number,) in self.rows(query, values))
            if len(ids) > MOST_COUNTED:
                return MOST_COUNTED, True
        return len(ids), False

    def each(self, chosen: Filter, most: int | None = None) -> Iterator[Attempt]:
        """All attempts of a selection, in its order."""
        given, chosen = 0, chosen.without_page()
        while True:
            page = self.page(chosen, 2000)
            for attempt in page.attempts:
                if most is not None and given >= most:
                    return
                given += 1
                yield attempt
            if not page.after:
                return
            chosen = Filter(chosen.values, chosen.sort, chosen.descending, page.after)

    def _merged(
        self,
        chosen: Filter,
        down: bool,
        key: tuple[float | None, int] | None,
        count: int,
        nulls_first: bool = False,
    ) -> list[Attempt]:
        """The first attempts behind a key, in order, of all ways to be in a selection."""
        column = _column(chosen)
        found: dict[int, Attempt] = {}
        ways = wheres(self, chosen)
        for where in ways:
            for attempt in self._sorted(where, column, down, key, count, nulls_first):
                found[attempt.id] = attempt
        if len(ways) < 2:
            return list(found.values())
        sign = -1 if down else 1

        def order(attempt: Attempt) -> tuple[bool, float, int]:
            value = getattr(attempt, column)
            if value is None:
                return (not nulls_first, 0.0, sign * attempt.id)
            return (nulls_first, sign * value, sign * attempt.id)

        return sorted(found.values(), key=order)[:count]

    def _sorted(
        self,
        where: Where,
        column: str,
        down: bool,
        key: tuple[float | None, int] | None,
        count: int,
        nulls_first: bool,
    ) -> Iterator[Attempt]:
        """Attempts by a column and their id behind a key; those without a value come last."""
        beyond, order = ("<", "DESC") if down else (">", "ASC")
        if column == "id":
            more = [f"a.id {beyond} ?"] if key else []
            yield from self._take(where, more, [key[1]] if key else [], f"a.id {order}", count)
            return
        known = ([f"a.{column} IS NOT NULL"], f"a.{column} {order}, a.id {order}")
        unknown = ([f"+a.{column} IS NULL"], f"a.id {order}")
        parts = [unknown, known] if nulls_first else [known, unknown]
        if key and (key[0] is None) is not nulls_first:
            parts = parts[1:]
        for number, (more, ordered) in enumerate(parts):
            values: list[object] = []
            if key and number == 0:
                is_null = key[0] is None
                behind = f"a.id {beyond} ?" if is_null else f"(a.{column}, a.id) {beyond} (?, ?)"
                more = [*more, behind]
                values = [key[1]] if is_null else [key[0], key[1]]
            for attempt in self._take(where, more, values, ordered, count):
                count -= 1
                yield attempt
            if count <= 0:
                return

    def _take(
        self, where: Where, more: list[str], values: Sequence[object], order: str, count: int
    ) -> Iterator[Attempt]:
        told = where.sql(*where.looked, *more)
        query = f"SELECT {_COLUMNS} FROM attempts a {told} ORDER BY {order} LIMIT ?"
        for row in self.rows(query, [*where.values, *where.look_values, *values, count]):
            yield Attempt(*row)


def _column(chosen: Filter) -> str:
    """What a selection is sorted by, as a column."""
    return "id" if chosen.sort == "step" else chosen.sort


def _read_key(after: str) -> tuple[float | None, int] | None:
    try:
        value, number = json.loads(after)
    except (ValueError, TypeError, RecursionError):
        return None
    good = (value is None or isinstance(value, int | float)) and isinstance(number, int)
    return (value, number) if good else None


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
