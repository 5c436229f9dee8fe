"""Benchmarks that judges are measured on and so not trained on: rows that are theirs, by the name
of their source or by the text of their conversation, are left out of training by name.

What a trained judge says of itself, for whoever measures it, is
:mod:`flowright.data.contamination`'s.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowright.core.errors import DataError
from flowright.data.preference_files import held_out_rows
from flowright.data.row_files import Fault, LeftOut, Report
from flowright.data.sealed import NOTHING, SealedConversations
from flowright.data.sources.preference_registry import preference_source
from flowright.environments.judging.config import JudgingSection
from flowright.environments.judging.rows import AnyRow, Conversation, SftRow
from flowright.judging.measuring.benchmark_rows import REWARDBENCH2
from flowright.judging.measuring.pair_files import read_rewardbench2


@dataclass(frozen=True, slots=True)
class Sealed:
    """Benchmarks by name, and their ``conversations``; of ``unread`` ones no file was at hand."""

    names: tuple[str, ...]
    conversations: SealedConversations = NOTHING
    unread: tuple[str, ...] = ()

    def why_not(self, source: str, conversation: Conversation) -> str:
        """Why a row is not trained on; empty where it is."""
        for name in self.names:
            if _is_named(name, source):
                return f"its source is {name}, a benchmark"
        holder = self.conversations.holder(conversation)
        return f"its conversation is one of {holder}, a benchmark" if holder else ""

    def words(self, folder: Path) -> str:
        """What was compared."""
        if not self.names:
            return "rows compared with no benchmark (judging.benchmarks: [])"
        read = ", ".join(name for name in self.names if name not in self.unread)
        told = [f"with {read} by name and by text"] if read else []
        if self.unread:
            told.append(f"with {', '.join(self.unread)} by name only, no files in {folder}")
        return f"rows compared {'; '.join(told)}"


def read_sealed(names: Sequence[str], folder: Path) -> Sealed:
    """The benchmarks of these names (``llmbar``, ``llmbar/manual``) out of the folder of downloads,
    as far as their files are there. Raises DataError for other names and for damaged files."""
    named: list[tuple[str, Conversation]] = []
    unread: list[str] = []
    for name in dict.fromkeys(names):
        preference_source(name.partition("/")[0])
        found = list(_conversations(name, folder))
        if not found:
            unread.append(name)
        named += [(name, conversation) for conversation in found]
    return Sealed(tuple(dict.fromkeys(names)), SealedConversations.of(named), tuple(unread))


def _conversations(name: str, folder: Path) -> Iterable[Conversation]:
    if name == REWARDBENCH2:
        there = folder / name
        rows = read_rewardbench2(there).rows if there.is_dir() and any(there.iterdir()) else ()
    else:
        rows, _ = held_out_rows([name], folder)
    return [row.conversation for row in rows]


def without_benchmarks(
    rows: Sequence[AnyRow], report: Report, section: JudgingSection
) -> tuple[tuple[AnyRow, ...], Report, str]:
    """The rows that are of none of ``judging.benchmarks``, the report of all, and what was compared
    in words. Raises DataError where none is left."""
    sealed = read_sealed(section.benchmarks, section.benchmark_dir)
    kept: list[AnyRow] = []
    left_out: list[LeftOut] = []
    for row in rows:
        conversation = row.messages if isinstance(row, SftRow) else row.conversation
        why = sealed.why_not(row.source, conversation)
        if why:
            left_out.append(LeftOut(row.id, Fault.BENCHMARK, why))
        else:
            kept.append(row)
    report = report.less(tuple(left_out))
    if not kept:
        raise DataError(
            *report.lines(section.show_left_out),
            "judging.benchmarks: all rows to train on are of benchmarks, by which a judge is "
            "measured; train on others, or take these names out of judging.benchmarks",
        )
    return tuple(kept), report, sealed.words(section.benchmark_dir)


def _is_named(name: str, source: str) -> bool:
    """Whether a row's source names the benchmark, however it is written: ``LLMBar/Manual``,
    ``allenai/reward-bench-2``."""
    wanted, given = _parts(name), _parts(source)
    starts = range(len(given) - len(wanted) + 1)
    return any(given[start : start + len(wanted)] == wanted for start in starts)


def _parts(name: str) -> list[str]:
    return [re.sub(r"[\W_]+", "", part) for part in name.casefold().split("/")]
