"""The index beside a run: SQLite, brought up to date step by step while the run writes.

It holds nothing that the run does not: it can be deleted at any time, and a damaged one or one of
another version is made anew. Where the run's folder cannot be written it lies in the user's cache.
"""

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from flowright.core.errors import UserError
from flowright.runs.run_files import parse_record, read_lines
from flowright.viewer.rollout_records import (
    ALIKE,
    STEP_BITS,
    StepFile,
    attempt_of,
    escape_surrogates,
    searched_texts,
    step_files,
)

NAME = "viewer.sqlite"
VERSION = 8
"""Version of the tables; an index of another version is made anew."""
MOST_LINES = 1 << STEP_BITS
"""Rollouts of one step that ids have room for."""
CACHE_KIB = 65_536
LONGEST = 1 << 16  # characters of one column of one attempt that are searched
STORED = (
    *("id", "start", "size", "group", "index", "reward", "advantage", "turns", "tokens"),
    *("llm_tokens", "calls", "seconds", "program"),
)
"""Properties of an attempt that the table of attempts holds itself."""


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


class Indexer:
    """Brings the index of a run up to date. One process at a time writes; another waits for it."""

    def __init__(self, run: Path, path: Path | None = None) -> None:
        self.run = run
        self.path = path or index_path(run)
        self._known: dict[tuple[str, ...], int] = {}

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
        self._known = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _connect(self.path) as base:
            has_tables = _one(base, "SELECT count(*) FROM sqlite_master")
            is_other = has_tables and _version(base) != VERSION
        if is_other:
            forget(self.path)
        with _connect(self.path) as base:
            if _version(base) != VERSION:
                with suppress(sqlite3.OperationalError):  # file systems without shared memory
                    base.execute("PRAGMA journal_mode = WAL")
                script = (files("flowright.viewer") / "schema.sql").read_text(encoding="utf-8")
                base.executescript(
                    f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {VERSION}; COMMIT"
                )
            there = step_files(self.run)
            now = {(file.step, file.size, file.mtime_ns) for file in there}
            if not now.issuperset(base.execute("SELECT step, size, mtime_ns FROM files")):
                with base:  # words of replaced attempts cannot be taken out alone
                    base.execute("BEGIN IMMEDIATE")
                    _clear(base)
            for file in reversed(there):
                if not _is_indexed(base, file):
                    try:
                        with base:
                            base.execute("BEGIN IMMEDIATE")
                            if not _is_indexed(base, file):  # another process may have been quicker
                                self._index(base, file)
                    except OSError:  # moved by a resume since it was listed, or not ours
                        self._known = {}
                        continue
                    yield progress_of(base, len(there))
            yield progress_of(base, len(there))

    def _index(self, base: sqlite3.Connection, file: StepFile) -> None:
        """Index one step, within a transaction."""
        unread, cut, count = 0, 0, 0
        counts: Counter[int] = Counter()
        uses: Counter[int] = Counter()
        for line in read_lines(file.path):
            record = parse_record(line.data)
            if record is None or count == MOST_LINES:
                unread += bool(line.data.strip())
                continue
            attempt = attempt_of(record, first_id(file.step) + count, line.start, len(line.data))
            alike = {name: getattr(attempt, name) for name in ALIKE}
            combination = self._id(base, "combinations", **alike)
            operators = self._id(base, "operators", operators=attempt.operators)
            task = self._id(base, "tasks", {"title": attempt.title}, task=attempt.task)
            counts[combination] += 1
            uses[operators] += 1
            stored = (getattr(attempt, name) for name in STORED)
            _insert(base, "attempts", (*stored, task, combination, operators))
            _insert(base, "notes", (attempt.id, attempt.note))
            texts = searched_texts(record)
            searched = [escape_surrogates(text[:LONGEST]) for text in texts]
            columns = "texts (rowid, problem, workflow, prompts, replies, reasons)"
            _insert(base, columns, (attempt.id, *searched))
            cut += any(len(text) > LONGEST for text in texts)
            count += 1
        for table, sums in (("counts", counts), ("uses", uses)):
            for key, number in sums.items():
                _insert(base, table, (file.step, key, number))
        _insert(base, "files", (file.step, file.size, file.mtime_ns, count, unread, cut))

    def _id(
        self, base: sqlite3.Connection, table: str, more: Mapping[str, str] = {}, **key: str
    ) -> int:
        """The number of a row by its key; one that is new is entered, with ``more``."""
        known = (table, *key.values())
        if known not in self._known:
            row = {**key, **more}
            _insert(base, f"{table} ({', '.join(row)})", [*row.values()], "OR IGNORE")
            where = " AND ".join(f"{name} = ?" for name in key)
            query = f"SELECT id FROM {table} WHERE {where}"
            self._known[known] = _one(base, query, [*key.values()])
        return self._known[known]


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
        base.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        yield base


def _version(base: sqlite3.Connection) -> int:
    return _one(base, "PRAGMA user_version")


def _one(base: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> int:
    """The number that a query returns."""
    return int(base.execute(query, values).fetchone()[0])


def _insert(
    base: sqlite3.Connection, table: str, values: Sequence[object], conflict: str = ""
) -> None:
    base.execute(f"INSERT {conflict} INTO {table} VALUES ({marks(values)})", values)


def marks(values: Sequence[object]) -> str:
    """Placeholders for values in SQL."""
    return ", ".join("?" * len(values))


def _is_indexed(base: sqlite3.Connection, file: StepFile) -> bool:
    row = base.execute("SELECT size, mtime_ns FROM files WHERE step = ?", (file.step,)).fetchone()
    return row == (file.size, file.mtime_ns)


def _clear(base: sqlite3.Connection) -> None:
    """Forget everything, as a resume replaced steps; the next steps are entered anew."""
    tables = ("attempts", "notes", "counts", "uses", "files", "combinations", "operators", "tasks")
    for table in tables:
        base.execute(f"DELETE FROM {table}")
    base.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
