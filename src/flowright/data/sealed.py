"""Sealed prompts: models are measured by them and never trained on them. They are known by the text
of their conversation, whatever its case and white space."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.data.contamination import beginnings, conversation_key
from flowright.data.preferences import Conversation, Turn
from flowright.data.row_files import Fault, UnusableRow, decoded, read_row_files, turns_of
from flowright.data.sources.preference_registry import HEALTHBENCH, IFBENCH, IFEVAL

COLUMNS = ("prompt", "question", "instruction")
"""Columns of a row's prompt, a text or messages; the first present one counts."""

TEST_FILES = tuple(file.path for each in (IFEVAL, IFBENCH, HEALTHBENCH) for file in each.files)
"""Files of the instruction benchmarks, below the folder of downloads."""


@dataclass(frozen=True, slots=True)
class SealedConversations:
    """Conversations by their key, each with the name of what has it."""

    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, named: Iterable[tuple[str, Sequence[Turn]]]) -> "SealedConversations":
        """Seal conversations by name; the first name of one counts."""
        names: dict[str, str] = {}
        for name, conversation in named:
            names.setdefault(conversation_key(conversation), name)
        return cls(names)

    @classmethod
    def of_texts(cls, texts: Iterable[str], name: str = "a test set") -> "SealedConversations":
        return cls.of((name, as_conversation(text)) for text in texts)

    def holder(self, conversation: Sequence[Turn]) -> str:
        """The name of what has this conversation or one that it begins with; empty without any."""
        found = (self.names.get(key) for key in beginnings(conversation))
        return next(filter(None, found), "")

    def __contains__(self, text: str) -> bool:
        """Return whether a prompt of one message is sealed."""
        return bool(self.holder(as_conversation(text)))


NOTHING = SealedConversations()


def as_conversation(text: str) -> Conversation:
    """Return a text as a conversation of one prompt."""
    return (Turn("user", text),)


def test_files(folder: Path) -> list[Path]:
    """The benchmarks' files that are below the folder of downloads."""
    return [path for name in TEST_FILES if (path := folder / name).is_file()]


def read_sealed_files(paths: Sequence[Path]) -> SealedConversations:
    """The prompts of files. Raises DataError, also for a row without one: a test set that was read
    in part would be sealed in part."""
    named: list[tuple[str, Conversation]] = []
    for path in paths:
        found = read_row_files([path], _prompt, "prompt")
        if found.report.left_out:
            raise DataError(*found.report.lines(), "mend these rows: all of a test set is sealed")
        named += [(str(path), conversation) for conversation in found.rows]
    return SealedConversations.of(named)


def _prompt(values: Mapping[str, Any], where: str, path: Path) -> Conversation:
    name = next((name for name in COLUMNS if values.get(name) is not None), None)
    if name is None:
        raise UnusableRow(Fault.COLUMN, f"none of {', '.join(COLUMNS)} is in it")
    value = values[name]
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return as_conversation(value)
    try:
        return turns_of(decoded(value, name), name, "user")
    except UnusableRow:
        if isinstance(value, str):  # a text that begins with a bracket
            return as_conversation(value)
        raise
