"""The tasks of a judge that is trained: rows of files or of a known rule, without those of
benchmarks.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flowright.core.checkout import here
from flowright.core.errors import DataError
from flowright.core.tables import raise_problems
from flowright.data.contamination import NOTHING, SealedConversations, TrainedOn
from flowright.data.preference_files import held_out_rows
from flowright.data.row_files import RowFile
from flowright.data.sources.registry import preference_source
from flowright.data.task import Pair, Task
from flowright.environments.judging.config import JudgingSection, Method
from flowright.environments.judging.frames import LETTERS, shown
from flowright.environments.judging.rows import (
    AnyRow,
    Conversation,
    Form,
    JudgedRow,
    Row,
    SftRow,
    conversation_key,
    prompt_of,
    read_rows,
    with_prompt,
)
from flowright.environments.judging.synthetic import (
    NEGATIVE,
    ceiling,
    in_drawn_order,
    known_rows,
    with_negatives,
)
from flowright.environments.row_tasks import (
    RowSets,
    keep_apart,
    row_sets,
    split_files,
    without_sealed,
)
from flowright.judging.measuring.benchmark_rows import REWARDBENCH2
from flowright.judging.measuring.pair_files import read_rewardbench2

Kind = Literal["pointwise", "pairwise"]


@dataclass(frozen=True, slots=True)
class JudgingTask(Task):
    """A row to be judged. ``row`` is as the judge is shown it; ``swapped``: in the other order of
    the pair, whose ``row.id`` stays."""

    kind: Kind
    row: JudgedRow
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class ConversationTask(Task):
    """A conversation whose answers are learned as they are."""

    row: SftRow


def conversation_task(row: SftRow) -> ConversationTask:
    """Return the task of a conversation."""
    *before, last = row.messages
    asked = before[-1].content if before else ""
    return ConversationTask(row.id, "sft", row.source, asked, last.content, row)


def task_of(row: JudgedRow, swapped: bool = False) -> JudgingTask:
    """Return the task of a row, of a pair in the other order if ``swapped``."""
    if isinstance(row, Pair):
        row = row.swapped() if swapped else row
        kind, reference = "pairwise", LETTERS[row.label]
    else:
        kind, reference = "pointwise", str(row.label)
    id = f"{row.id}/swapped" if swapped else row.id
    return JudgingTask(id, kind, row.source, shown(row), reference, row, swapped)


def other_order(task: JudgingTask) -> JudgingTask:
    """Return the task of the same pair in the other order. Raises ValueError for one answer."""
    if not isinstance(task.row, Pair):
        raise ValueError(f"task {task.id} has one answer, which has no order")
    row = task.row.swapped() if task.swapped else task.row
    return task_of(row, swapped=not task.swapped)


# Loading.

FORMS: Mapping[Method, tuple[Form, ...]] = {
    "pointwise": ("pointwise",),
    "pairwise": ("pairwise", "bradley_terry"),
    "joint": ("pointwise", "pairwise", "bradley_terry"),
    "bradley_terry": ("bradley_terry", "pairwise"),
    "sft": ("sft",),
}
"""Forms of files that a method's rows may have."""


def load_rows(section: JudgingSection, seed: int) -> RowSets[JudgedRow]:
    """Load the rows of the configuration. Raises DataError."""
    if section.data == "known_rule":
        split, lines = _known(section, seed)
    else:
        split, lines = _read(section, seed, lambda paths: _judged_rows(paths, section, seed))
    train, held_out = split.train, split.held_out
    if section.ties == "drop":
        train, held_out = _without_ties(train), _without_ties(held_out)
        ties = len(split.train) + len(split.held_out) - len(train) - len(held_out)
        lines.append(f"{ties:,} ties left out (judging.ties: drop)")
    many = len(train)
    train = with_negatives(train, section.negatives, seed)
    if len(train) > many:
        lines.append(f"{len(train) - many:,} rows against one-token attacks added to train")
    return row_sets(train, held_out, split.digest, lines, "rows")


def load_conversations(section: JudgingSection, seed: int) -> RowSets[SftRow]:
    """Load the conversations of ``judging.train_files``, for ``method: sft``. Raises DataError."""

    def read(paths: Sequence[Path]) -> RowFile[SftRow]:
        found = read_rows(paths, FORMS["sft"])
        return RowFile(tuple(r for r in found.rows if isinstance(r, SftRow)), found.report)

    split, lines = _read(section, seed, read)
    return row_sets(split.train, split.held_out, split.digest, lines, "rows")


def read_held_out(section: JudgingSection, path: Path, seed: int) -> tuple[JudgedRow, ...]:
    """Read another file to measure on. Raises DataError."""
    return _judged_rows([path], section, seed).rows


def _known(section: JudgingSection, seed: int) -> tuple[RowSets[JudgedRow], list[str]]:
    rule = section.known_rule
    train, held_out = list[JudgedRow](), list[JudgedRow]()
    if section.method != "pointwise":
        train, held_out = map(list, known_rows(rule, seed, "pairs"))
    if section.method in ("pointwise", "joint"):
        scored = known_rows(rule, seed, "scores")
        train, held_out = [*train, *scored.train], [*held_out, *scored.held_out]
    note = (
        f"SYNTHETIC: labels follow a known rule, {rule.noise:.0%} of them wrong; no judge can "
        f"agree with more than {ceiling(rule.noise):.0%} of the held-out ones"
    )
    return keep_apart(train, held_out, conversation_key), [note]


def _read(
    section: JudgingSection, seed: int, read: Callable[[Sequence[Path]], RowFile[AnyRow]]
) -> tuple[RowSets[AnyRow], list[str]]:
    make = here("python scripts/judge_training/make_preferences.py")
    missing = [p for p in (*section.train_files, *section.val_files) if not p.is_file()]
    raise_problems(
        [
            f"{path}: no such file; name yours in judging.train_files or val_files, or make some: "
            f"{make} (docs/training_judges.md)"
            for path in missing
        ]
    )
    train, compared = without_benchmarks(read(section.train_files), section)
    held_out = read(section.val_files) if section.val_files else None

    def count(conversations: int) -> int:
        wanted = max(1, round(section.val_share * conversations))
        return min(conversations - 1, wanted)

    split, report = split_files(train, held_out, conversation_key, count, f"{seed}/split")
    return split, [*report.lines(), compared]


def _judged_rows(paths: Sequence[Path], section: JudgingSection, seed: int) -> RowFile[JudgedRow]:
    """Read rows; chosen and rejected answers in an order that is drawn."""
    found = read_rows(paths, FORMS[section.method], partial(in_drawn_order, seed=seed))
    return RowFile(tuple(r for r in found.rows if not isinstance(r, SftRow)), found.report)


def _without_ties(rows: Sequence[JudgedRow]) -> tuple[JudgedRow, ...]:
    return tuple(row for row in rows if not (isinstance(row, Pair) and row.label == "tie"))


def trained_on(rows: RowSets[Any], section: JudgingSection) -> TrainedOn:
    """Return names and hashes of the rows on both sides, with those of the ``trained_on.json``
    beside their files, which know subsets where rows name their source alone, and the conversations
    of judgements. Raises DataError."""
    both = [*rows.train, *rows.held_out]
    conversations = [row.messages if isinstance(row, SftRow) else row.conversation for row in both]
    files = (*section.train_files, *section.val_files)
    beside = TrainedOn.gathered(dict.fromkeys(path.parent for path in files)) or TrainedOn()
    names = {row.source.removesuffix(NEGATIVE) for row in both}
    known = {name.partition("/")[0] for name in beside.subsets}
    own = TrainedOn(frozenset(names - known))
    return TrainedOn.of_conversations(conversations) | own | beside


# Benchmarks, which judges are measured on and not trained on.


@dataclass(frozen=True, slots=True)
class Benchmarks:
    """Benchmarks by name and by their conversations; no file of ``unread`` ones was found."""

    names: tuple[str, ...]
    conversations: SealedConversations = NOTHING
    unread: tuple[str, ...] = ()

    def why_not(self, source: str, conversation: Conversation) -> str:
        """Return the reason that a row is not trained on; empty if it is."""
        for name in self.names:
            if _is_named(name, source):
                return f"its source is {name}, a benchmark"
        holder = self.conversations.holder(conversation)
        return f"its conversation is one of {holder}, a benchmark" if holder else ""

    def summary(self, folder: Path) -> str:
        """Return a line on what rows were compared with."""
        if not self.names:
            return "rows compared with no benchmark (judging.benchmarks: [])"
        read = ", ".join(name for name in self.names if name not in self.unread)
        parts = [f"with {read} by name and by text"] if read else []
        if self.unread:
            parts.append(f"with {', '.join(self.unread)} by name only, no files in {folder}")
        return f"rows compared {'; '.join(parts)}"


def read_benchmarks(names: Sequence[str], folder: Path) -> Benchmarks:
    """Read the benchmarks of these names (``llmbar``, ``llmbar/manual``) from the folder of
    downloads, as far as their files are there. Raises DataError for other names and for damaged
    files."""
    named: list[tuple[str, Conversation]] = []
    unread: list[str] = []
    for name in dict.fromkeys(names):
        preference_source(name.partition("/")[0])
        found = list(_conversations(name, folder))
        if not found:
            unread.append(name)
        named += [(name, conversation) for conversation in found]
    return Benchmarks(tuple(dict.fromkeys(names)), SealedConversations.of(named), tuple(unread))


def _conversations(name: str, folder: Path) -> Iterable[Conversation]:
    if name == REWARDBENCH2:
        there = folder / name
        rows = read_rewardbench2(there).rows if there.is_dir() and any(there.iterdir()) else ()
    else:
        rows, _ = held_out_rows([name], folder)
    return [row.conversation for row in rows]


def without_benchmarks(
    found: RowFile[AnyRow], section: JudgingSection
) -> tuple[RowFile[AnyRow], str]:
    """Leave out rows of ``judging.benchmarks``; returns also a line on what was compared. Raises
    DataError if no row is left."""
    benchmarks = read_benchmarks(section.benchmarks, section.benchmark_dir)

    def why_not(row: AnyRow) -> str:
        conversation = row.messages if isinstance(row, SftRow) else row.conversation
        return benchmarks.why_not(row.source, conversation)

    kept, left_out = without_sealed(found.rows, why_not)
    report = found.report.less(left_out)
    if not kept:
        raise DataError(
            *report.lines(),
            "judging.benchmarks: all rows to train on are of benchmarks, by which a judge is "
            "measured; train on others, or take these names out of judging.benchmarks",
        )
    return RowFile(kept, report), benchmarks.summary(section.benchmark_dir)


def _is_named(name: str, source: str) -> bool:
    """Return whether a row's source names the benchmark, in any spelling: ``LLMBar/Manual``,
    ``allenai/reward-bench-2``."""
    wanted, given = _parts(name), _parts(source)
    starts = range(len(given) - len(wanted) + 1)
    return any(given[start : start + len(wanted)] == wanted for start in starts)


def _parts(name: str) -> list[str]:
    return [re.sub(r"[\W_]+", "", part) for part in name.casefold().split("/")]


# Cutting.

CUT = "\n[... cut: the text was too long ...]\n"
"""Stands in place of the text that was cut."""

SHORTEST = 1_000
"""Characters that a cut turn keeps, half of them from each end: a frame that is itself a turn keeps
its request for the output format, which ends it."""


def cut_row(
    row: AnyRow, count: int, tokens: Callable[[AnyRow], int], limit: int
) -> tuple[AnyRow, int] | None:
    """Cut the longest turn of a row's conversation in its middle, again and again until the row,
    of ``count`` tokens, has at most ``limit``. Answers, verdicts and the words of a frame are never
    cut. Returns the row and the number of characters that were cut, or None if it cannot fit."""
    turns = prompt_of(row)
    kept = [len(turn.content) for turn in turns]
    while kept and (longest := max(kept)) > SHORTEST:
        place = kept.index(longest)
        estimate = (count - limit) / count * sum(kept)
        kept[place] = max(SHORTEST, longest - len(CUT) - math.ceil(max(estimate, longest / 10)))
        shorter = with_prompt(
            row,
            tuple(
                replace(turn, content=_without_middle(turn.content, size))
                for turn, size in zip(turns, kept, strict=True)
            ),
        )
        count = tokens(shorter)
        if count <= limit:
            return shorter, _characters(row) - _characters(shorter)
    return None


def _without_middle(text: str, size: int) -> str:
    if size >= len(text):
        return text
    return text[: size // 2] + CUT + text[len(text) - (size - size // 2) :]


def _characters(row: Row) -> int:
    """Characters of the conversation, without the mark of what was cut."""
    return sum(len(turn.content.replace(CUT, "")) for turn in prompt_of(row))
