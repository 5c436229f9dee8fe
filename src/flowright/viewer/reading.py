"""An index as it is read: open for one answer, empty where there is none."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from flowright.viewer.facts import Combination
from flowright.viewer.index import Progress, progress_of, reading


class Reading:
    """An index that is open for one answer. Where there is none (yet) everything is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
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

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; none where there is no index, nor for a number that it has no room
        for."""
        if self._base is None:
            return []
        try:
            with closing(self._base.execute(query, values)) as cursor:
                return cursor.fetchall()
        except OverflowError:
            return []

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
