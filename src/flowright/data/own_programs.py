"""Programs of a user's file: the reference of a row, its tests, and the function that they call."""

import ast
import builtins
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowright.data.answers import NAMES, OwnColumns, is_empty, message_text, structure
from flowright.data.sources.dataset import UpstreamRow
from flowright.data.sources.programs import Definition, humaneval, interface, io_tests
from flowright.data.task import Kind, Problem
from flowright.llm.replies import code_blocks, extract_code
from flowright.sandbox import parse_io_test, parse_trusted

_CHECK = re.compile(r"^def check\(", re.MULTILINE)
_RUN_CASES = """_outcome = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase({}).run(_outcome)
assert _outcome.testsRun and _outcome.wasSuccessful(), _outcome"""


@dataclass(frozen=True, slots=True)
class Tests:
    """Tests of a row; ``function`` is the one that tests with arguments call."""

    __test__ = False  # not a pytest class

    public: list[str]
    hidden: list[str]
    function: str | None


def read_tests(columns: OwnColumns, row: UpstreamRow, kind: Kind | None) -> Tests:
    """Read the tests of a row; of other trainers they may be where an answer would be. Raises
    DataError."""
    hidden, function = _test_list(columns, row, "hidden_tests")
    if not hidden:
        hidden, function = _test_list(columns, row, "tests")
    public, called = _test_list(columns, row, "public_tests")
    if not hidden and not public:
        hidden, function = _tests_as_answer(columns, row, kind)
    if public and not hidden:
        public, hidden = [], public
    return Tests(public, hidden, function or called)


def _tests_as_answer(
    columns: OwnColumns, row: UpstreamRow, kind: Kind | None
) -> tuple[list[str], str | None]:
    for column in NAMES["reference"]:
        cell = _inside(row.values.get(column))
        while isinstance(cell, Mapping) and "ground_truth" in cell:
            cell = _inside(cell["ground_truth"])
        found = io_tests(row, cell) if isinstance(cell, list | Mapping) else None
        tests = [cell] if isinstance(cell, str) else cell
        if (
            found is None
            and kind == "code"
            and isinstance(tests, list)
            and all(map(_asserts, tests))
        ):
            found = tests, None
        if found is not None:
            columns.used.add(column)
            columns.assumed[f"tests from {column}"] += 1
            return found
    return [], None


def _inside(value: Any) -> Any:
    inside = structure(value) if isinstance(value, str) else None
    return value if inside is None else inside


def _asserts(test: Any) -> bool:
    tree = parse_trusted(test) if isinstance(test, str) else None
    return tree is not None and any(isinstance(node, ast.Assert) for node in ast.walk(tree))


def _test_list(columns: OwnColumns, row: UpstreamRow, name: str) -> tuple[list[str], str | None]:
    value = columns.value(row, name)
    if value is None:
        return [], None
    if (found := io_tests(row, value)) is not None:
        return found
    if isinstance(value, str):
        tree = parse_trusted(value)
        asserts = tree.body if tree else []
        if asserts and all(isinstance(one, ast.Assert) for one in asserts):
            return [ast.unparse(one) for one in asserts], None
        return [value], None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise row.error(
            f"{name} are Python statements, such as assert double(2) == 4, or objects with input "
            "and output"
        )
    return value, None


def read_program(
    columns: OwnColumns, row: UpstreamRow, question: str, tests: Tests
) -> tuple[dict[str, Any], bool]:
    """Return the fields of a code problem but id and source, and whether its public tests come from
    a docstring, which may be wrong. Without a reference nothing proves the tests. Raises DataError.
    """
    public, hidden = tests.public, tests.hidden
    if not hidden:
        raise columns.lacking(row, "tests", "tests", "code")
    entry, code = columns.value(row, "entry_point") or tests.function, _solution(columns, row)
    entry = entry if isinstance(entry, str) else None
    code = None if code in {*public, *hidden} else code
    setup = _setup(columns, row)
    starter = columns.value(row, "starter_code")
    if isinstance(starter, str) and starter.strip() not in question:
        question = f"{question}\n\n{starter.strip()}"
    code = _completed(question, code, entry) if code else None
    is_check = not public and len(hidden) == 1 and _CHECK.search(hidden[0])
    if code and entry and is_check and code.startswith(question):
        columns.assumed["taken for HumanEval's form: check(candidate)"] += 1
        problem = _as_humaneval(row, question, code, entry, hidden[0])
        setup = "\n".join(filter(None, [setup, problem.test_setup]))
        names = ("question", "reference", "entry_point", "public_tests", "hidden_tests")
        fields = {name: getattr(problem, name) for name in names}
        return {**fields, "test_setup": setup}, bool(problem.public_tests)
    if not public and is_empty(row.values.get("hidden_tests")) and len(hidden) > 1:
        columns.assumed["of the tests the first is shown to workflows, the others are hidden"] += 1
        public, hidden = hidden[:1], hidden[1:]
    stubs = ""
    if parse_io_test(hidden[0]) is None:
        if code:
            entry, stubs = _interface(row, code, [*public, *hidden], setup, entry)
        entry = entry or _called_by_all([*public, *hidden])
        if entry is None:
            raise columns.lacking(row, "code", "solution", "code")
        hidden = [_with_calls(test, entry) for test in hidden]
    if entry and not re.search(rf"\b{re.escape(entry)}\s*\(", question):
        columns.assumed["the function's signature or name added to the question"] += 1
        question = f"{question}\n\n{stubs or f'Name the function {entry}.'}"
    fields = {"question": question, "reference": code or "", "test_setup": setup}
    fields |= {"public_tests": public, "hidden_tests": hidden}
    return fields | ({"entry_point": entry} if entry else {}), False


def _as_humaneval(row: UpstreamRow, question: str, code: str, entry: str, test: str) -> Problem:
    values = {"task_id": "own/0", "entry_point": entry, "prompt": f"{question}\n", "test": test}
    values["canonical_solution"] = code[len(question) + 1 :]
    return humaneval(UpstreamRow(values, row.where, row.name))


def _solution(columns: OwnColumns, row: UpstreamRow) -> str | None:
    value = _inside(columns.value(row, "code"))
    value = value[0] if isinstance(value, list) and value else value
    value = message_text(value) if isinstance(value, Mapping) else value
    if not isinstance(value, str) or not value.strip():
        return None
    value = value.replace("\r\n", "\n")
    return extract_code(value) if "```" in value else value


def _setup(columns: OwnColumns, row: UpstreamRow) -> str:
    setup = columns.value(row, "test_setup") or ""
    imports = columns.value(row, "test_imports") or []
    imports = [imports] if isinstance(imports, str) else imports
    if not isinstance(setup, str) or not isinstance(imports, list):
        raise row.error("test_setup is Python source, test_imports a list of it")
    return "\n".join(filter(None, [*map(str, imports), setup]))


def _defined(source: str) -> list[str]:
    tree = parse_trusted(source)
    return [node.name for node in tree.body if isinstance(node, Definition)] if tree else []


def _completed(question: str, code: str, entry: str | None) -> str:
    """The whole program of a reference, which may be only the body of the function that the
    question begins, and may have lost the indentation of its first line."""
    if entry in _defined(code) or (entry is None and _defined(code)):
        return code
    first, _, rest = code.lstrip().partition("\n")
    bodies = (code, f"    {first}\n{rest}".rstrip(), textwrap.indent(textwrap.dedent(code), "    "))
    stems = (question, *(body.rstrip() for _, body in code_blocks(question)))
    for whole in (f"{stem}\n{body}" for stem in stems for body in bodies):
        tree = parse_trusted(whole)
        if tree and isinstance(tree.body[-1], ast.FunctionDef) and _defined(whole)[-1] == entry:
            return whole
    return code


def _interface(
    row: UpstreamRow, code: str, tests: list[str], setup: str, entry: str | None
) -> tuple[str, str]:
    """The entry point and the first lines of what the tests take from the solution."""
    if entry is None and any(map(_CHECK.search, tests)):
        entry = next(iter(_defined(code)), None)
    if entry is None:
        return interface(row, code, tests, setup)
    if entry not in _defined(code):
        raise row.error(f"the reference does not define {entry}, its entry_point")
    return interface(row, code, [f"{test}\n{entry}()" for test in tests], setup)


def _with_calls(test: str, entry: str) -> str:
    """A test with the calls that its file leaves to a runner: of ``check(candidate)``, of pytest's
    functions, of a ``TestCase``."""
    tree = parse_trusted(test)
    calls: list[str] = []
    for node in tree.body if tree else []:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":  # KodCode's
            test = test.replace(ast.get_source_segment(test, node) or "", "")
        if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            calls.append(f"check({entry})")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            calls.append(f"{node.name}()")
        elif isinstance(node, ast.ClassDef) and "TestCase" in map(_last_name, node.bases):
            calls.append(_RUN_CASES.format(node.name))
    called = [call for call in calls if not re.search(rf"^{re.escape(call)}", test, re.MULTILINE)]
    return "\n\n".join([test.rstrip(), *called]) if called else test


def _called_by_all(tests: list[str]) -> str | None:
    """The one function that all tests call, where no solution shows its name."""
    names: list[set[str]] = []
    for test in tests:
        tree = parse_trusted(test)
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
        names.append({f.id for f in calls if isinstance(f, ast.Name)} - {*dir(builtins)})
    (*found,) = set.intersection(*names)
    return found[0] if len(found) == 1 else None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
