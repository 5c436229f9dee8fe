"""Labelled answers: an answer to a question, its reference, and whether it is right. No judging.

The file format is JSON Lines, one answer a line:
``{"question": ..., "answer": ..., "reference": ..., "label": true}`` and, where there are any,
``id``, ``answer_type``, ``alternatives`` and ``evidence``.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.data.task import numbered_rows
from flowright.judging.verdict import AnswerType, JudgeQuery
from flowright.runs import write_text


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """One answer whose truth is known: ``label`` is True for a right one."""

    id: str
    question: str
    answer: str
    reference: str
    label: bool
    answer_type: AnswerType = "free_text"
    alternatives: tuple[str, ...] = ()
    evidence: str | None = None

    def query(self, key: str, rival: str | None = None) -> JudgeQuery:
        """What a judge is shown of it: everything but the label."""
        return JudgeQuery(
            question=self.question,
            answer=self.answer,
            reference=self.reference,
            answer_type=self.answer_type,
            alternatives=self.alternatives,
            evidence=self.evidence,
            rival=rival,
            key=key,
        )

    def to_json(self) -> str:
        """One line of a file; empty fields are left out."""
        row = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        return json.dumps(row, ensure_ascii=False)


_FIELDS = tuple(f.name for f in fields(LabelledItem))
_STRINGS = ("id", "question", "answer", "reference", "evidence")
_REQUIRED = ("question", "answer", "reference", "label")
_REMEDY = "--build MIXTURE --out FILE makes one from a mixture"


def is_task_file(path: Path) -> bool:
    """Whether a file is a mixture: its first row is a task, which has a kind and no label."""
    for _, row in numbered_rows(path, _REMEDY):
        return isinstance(row, dict) and "kind" in row and "label" not in row
    return False


def read_labelled(path: Path) -> list[LabelledItem]:
    """All answers of a file. Raises DataError (``file:line: ...``) at the first unusable line."""
    items: list[LabelledItem] = []
    seen: dict[str, int] = {}
    for number, row in numbered_rows(path, _REMEDY):
        item = _item(row, f"{path}:{number}", default_id=f"line-{number}")
        if item.id in seen:
            raise DataError(f"{path}:{number}: id {item.id!r} was used in line {seen[item.id]}")
        seen[item.id] = number
        items.append(item)
    if not items:
        raise DataError(f"{path}: no labelled answer in it")
    return items


def write_labelled(path: Path, items: Iterable[LabelledItem]) -> int:
    """Write answers as JSON Lines, replacing the file at once; returns how many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [item.to_json() for item in items]
    write_text(path, "\n".join([*lines, ""]))
    return len(lines)


def _item(row: object, where: str, default_id: str) -> LabelledItem:
    if not isinstance(row, dict):
        raise DataError(f"{where}: a labelled answer is a JSON object, not {type(row).__name__}")
    missing = [name for name in _REQUIRED if name not in row]
    if missing:
        raise DataError(f"{where}: the row lacks {', '.join(missing)}")
    unknown = [name for name in row if name not in _FIELDS]
    if unknown:
        name = str(unknown[0])
        raise DataError(f"{where}: unknown field {name}{suggest(name, _FIELDS)}")
    if not isinstance(row["label"], bool):
        raise DataError(f"{where}: label is {row['label']!r}; write true (right) or false (wrong)")
    for name in _STRINGS:
        if name in row and not isinstance(row[name], str):
            raise DataError(f"{where}: {name} is {type(row[name]).__name__}, not a string")
    if not row["question"].strip():
        raise DataError(f"{where}: the question is empty")
    if row.get("answer_type", "free_text") not in get_args(AnswerType):
        known = ", ".join(get_args(AnswerType))
        raise DataError(f"{where}: answer_type is {row['answer_type']!r}, not one of {known}")
    alternatives = row.get("alternatives", [])
    if not isinstance(alternatives, list) or not all(isinstance(a, str) for a in alternatives):
        raise DataError(f"{where}: alternatives is not a list of strings")
    return LabelledItem(**{"id": default_id, **row, "alternatives": tuple(alternatives)})
