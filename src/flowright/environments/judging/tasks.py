"""A row as a task: what a judge that is trained is shown, in one order or the other."""

from dataclasses import dataclass
from typing import Literal

from flowright.data.preferences import Pair
from flowright.data.task import Task
from flowright.environments.judging.frames import shown
from flowright.environments.judging.rows import JudgedRow, SftRow

Kind = Literal["pointwise", "pairwise"]
KINDS: tuple[Kind, ...] = ("pointwise", "pairwise")

_NAMES = {"first": "A", "second": "B", "tie": "tie"}


@dataclass(frozen=True, slots=True)
class JudgingTask(Task):
    """One row to be judged. ``row`` is as the judge is shown it; ``swapped`` where that is the
    other order of a pair, whose ``row.id`` stays."""

    kind: Kind
    row: JudgedRow
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class ConversationTask(Task):
    """One conversation whose answers are learned as they are."""

    row: SftRow


def conversation_task(row: SftRow) -> ConversationTask:
    """The task of a conversation."""
    *before, last = row.messages
    asked = before[-1].content if before else ""
    return ConversationTask(row.id, "sft", row.source, asked, last.content, row)


def task_of(row: JudgedRow, swapped: bool = False) -> JudgingTask:
    """The task of a row, of a pair in the other order if ``swapped``."""
    if isinstance(row, Pair):
        row = row.swapped() if swapped else row
        kind, reference = "pairwise", _NAMES[row.label]
    else:
        kind, reference = "pointwise", str(row.label)
    id = f"{row.id}/swapped" if swapped else row.id
    return JudgingTask(id, kind, row.source, shown(row), reference, row, swapped)


def other_order(task: JudgingTask) -> JudgingTask:
    """The task of the same pair the other way round. Raises ValueError for a single answer."""
    if not isinstance(task.row, Pair):
        raise ValueError(f"task {task.id} has one answer, which has no order")
    row = task.row.swapped() if task.swapped else task.row
    return task_of(row, swapped=not task.swapped)
