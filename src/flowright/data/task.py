"""Tasks of any environment, problems of maths, code and knowledge, and their JSON Lines files;
preferences between two answers to one conversation, and ratings of one answer.
"""

import ast
import json
import re
import shlex
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from flowright.core.checkout import here
from flowright.core.errors import DataError
from flowright.core.files import write_text
from flowright.core.tables import read_rows
from flowright.llm.chat import Message
from flowright.llm.replies import with_source
from flowright.sandbox import parse_io_test, parse_trusted

Kind = Literal["math", "code", "qa"]
KINDS: tuple[Kind, ...] = get_args(Kind)

LINES: Mapping[Kind, str] = {
    "math": '{"id": "own/1", "kind": "math", "source": "own", "question": "What is 6 * 7?", '
    '"reference": "42"}',
    "code": '{"id": "own/2", "kind": "code", "source": "own", "question": "Write double(x).", '
    '"reference": "def double(x):\\n    return 2 * x", "entry_point": "double", '
    '"public_tests": ["assert double(2) == 4"], "hidden_tests": ["assert double(-3) == -6"]}',
    "qa": '{"id": "own/3", "kind": "qa", "source": "own", "question": "What is the capital of '
    'Peru?", "reference": "Lima"}',
}
"""A line of a task file for each kind, to copy."""

IO_FORM = '{"input": "3\\n", "output": "9\\n"} nor {"input": [3], "output": 9}'

FILL_IN = "python scripts/create_mixed_dataset.py --own FILE"


@dataclass(frozen=True, slots=True)
class Task:
    """Common fields of all environments' tasks. ``kind`` sorts them: batches keep the kinds'
    shares, and figures are by kind and by ``source``. ``question`` and ``reference`` are shown on
    screens."""

    id: str
    kind: str
    source: str
    question: str
    reference: str

    @property
    def problem(self) -> str:
        """The text of the task as a solver reads it."""
        return self.question


@dataclass(frozen=True, slots=True)
class Problem(Task):
    """One problem of maths, code or knowledge.

    ``question`` is what the policy and the large model read, together with ``context`` (passages)
    and ``choices`` (pairs of label and text): see :attr:`problem`. Everything else is the grader's
    and never leaves the trusted process: ``reference`` (the gold answer; a complete solution for
    code), ``alternatives`` (other answers that also count), ``hidden_tests``.

    Tests are Python source that uses the solution's names, run in order after ``test_setup``; one
    that raises fails. Or they are JSON objects with ``input`` and ``output``: standard input and
    what is printed, or a list of arguments and the result. ``public_tests`` may be shown to
    anybody. ``verifier`` names a grader of the
    task's own source and the data that it wants, such as
    ``{"name": "reasoning_gym", "dataset": "chain_sum", "entry": {...}}``.
    """

    kind: Kind
    context: str | None = None
    choices: tuple[tuple[str, str], ...] = ()
    alternatives: tuple[str, ...] = ()
    entry_point: str | None = None
    test_setup: str = ""
    public_tests: tuple[str, ...] = ()
    hidden_tests: tuple[str, ...] = ()
    verifier: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that decide about a solution: the public ones, then the hidden ones."""
        return self.public_tests + self.hidden_tests

    @property
    def is_program(self) -> bool:
        """A program that reads standard input and prints is asked for, not a function."""
        forms = map(parse_io_test, self.tests)
        return any(form is not None and form.is_program for form in forms)

    @property
    def problem(self) -> str:
        """The text of the problem as a solver reads it: context, question, choices."""
        choices = "\n".join(f"{label}. {text}" for label, text in self.choices)
        return "\n\n".join(filter(None, [self.context, self.question, choices]))

    def to_json(self) -> str:
        """One line of a task file; empty fields are left out."""
        row = {name: value for name, value in asdict(self).items() if value not in (None, (), "")}
        return json.dumps(row, ensure_ascii=False)

    @classmethod
    def from_row(cls, row: object, where: str) -> "Problem":
        """A task from a parsed line. Raises DataError that begins with ``where`` (file:line)."""
        if not isinstance(row, dict):
            raise DataError(f"{where}: a task is a JSON object, not {type(row).__name__}")
        missing = [name for name in _REQUIRED if not row.get(name) and row.get(name) != 0]
        if row.get("kind") == "code" and row.get("hidden_tests"):
            missing = [name for name in missing if name != "reference"]  # the tests decide
        if missing:
            kind = row.get("kind")
            line = LINES[kind if kind in KINDS else "math"]
            raise DataError(
                f"{where}: the task lacks {', '.join(missing)}; such a line is {line}; "
                f"{here(FILL_IN)} fills in what is missing"
            )
        unknown = sorted(set(row) - _FIELDS)
        if unknown:
            raise DataError(f"{where}: unknown field {', '.join(unknown)}")
        if row["kind"] not in KINDS:
            raise DataError(f"{where}: kind is {row['kind']!r}, not one of {', '.join(KINDS)}")
        for name in _STRINGS & set(row):
            if not isinstance(row[name], str):
                raise DataError(f"{where}: {name} is {type(row[name]).__name__}, not a string")
        for name in _LISTS & set(row):
            if not _is_strings(row[name]):
                raise DataError(f"{where}: {name} is not a list of strings")
        pairs = row.get("choices", [])
        if not isinstance(pairs, list) or not all(_is_strings(p) and len(p) == 2 for p in pairs):
            raise DataError(f"{where}: choices is not a list of [label, text] pairs")
        if not isinstance(row.get("verifier"), dict | None):
            raise DataError(f"{where}: verifier is not an object")
        values = {k: _tuples(v) if isinstance(v, list) else v for k, v in row.items()}
        values.setdefault("reference", "")
        task = cls(**values)
        if task.kind == "code" and not task.hidden_tests:
            raise DataError(
                f"{where}: a code task needs hidden_tests; such a line is {LINES['code']}"
            )
        for test in task.tests:
            form = parse_io_test(test)
            if form is None and test.lstrip().startswith("{"):
                raise DataError(f"{where}: the test {test[:60]!r} is not {IO_FORM}")
            if form and not form.is_program and not task.entry_point:
                raise DataError(f"{where}: tests with arguments need the entry_point to call")
        return task


_SIGNATURE = re.compile(r"^\s*(?:async def|def|class) .*", re.MULTILINE)
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")

_FIELDS = frozenset(f.name for f in fields(Problem))
_REQUIRED = ("id", "kind", "source", "question", "reference")
_STRINGS = frozenset({*_REQUIRED, "context", "entry_point", "test_setup"})
_LISTS = frozenset({"alternatives", "public_tests", "hidden_tests"})


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def read_tasks(path: Path) -> list[Problem]:
    """All tasks of a file. Raises DataError (``file:line: ...``) at the first unusable line."""
    tasks: list[Problem] = []
    seen: dict[str, int] = {}
    if not path.is_file():
        what = "a folder, not a file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}; {_remedy(path)}")
    for place, row in read_rows(path):
        given = {name: value for name, value in row.items() if value is not None}
        task = Problem.from_row(given, str(place))
        if task.id in seen:
            raise place.error(f"id {task.id!r} was used in line {seen[task.id]}")
        seen[task.id] = place.row
        tasks.append(task)
    return tasks


def is_task_file(path: Path) -> bool:
    """Return whether the first row of a file is a task rather than a row of other columns."""
    _, row = next(read_rows(path), (None, None))
    return row is None or {"id", "kind", "question"} <= row.keys()


def _remedy(path: Path) -> str:
    """Return how to make a missing task file."""
    if not path.stem.endswith("_mixed"):
        return f"of rows of your own, {here(FILL_IN)} makes one (docs/datasets.md)"
    out = "" if path.parent == Path("data/mixed") else f" --out {shlex.quote(str(path.parent))}"
    create = f"{here('python scripts/create_mixed_dataset.py')}{out}"
    return (
        f"make it with {here('python scripts/download_all_datasets.py')} && {create}"
        f" or, without a network, {create} --offline"
    )


def write_tasks(path: Path, tasks: Iterable[Problem]) -> int:
    """Write tasks as JSON Lines, replacing the file at once; returns how many."""
    lines = [task.to_json() + "\n" for task in tasks]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(lines))
    return len(lines)


def complete_solution(task: Problem, code: str) -> str:
    """``code`` behind what the question gave and it may have left out: imports, values and helpers.

    HumanEval's problems are programs to be completed; models often answer with the function alone.
    Only what stands in the question word for word is added, and imports of the names that its
    signatures use: the reference's, or from ``typing``.
    """
    given = []
    signature = {name for line in _SIGNATURE.findall(task.question) for name in _NAME.findall(line)}
    for source in (task.reference, task.test_setup):
        tree = parse_trusted(source)
        for node in tree.body if tree else []:
            text = ast.get_source_segment(source, node) or ""
            helper = isinstance(node, ast.Assign | ast.FunctionDef | ast.AsyncFunctionDef)
            helper = helper and getattr(node, "name", None) != task.entry_point
            imports = isinstance(node, ast.Import | ast.ImportFrom)
            names = {(a.asname or a.name).partition(".")[0] for a in node.names} if imports else ()
            used = signature.intersection(names)
            wanted = used or ((imports or helper) and text in task.question)
            if wanted and text not in code and text not in given:
                given.append(text)
            signature -= used
    missing = sorted(name for name in signature.intersection(typing.__all__) if name in code)
    if missing and f"import {missing[0]}" not in code:
        given.append(f"from typing import {', '.join(missing)}")
    return with_source(given, code)


Speaker = Literal["system", "user", "assistant"]

Preferred = Literal["first", "second", "tie"]
PREFERRED: tuple[Preferred, ...] = get_args(Preferred)

SWAPPED: dict[Preferred, Preferred] = {"first": "second", "second": "first", "tie": "tie"}


Conversation = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one conversation, which ends with a turn of the user's.

    ``id`` is unique within ``source``, the name of a dataset or a file; ``category`` is the subset
    of its own figures. ``strength`` is by how much the preferred one is better, in the source's own
    unit, if known. ``votes`` are those of several annotators that ``label`` was made of.
    """

    id: str
    source: str
    conversation: tuple[Message, ...]
    first: str
    second: str
    label: Preferred
    category: str = ""
    strength: float | None = None
    votes: tuple[Preferred, ...] = ()

    @property
    def question(self) -> str:
        """The last turn of the user's."""
        return self.conversation[-1].content

    def swapped(self) -> "Pair":
        """The same pair the other way round; its id stays."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            label=SWAPPED[self.label],
            votes=tuple(SWAPPED[vote] for vote in self.votes),
        )


@dataclass(frozen=True, slots=True)
class Rated:
    """One answer to a conversation, which ends with a turn of the user's, and its helpfulness:
    ``label`` from 0 (not at all) to 4. ``id``, ``source`` and ``category`` as in :class:`Pair`."""

    id: str
    source: str
    conversation: tuple[Message, ...]
    answer: str
    label: int
    category: str = ""
