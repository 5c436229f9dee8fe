"""Contamination of a measurement by training data, by name and by text.

Names and hashes of the training data go with the training files and with trained policies. A
conversation is its turns without system messages; it was trained on if a conversation of the
training data begins with it, whatever answer follows. Sealed prompts are those that models are
measured by and never trained on.
"""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.files import write_text
from flowright.data.row_files import Fault, UnusableRow, decoded, read_row_files, turns_of
from flowright.data.sources.dataset import UpstreamRow, json_table
from flowright.data.sources.registry import INSTRUCTIONS
from flowright.data.task import Conversation, Pair, Rated
from flowright.llm.chat import Message

_PIECE = 256  # characters of a word: putting combining marks in order is quadratic in their run


def folded(text: str) -> str:
    """The text in Unicode's NFKC, without case, with one space for any white space; in time that
    is linear in it. Words of more than 256 characters are taken in pieces."""
    if text.isascii():
        return " ".join(text.casefold().split())
    words = (
        "".join(_folded(word[start : start + _PIECE]) for start in range(0, len(word), _PIECE))
        for word in text.split()
    )
    return " ".join(" ".join(words).split())  # some signs are a space and a mark in NFKC


def _folded(piece: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", piece).casefold())


TRAINED_ON = "trained_on.json"
_FORM = "NFKC, casefold, white space; SHA-256"
_NAMED = 3  # ids of a subset in a refusal


def conversation_key(conversation: Sequence[Message]) -> str:
    """The SHA-256, in hexadecimal, that a conversation is known by."""
    return [hashlib.sha256().hexdigest(), *beginnings(conversation)][-1]


def beginnings(conversation: Iterable[Message]) -> Iterator[str]:
    """The keys of all beginnings of a conversation, the whole of it last."""
    running = hashlib.sha256()
    for turn in conversation:
        if turn.role == "system":
            continue
        # The length of each text keeps one turn from reading as two.
        text = folded(turn.content).encode(errors="surrogatepass")
        running.update(f"{turn.role} {len(text)} ".encode() + text)
        yield running.hexdigest()


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """Training data of a judge, rows that only chose its checkpoint included. ``subsets`` are names
    such as ``llmbar/natural``, the source's alone without categories; ``conversations`` are hashes
    of every beginning of every conversation."""

    subsets: frozenset[str] = frozenset()
    conversations: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rows: Iterable[Pair | Rated]) -> "TrainedOn":
        rows = list(rows)
        keys = (key for row in rows for key in beginnings(row.conversation))
        return cls(frozenset(map(subset_of, rows)), frozenset(keys))

    @classmethod
    def of_conversations(cls, conversations: Iterable[Sequence[Message]]) -> "TrainedOn":
        """Return the record of a user's own rows, whose source has no known name."""
        return cls(conversations=frozenset(k for each in conversations for k in beginnings(each)))

    def __or__(self, other: "TrainedOn") -> "TrainedOn":
        return TrainedOn(self.subsets | other.subsets, self.conversations | other.conversations)

    def found(self, benchmark: Iterable[Pair]) -> list[str]:
        """A line for each subset of the benchmark that was trained on: by its name or that of its
        source, or by the text of its conversations."""
        benchmark = list(benchmark)
        named = self.subsets
        by_name = Counter(
            subset_of(pair)
            for pair in benchmark
            if pair.source in named or subset_of(pair) in named
        )
        by_text: dict[str, list[str]] = {}
        for pair in benchmark:
            if conversation_key(pair.conversation) in self.conversations:
                by_text.setdefault(subset_of(pair), []).append(pair.id)
        lines = [f"{name}: the judge was trained on it ({n} pairs)" for name, n in by_name.items()]
        lines += [
            f"{name}: the judge was trained on {len(ids)} of its conversations "
            f"({', '.join(ids[:_NAMED])}{', ...' if len(ids) > _NAMED else ''})"
            for name, ids in by_text.items()
            if name not in by_name
        ]
        return lines

    def check(self, benchmark: Iterable[Pair]) -> None:
        """Raise DataError with the lines that are :meth:`found`."""
        if lines := self.found(benchmark):
            raise DataError(
                *lines, "measure it on another benchmark, or train it without these (--hold-out)"
            )

    def write(self, folder: Path) -> Path:
        """Write ``trained_on.json`` into a folder; returns its path."""
        write_text(folder / TRAINED_ON, json.dumps(self.table(), indent=0) + "\n")
        return folder / TRAINED_ON

    def table(self) -> dict[str, object]:
        """Return the record as JSON; inverse of :meth:`of_table`."""
        return {
            "subsets": sorted(self.subsets),
            "normalisation": _FORM,
            "conversations": sorted(self.conversations),
        }

    @classmethod
    def read(cls, folder: Path) -> "TrainedOn | None":
        """Read ``trained_on.json`` of a folder; None without one. Raises DataError for a file of
        another form."""
        path = folder / TRAINED_ON
        return cls.of_table(json_table(path)) if path.is_file() else None

    @classmethod
    def of_table(cls, table: UpstreamRow) -> "TrainedOn":
        """Read a record. Raises DataError for one of another form."""
        if table.text("normalisation") != _FORM:
            why = f"its hashes are not of this form: {_FORM}; make it again"
            raise DataError(f"{table.where}: {why}")
        names, keys = table.texts("subsets"), table.texts("conversations")
        return cls(frozenset(names), frozenset(keys))

    @classmethod
    def gathered(cls, folders: Iterable[Path]) -> "TrainedOn | None":
        """Merge the records of several folders; None without any. Raises DataError."""
        records = [found for folder in folders if (found := cls.read(folder)) is not None]
        return reduce(or_, records) if records else None


def subset_of(row: Pair | Rated) -> str:
    """The subset that a row is of: ``llmbar/natural``, ``pandalm``."""
    return f"{row.source}/{row.category}" if row.category else row.source


# Sealed prompts.

COLUMNS = ("prompt", "question", "instruction")
"""Columns of a row's prompt, a text or messages; the first present one counts."""

_BENCHMARKS = ("ifeval", "ifbench", "healthbench")
TEST_FILES = tuple(file.path for name in _BENCHMARKS for file in INSTRUCTIONS[name].files)
"""Files of the instruction benchmarks, below the folder of downloads."""


@dataclass(frozen=True, slots=True)
class SealedConversations:
    """Conversations by their key, each with the name of what has it."""

    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, named: Iterable[tuple[str, Sequence[Message]]]) -> "SealedConversations":
        """Seal conversations by name; the first name of one counts."""
        names: dict[str, str] = {}
        for name, conversation in named:
            names.setdefault(conversation_key(conversation), name)
        return cls(names)

    def holder(self, conversation: Sequence[Message]) -> str:
        """The name of what has this conversation or one that it begins with; empty without any."""
        found = (self.names.get(key) for key in beginnings(conversation))
        return next(filter(None, found), "")

    def __contains__(self, text: str) -> bool:
        """Return whether a prompt of one message is sealed."""
        return bool(self.holder(as_conversation(text)))


NOTHING = SealedConversations()


def as_conversation(text: str) -> Conversation:
    """Return a text as a conversation of one prompt."""
    return (Message("user", text),)


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
