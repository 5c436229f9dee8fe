"""Columns of a user's own file by name: which of them stand for which field, and what a row that
lacks one is told.
"""

from collections.abc import Mapping
from typing import Any

from flowright.core.errors import DataError
from flowright.data.sources.rows import UpstreamRow
from flowright.data.task import Kind

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
    """What a row without it is told, with a row to copy."""
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
