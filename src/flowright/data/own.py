"""Problems from a user's own file: columns are found by name, missing fields are filled in, and
every assumption is reported."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from flowright.core.errors import DataError
from flowright.core.tables import raise_problems
from flowright.data.answers import (
    AnswerCell,
    OwnColumns,
    UnreadableAnswer,
    is_formula,
    message_role,
    message_text,
    read_answer,
    structure,
)
from flowright.data.build import normalise
from flowright.data.own_programs import read_program, read_tests
from flowright.data.sources.benchmarks import OPTION, lettered_choices
from flowright.data.sources.dataset import Converter, UpstreamRow
from flowright.data.sources.programs import mbpp
from flowright.data.sources.questions import commonsenseqa, drop, hotpotqa
from flowright.data.task import KINDS, Kind, Problem

_TABLE = (list, Mapping)
_FORMS: tuple[tuple[str, Mapping[str, Any], Converter], ...] = (
    ("CommonsenseQA", {"question": Mapping, "answerKey": str}, commonsenseqa),
    ("MBPP", {"text": str, "code": str, "test_list": list, "task_id": int}, mbpp),
    ("HotpotQA", {"answer": str, "context": _TABLE, "supporting_facts": _TABLE}, hotpotqa),
    ("DROP", {"context": str, "ref_text": str}, drop),
)
"""Official rows, AFlow's among them, by types of their columns."""
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
_SPLITS |= {"test": "test"}
_LETTERED = re.compile(r"(?:option|choice)?[ _]?([A-Ja-j])")
_HEADING = r"\s*(?:(?:answer )?(?:choices|options):)?\s*"
_BOTH = re.compile(r"\(?(\w)[).:]+\s*(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OwnProblem:
    """A problem with the place of its row and the split that it names. ``has_examples``: its public
    tests come from a docstring, which may be wrong."""

    problem: Problem
    where: str
    split: str | None = None
    has_examples: bool = False


@dataclass(slots=True)
class Conversion:
    """Rows into problems. ``columns`` are names of the user's for our fields, ``kind`` that of all
    rows. ``left_out`` are lines about unusable rows, which are an error unless it ``skips``."""

    columns: InitVar[Mapping[str, str] | None] = None
    kind: Kind | None = None
    skips: bool = False
    left_out: list[str] = field(default_factory=list)
    _from_one: bool = False
    _columns: OwnColumns = field(init=False)

    def __post_init__(self, columns: Mapping[str, str] | None) -> None:
        self._columns = OwnColumns(columns or {})

    @property
    def assumed(self) -> Counter[str]:
        """Rows by what was assumed of them."""
        return self._columns.assumed

    def problems(self, rows: Iterable[UpstreamRow], stem: str) -> list[OwnProblem]:
        """Convert rows. ``stem`` goes into ids and sources that are filled in. Raises DataError
        with a line for each unusable row, the first ten, and for columns that no row has."""
        all_rows = [self._columns.lifted(row) for row in rows]
        self._columns.check(all_rows)
        self._from_one = self._counts_from_one(all_rows)
        made: list[OwnProblem] = []
        bad: list[str] = []
        for row in all_rows:
            try:
                made.append(self._problem(row, stem))
            except DataError as error:
                bad += error.problems
        if not self.skips:
            raise_problems(bad)
        self.left_out += bad
        self._columns.note_unused(all_rows)
        return made

    def _problem(self, row: UpstreamRow, stem: str) -> OwnProblem:
        if (form := self._form(row)) is not None:
            self.assumed[f"taken for {form[0]}'s form"] += 1
            self._columns.used |= {*row.values}
            return OwnProblem(form[1](row), row.where)
        given, number = self._value(row, "source"), self._value(row, "id")
        source = given if isinstance(given, str) else f"own/{stem}"
        if number is None:
            self.assumed["id and source filled in"] += 1
        id = f"{source}/{row.name}" if number is None else str(number)
        split, kind = self._split(row), self._kind(row)
        question, spoken = self._question(row)
        tests, has_examples = read_tests(self._columns, row, kind), False
        if tests.hidden or kind == "code":
            kind = "code"
            values, has_examples = read_program(self._columns, row, question, tests)
        else:
            answer, choices = self._answer(row, spoken), self._choices(row)
            if choices:
                question = self._without_choices(question, choices)
                values = {"reference": self._label(row, answer, choices), "choices": choices}
            else:
                values = {"reference": answer.reference, "alternatives": answer.alternatives}
            kind = kind or ("qa" if choices else self._kind_of(answer.reference))
        fields = {"id": id, "kind": kind, "source": source, "question": question, **values}
        if context := self._context(row):
            fields["context"] = context
        plain = json.loads(json.dumps(fields))
        return OwnProblem(Problem.from_row(plain, row.where), row.where, split, has_examples)

    def _value(self, row: UpstreamRow, name: str) -> Any:
        return self._columns.value(row, name)

    def _form(self, row: UpstreamRow) -> tuple[str, Converter] | None:
        for name, types, convert in () if self._columns.named else _FORMS:
            if all(isinstance(row.values.get(column), kind) for column, kind in types.items()):
                return name, convert
        return None

    def _kind(self, row: UpstreamRow) -> Kind | None:
        """The kind of all rows or of this one; other words than ours are topics, not kinds."""
        given = self._value(row, "kind")
        if self.kind or given is None:
            return self.kind
        kind: Kind | None = next((k for k in KINDS if k == str(given).casefold()), None)
        if "kind" in row and kind is None:
            raise row.error(f"kind is {given!r}, not one of {', '.join(KINDS)}")
        return kind

    def _kind_of(self, reference: str) -> Kind:
        kind: Kind = "math" if is_formula(reference) else "qa"
        grading = {"math": "whose answer is a number or a formula", "qa": "of other text"}
        self.assumed[f"kind {kind} for rows {grading[kind]}"] += 1
        return kind

    def _context(self, row: UpstreamRow) -> str | None:
        """A passage, or several; beside an instruction, its input."""
        value = self._value(row, "context")
        if value is None and "instruction" in row:
            value = self._value(row, "input")
        return "\n\n".join(map(str, value)) if isinstance(value, list) else value

    def _question(self, row: UpstreamRow) -> tuple[str, str | None]:
        """The question, and the answer of a chat that ends with one."""
        value = self._value(row, "question")
        value = structure(value) if isinstance(value, str) and value[:2] == "[{" else value
        spoken = None
        if isinstance(value, list):
            if value and message_role(value[-1]) == "assistant":
                *value, last = value
                spoken = message_text(last)
            roles = [message_role(one) for one in value]
            if "user" in roles and "system" in roles:
                self.assumed["the system message of a chat left out"] += 1
                value = [one for one, role in zip(value, roles, strict=True) if role != "system"]
            contents = [message_text(message).strip() for message in value]
            if not contents or not all(contents):
                raise row.error("the question is a list, but not one of messages with a content")
            self.assumed["question from the messages of a chat, joined"] += 1
            if "assistant" in roles:
                speakers = [message_role(message) for message in value]
                contents = [f"{s}: {text}" for s, text in zip(speakers, contents, strict=True)]
            value = "\n\n".join(contents)
        if not isinstance(value, str) or not value.strip():
            raise self._columns.lacking(row, "question", "question", "qa")
        return value.strip(), spoken

    def _answer(self, row: UpstreamRow, spoken: str | None = None) -> AnswerCell:
        cell = self._value(row, "reference")
        cell = spoken if cell is None else cell
        if cell is None:
            raise self._columns.lacking(row, "reference", "answer", "qa")
        try:
            answer = read_answer(cell, self._value(row, "alternatives"))
        except UnreadableAnswer as error:
            raise row.error(f"the answer {error}") from None
        for note in answer.notes:
            self.assumed[note] += 1
        return answer

    def _choices(self, row: UpstreamRow) -> list[list[str]]:
        """Pairs of label and text, from a list, an object, or columns A, B, C, D."""
        value = self._value(row, "choices")
        if value is None:
            columns = {m[1].upper(): c for c in row.values if (m := _LETTERED.fullmatch(c))}
            labels = [label for label in "ABCDEFGHIJ" if row.values.get(columns.get(label, ""))]
            if len(labels) < 2:
                return []
            self._columns.used |= {columns[label] for label in labels}
            return [[label, str(row.values[columns[label]]).strip()] for label in labels]
        match value:
            case {"label": list(labels), "text": list(contents)}:
                value = list(zip(labels, contents, strict=False))
            case Mapping():
                value = list(value.items())
            case str():
                value = lettered_choices(value)
            case [*lines] if all(isinstance(one, str) and OPTION.match(one) for one in lines):
                value = [OPTION.findall(one)[0] for one in lines]
        if not isinstance(value, list) or len(value) < 2:
            raise row.error("choices are a list of two texts or more")
        pairs = []
        for letter, one in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", value, strict=False):
            match one:
                case {"label": label, "text": text}:
                    pairs.append([str(label), str(text).strip()])
                case (label, text):
                    pairs.append([str(label), str(text).strip()])
                case _:
                    self.assumed["choices labelled A, B, C, ..."] += letter == "A"
                    pairs.append([letter, str(one).strip()])
        return pairs

    def _without_choices(self, question: str, choices: list[list[str]]) -> str:
        """The question without the choices at its end, which are shown behind it."""
        listed = [rf"\(?{re.escape(a)}[).:]\s*{re.escape(text)}" for a, text in choices]
        end = _HEADING + r"[\s,;]*".join(listed) + r"\s*\Z"
        alone = re.sub(end, "", question, flags=re.IGNORECASE)
        if not alone or alone == question:
            return question
        self.assumed["choices at the end of the question are shown once"] += 1
        return alone

    def _label(self, row: UpstreamRow, answer: AnswerCell, choices: list[list[str]]) -> str:
        texts = (answer.reference, *answer.alternatives)
        found = [self._choice(text, answer.index, choices) for text in texts]
        if answer.reference in ("true", "false"):  # which yes or no stands for
            found = [label for label in found if label is not None]
        if len({*found}) > 1:
            raise row.error(f"several answers to one choice: {', '.join(texts)}"[:200])
        if not found or found[0] is None:
            shown = "; ".join(f"{label}. {' '.join(text.split())[:40]}" for label, text in choices)
            raise row.error(f"the answer {texts[0][:60]!r} is none of the choices {shown}")
        return found[0]

    def _choice(self, text: str, index: int | None, choices: list[list[str]]) -> str | None:
        """The label that an answer means: a label, a choice's text, both, or a choice's number."""
        labels = {label.casefold(): label for label, _ in choices}
        by_text = {normalise(text): label for label, text in choices}
        if found := labels.get(text.strip("().: ").casefold()):
            return found
        both = _BOTH.fullmatch(text)
        if both and labels.get(both[1].casefold()) == by_text.get(normalise(both[2]), ""):
            return labels[both[1].casefold()]
        if index is None and normalise(text) in by_text:
            self.assumed["answers are texts of choices"] += 1
            return by_text[normalise(text)]
        place = int(text) - self._from_one if text.isdecimal() else -1
        if not 0 <= place < len(choices):
            return None
        first = "1" if self._from_one else "0"
        self.assumed[f"answers are numbers of choices, counted from {first}"] += 1
        return choices[place][0]

    def _counts_from_one(self, rows: Sequence[UpstreamRow]) -> bool:
        """Return whether answers are numbers of choices counted from one: none is 0 and one equals
        the number of choices."""
        looking = Conversion(self._columns.named)
        numbers = []
        for row in rows:
            value, choices = looking._value(row, "reference"), []
            if str(value).strip().isdecimal() and not isinstance(value, bool):
                try:
                    choices = looking._choices(row)
                except DataError:
                    continue  # reported when the row is converted
            if choices:
                numbers.append((int(value), len(choices)))
        return any(value == count for value, count in numbers) and all(v > 0 for v, _ in numbers)

    def _split(self, row: UpstreamRow) -> str | None:
        name = self._value(row, "split")
        if name is not None and str(name).lower() not in _SPLITS:
            raise row.error(f"split is {name!r}, not train, val or test")
        return None if name is None else _SPLITS[str(name).lower()]
