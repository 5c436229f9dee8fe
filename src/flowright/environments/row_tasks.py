"""Tasks made of rows: split by conversation, fitted to a token limit, and the base of the
environments that have such tasks.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flowright.core.errors import DataError
from flowright.data.row_files import Fault, LeftOut, RowFile, RowReport
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets

_NAMED = 5  # rows that an error names
_SHOWN = 3  # left-out rows that a note names


class Row(Protocol):
    """Anything with an id, such as file:row."""

    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Row)
Key = Callable[[R], str]
"""The conversation of a row: rows with equal keys are on one side of a split."""


# Splits.


@dataclass(frozen=True, slots=True)
class RowSets(Generic[R]):
    """Rows to train on and held-out rows. ``digest`` is the SHA-256 of the conversations of both
    sides; ``left_out`` are rows of train whose conversation is held out; ``lines`` are notes on the
    rows' source and on those that were left out."""

    train: tuple[R, ...]
    held_out: tuple[R, ...]
    digest: str
    left_out: tuple[LeftOut, ...] = ()
    lines: tuple[str, ...] = ()


def hold_out(rows: Sequence[R], key: Key[R], count: Callable[[int], int], salt: str) -> RowSets[R]:
    """Hold out the rows of ``count(n)`` of the n conversations, drawn by a hash of each. Raises
    DataError for fewer than two conversations."""
    keys = [key(row) for row in rows]
    drawn = sorted({*keys}, key=lambda key: hashlib.sha256(f"{salt}/{key}".encode()).digest())
    if len(drawn) < 2:
        raise DataError(f"{len(rows)} rows of {len(drawn)} conversation: nothing can be held out")
    apart = frozenset(drawn[: count(len(drawn))])
    train = tuple(row for row, key in zip(rows, keys, strict=True) if key not in apart)
    held_out = tuple(row for row, key in zip(rows, keys, strict=True) if key in apart)
    return RowSets(train, held_out, split_digest({*keys} - apart, apart))


def keep_apart(train: Sequence[R], held_out: Sequence[R], key: Key[R]) -> RowSets[R]:
    """Leave out the rows of train whose conversation is held out. Raises DataError if none is
    left."""
    apart = {key(row) for row in held_out}
    keyed = [(row, key(row)) for row in train]
    kept = tuple(row for row, key in keyed if key not in apart)
    if not kept:
        raise DataError(
            f"all conversations of the {len(train)} rows to train on are held out, too; name other "
            "val_files, or none"
        )
    why = "its conversation is held out, too"
    left_out = tuple(LeftOut(row.id, Fault.HELD_OUT, why) for row, key in keyed if key in apart)
    digest = split_digest({key for _, key in keyed} - apart, apart)
    return RowSets(kept, tuple(held_out), digest, left_out)


def split_files(
    train: RowFile[R],
    held_out: RowFile[R] | None,
    key: Key[R],
    count: Callable[[int], int],
    salt: str,
) -> tuple[RowSets[R], RowReport]:
    """Return the split of files, and the report on all their rows: :func:`keep_apart` with held-out
    files, :func:`hold_out` without."""
    if held_out is None:
        return hold_out(train.rows, key, count, salt), train.report
    split = keep_apart(train.rows, held_out.rows, key)
    return split, (train.report + held_out.report).less(split.left_out)


def split_digest(train: Iterable[str], held_out: Iterable[str]) -> str:
    """Return the SHA-256 of which conversation is on which side."""
    lines = [*(f"train {key}" for key in train), *(f"held_out {key}" for key in held_out)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def without_sealed(
    rows: Sequence[R], why_sealed: Callable[[R], str]
) -> tuple[tuple[R, ...], tuple[LeftOut, ...]]:
    """Return the rows that may be trained on, and the others. ``why_sealed`` returns the reason
    against a row, or an empty string."""
    reasons = [(row, why_sealed(row)) for row in rows]
    kept = tuple(row for row, why in reasons if not why)
    return kept, tuple(LeftOut(row.id, Fault.BENCHMARK, why) for row, why in reasons if why)


def row_sets(
    train: Collection[R], held_out: Collection[R], digest: str, lines: Sequence[str], noun: str
) -> RowSets[R]:
    """Return the sets, with a last line that counts them."""
    counted = (
        f"{len(train):,} {noun} to train on, {len(held_out):,} held out; SHA-256 of the split "
        f"{digest}"
    )
    return RowSets(tuple(train), tuple(held_out), digest, lines=(*lines, counted))


# Lengths.


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of rows after the chat template; ``median`` and ``p95`` by nearest rank."""

    rows: int
    least: int
    median: int
    p95: int
    most: int
    limit: int
    overlong: int

    def __str__(self) -> str:
        return (
            f"tokens a row after the chat template: min {self.least:,}, median {self.median:,}, "
            f"p95 {self.p95:,}, max {self.most:,}; {self.overlong:,} of {self.rows:,} rows over "
            f"{self.limit:,}"
        )


def lengths_of(tokens: Sequence[int], limit: int) -> Lengths:
    """Raises ValueError without any row."""
    if not tokens:
        raise ValueError("no rows to measure")
    ordered = sorted(tokens)

    def rank(share: float) -> int:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    over = sum(count > limit for count in ordered)
    return Lengths(len(ordered), ordered[0], rank(0.5), rank(0.95), ordered[-1], limit, over)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[R]):
    """Rows within the limit. ``lengths`` are those before; those of ``cut_ids`` lost
    ``cut_characters``; ``left_out`` are the others."""

    rows: tuple[R, ...]
    lengths: Lengths
    cut_ids: tuple[str, ...]
    cut_characters: int
    left_out: tuple[LeftOut, ...]

    @property
    def cut(self) -> int:
        return len(self.cut_ids)

    def __str__(self) -> str:
        faults = [row.fault for row in self.left_out]
        by = f" by {self.cut_characters:,} characters" * bool(self.cut_characters)
        refused = faults.count(Fault.TEMPLATE)
        more = f", {refused:,} refused by the chat template" * bool(refused)
        dropped = faults.count(Fault.OVERLONG)
        return f"{self.lengths}; {self.cut:,} cut{by}, {dropped:,} dropped{more}"


Shorten = Callable[[R, int], tuple[R, int] | None]
"""From an overlong row and its tokens to a shorter one and the characters that it lost, or None if
it cannot be shortened enough."""


def fit(
    rows: Sequence[R],
    tokens: Callable[[R], int],
    limit: int,
    overlong: str,
    shorten: Shorten[R] = lambda row, count: None,
) -> Fitted[R]:
    """Return the rows of at most ``limit`` tokens. ``overlong`` is what becomes of the others:
    ``drop``, ``error``, or any other word for ``shorten``.

    Rows that ``tokens`` raises DataError for, because the chat template refuses them, are left out.
    Raises DataError with ``overlong: error``, and if the template refuses every row.
    """
    counted: list[tuple[R, int]] = []
    left_out: list[LeftOut] = []
    for row in rows:
        try:
            counted.append((row, tokens(row)))
        except DataError as error:
            left_out.append(LeftOut(row.id, Fault.TEMPLATE, "; ".join(error.problems)))
    if rows and not counted:
        raise DataError(
            *map(str, left_out[:_NAMED]),
            f"the chat template refuses all {len(left_out)} rows; take the turns that it refuses "
            "out of the data, or train another model",
        )
    lengths = lengths_of([count for _, count in counted], limit)
    if overlong == "error" and lengths.overlong:
        over = [row.id for row, count in counted if count > limit]
        names = ", ".join(over[:_NAMED]) + (", ..." if len(over) > _NAMED else "")
        raise DataError(
            f"{lengths.overlong} of {lengths.rows} rows have more than {limit} tokens ({names}); "
            "shorten them, raise policy.max_prompt_tokens, or set another value of overlong"
        )
    kept: list[R] = []
    cut, characters = list[str](), 0
    for row, count in counted:
        if count <= limit:
            kept.append(row)
            continue
        shorter = shorten(row, count) if overlong != "drop" else None
        if shorter is None:
            why = f"{count:,} tokens after the chat template, more than {limit:,}"
            more = "; without its conversation it is still longer" * (overlong != "drop")
            left_out.append(LeftOut(row.id, Fault.OVERLONG, why + more))
            continue
        kept.append(shorter[0])
        cut.append(row.id)
        characters += shorter[1]
    return Fitted(tuple(kept), lengths, tuple(cut), characters, tuple(left_out))


class RowSection(Protocol):
    """The keys that environments of rows share."""

    @property
    def epochs(self) -> float | None: ...
    @property
    def overlong(self) -> str: ...
    @property
    def train_files(self) -> Sequence[object]: ...


S = TypeVar("S", bound=RowSection)


class RowEnvironment(Environment, Generic[S]):
    """Base of the environments whose tasks are rows, of files or of a known rule."""

    _section: S
    _sets: RowSets[Any] | None = None
    _length_notes: tuple[str, ...] = ()
    _cut: frozenset[str] = frozenset()

    def steps(self, train: Sequence[Task]) -> int | None:
        epochs, size = self._section.epochs, self.config.grpo.prompts_per_step
        return None if epochs is None else max(1, round(epochs * len(train) / size))

    def _fitted(
        self, tasks: TaskSets, tokens: Callable[[Any], int], limit: int, shorten: Shorten[Any]
    ) -> TaskSets:
        """Fit both sides by ``overlong``, with lines for :meth:`task_notes`. Raises
        DataError."""
        sides, notes, cut = [], list[str](), set[str]()
        for name, side in (("train", tasks.train), ("held out", tasks.val)):
            if side:
                found = fit(side, tokens, limit, self._section.overlong, shorten)
                notes += [f"{name}: {found}", *(f"  {row}" for row in found.left_out[:_SHOWN])]
                side = [*found.rows]
                cut.update(found.cut_ids)
            sides.append(side)
        self._length_notes, self._cut = tuple(notes), frozenset(cut)
        return TaskSets(*sides)

    def was_cut(self, task: Task) -> bool:
        return task.id in self._cut

    def about(self) -> Mapping[str, Any]:
        files = ", ".join(map(str, self._section.train_files))
        about = {"data": files or "a known rule (synthetic)"}
        return about | ({"split": self._sets.digest} if self._sets else {})

    def task_notes(self) -> Sequence[str]:
        return (*(self._sets.lines if self._sets else ()), *self._length_notes)
