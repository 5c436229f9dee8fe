"""Finding attempts in an index: a page of a selection, how many there are, and what they can be
narrowed by. Pages go by key, so that the thousandth is as quick as the first.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowright.viewer.filters import Filter
from flowright.viewer.index import step_of
from flowright.viewer.reading import Reading
from flowright.viewer.selecting import Where, wheres

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
