"""Columns and answer cells of a user's file: which column holds which field of a problem, and the
reference with its alternatives, whatever the form of their cell.
"""

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.data.sources.dataset import UpstreamRow
from flowright.data.task import Kind
from flowright.llm.replies import boxed, spoken_answer
from flowright.sandbox import parse_trusted

_INNER = ("ground_truth", "target", "value", "text", "answer", "answers")
_OTHERS = ("aliases", "alternatives")
# Keys beside the answer that do not change it: of verl, SQuAD and TriviaQA.
_ASIDE = frozenset(
    {"style", "method", "answer_start", "type", "normalized_value", "normalized_aliases"}
    | {"matched_wiki_entity_name", "normalized_matched_wiki_entity_name"}
)
_DEEPEST = 4  # objects in each other: verl's reward_model holds Search-R1's ground_truth
_LONGEST_LIST = 1 << 20  # characters of a list or an object that is written as text


class UnreadableAnswer(ValueError):
    """An answer cell that holds no answer, or not clearly one."""


@dataclass(frozen=True, slots=True)
class AnswerCell:
    """``notes`` are assumptions, ``index`` a whole number that may count choices."""

    reference: str
    alternatives: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    index: int | None = None


def read_answer(cell: Any, others: Any = None) -> AnswerCell:
    """Read a cell, and a cell of further answers. Raises UnreadableAnswer with the reason."""
    notes: dict[str, None] = {}
    values = _values(cell, notes, 0)
    if others is not None:
        values += _values(others, notes, 0)
    index = values[0] if isinstance(values[0], int) and not isinstance(values[0], bool) else None
    texts = dict.fromkeys(text for value in values for text in _texts(value, notes))
    if len(values) > 1:
        notes["of several answers the first is shown, the others count as well"] = None
    reference, *alternatives = texts
    return AnswerCell(reference, tuple(alternatives), tuple(notes), index)


def _values(cell: Any, notes: dict[str, None], depth: int) -> list[Any]:
    """The scalars of a cell, the reference first."""
    if depth > _DEEPEST:
        raise UnreadableAnswer("is too deep")
    if isinstance(cell, str):
        if cell.startswith("array(") or (cell[:1] == "[" and not _has_commas(cell)):
            raise UnreadableAnswer("is a list as numpy prints it; write it as JSON")
        inside = structure(cell)
        if isinstance(inside, Mapping) and (depth == 0 or set(inside) & {*_INNER}):
            notes["answer from an object that is written as text"] = None
            return _values(inside, notes, depth + 1)
        if isinstance(inside, list) and any(isinstance(one, Mapping) for one in inside):
            return _values(inside, notes, depth + 1)
        if isinstance(inside, list) and any(isinstance(one, str) for one in inside):
            notes["a list that is written as text is one answer; `answers` holds several"] = None
        return [cell]
    if is_message(cell) and "role" in cell:
        cell = [cell]
    if isinstance(cell, Mapping):
        return _of_object(cell, notes, depth)
    if not isinstance(cell, list):
        return [_scalar(cell)]
    if cell and all(map(is_message, cell)):
        return [_last_message(cell, notes)]
    if not cell:
        raise UnreadableAnswer("is an empty list")
    if all(isinstance(one, Mapping) for one in cell):  # SQuAD's files
        return [value for one in cell for value in _of_object(one, notes, depth)]
    if any(isinstance(one, list | Mapping) for one in cell):
        raise UnreadableAnswer("is a list of lists or of texts and objects")
    return [_scalar(one) for one in cell]


def _of_object(cell: Mapping[str, Any], notes: dict[str, None], depth: int) -> list[Any]:
    names = [name for name in _INNER if not is_empty(cell.get(name))]
    known = {*_INNER, *_OTHERS, *_ASIDE}
    unknown = [str(n) for n in cell if n not in known and not is_empty(cell[n])]
    if not names:
        raise UnreadableAnswer(f"is an object without any of {', '.join(_INNER)}")
    if len(names) > 1 or unknown:
        rest = ", ".join([*names[1:], *unknown])
        raise UnreadableAnswer(f"is an object with {rest} beside {names[0]}: not clearly one")
    notes[f"answer from {names[0]} of an object"] = None
    inner = cell[names[0]]
    if names[0] == "ground_truth" and isinstance(inner, str) and inner.lstrip()[:2] == '["':
        inner = structure(inner) or inner  # Skywork's rows
    values = _values(inner, notes, depth + 1)
    for name in _OTHERS:
        if not is_empty(cell.get(name)):
            values += _values(cell[name], notes, depth + 1)
    return values


def _scalar(value: Any) -> Any:
    if is_empty(value):
        raise UnreadableAnswer("is empty" if isinstance(value, str) else "is null")
    if not isinstance(value, str | int | float | Decimal | date):
        raise UnreadableAnswer(f"is {type(value).__name__}, not a text or a number")
    return value


def _last_message(messages: list[Any], notes: dict[str, None]) -> str:
    content = message_text(messages[-1])
    if message_role(messages[-1]) not in ("assistant", None) or not content.strip():
        raise UnreadableAnswer("is a chat that does not end with a text of the assistant")
    notes["answer from the last message of a chat"] = None
    return content


_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's


def is_message(value: Any) -> bool:
    """Return whether a value is a message of a chat, with ``content`` or ShareGPT's ``value``."""
    return isinstance(value, Mapping) and ("content" in value or {"from", "value"} <= value.keys())


def message_role(message: Any) -> str | None:
    role = message.get("role", message.get("from")) if isinstance(message, Mapping) else None
    return _ROLES.get(str(role), role)


def message_text(message: Any) -> str:
    """Return the text of a chat message, whose content may be a list of parts; empty if it has
    other parts than text."""
    if not is_message(message):
        return ""
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        parts = [one.get("text") if isinstance(one, Mapping) else one for one in content]
        texts = [one for one in parts if isinstance(one, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    return content if isinstance(content, str) else ""


def is_empty(value: Any) -> bool:
    """Return whether a cell is nothing: null, an empty text, list or object, or NaN, which pandas
    writes for null."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value in ([], {}) or (isinstance(value, float) and math.isnan(value))


def structure(text: str) -> Any:
    """Return the list or object that a text is, in JSON or as Python prints it; else None."""
    text = text.strip()
    if text[:1] not in ("[", "{") or len(text) > _LONGEST_LIST:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        tree = parse_trusted(text)
        try:
            value = ast.literal_eval(tree.body[0].value) if tree and _has_commas(text) else None  # pyright: ignore[reportAttributeAccessIssue]
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError, MemoryError):
            return None
    return value if isinstance(value, list | dict) else None


def _has_commas(text: str) -> bool:
    """Return whether texts in a list are apart: numpy prints ``['a' 'b']``, which Python joins."""
    return not re.search(r"""(['"])\s+(?:\1|['"])""", text)


# Final answers.

_TAGGED = re.compile(r"<answer>(.*?)</answer>\s*\Z", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)(?:\s+|(?=\d))([^\s${}][^\s$]*?)(?=[.,;:]?(?:\s|\$|\\\)|\\\]|\Z))"
)
_THOUSANDS = re.compile(r"[-+]?[$€£]?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*%?")


def _texts(value: Any, notes: dict[str, None]) -> list[str]:
    """The texts that a scalar counts as."""
    if isinstance(value, bool):
        notes["true and false count as yes and no, too"] = None
        return ["true", "yes"] if value else ["false", "no"]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return [str(int(value))]
    text = final_answer(value, notes) if isinstance(value, str) else str(value)
    if is_empty(text):
        raise UnreadableAnswer("is empty")
    return [text]


def final_answer(text: str, notes: dict[str, None]) -> str:
    """Return the answer that a solution marks at its end, else the whole text: ``<answer>``, behind
    ``####`` in the last line, or the last ``\\boxed{}``, ``\\boxed 7`` or ``\\fbox{}``."""
    text = spoken_answer(text).strip()
    if tagged := _TAGGED.search(text):
        notes["answer from the <answer> tags"] = None
        return tagged[1].strip()
    _, mark, final = text.rpartition("####")
    if mark and not final:
        raise UnreadableAnswer("ends with ####, with nothing behind it")
    final, _, more = final.strip().partition("\n")
    if mark and (not more or is_number(final.strip())):  # else a heading
        final = final.strip()
        notes["answer from behind '####'"] = None
        return final.replace(",", "") if _THOUSANDS.fullmatch(final) else final
    braced = _BOX.sub(r"\\boxed{", text)
    found = boxed(braced)
    if found is None and (bare := _BARE_BOX.search(text)):
        found = bare[1]
    if found is None:
        return text
    if not found.strip():
        raise UnreadableAnswer("marks nothing: its last \\boxed{} is empty")
    several = boxed(braced[: braced.rfind("\\boxed{")]) not in (None, found)
    notes["answer from the last \\boxed{}" + " of several" * several] = None
    return found.strip()


_NUMBER = re.compile(r"[-+]?[$€£]?(?:\d[\d,]*)?\.?\d+(?:/\d+)?\s*%?")
_BOUND = re.compile(rf"{_NUMBER.pattern}|[-+]?(?:∞|inf|infinity|π|pi)")
_LONGEST = 1000  # characters of a number or of terms; beyond, matching takes long
_TERM = r"[-+]?(?:\d+[a-z]?|[a-z])(?:\([^()a-zA-Z]*[a-z]?[^()a-zA-Z]*\))?"
_TERMS = re.compile(rf"{_TERM}(?:\s*[-+*/]\s*{_TERM})+")
# Digits with single letters, such as 52_8, but no date, range or version.
_COMPACT = re.compile(
    r"(?!.*\d\s*-\s*\d)(?!.*[a-z]{2})(?!.*\d\.\d+\.)(?=.*\d)[\da-z\s()+*/_!,.\\${}%-]+"
)
_WORD = re.compile(r"(?<![\\{a-zA-Z])[a-zA-Z]{3,}(?![a-zA-Z(}])")


def is_number(text: str) -> bool:
    """Return whether a text is a number, or numbers as a list, a point or an interval."""
    inside = re.sub(r"[()\[\]{}]", " ", text)
    parts = [part.strip() for part in re.split(r"[,;]", inside)]
    if len(text) > _LONGEST:
        return False
    return bool(_NUMBER.fullmatch(text)) or all(map(_BOUND.fullmatch, parts))


def is_formula(text: str) -> bool:
    """Return whether a text is a number or a formula, not sentences with formulas in them."""
    text = text.replace("\u2212", "-")
    if is_number(text):
        return True
    prose = _WORD.findall(re.sub(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}", "", text))
    marked = re.search(r"\\[a-zA-Z]+|[\^=]", text)
    if marked or len(text) > _LONGEST:
        return marked is not None and len(prose) < 4
    terms = _TERMS.fullmatch(text) and re.search("[a-z]", text)
    return bool(terms or _COMPACT.fullmatch(text))


# Columns.

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
