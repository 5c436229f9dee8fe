"""Problems from a user's own file: columns are found by name, missing fields are filled in, and
every assumption is reported."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowright.core.errors import DataError
from flowright.data.sources.programs import humaneval, interface
from flowright.data.sources.rows import UpstreamRow
from flowright.data.splits import normalise
from flowright.data.task import Kind, Problem
from flowright.llm.replies import boxed
from flowright.sandbox import parse_trusted

NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "problem", "prompt", "instruction", "query", "input", "messages"),
    "reference": (
        *("reference", "answer", "ground_truth", "final_answer", "gold", "expected", "label"),
        *("target", "answers", "answerKey", "solution", "output", "reward_model", "completion"),
    ),
    "code": ("reference", "solution", "code", "canonical_solution", "answer", "output"),
    "tests": ("tests", "test_list", "test", "assertions"),
    "choices": ("choices", "options"),
    "context": ("context", "passage", "passages"),
    "id": ("id", "task_id", "qid"),
    "source": ("source", "data_source"),
    "test_setup": ("test_setup", "test_setup_code"),
    **{n: (n,) for n in ("kind", "entry_point", "alternatives", "public_tests", "hidden_tests")},
    "split": ("split",),
    "instruction": ("instruction",),
    "input": ("input",),
}
"""Our fields, and the columns that are taken for them, the first that a row has."""


ROWS: Mapping[Kind, str] = {
    "math": '{"question": "What is 6 * 7?", "answer": 42}',
    "qa": '{"question": "What is the capital of Peru?", "answer": "Lima"}',
    "code": '{"question": "Write double(x).", "solution": "def double(x):\\n    return 2 * x", '
    '"tests": ["assert double(2) == 4", "assert double(-3) == -6"]}',
}
"""A row to copy for each kind."""


def lacking(row: UpstreamRow, what: str, kind: Kind) -> DataError:
    """Return the error for a row without a field, with a row to copy."""
    fields = {"question": "question", "answer": "reference", "solution": "code", "tests": "tests"}
    names = ", ".join(NAMES[fields[what]])
    has = " ".join(", ".join(row.values).split()) or "nothing"
    return row.error(
        f"no {what}: one of the columns {names} is wanted, or --field NAME=COLUMN; the row has "
        f"{has}; such a row is {ROWS[kind]}"
    )


def texts(row: UpstreamRow, name: str, value: Any) -> list[str]:
    """Tests as a list, empty for None. Raises DataError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise row.error(
            f"{name} are Python statements, such as assert double(2) == 4; pairs of input and "
            "output are not understood"
        )
    return value


_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
_SPLITS |= {"test": "test"}
_LETTERED = re.compile(r"(?:option|choice)?[ _]?([A-Ja-j])")
_CHECK = re.compile(r"^def check\(", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,]*(\.\d+)?(/\d+)?\s*%?")


@dataclass(slots=True)
class Conversion:
    """Rows into problems. ``columns`` are names of the user's for our fields, ``kind`` that of all
    rows. ``assumed`` counts what was done, in words."""

    columns: Mapping[str, str] = field(default_factory=dict)
    kind: Kind | None = None
    assumed: Counter[str] = field(default_factory=Counter)
    _used: set[str] = field(default_factory=set)
    _from_one: bool = False

    def problems(self, rows: Iterable[UpstreamRow], stem: str) -> list[tuple[Problem, str | None]]:
        """Each row's problem and the split that it names itself. ``stem`` goes into ids and sources
        that are filled in. Raises DataError at the first row that cannot be used."""
        all_rows = list(rows)
        self._from_one = self._counts_from_one(all_rows)
        made = [(self._problem(row, stem), self._split(row)) for row in all_rows]
        columns = dict.fromkeys(name for row in all_rows for name in row.values)
        left = [name for name in columns if name not in self._used]
        if left:
            self.assumed[f"left aside: {', '.join(left)}"] = len(all_rows)
        return made

    def _problem(self, row: UpstreamRow, stem: str) -> Problem:
        given = self._value(row, "source")
        source = given if isinstance(given, str) else f"own/{stem}"
        number = self._value(row, "id")
        id = f"{source}/{row.name}" if number is None else str(number)
        if number is None:
            self.assumed["id and source filled in"] += 1
        tests, choices = self._tests(row), self._choices(row)
        if isinstance(test := row.values.get("test"), str) and _CHECK.search(test):
            self.assumed["taken for HumanEval's form: check(candidate)"] += 1
            self._used |= {"task_id", "prompt", "entry_point", "canonical_solution", "test"}
            whole = UpstreamRow({**row.values, "task_id": id}, row.where, row.name)
            return replace(humaneval(whole), id=id, source=source)
        question = self._question(row)
        kind = self._value(row, "kind") or self.kind or ("code" if tests else None)
        if kind == "code":
            values = self._code(row, question, tests)
        elif choices:
            label = self._label(row, self._reference(row)[0], choices)
            values = {"question": question, "reference": label, "choices": choices}
        else:
            answer, alternatives = self._reference(row)
            reference = str(answer)
            values = {"question": question, "reference": reference, "alternatives": alternatives}
            if kind is None:
                kind = "math" if _looks_like_maths(reference) else "qa"
                grading = {"math": "whose answer is a number or a formula", "qa": "of other text"}
                self.assumed[f"kind {kind} for rows {grading[kind]}"] += 1
        kind = kind or "qa"
        fields = {"id": id, "kind": kind, "source": source, **values}
        if context := self._context(row):
            fields["context"] = context
        return Problem.from_row(json.loads(json.dumps(fields)), row.where)

    def _value(self, row: UpstreamRow, name: str) -> Any:
        """A field of ours, None where the row has no column for it."""
        for column in (self.columns[name],) if name in self.columns else NAMES[name]:
            value = row.values.get(column)
            if value is None or value in ("", [], {}) or value != value:  # NaN: pandas has no other
                continue
            self._used.add(column)
            if column != name and name != "code":
                self.assumed[f"{name} from {column}"] += 1
            return value
        return None

    def _context(self, row: UpstreamRow) -> str | None:
        """A passage, or several; beside an instruction, its input."""
        value = self._value(row, "context")
        if value is None and "instruction" in row:
            value = self._value(row, "input")
        return "\n\n".join(map(str, value)) if isinstance(value, list) else value

    def _question(self, row: UpstreamRow) -> str:
        value = self._value(row, "question")
        if isinstance(value, list):  # messages of a chat
            contents = [m.get("content") for m in value if isinstance(m, Mapping)]
            if not contents or not all(isinstance(text, str) for text in contents):
                raise row.error("the question is a list, but not one of messages with a content")
            self.assumed["question from the messages of a chat, joined"] += 1
            value = "\n\n".join(str(text).strip() for text in contents)
        if not isinstance(value, str) or not value.strip():
            raise lacking(row, "question", "qa")
        return value.strip()

    def _reference(self, row: UpstreamRow) -> tuple[Any, list[str]]:
        """The answer, an integer still where it may be the number of a choice; and others."""
        value = self._value(row, "reference")
        if isinstance(value, Mapping):
            inner = ("ground_truth", "value", "text", "answer")
            name = next((n for n in inner if value.get(n) not in (None, "", [])), None)
            if name is None:
                raise row.error(f"the answer is an object without any of {', '.join(inner)}")
            self.assumed[f"answer from {name} of an object"] += 1
            others = value.get("aliases") or []
            value = [value[name], *others] if others else value[name]
        given = self._value(row, "alternatives") or []
        given = given if isinstance(given, list) else [given]
        if isinstance(value, list):
            self.assumed["of several answers the first is shown, the others count as well"] += 1
            value, given = (value[0] if value else None), [*value[1:], *given]
        if value is None:
            raise lacking(row, "answer", "qa")
        if isinstance(value, int) and not isinstance(value, bool):
            return value, []
        texts = list(dict.fromkeys(self._answer(one) for one in (value, *given)))
        return texts[0], texts[1:]

    def _answer(self, value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        text = str(value).strip()
        before, mark, final = text.rpartition("####")
        if mark and before.strip() and "\n" not in final.strip():
            self.assumed["answer from behind '####'"] += 1
            return final.strip().replace(",", "")
        if (inside := boxed(text)) is not None:
            self.assumed["answer from the last \\boxed{}"] += 1
            return inside.strip()
        return text

    def _choices(self, row: UpstreamRow) -> list[list[str]]:
        """Pairs of label and text, from a list, an object, or columns A, B, C, D."""
        value = self._value(row, "choices")
        if value is None:
            columns = {m[1].upper(): c for c in row.values if (m := _LETTERED.fullmatch(c))}
            labels = [label for label in "ABCDEFGHIJ" if row.values.get(columns.get(label, ""))]
            if len(labels) < 2:
                return []
            self._used |= {columns[label] for label in labels}
            return [[label, str(row.values[columns[label]]).strip()] for label in labels]
        match value:
            case {"label": list(labels), "text": list(contents)}:
                value = list(zip(labels, contents, strict=False))
            case Mapping():
                value = list(value.items())
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

    def _label(self, row: UpstreamRow, answer: Any, choices: list[list[str]]) -> str:
        labels = {label.casefold(): label for label, _ in choices}
        by_text = {normalise(text): label for label, text in choices}
        if isinstance(answer, int) and str(answer) not in labels:
            index = answer - self._from_one
            if 0 <= index < len(choices):
                first = "1" if self._from_one else "0"
                self.assumed[f"answers are numbers of choices, counted from {first}"] += 1
                return choices[index][0]
        contents = str(answer)
        letter = contents.strip("().: ").casefold()
        if letter in labels:
            return labels[letter]
        if normalise(contents) in by_text:
            self.assumed["answers are texts of choices"] += 1
            return by_text[normalise(contents)]
        shown = "; ".join(f"{label}. {' '.join(text.split())[:40]}" for label, text in choices)
        raise row.error(f"the answer {contents[:60]!r} is none of the choices {shown}")

    def _counts_from_one(self, rows: Sequence[UpstreamRow]) -> bool:
        """Return whether answers are numbers of choices counted from one: none is 0 and one equals
        the number of choices."""
        looking = Conversion(self.columns)
        numbers = []
        for row in rows:
            value, choices = looking._value(row, "reference"), looking._choices(row)
            if choices and isinstance(value, int) and not isinstance(value, bool):
                numbers.append((value, len(choices)))
        return any(value == count for value, count in numbers) and all(v > 0 for v, _ in numbers)

    def _tests(self, row: UpstreamRow) -> list[str]:
        value = self._value(row, "hidden_tests")
        value = self._value(row, "tests") if value is None else value
        if isinstance(value, str):
            tree = parse_trusted(value)
            asserts = tree.body if tree else []
            if asserts and all(isinstance(one, ast.Assert) for one in asserts):
                return [ast.unparse(one) for one in asserts]
            return [value]
        return texts(row, "tests", value)

    def _code(self, row: UpstreamRow, question: str, tests: list[str]) -> dict[str, Any]:
        solution = self._value(row, "code")
        public = texts(row, "public_tests", self._value(row, "public_tests"))
        if not isinstance(solution, str):
            raise lacking(row, "solution", "code")
        if not tests:
            raise lacking(row, "tests", "code")
        if not public and "hidden_tests" not in row and len(tests) > 1:
            self.assumed["of the tests the first is shown to workflows, the others are hidden"] += 1
            public, tests = tests[:1], tests[1:]
        setup, entry = self._value(row, "test_setup") or "", self._value(row, "entry_point")
        if not isinstance(setup, str):
            raise row.error("test_setup is Python source")
        if entry is None:
            entry, stubs = interface(row, solution, [*public, *tests], setup)
            if entry not in question:
                self.assumed["the function's signature added to the question"] += 1
                question = f"{question}\n\n{stubs}"
        values = {"question": question, "reference": solution, "entry_point": entry}
        tests_given = {"public_tests": public, "hidden_tests": tests, "test_setup": setup}
        return {**values, **tests_given}

    def _split(self, row: UpstreamRow) -> str | None:
        name = self._value(row, "split")
        if name is not None and str(name).lower() not in _SPLITS:
            raise row.error(f"split is {name!r}, not train, val or test")
        return None if name is None else _SPLITS[str(name).lower()]


def _looks_like_maths(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text) or re.search(r"\\[a-zA-Z]+|[\^=]", text))
