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
from flowright.runs.run_files import parse_record, read_lines
from flowright.viewer.rollout_records import (
    Combination,
    StepFile,
    index_entry,
    step_files,
)

NAME = "viewer.sqlite"
VERSION = 6
"""Version of the tables; an index of another version is made anew."""
STEP_BITS = 28
MOST_LINES = 1 << STEP_BITS
"""Rollouts of one step that ids have room for."""
_CACHE_KIB = 65_536


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
    """Place the index beside the run or, where that cannot be written or something else than a file
    has its name, in the user's cache."""
    beside = run / NAME
    there = [path for path in files_of(beside) if os.path.lexists(path)]
    if os.access(run, os.W_OK) and all(
        path.is_file() and not path.is_symlink() and os.access(path, os.W_OK) for path in there
    ):
        return beside
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return root / "flowright" / "viewer" / f"{name}.sqlite"


def first_id(step: int) -> int:
    """The least id of a step's attempts."""
    return step << STEP_BITS


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
        except sqlite3.DatabaseError as error:
            damaged = any(text in str(error) for text in ("no such", "malformed", "disk image"))
            if isinstance(error, sqlite3.OperationalError) and not damaged:
                raise UserError(f"{self.path}: the index cannot be written: {error}") from None
            forget(self.path)  # damaged: it is made anew, once
            yield from self._update()

    def _update(self) -> Iterator[Progress]:
        with self._open() as base:
            there = step_files(self.run)
            now = {(file.step, file.size, file.mtime_ns) for file in there}
            if not now.issuperset(base.execute("SELECT step, size, mtime_ns FROM files")):
                with _transaction(base):  # words of replaced attempts cannot be taken out alone
                    _clear(base)
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

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._known = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _connect(self.path) as base:
            version = _one(base, "PRAGMA user_version")
            if version == VERSION:
                yield base
                return
            is_other = version or _one(base, "SELECT count(*) FROM sqlite_master")
        if is_other:
            forget(self.path)
        with _connect(self.path) as base:
            with suppress(sqlite3.OperationalError):  # file systems without shared memory
                base.execute("PRAGMA journal_mode = WAL")
            with _transaction(base):
                if _one(base, "PRAGMA user_version") != VERSION:
                    for statement in _statements():
                        base.execute(statement)
                    base.execute(f"PRAGMA user_version = {VERSION}")
            yield base

    def _index(self, base: sqlite3.Connection, file: StepFile) -> None:
        """Index one step, within a transaction."""
        first, unread, cut, count = first_id(file.step), 0, 0, 0
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
            task = self._id(base, "tasks", entry.task, title=entry.title)
            counts[combination] += 1
            uses[operators] += 1
            attempts.append(
                (
                    *(number, entry.group, entry.index, task, combination),
                    *(operators, entry.reward, entry.advantage, entry.tokens, entry.llm_tokens),
                    *(entry.calls, entry.seconds, entry.program, line.start, len(line.data)),
                )
            )
            base.execute("INSERT INTO notes VALUES (?, ?)", (number, entry.note))
            columns = "rowid, problem, workflow, prompts, replies, reasons"
            base.execute(
                f"INSERT INTO texts ({columns}) VALUES ({_marks(6)})", (number, *entry.texts)
            )
            cut += entry.cut
            count += 1
        base.executemany(f"INSERT INTO attempts VALUES ({_marks(15)})", attempts)
        for table, sums in (("counts", counts), ("uses", uses)):
            rows = [(file.step, key, number) for key, number in sums.items()]
            base.executemany(f"INSERT INTO {table} VALUES ({_marks(3)})", rows)
        kept = (file.step, file.size, file.mtime_ns, count, unread, cut)
        base.execute(f"INSERT INTO files VALUES ({_marks(len(kept))})", kept)

    def _id(self, base: sqlite3.Connection, table: str, name: str, **more: str) -> int:
        """The number of a name in a table, which is entered where it is new."""
        if (table, name) not in self._known:
            columns = f"({', '.join(('name', *more))}) VALUES ({_marks(1 + len(more))})"
            base.execute(f"INSERT OR IGNORE INTO {table} {columns}", (name, *more.values()))
            query = f"SELECT id FROM {table} WHERE name = ?"
            self._known[table, name] = _one(base, query, (name,))
        return self._known[table, name]


def progress_of(base: sqlite3.Connection, of_steps: int) -> Progress:
    """The extent of an index of a run with ``of_steps`` steps."""
    sums = "coalesce(sum(attempts), 0), coalesce(sum(unread), 0), coalesce(sum(cut), 0)"
    steps, attempts, unread, cut = base.execute(f"SELECT count(*), {sums} FROM files").fetchone()
    return Progress(steps, of_steps, attempts, unread, cut)


def forget(path: Path) -> None:
    """Remove an index and what SQLite keeps beside it."""
    for each in files_of(path):
        each.unlink(missing_ok=True)


def files_of(path: Path) -> list[Path]:
    """List an index and what SQLite keeps beside it, present or not."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


@contextmanager
def _connect(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        base = sqlite3.connect(path, isolation_level=None, timeout=60.0)
    except sqlite3.OperationalError as error:
        raise UserError(f"{path}: the index cannot be opened: {error}") from None
    with closing(base):
        base.execute("PRAGMA synchronous = NORMAL")
        base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        yield base


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


def _clear(base: sqlite3.Connection) -> None:
    """Forget everything, as a resume replaced steps; the next steps are entered anew."""
    tables = ("attempts", "notes", "counts", "uses", "files", "combinations", "operators", "tasks")
    for table in tables:
        base.execute(f"DELETE FROM {table}")
    base.execute("INSERT INTO texts (texts) VALUES ('delete-all')")


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
        return {number: (name, title) for number, name, title in rows}

    def notes(self, ids: Collection[int]) -> dict[int, str]:
        """The outcomes of attempts in a line, by id."""
        listed = ", ".join(map(str, ids))
        return dict(self.rows(f"SELECT id, note FROM notes WHERE id IN ({listed})"))
