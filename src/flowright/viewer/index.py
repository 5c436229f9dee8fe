"""The index beside a run: SQLite, brought up to date step by step while the run writes.

It holds nothing that the run does not: it can be deleted at any time, and a damaged one or one of
another version is made anew. Where the run's folder cannot be written it lies in the user's cache.
"""

import hashlib
import json
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
    IndexEntry,
    StepFile,
    index_entry,
    parse_record,
    read_lines,
    step_files,
)

NAME = "viewer.sqlite"
VERSION = 4
"""Version of the tables; an index of another version is made anew."""
STEP_BITS, GENERATION_BITS = 28, 20
GENERATIONS = 1 << (STEP_BITS - GENERATION_BITS)
MOST_LINES = 1 << GENERATION_BITS
"""Rollouts of one step that ids have room for."""
_CACHE_KIB = 65_536


class _NoIdsLeft(Exception):
    """A step was replaced as often as ids have room for."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The extent of an index. ``unread`` are lines that are no records, ``cut`` attempts with a
    text longer than what is searched of it."""

    steps: int = 0
    of_steps: int = 0
    attempts: int = 0
    unread: int = 0
    cut: int = 0


def index_path(run: Path) -> Path:
    """Place the index beside the run or, where that cannot be written, in the user's cache."""
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
        self._known: dict[tuple[str, str], int] = {}

    def update(self) -> Generator[Progress]:
        """Index what is new, the newest step first; yields after every step. Nothing is written
        where nothing is new. Raises UserError where the index cannot be written."""
        try:
            yield from self._update()
        except _NoIdsLeft:
            forget(self.path)
            yield from self._update()
        except sqlite3.DatabaseError as error:
            damaged = any(text in str(error) for text in ("no such", "malformed", "disk image"))
            if isinstance(error, sqlite3.OperationalError) and not damaged:
                raise UserError(f"{self.path}: the index cannot be written: {error}") from None
            forget(self.path)  # damaged: it is made anew, once
            yield from self._update()

    def _update(self) -> Iterator[Progress]:
        with closing(self._open()) as base:
            there = step_files(self.run)
            steps = {file.step for file in there}
            gone = [step for (step,) in base.execute("SELECT step FROM files") if step not in steps]
            if gone:
                with _transaction(base):
                    for step in gone:
                        _forget_step(base, step)
            for file in reversed(there):
                if not _is_indexed(base, file):
                    try:
                        with _transaction(base):
                            if not _is_indexed(base, file):  # another process may have been quicker
                                self._index(base, file)
                    except OSError:  # moved by a resume since it was listed, or not ours
                        self._known = {}
                        continue
                    yield progress_of(base, len(there))
            yield progress_of(base, len(there))

    def _open(self) -> sqlite3.Connection:
        self._known = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        base = _connect(self.path)
        version = _one(base, "PRAGMA user_version")
        if version != VERSION:
            if version or _one(base, "SELECT count(*) FROM sqlite_master"):
                base.close()
                forget(self.path)
                base = _connect(self.path)
            with suppress(sqlite3.OperationalError):  # file systems without shared memory
                base.execute("PRAGMA journal_mode = WAL")
            with _transaction(base):
                if _one(base, "PRAGMA user_version") != VERSION:
                    for statement in _statements():
                        base.execute(statement)
                    base.execute(f"PRAGMA user_version = {VERSION}")
        return base

    def _index(self, base: sqlite3.Connection, file: StepFile) -> None:
        """Index one step, within a transaction."""
        generation = _next_generation(base, file.step)
        _forget_step(base, file.step)
        first, unread, cut, count = first_id(file.step, generation), 0, 0, 0
        attempts: list[tuple[object, ...]] = []
        counts: Counter[int] = Counter()
        uses: Counter[int] = Counter()
        for line in read_lines(file.path):
            record = parse_record(line.data)
            if record is None or count == MOST_LINES:
                unread += bool(line.data.strip())
                continue
            entry, number = index_entry(record), first + count
            combination = self._id(base, "combinations", json.dumps(astuple(entry.combination)))
            operators = self._id(base, "operators", entry.operators)
            counts[combination] += 1
            uses[operators] += 1
            attempts.append(
                (
                    *(number, entry.group, entry.index, self._task(base, entry), combination),
                    *(operators, entry.reward, entry.advantage, entry.tokens, entry.llm_tokens),
                    *(entry.calls, entry.seconds, entry.program, line.start, len(line.data)),
                )
            )
            base.execute("INSERT INTO notes VALUES (?, ?)", (number, entry.note))
            columns = "rowid, workflow, prompts, replies, reasons"
            base.execute(
                f"INSERT INTO texts ({columns}) VALUES ({_marks(5)})", (number, *entry.texts)
            )
            cut += entry.cut
            count += 1
        base.executemany(f"INSERT INTO attempts VALUES ({_marks(15)})", attempts)
        for table, sums in (("counts", counts), ("uses", uses)):
            rows = [(file.step, key, number) for key, number in sums.items()]
            base.executemany(f"INSERT INTO {table} VALUES ({_marks(3)})", rows)
        kept = (file.step, file.size, file.mtime_ns, count, unread, cut)
        base.execute(f"INSERT INTO files VALUES ({_marks(len(kept))})", kept)

    def _id(self, base: sqlite3.Connection, table: str, name: str) -> int:
        """The number of a name in a table, which is entered where it is new."""
        if (table, name) not in self._known:
            base.execute(f"INSERT OR IGNORE INTO {table} (name) VALUES (?)", (name,))
            query = f"SELECT id FROM {table} WHERE name = ?"
            self._known[table, name] = _one(base, query, (name,))
        return self._known[table, name]

    def _task(self, base: sqlite3.Connection, entry: IndexEntry) -> int:
        """The task's number; its problem is entered once, however many attempts there are."""
        new = ("tasks", entry.task) not in self._known
        number = self._id(base, "tasks", entry.task)
        if new:
            changed = base.execute(
                "UPDATE tasks SET title = ? WHERE id = ? AND title IS NULL", (entry.title, number)
            )
            if changed.rowcount:
                text = f"{entry.task}\n{entry.problem}"
                base.execute("INSERT INTO problems (rowid, problem) VALUES (?, ?)", (number, text))
        return number


def progress_of(base: sqlite3.Connection, of_steps: int) -> Progress:
    """The extent of an index of a run with ``of_steps`` steps."""
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


def _one(base: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> int:
    """The number that a query returns."""
    return int(base.execute(query, values).fetchone()[0])


@cache
def _statements() -> tuple[str, ...]:
    script = (files("flowright.viewer") / "schema.sql").read_text(encoding="utf-8")
    kept = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    statements = [""]
    for part in kept.split(";"):
        statements[-1] += f"{part};"
        if sqlite3.complete_statement(statements[-1]):  # a trigger has several in it
            statements.append("")
    return tuple(each for each in statements if each.strip("; \n"))


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
    """A number that no attempts of this step had, forgotten ones included: their words are still
    there. Raises _NoIdsLeft."""
    row = base.execute("SELECT next FROM generations WHERE step = ?", (step,)).fetchone()
    generation = int(row[0]) if row else 0
    if generation == GENERATIONS:
        raise _NoIdsLeft
    base.execute("INSERT OR REPLACE INTO generations VALUES (?, ?)", (step, generation + 1))
    return generation


def _forget_step(base: sqlite3.Connection, step: int) -> None:
    """Forget all of a step but its words, which no query for existing attempts can reach."""
    between = (first_id(step), first_id(step + 1))
    for table in ("attempts", "notes"):
        base.execute(f"DELETE FROM {table} WHERE id >= ? AND id < ?", between)
    for table in ("counts", "uses", "files"):
        base.execute(f"DELETE FROM {table} WHERE step = ?", (step,))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


class IndexReader:
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
            self._base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._base.execute("PRAGMA mmap_size = 1073741824")
            if _one(self._base, "PRAGMA user_version") == VERSION:
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

    def progress(self, of_steps: int) -> Progress:
        """The extent of the index."""
        if self._base is None:
            return Progress(of_steps=of_steps)
        return progress_of(self._base, of_steps)

    @cached_property
    def combinations(self) -> Mapping[int, Combination]:
        """By number."""
        rows = self.rows("SELECT id, name FROM combinations")
        return {number: Combination(*json.loads(values)) for number, values in rows}

    @cached_property
    def operators(self) -> Mapping[int, str]:
        """Sets of operators by number, their names with commas."""
        return dict(self.rows("SELECT id, name FROM operators"))

    def tasks(self, numbers: Collection[int]) -> dict[int, tuple[str, str]]:
        """Name and title of tasks, by number."""
        listed = ", ".join(map(str, numbers))
        rows = self.rows(f"SELECT id, name, title FROM tasks WHERE id IN ({listed})")
        return {number: (name, title or "") for number, name, title in rows}

    def notes(self, ids: Collection[int]) -> dict[int, str]:
        """The outcomes of attempts in a line, by id."""
        listed = ", ".join(map(str, ids))
        return dict(self.rows(f"SELECT id, note FROM notes WHERE id IN ({listed})"))
