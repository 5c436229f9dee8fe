"""Attempts found in an index: a page of a selection, its size, and counts over steps and problems.

Pages go by key, so that the thousandth is as quick as the first.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

from flowright.core.formatting import Point
from flowright.viewer.index import CACHE_KIB, VERSION, Progress, first_id, marks, progress_of
from flowright.viewer.rollout_records import NONE, Attempt
from flowright.viewer.selection import (
    AGAINST,
    MEASURES,
    NAMED,
    Filter,
    Range,
    fts_query,
    split_values,
    step_ids,
)

PAGE = 50
MOST_COUNTED = 10_000
"""More of a selection are not counted, which would take long."""
_FEW = 20_000  # attempts that are fetched and sorted rather than looked for in the sort's order
_NEARLY_ALL = 0.8
"""Share of the attempts: of 300,000 a match costs 0.4 microseconds to fetch, and to ask an attempt
whether it matches two words 1.7 milliseconds, which grows with their number."""
_IN = "instr(',' || {} || ',', ',' || ? || ',')"
"""Finds a name among others with commas."""
_COLUMNS = [f'"{field.name}"' for field in fields(Attempt)]
_ATTEMPTS = (
    f"SELECT a.{', '.join(_COLUMNS)} FROM ({{}}) a "
    "CROSS JOIN tasks t ON t.id = a.task_id "
    "CROSS JOIN combinations c ON c.id = a.combination_id "
    "CROSS JOIN operators o ON o.id = a.operators_id CROSS JOIN notes n ON n.id = a.id"
)
"""Reads attempts that a query has chosen: their names and notes are looked up for these alone."""


class AttemptSearch:
    """An index opened for one answer. Where there is none (yet) everything is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        if not self.path.exists():
            return self
        with suppress(sqlite3.DatabaseError):
            # A streamed answer is written by one thread after another, never by two at once.
            where = f"{self.path.absolute().as_uri()}?mode=ro"
            self._base = sqlite3.connect(where, uri=True, timeout=5.0, check_same_thread=False)
            self._base.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._base.execute("PRAGMA mmap_size = 1073741824")
            if self._count("PRAGMA user_version") == VERSION:
                self._base.execute("SELECT 1 FROM files LIMIT 1")
                return self
        self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; none without an index, nor for a number that it has no room for."""
        if self._base is None:
            return []
        try:
            with closing(self._base.execute(query, values)) as cursor:
                return cursor.fetchall()
        except OverflowError:
            return []

    def _count(self, query: str, values: Sequence[object] = ()) -> int:
        """The number that a query returns; 0 without an index."""
        ((count,),) = self.rows(query, values) or [(0,)]
        return count or 0

    def progress(self, of_steps: int) -> Progress:
        """The extent of the index."""
        if self._base is None:
            return Progress(of_steps=of_steps)
        return progress_of(self._base, of_steps)

    def attempts(
        self, conditions: Sequence[str], values: Sequence[object], order: str, most: int = -1
    ) -> list[Attempt]:
        """The first attempts of conditions in SQL, which must not be a reader's text."""
        chosen = f"SELECT * FROM attempts a {_where(conditions)} ORDER BY {order} LIMIT {most}"
        query = f"{_ATTEMPTS.format(chosen)} ORDER BY {order}"
        return [Attempt(*row) for row in self.rows(query, values)]

    def at(self, step: int, group: int, index: int) -> Attempt | None:
        """The attempt of a place."""
        return next((each for each in self.group(step, group) if each.index == index), None)

    def group(self, step: int, group: int) -> list[Attempt]:
        """All attempts of a group, in the order of their numbers."""
        between = (first_id(step), first_id(step + 1), group)
        conditions = ("a.id >= ?", "a.id < ?", 'a."group" = ?')
        return self.attempts(conditions, between, 'a."index", a.id')

    def page(self, chosen: Filter, size: int = PAGE) -> tuple[list[Attempt], str]:
        """The attempts of a selection from where its page begins, and the key of the page after
        them; empty on the last."""
        found = self._behind(chosen, chosen.descending, _read_key(chosen.after), size + 1)
        if len(found) <= size:
            return found, ""
        return found[:size], json.dumps(_key(chosen, found[size - 1]))

    def beside(self, chosen: Filter, attempt: Attempt) -> tuple[Attempt | None, Attempt | None]:
        """The attempts before and after one in a selection."""
        key = _key(chosen, attempt)
        before = self._behind(chosen, not chosen.descending, key, 1, nulls_first=True)
        after = self._behind(chosen, chosen.descending, key, 1)
        return next(iter(before), None), next(iter(after), None)

    def count(self, chosen: Filter) -> tuple[int, bool]:
        """Count the attempts of a selection; True where there are more than were counted."""
        if not chosen.values:
            return self.progress(0).attempts, False
        conditions, values = self._plain(chosen.values)
        source = "attempts a"
        if words := _words(chosen):  # a search goes through its matches
            source = "texts CROSS JOIN attempts a ON a.id = texts.rowid"
            conditions, values = [*conditions, "texts MATCH ?"], [*values, words]
        some = f"SELECT 1 FROM {source} {_where(conditions)} LIMIT {MOST_COUNTED + 1}"
        count = self._count(f"SELECT count(*) FROM ({some})", values)
        return min(count, MOST_COUNTED), count > MOST_COUNTED

    def each(self, chosen: Filter, most: int | None = None) -> Iterator[Attempt]:
        """All attempts of a selection, or the first ``most``, in its order."""
        return islice(self._each(replace(chosen, after="")), most)

    def _each(self, chosen: Filter) -> Iterator[Attempt]:
        while True:
            attempts, after = self.page(chosen, 2000)
            yield from attempts
            if not after:
                return
            chosen = replace(chosen, after=after)

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
        conditions, values = self._plain(chosen.values)
        if words := _words(chosen):
            conditions, values = [*conditions, self._matching(words)], [*values, words]
        column, found = _column(chosen), list[Attempt]()
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
            limits = [] if key is None else [*key] if behind.startswith("(") else [key[1]]
            where = [*conditions, condition, *([behind] if key else [])]
            found += self.attempts(where, [*values, *limits], ordered, count - len(found))
            key = None
            if len(found) >= count:
                break
        return found

    def _matching(self, words: str) -> str:
        """The condition of a search. All that match are fetched; where nearly all do, each is asked
        in the order of the page instead, which ends soon."""
        most = max(_FEW, int(_NEARLY_ALL * self.progress(0).attempts))
        some = f"SELECT 1 FROM texts WHERE texts MATCH ? LIMIT {most + 1}"
        if self._count(f"SELECT count(*) FROM ({some})", (words,)) > most:
            return "EXISTS (SELECT 1 FROM texts WHERE texts MATCH ? AND rowid = a.id)"
        return "a.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)"

    def _plain(self, filters: Mapping[str, str]) -> tuple[list[str], list[object]]:
        """Conditions of all of a selection but its search, and their values."""
        conditions: list[str] = []
        values: list[object] = []
        if "step" in filters and (steps := Range.read(filters["step"])):
            conditions.append("a.id >= ? AND a.id < ?")
            values += step_ids(steps)
        for name in MEASURES:
            if name in filters and (wanted := Range.read(filters[name])):
                condition, limits = wanted.sql(f"+a.{name}")
                conditions.append(condition)
                values += limits
        if "task" in filters:
            names = split_values(filters["task"])
            query = f"SELECT id FROM tasks WHERE task IN ({marks(names)})"
            conditions.append(f"a.task_id IN ({query})")
            values += names
        if (alike := _alike(filters))[0]:
            query = f"SELECT id, attempts FROM combinations {_where(alike[0])}"
            counts = dict(self.rows(query, alike[1]))
            by_index = "" if sum(counts.values()) <= _FEW else "+"
            listed = ", ".join(map(str, counts))
            conditions.append(f"{by_index}a.combination_id IN ({listed})")
        if "operator" in filters:
            names = [name.strip() for name in filters["operator"].split(",")]
            query = f"SELECT id FROM operators {_where([_IN.format('operators')] * len(names))}"
            conditions.append(f"+a.operators_id IN ({query})")
            values += names
        return conditions, values


def _alike(filters: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Conditions on the combination of attempts, and their values."""
    conditions: list[str] = []
    values: list[str] = []
    for name in NAMED:
        if name in filters:
            names = split_values(filters[name])
            conditions.append(f"{name} IN ({marks(names)})")
            values += names
    if "against" in filters:
        names = split_values(filters["against"])
        pairs = [pair for name in names for pair in AGAINST.get(name, ())]
        conditions.append(f"({' OR '.join(['(judge, gold) = (?, ?)'] * len(pairs)) or '0'})")
        values += [opinion for pair in pairs for opinion in pair]
    if "repair" in filters:
        names = split_values(filters["repair"])
        special = {"any": f"repairs != '{NONE}'", "none": f"repairs = '{NONE}'"}
        either = [special.get(name, _IN.format("repairs")) for name in names]
        conditions.append(f"({' OR '.join(either)})")
        values += [name for name in names if name not in special]
    return conditions, values


def _words(chosen: Filter) -> str | None:
    """The search of a selection for FTS5; None without one."""
    words, place = fts_query(chosen.values.get("q", "")), chosen.values.get("in")
    return f"{place} : ({words})" if words and place else words


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


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


def facet_counts(found: AttemptSearch) -> dict[str, dict[str, int]]:
    """The number of the run's attempts for each value of each filter, most first."""
    some = "FROM combinations WHERE attempts > 0"
    totals = {name: Counter[str]() for name in NAMED}
    for name in NAMED:
        query = f"SELECT {name}, sum(attempts) {some} GROUP BY {name} ORDER BY min(id)"
        totals[name].update(dict(found.rows(query)))
    against, repairs, operators = Counter[str](), Counter[str](), Counter[str]()
    for judge, gold, names, count in found.rows(f"SELECT judge, gold, repairs, attempts {some}"):
        for name, pairs in AGAINST.items():
            if (judge, gold) in pairs:
                against[name] += count
        each = ["none"] if names == NONE else ["any", *names.split(",")]
        repairs.update(dict.fromkeys(each, count))
    for names, count in found.rows("SELECT operators, attempts FROM operators WHERE attempts > 0"):
        operators.update(dict.fromkeys(names.split(","), count))
    totals["stop"].pop(NONE, None)  # of attempts that cannot have several turns
    totals |= {"against": against, "repair": repairs, "operator": operators}
    return {
        name: dict(counts.most_common())
        for name, counts in totals.items()
        if len(counts) > 1 or (name in ("against", "repair", "stop") and counts)
    }


def opinion_counts(found: AttemptSearch) -> dict[tuple[str, str], int]:
    """The number of attempts that ran to an answer by the opinions of judge and gold."""
    some = "sum(attempts * (blame = '-')) FROM combinations WHERE attempts > 0"
    rows = found.rows(f"SELECT judge, gold, {some} GROUP BY judge, gold")
    return {(judge, gold): count for judge, gold, count in rows}


Course = tuple[int, list[Point]]
"""A number of attempts, and their share of each step's, the first step first."""


def failures_by_step(found: AttemptSearch) -> dict[str, Course]:
    """The attempts that failed, by reason."""
    rows = found.rows(
        "SELECT step, failure, sum(n.attempts) FROM counts n JOIN combinations c "
        "ON c.id = n.combination GROUP BY step, failure ORDER BY step, failure"
    )
    return _by_step((step, [reason], count) for step, reason, count in rows)


def operators_by_step(found: AttemptSearch) -> dict[str, Course]:
    """The attempts that call an operator, by its name."""
    source = "uses u JOIN operators o ON o.id = u.operators"
    rows = found.rows(f"SELECT step, o.operators, u.attempts FROM {source} ORDER BY step")
    return _by_step((step, names.split(","), count) for step, names, count in rows)


def _by_step(rows: Iterable[tuple[int, list[str], int]]) -> dict[str, Course]:
    """Sum counts of a step's attempts by name, most first."""
    sums: dict[str, Counter[int]] = {}
    totals = Counter[int]()
    for step, names, count in rows:
        totals[step] += count
        for name in names:
            if name != NONE:
                sums.setdefault(name, Counter())[step] += count
    return {
        name: (each.total(), [(step, each[step] / count) for step, count in totals.items()])
        for name, each in sorted(sums.items(), key=lambda item: -item[1].total())
    }


@dataclass(frozen=True, slots=True)
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
    sums = (
        "SELECT task_id, combination_id, count(*) AS n, count(reward) AS scored, "
        f"total(reward) AS reward FROM attempts {'WHERE id >= ? AND id < ?' if ids else ''} "
        "GROUP BY task_id, combination_id"
    )
    rows = found.rows(
        "SELECT task, sum(n * (gold != '-' AND blame = '-')), "
        "sum(n * (gold = 'right' AND blame = '-')), sum(n * (blame = 'policy')), sum(scored), "
        f"sum(reward) FROM ({sums}) JOIN combinations c ON c.id = combination_id "
        "JOIN tasks t ON t.id = task_id GROUP BY task_id ORDER BY task_id",
        ids or (),
    )
    return {task: Solved(*numbers) for task, *numbers in rows}
