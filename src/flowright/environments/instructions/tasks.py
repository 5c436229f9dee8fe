"""A prompt and what its answers are rewarded by, as a task. No file is read here."""

from dataclasses import dataclass, field

from flowright.criteria.constraints.checkers import Prompt
from flowright.criteria.rubrics.rows import Item, RubricRow, VerifRow
from flowright.data.preferences import Conversation, Turn
from flowright.data.task import Task
from flowright.llm.chat import Message

Row = RubricRow | VerifRow | Prompt
"""A row by what rewards it: a rubric, VerIF's constraints, or instructions with a checker each."""


@dataclass(frozen=True, slots=True)
class InstructionTask(Task):
    """A prompt to be answered. ``shown`` are the criteria that a scaffold may show of it; none
    where nothing is scaffolded."""

    row: Row
    shown: tuple[Item, ...] = field(default=(), compare=False)

    @property
    def conversation(self) -> Conversation:
        """What is answered, system message included."""
        return conversation_of(self.row)


def conversation_of(row: Row) -> Conversation:
    """The turns that a row's answer follows."""
    return (Turn("user", row.text),) if isinstance(row, Prompt) else row.conversation


def task_of(row: Row, source: str, place: str, shown: tuple[Item, ...] = ()) -> InstructionTask:
    """The task of a row. ``place`` is its file and row, by which it is known."""
    asked = conversation_of(row)[-1].content
    return InstructionTask(place, "instructions", source, asked, _best(row), row, shown)


def _best(row: Row) -> str:
    """What a good answer does, for screens."""
    if isinstance(row, RubricRow):
        told = [f"{item.points:+g} {item.criterion}" for item in row.items]
    elif isinstance(row, VerifRow):
        told = [f"{constraint.kind}: {constraint.text}" for constraint in row.constraints]
    else:
        told = [*row.ids]
    return "\n".join(told)


def messages_of(conversation: Conversation) -> list[Message]:
    """The turns as the chat template takes them."""
    return [Message(turn.role, turn.content) for turn in conversation]
