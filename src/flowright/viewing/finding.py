"""Finding attempts in an index: a page of a selection, how many there are, and what they can be
narrowed by. Pages go by key, so that the thousandth is as quick as the first.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flowright.viewing.facts import NONE, Combination
from flowright.viewing.filters import (
    AGAINST,
    MEASURES,
    NAMED,
    Filter,
    Range,
    step_ids,
    words_of,
)
from flowright.viewing.index import Progress, progress_of, reading, step_of

PAGE = 50
MOST_COUNTED = 10_000
"""More of a selection are not counted: it costs, and helps nobody."""
_FEW = 20_000  # attempts that are fetched and sorted rather than looked for in the sort's order
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


@dataclass(frozen=True, slots=True)
class _Where:
    conditions: tuple[str, ...]
    values: tuple[object, ...]

    def sql(self, *more: str) -> str:
        told = [*self.conditions, *more]
        return f"WHERE {' AND '.join(told)}" if told else ""


class Found:
    """An index that is open for one answer. Where there is none (yet) everything is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base: sqlite3.Connection | None = None

    def __enter__(self) -> "Found":
        with suppress(FileNotFoundError, sqlite3.OperationalError):
            self._base = reading(self.path)
            self._base.execute("SELECT 1 FROM files LIMIT 1")
            return self
        self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        """The rows of a query; none where there is no index."""
        if self._base is None:
            return []
        with closing(self._base.execute(query, values)) as cursor:
            return cursor.fetchall()

    def progress(self, of_steps: int) -> Progress:
        """How far the index is."""
        return (
            Progress(of_steps=of_steps) if self._base is None else progress_of(self._base, of_steps)
        )

    @cached_property
    def combinations(self) -> Mapping[int, Combination]:
        """By number."""
        names = ", ".join(Combination.__slots__)
        rows = self.rows(f"SELECT id, {names} FROM combinations")
        return {number: Combination(*values) for number, *values in rows}

    @cached_property
    def operators(self) -> Mapping[int, str]:
        """Sets of operators by number, their names with commas."""
        return dict(self.rows("SELECT id, names FROM operators"))

    def tasks(self, numbers: Collection[int]) -> dict[int, tuple[str, str]]:
        """Name and title of tasks, by number."""
        listed = ", ".join(map(str, numbers))
        rows = self.rows(f"SELECT id, name, title FROM tasks WHERE id IN ({listed})")
        return {number: (name, title or "") for number, name, title in rows}

    def notes(self, ids: Collection[int]) -> dict[int, str]:
        """What became of attempts in a line, by id."""
        listed = ", ".join(map(str, ids))
        return dict(self.rows(f"SELECT id, note FROM notes WHERE id IN ({listed})"))

    def attempts(self, where: str, values: Sequence[object]) -> list[Attempt]:
        """Those of a condition, which is ours and not a reader's."""
        query = f"SELECT {_COLUMNS} FROM attempts a WHERE {where}"
        return [Attempt(*row) for row in self.rows(query, values)]

    # --- a selection --------------------------------------------------------------------------

    def page(self, chosen: Filter, size: int = PAGE) -> Page:
        """The attempts of a selection from where its page begins."""
        where = self._where(chosen)
        if where is None:
            return Page(())
        column = "id" if chosen.sort == "step" else chosen.sort
        key = _read_key(chosen.after)
        found = list(self._sorted(where, column, chosen.descending, key, size + 1))
        if len(found) <= size:
            return Page(found)
        last = found[size - 1]
        return Page(found[:size], json.dumps([getattr(last, column), last.id]))

    def beside(self, chosen: Filter, attempt: Attempt) -> tuple[Attempt | None, Attempt | None]:
        """Those before and after an attempt in a selection."""
        where = self._where(chosen)
        if where is None:
            return None, None
        column = "id" if chosen.sort == "step" else chosen.sort
        key = (getattr(attempt, column), attempt.id)
        ways = (not chosen.descending, chosen.descending)
        before, after = (
            next(self._sorted(where, column, down, key, 1, nulls_first=down is ways[0]), None)
            for down in ways
        )
        return before, after

    def count(self, chosen: Filter) -> tuple[int, bool]:
        """How many attempts a selection has, and whether there are more than were counted."""
        where = self._where(chosen)
        if where is None:
            return 0, False
        if not chosen.values:
            ((count,),) = self.rows("SELECT coalesce(sum(attempts), 0) FROM files") or [(0,)]
            return count, False
        some = f"SELECT 1 FROM attempts a {where.sql()} LIMIT {MOST_COUNTED + 1}"
        ((count,),) = self.rows(f"SELECT count(*) FROM ({some})", where.values) or [(0,)]
        return min(count, MOST_COUNTED), count > MOST_COUNTED

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

    def _sorted(
        self,
        where: _Where,
        column: str,
        down: bool,
        key: tuple[float | None, int] | None,
        count: int,
        nulls_first: bool = False,
    ) -> Iterator[Attempt]:
        """Attempts by a column and their id behind a key; those without a value come last."""
        beyond, order = ("<", "DESC") if down else (">", "ASC")
        if column == "id":
            more, values = ([f"a.id {beyond} ?"], [key[1]]) if key else ([], [])
            yield from self._take(where, more, values, f"a.id {order}", count)
            return
        known = (
            [f"a.{column} IS NOT NULL"],
            [],
            f"a.{column} {order}, a.id {order}",
        )
        unknown = ([f"+a.{column} IS NULL"], [], f"a.id {order}")
        parts = [unknown, known] if nulls_first else [known, unknown]
        if key and (key[0] is None) is not nulls_first:
            parts = parts[1:]
        for number, (more, values, ordered) in enumerate(parts):
            if count <= 0:
                return
            if key and number == 0:
                if key[0] is None:
                    more, values = [*more, f"a.id {beyond} ?"], [key[1]]
                else:
                    more = [*more, f"(a.{column}, a.id) {beyond} (?, ?)"]
                    values = [key[0], key[1]]
            for attempt in self._take(where, more, values, ordered, count):
                count -= 1
                yield attempt

    def _take(
        self, where: _Where, more: list[str], values: Sequence[object], order: str, count: int
    ) -> Iterator[Attempt]:
        query = f"SELECT {_COLUMNS} FROM attempts a {where.sql(*more)} ORDER BY {order} LIMIT ?"
        for row in self.rows(query, [*where.values, *values, count]):
            yield Attempt(*row)

    def _where(self, chosen: Filter) -> _Where | None:
        """A selection as SQL, None where nothing can be in it."""
        conditions: list[str] = []
        values: list[object] = []
        told = chosen.values
        if "step" in told and (steps := Range.read(told["step"])):
            conditions.append("a.id >= ? AND a.id < ?")
            values += step_ids(steps)
        for name in MEASURES:
            if name in told and (wanted := Range.read(told[name])):
                found, limits = wanted.sql(f"+a.{name}")
                conditions += found
                values += limits
        if "task" in told:
            conditions.append("a.task = (SELECT id FROM tasks WHERE name = ?)")
            values.append(told["task"])
        for numbers, column in (
            (self._chosen_combinations(told), "combination"),
            (self._chosen_operators(told), "operators"),
        ):
            if numbers is None:
                continue
            if not numbers:
                return None
            few = column == "combination" and self._attempts_of(numbers) <= _FEW
            listed = ", ".join(map(str, numbers))
            conditions.append(f"{'' if few else '+'}a.{column} IN ({listed})")
        if "q" in told and (words := words_of(told["q"])):
            found, limits = _search(words, told.get("in"))
            conditions.append(found)
            values += limits
        return _Where(tuple(conditions), tuple(values))

    def _chosen_combinations(self, told: Mapping[str, str]) -> list[int] | None:
        """The combinations that a selection leaves, None where it asks nothing of them."""
        if not {*NAMED, "against", "repair"} & told.keys():
            return None
        return [n for n, found in self.combinations.items() if is_chosen(found, told)]

    def _chosen_operators(self, told: Mapping[str, str]) -> list[int] | None:
        if "operator" not in told:
            return None
        wanted = set(told["operator"].split(","))
        return [n for n, names in self.operators.items() if wanted <= set(names.split(","))]

    def _attempts_of(self, combinations: Sequence[int]) -> int:
        marks = ", ".join("?" * len(combinations))
        query = f"SELECT coalesce(sum(attempts), 0) FROM counts WHERE combination IN ({marks})"
        ((count,),) = self.rows(query, combinations) or [(0,)]
        return int(count)


def is_chosen(found: Combination, told: Mapping[str, str]) -> bool:
    """Whether attempts of this combination are in a selection, as far as that tells."""
    for name, column in NAMED.items():
        if name in told and getattr(found, column) not in told[name].split(","):
            return False
    if "against" in told:
        pairs = AGAINST[told["against"]]
        if (found.judge, found.gold) not in zip(pairs[::2], pairs[1::2], strict=True):
            return False
    if "repair" in told:
        names = set() if found.repairs == NONE else set(found.repairs.split(","))
        wanted = told["repair"]
        if wanted in ("any", "none"):
            return bool(names) is (wanted == "any")
        return wanted in names
    return True


def _search(words: str, place: str | None) -> tuple[str, list[object]]:
    """Attempts whose texts, or whose problem, hold the words."""
    own = "a.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)"
    problem = "a.task IN (SELECT rowid FROM problems WHERE problems MATCH ?)"
    if place == "problem":
        return problem, [words]
    if place is not None:
        return own, [f"{place} : ({words})"]
    return f"({own} OR {problem})", [words, words]


def _read_key(after: str) -> tuple[float | None, int] | None:
    try:
        value, number = json.loads(after)
    except (ValueError, TypeError):
        return None
    good = (value is None or isinstance(value, int | float)) and isinstance(number, int)
    return (value, number) if good else None
