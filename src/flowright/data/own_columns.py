"""Columns of a user's file: which of them holds which field of a problem, and what was assumed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.data.answers import is_empty, structure
from flowright.data.sources.rows import UpstreamRow
from flowright.data.task import Kind

NAMES: Mapping[str, tuple[str, ...]] = {
    "question": (
        *("question", "problem", "prompt", "instruction", "query", "input", "messages"),
        *("question_content", "problem_statement", "conversations"),
    ),
    "reference": (
        *("reference", "answer", "ground_truth", "final_answer", "gold", "expected", "label"),
        *("target", "answers", "answerKey", "golden_answers", "correct", "reference_answer"),
        *("solution", "output", "reward_model", "reward_spec", "completion"),
    ),
    "code": (
        *("reference", "solution", "code", "canonical_solution", "answer", "output"),
        *("ground_truth", "reference_answer", "solutions", "gold_standard_solution", "completion"),
    ),
    "tests": (
        *("tests", "test_list", "test", "assertions", "test_cases", "input_output"),
        "private_test_cases",
    ),
    "public_tests": ("public_tests", "public_test_cases"),
    "choices": ("choices", "options"),
    "context": ("context", "passage", "passages"),
    "id": ("id", "task_id", "qid"),
    "source": ("source", "data_source", "dataset"),
    "kind": ("kind", "problem_type", "ability", "domain"),
    "test_setup": ("test_setup", "test_setup_code"),
    "alternatives": ("alternatives", "aliases"),
    **{n: (n,) for n in ("entry_point", "hidden_tests", "test_imports")},
    **{n: (n,) for n in ("starter_code", "split", "instruction", "input")},
}
"""Our fields, and the columns that are taken for them, the first that a row has."""

_SEVERAL = frozenset({"answers", "golden_answers", "alternatives", "aliases"})
_LISTS = frozenset({"tests", "hidden_tests", "public_tests", "choices", "test_imports"})
_NESTED = ("meta", "metadata", "verification_info")
_LIFTED = ("tests", "entry_point", "test_setup", "test_imports", "public_tests", "hidden_tests")

ROWS: Mapping[Kind, str] = {
    "math": '{"question": "What is 6 * 7?", "answer": 42}',
    "qa": '{"question": "What is the capital of Peru?", "answer": "Lima"}',
    "code": '{"question": "Write double(x).", "solution": "def double(x):\\n    return 2 * x", '
    '"tests": ["assert double(2) == 4", "assert double(-3) == -6"]}',
}
"""A row to copy for each kind."""


@dataclass(slots=True)
class OwnColumns:
    """Access to fields by column. ``named`` are the user's names for our fields, ``assumed`` counts
    what was assumed, ``used`` are the columns that were read."""

    named: Mapping[str, str] = field(default_factory=dict)
    assumed: Counter[str] = field(default_factory=Counter)
    used: set[str] = field(default_factory=set)

    def value(self, row: UpstreamRow, name: str) -> Any:
        """Return a field of ours, None where the row has no column for it. A list that is written
        as text, as in CSV, is one in columns that hold several values."""
        for column in (self.named[name],) if name in self.named else NAMES[name]:
            spelt = (column, column.capitalize(), column.upper())
            column = next((one for one in spelt if one in row.values), column)
            value = row.values.get(column)
            if isinstance(value, str) and (name in _LISTS or column in _SEVERAL):
                inside = structure(value)
                value = value if inside is None else inside
            if is_empty(value):
                continue
            self.used.add(column)
            if column.lower() != name and name != "code":
                self.assumed[f"{name} from {column}"] += 1
            return value
        return None

    def lacking(self, row: UpstreamRow, name: str, what: str, kind: Kind) -> DataError:
        """Return the error for a row without a field, with a row to copy."""
        empty = [column for column in NAMES[name] if column in row.values]
        if empty:
            nothing = "null" if row.values[empty[0]] is None else "empty"
            return row.error(f"no {what}: {empty[0]} is {nothing}")
        has = " ".join(", ".join(row.values).split()) or "nothing"
        return row.error(
            f"no {what}: one of the columns {', '.join(NAMES[name])} is wanted, or --field "
            f"NAME=COLUMN; the row has {has}; such a row is {ROWS[kind]}"
        )

    def lifted(self, row: UpstreamRow) -> UpstreamRow:
        """Return the row with what belongs to its program, where an object in it holds that."""
        known = {column for name in _LIFTED for column in NAMES[name]}
        values = dict(row.values)
        for name in _NESTED:
            inner = values.get(name)
            inner = structure(inner) if isinstance(inner, str) else inner
            if isinstance(inner, Mapping):
                lifted = {k: v for k, v in inner.items() if k in known and is_empty(values.get(k))}
                values |= lifted
                self.used |= {name} if lifted else set()
        return UpstreamRow(values, row.where, row.name)

    def check(self, rows: Sequence[UpstreamRow]) -> None:
        """Raise DataError for named columns that no row has."""
        found = list(dict.fromkeys(name for row in rows for name in row.values))
        missing = [(f, c) for f, c in self.named.items() if c not in found]
        if rows and missing:
            path = rows[0].where.rpartition(":")[0]
            raise DataError(
                *(
                    f"--field {f}={c}: {path} has no column {c}{suggest(c, found)} "
                    f"({', '.join(found)})"
                    for f, c in missing
                )
            )

    def note_unused(self, rows: Sequence[UpstreamRow]) -> None:
        """Count the columns that nothing was read from."""
        found = dict.fromkeys(name for row in rows for name in row.values)
        if left := [name for name in found if name not in self.used]:
            self.assumed[f"left aside: {', '.join(left)}"] = len(rows)
