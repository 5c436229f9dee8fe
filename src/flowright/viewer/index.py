"""The index beside a run: SQLite, brought up to date step by step while the run writes.

It holds nothing that the run does not: it can be deleted at any time, and a damaged one or one of
another version is made anew. Where the run's folder cannot be written it lies in the user's cache.
"""

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from flowright.core.errors import UserError
from flowright.viewer.rollout_records import (
    Combination,
    Facts,
    StepFile,
    facts_of,
    lines,
    parsed,
    step_files,
)

NAME = "viewer.sqlite"
VERSION = 3
"""Of the tables; an index of another version is made anew."""
STEP_BITS, GENERATION_BITS = 28, 20
GENERATIONS = 1 << (STEP_BITS - GENERATION_BITS)
MOST_LINES = 1 << GENERATION_BITS
"""Rollouts of one step that ids have room for."""
_CACHE_KIB = 65_536


class _NoIdsLeft(Exception):
    """A step was replaced as often as ids have room for."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an index is. ``unread`` are lines that are no records, ``cut`` attempts with a text
    longer than what is searched."""

    steps: int = 0
    of_steps: int = 0
    attempts: int = 0
    unread: int = 0
    cut: int = 0


def index_path(run: Path) -> Path:
    """Beside the run, or where that cannot be written in a cache folder of the user's."""
    beside = run / NAME
    if os.access(beside if beside.exists() else run, os.W_OK) and os.access(run, os.W_OK):
        return beside
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return root / "flowright" / "viewer" / f"{name}.sqlite"


def first_id(step: int, generation: int = 0) -> int:
    """The least id of a step's attempts."""
    return (step << STEP_BITS) + (generation << GENERATION_BITS)


def step_of(number: int) -> int:
    """The step of an attempt's id."""
    return number >> STEP_BITS


class Indexer:
    """Brings the index of a run up to date. One process at a time writes; another waits for it."""

    def __init__(self, run: Path, path: Path | None = None) -> None:
        self.run = run
        self.path = path or index_path(run)
        self._known: dict[str, dict[object, int]] = {}

    def update(self) -> Generator[Progress]:
        """Index what is new, the newest step first; yields after every step. Nothing is written
        where nothing is new. Raises UserError where the index cannot be written."""
        try:
            yield from self._update()
        except _NoIdsLeft:
            forget(self.path)
            yield from self._update()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and not _is_damage(error):
                raise UserError(f"{self.path}: the index cannot be written: {error}") from None
            forget(self.path)  # damaged: it is made anew, once
            yield from self._update()

    def _update(self) -> Iterator[Progress]:
        with closing(self._opened()) as base:
            there = step_files(self.run)
            self._drop(base, {file.step for file in there})
            for file in reversed(there):
                if not _is_indexed(base, file):
                    try:
                        with _transaction(base):
                            if not _is_indexed(base, file):  # another process may have been quicker
                                self._index(base, file)
                    except OSError:  # moved away by a resume since it was listed, or not ours
                        self._known = {}
                        continue
                    yield progress_of(base, len(there))
            yield progress_of(base, len(there))

    def _opened(self) -> sqlite3.Connection:
        self._known = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        base = _connect(self.path)
        if _version(base) != VERSION:
            if _version(base) or _tables(base):
                base.close()
                forget(self.path)
                base = _connect(self.path)
            with suppress(sqlite3.OperationalError):  # file systems without shared memory
                base.execute("PRAGMA journal_mode = WAL")
            with _transaction(base):
                if _version(base) != VERSION:
                    for statement in _statements():
                        base.execute(statement)
                    base.execute(f"PRAGMA user_version = {VERSION}")
        return base

    def _drop(self, base: sqlite3.Connection, there: set[int]) -> None:
        gone = [step for (step,) in base.execute("SELECT step FROM files") if step not in there]
        if gone:
            with _transaction(base):
                for step in gone:
                    _forget_step(base, step)

    def _index(self, base: sqlite3.Connection, file: StepFile) -> None:
        """One step, within a transaction."""
        generation = _next_generation(base, file.step)
        _forget_step(base, file.step)
        first, unread, cut, count = first_id(file.step, generation), 0, 0, 0
        attempts: list[tuple[object, ...]] = []
        counts: Counter[int] = Counter()
        uses: Counter[int] = Counter()
        rewards: dict[int, list[float]] = {}
        for line in lines(file.path):
            record = parsed(line.data)
            if record is None or count == MOST_LINES:
                unread += bool(line.data.strip())
                continue
            facts = facts_of(record)
            number = first + count
            combination = self._combination(base, facts.combination)
            operators = self._id(base, "operators", "names", facts.operators)
            task = self._task(base, facts)
            counts[combination] += 1
            uses[operators] += 1
            if facts.reward is not None:
                rewards.setdefault(combination, []).append(facts.reward)
            attempts.append(
                (
                    *(number, facts.group, facts.index, task, combination, operators),
                    *(facts.reward, facts.advantage, facts.tokens, facts.llm_tokens, facts.calls),
                    *(facts.seconds, facts.program, line.start, len(line.data)),
                )
            )
            base.execute("INSERT INTO notes VALUES (?, ?)", (number, facts.note))
            told = facts.texts
            base.execute(
                "INSERT INTO texts (rowid, workflow, prompts, replies, reasons) "
                "VALUES (?, ?, ?, ?, ?)",
                (number, told.workflow, told.prompts, told.replies, told.reasons),
            )
            cut += facts.cut
            count += 1
        base.executemany(f"INSERT INTO attempts VALUES ({_marks(15)})", attempts)
        base.executemany(
            "INSERT INTO counts VALUES (?, ?, ?, ?, ?)",
            [
                (file.step, key, n, len(rewards.get(key, ())), sum(rewards.get(key, ())))
                for key, n in counts.items()
            ],
        )
        base.executemany(
            "INSERT INTO uses VALUES (?, ?, ?)", [(file.step, key, n) for key, n in uses.items()]
        )
        kept = (file.step, file.size, file.mtime_ns, count, unread, cut)
        base.execute(f"INSERT INTO files VALUES ({_marks(len(kept))})", kept)

    def _combination(self, base: sqlite3.Connection, found: Combination) -> int:
        known = self._known.setdefault("combinations", {})
        if found not in known:
            values = astuple(found)
            row = f"(NULL, {_marks(10)}, 0)"
            base.execute(f"INSERT OR IGNORE INTO combinations VALUES {row}", values)
            same = " AND ".join(f"{name} = ?" for name in Combination.__slots__)
            (known[found],) = base.execute(
                f"SELECT id FROM combinations WHERE {same}", values
            ).fetchone()
        return known[found]

    def _id(self, base: sqlite3.Connection, table: str, column: str, value: str) -> int:
        known = self._known.setdefault(table, {})
        if value not in known:
            base.execute(f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)", (value,))
            query = f"SELECT id FROM {table} WHERE {column} = ?"
            (known[value],) = base.execute(query, (value,)).fetchone()
        return known[value]

    def _task(self, base: sqlite3.Connection, facts: Facts) -> int:
        """The task's number; its problem is searched once, however many attempts there are."""
        known = self._known.setdefault("tasks", {})
        if facts.task not in known:
            number = self._id(base, "tasks", "name", facts.task)
            changed = base.execute(
                "UPDATE tasks SET title = ? WHERE id = ? AND title IS NULL", (facts.title, number)
            )
            if changed.rowcount:
                base.execute(
                    "INSERT INTO problems (rowid, problem) VALUES (?, ?)",
                    (number, f"{facts.task}\n{facts.problem}"),
                )
        return known[facts.task]


def reading(path: Path) -> sqlite3.Connection:
    """A connection to an index that only reads. Raises FileNotFoundError where there is none."""
    if not path.exists():
        raise FileNotFoundError(path)
    # A streamed answer is written by one thread after another, never by two at once.
    where = f"{path.absolute().as_uri()}?mode=ro"
    base = sqlite3.connect(where, uri=True, timeout=5.0, check_same_thread=False)
    base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    base.execute("PRAGMA mmap_size = 1073741824")
    return base


def progress_of(base: sqlite3.Connection, of_steps: int) -> Progress:
    """How far the index is, of so many steps."""
    sums = "coalesce(sum(attempts), 0), coalesce(sum(unread), 0), coalesce(sum(cut), 0)"
    steps, attempts, unread, cut = base.execute(f"SELECT count(*), {sums} FROM files").fetchone()
    return Progress(steps, of_steps, attempts, unread, cut)


def forget(path: Path) -> None:
    """Remove an index and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        base = sqlite3.connect(path, isolation_level=None, timeout=60.0)
    except sqlite3.OperationalError as error:
        raise UserError(f"{path}: the index cannot be opened: {error}") from None
    base.execute("PRAGMA synchronous = NORMAL")
    base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return base


def _version(base: sqlite3.Connection) -> int:
    (version,) = base.execute("PRAGMA user_version").fetchone()
    return int(version)


def _tables(base: sqlite3.Connection) -> int:
    (count,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return int(count)


@cache
def _statements() -> tuple[str, ...]:
    script = (files("flowright.viewer") / "schema.sql").read_text(encoding="utf-8")
    kept = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    statements = [""]
    for part in kept.split(";"):
        statements[-1] += f"{part};"
        if sqlite3.complete_statement(statements[-1]):  # a trigger has several in it
            statements.append("")
    return tuple(told for told in statements if told.strip("; \n"))


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            base.execute("ROLLBACK")
        raise
    base.execute("COMMIT")


def _is_indexed(base: sqlite3.Connection, file: StepFile) -> bool:
    row = base.execute("SELECT size, mtime_ns FROM files WHERE step = ?", (file.step,)).fetchone()
    return row == (file.size, file.mtime_ns)


def _next_generation(base: sqlite3.Connection, step: int) -> int:
    """A number that no attempts of this step had, those included that were forgotten: the words
    of those are still there. Raises _NoIdsLeft."""
    row = base.execute("SELECT next FROM generations WHERE step = ?", (step,)).fetchone()
    generation = int(row[0]) if row else 0
    if generation == GENERATIONS:
        raise _NoIdsLeft
    base.execute("INSERT OR REPLACE INTO generations VALUES (?, ?)", (step, generation + 1))
    return generation


def _forget_step(base: sqlite3.Connection, step: int) -> None:
    """All of a step but its words: those of attempts that are gone are never asked for."""
    between = (first_id(step), first_id(step + 1))
    for table in ("attempts", "notes"):
        base.execute(f"DELETE FROM {table} WHERE id >= ? AND id < ?", between)
    for table in ("counts", "uses", "files"):
        base.execute(f"DELETE FROM {table} WHERE step = ?", (step,))


def _is_damage(error: sqlite3.OperationalError) -> bool:
    return any(words in str(error) for words in ("no such", "malformed", "disk image"))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


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
