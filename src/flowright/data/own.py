"""Problems from a user's own file: columns are found by name, missing fields are filled in, and
every assumption is reported."""

import ast
import builtins
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import raise_problems
from flowright.data.answers import (
    AnswerCell,
    UnreadableAnswer,
    is_empty,
    is_formula,
    message_role,
    message_text,
    read_answer,
    structure,
)
from flowright.data.sources.dataset import Converter
from flowright.data.sources.programs import humaneval, interface, io_tests, mbpp
from flowright.data.sources.questions import commonsenseqa, drop, hotpotqa
from flowright.data.sources.rows import UpstreamRow
from flowright.data.splits import normalise
from flowright.data.task import KINDS, Kind, Problem
from flowright.llm.replies import code_blocks, extract_code
from flowright.sandbox import parse_io_test, parse_trusted

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
"""Columns in which a list that is written as text, as in CSV, is a list."""
_NESTED = ("meta", "metadata", "verification_info")
"""Columns whose objects may hold what belongs to a program."""
_LIFTED = ("tests", "entry_point", "test_setup", "test_imports", "public_tests", "hidden_tests")

ROWS: Mapping[Kind, str] = {
    "math": '{"question": "What is 6 * 7?", "answer": 42}',
    "qa": '{"question": "What is the capital of Peru?", "answer": "Lima"}',
    "code": '{"question": "Write double(x).", "solution": "def double(x):\\n    return 2 * x", '
    '"tests": ["assert double(2) == 4", "assert double(-3) == -6"]}',
}
"""A row to copy for each kind."""

_FORMS: Mapping[tuple[str, ...], tuple[str, Converter]] = {
    ("text", "code", "test_list", "task_id"): ("MBPP", mbpp),
    ("context", "supporting_facts", "question", "answer"): ("HotpotQA", hotpotqa),
    ("context", "ref_text"): ("DROP", drop),
}
"""Columns by which rows of official files are known, AFlow's among them."""
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
_SPLITS |= {"test": "test"}
_LETTERED = re.compile(r"(?:option|choice)?[ _]?([A-Ja-j])")
_OPTION = re.compile(r"(?:^|,)\s*([a-j])\s*\)\s*(.*?)\s*(?=,\s*[a-j]\s*\)|\Z)", re.DOTALL)
_CHECK = re.compile(r"^def check\(", re.MULTILINE)
_KINDS: Mapping[str, Kind] = {kind: kind for kind in KINDS}


def lacking(row: UpstreamRow, what: str, kind: Kind) -> DataError:
    """Return the error for a row without a field, with a row to copy."""
    fields = {"question": "question", "answer": "reference", "solution": "code", "tests": "tests"}
    names = NAMES[fields[what]]
    empty = [name for name in names if name in row.values]
    if empty:
        nothing = "null" if row.values[empty[0]] is None else "empty"
        return row.error(f"no {what}: {empty[0]} is {nothing}")
    has = " ".join(", ".join(row.values).split()) or "nothing"
    return row.error(
        f"no {what}: one of the columns {', '.join(names)} is wanted, or --field NAME=COLUMN; the "
        f"row has {has}; such a row is {ROWS[kind]}"
    )


@dataclass(frozen=True, slots=True)
class OwnProblem:
    """A problem with the place of its row and the split that it names. ``has_examples``: its public
    tests come from a docstring, which may be wrong."""

    problem: Problem
    where: str
    split: str | None = None
    has_examples: bool = False


@dataclass(frozen=True, slots=True)
class _Tests:
    """``function`` is called by tests that give arguments."""

    public: list[str]
    hidden: list[str]
    function: str | None


@dataclass(slots=True)
class Conversion:
    """Rows into problems. ``columns`` are names of the user's for our fields, ``kind`` that of all
    rows. ``assumed`` counts what was done; ``left_out`` are lines about unusable rows, which are
    an error unless they may be skipped."""

    columns: Mapping[str, str] = field(default_factory=dict)
    kind: Kind | None = None
    skips: bool = False
    assumed: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)
    _from_one: bool = False

    def problems(self, rows: Iterable[UpstreamRow], stem: str) -> list[OwnProblem]:
        """Convert rows. ``stem`` goes into ids and sources that are filled in. Raises DataError
        with a line for each unusable row, the first ten, and for columns that no row has."""
        all_rows = [self._lifted(row) for row in rows]
        found = dict.fromkeys(name for row in all_rows for name in row.values)
        missing = [f for f, name in self.columns.items() if all_rows and name not in found]
        if missing:
            wrong = [(f, self.columns[f], suggest(self.columns[f], list(found))) for f in missing]
            has = ", ".join(found)
            path = all_rows[0].where.rpartition(":")[0]
            raise DataError(
                *(f"--field {f}={c}: {path} has no column {c}{s} ({has})" for f, c, s in wrong)
            )
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
        left = [name for name in found if name not in self._used]
        if left:
            self.assumed[f"left aside: {', '.join(left)}"] = len(all_rows)
        return made

    def _lifted(self, row: UpstreamRow) -> UpstreamRow:
        """The row with what belongs to its program, where an object of it holds that."""
        known = {column for name in _LIFTED for column in NAMES[name]}
        values = dict(row.values)
        for name in _NESTED:
            inner = values.get(name)
            inner = structure(inner) if isinstance(inner, str) else inner
            if isinstance(inner, Mapping):
                lifted = {k: v for k, v in inner.items() if k in known and is_empty(values.get(k))}
                values |= lifted
                self._used |= {name} if lifted else set()
        return UpstreamRow(values, row.where, row.name)

    def _problem(self, row: UpstreamRow, stem: str) -> OwnProblem:
        if (form := self._form(row)) is not None:
            self.assumed[f"taken for {form[0]}'s form"] += 1
            self._used |= {*row.values}
            return OwnProblem(form[1](row), row.where)
        given = self._value(row, "source")
        source = given if isinstance(given, str) else f"own/{stem}"
        number = self._value(row, "id")
        id = f"{source}/{row.name}" if number is None else str(number)
        if number is None:
            self.assumed["id and source filled in"] += 1
        split, kind = self._split(row), self._kind(row)
        question, spoken = self._question(row)
        tests = self._tests(row, kind)
        choices = self._choices(row)
        if tests.hidden or kind == "code":
            return replace(self._program(row, id, source, question, tests), split=split)
        answer = self._answer(row, spoken)
        if choices:
            kind = kind or "qa"
            label = self._label(row, answer, choices)
            values = {"reference": label, "choices": choices}
        else:
            values = {"reference": answer.reference, "alternatives": list(answer.alternatives)}
            kind = kind or self._kind_of(answer.reference)
        fields = {"id": id, "kind": kind, "source": source, "question": question, **values}
        if context := self._context(row):
            fields["context"] = context
        return OwnProblem(Problem.from_row(_plain(fields), row.where), row.where, split)

    def _form(self, row: UpstreamRow) -> tuple[str, Converter] | None:
        if isinstance(row.values.get("question"), Mapping) and "answerKey" in row:
            return "CommonsenseQA", commonsenseqa
        known = (form for names, form in _FORMS.items() if all(name in row for name in names))
        return None if self.columns else next(known, None)

    def _value(self, row: UpstreamRow, name: str) -> Any:
        """A field of ours, None where the row has no column for it."""
        for column in (self.columns[name],) if name in self.columns else NAMES[name]:
            column = column if column in row.values else column.capitalize()
            value = row.values.get(column)
            if is_empty(value):
                continue
            self._used.add(column)
            if column.lower() != name and name != "code":
                self.assumed[f"{name} from {column}"] += 1
            if name in ("tests", "hidden_tests", "choices", "test_imports") or column in _SEVERAL:
                value = structure(value) or value if isinstance(value, str) else value
            return value
        return None

    def _kind(self, row: UpstreamRow) -> Kind | None:
        """The kind of all rows or of this one; other words than ours are topics, not kinds."""
        given = self._value(row, "kind")
        if self.kind or given is None:
            return self.kind
        if "kind" in row and given not in KINDS:
            raise row.error(f"kind is {given!r}, not one of {', '.join(KINDS)}")
        return _KINDS.get(str(given).casefold())

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
            value = "\n\n".join(contents)
        if not isinstance(value, str) or not value.strip():
            raise lacking(row, "question", "qa")
        return value.strip(), spoken

    def _answer(self, row: UpstreamRow, spoken: str | None = None) -> AnswerCell:
        cell = self._value(row, "reference")
        cell = spoken if cell is None else cell
        if cell is None:
            raise lacking(row, "answer", "qa")
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
            self._used |= {columns[label] for label in labels}
            return [[label, str(row.values[columns[label]]).strip()] for label in labels]
        match value:
            case {"label": list(labels), "text": list(contents)}:
                value = list(zip(labels, contents, strict=False))
            case Mapping():
                value = list(value.items())
            case str():
                value = _OPTION.findall(value)
            case [*lines] if all(isinstance(one, str) and _OPTION.match(one) for one in lines):
                value = [_OPTION.findall(one)[0] for one in lines]
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

    def _label(self, row: UpstreamRow, answer: AnswerCell, choices: list[list[str]]) -> str:
        labels = {label.casefold(): label for label, _ in choices}
        by_text = {normalise(text): label for label, text in choices}
        contents, index = answer.reference, answer.index
        found = labels.get(contents.strip("().: ").casefold())
        if found is None and normalise(contents) in by_text and index is None:
            self.assumed["answers are texts of choices"] += 1
            found = by_text[normalise(contents)]
        if found is None and (index is not None or contents.isdecimal()):
            place = int(contents) - self._from_one
            if 0 <= place < len(choices):
                first = "1" if self._from_one else "0"
                self.assumed[f"answers are numbers of choices, counted from {first}"] += 1
                found = choices[place][0]
        if found is not None and not (set(answer.alternatives) - {"yes", "no"}):
            return found
        shown = "; ".join(f"{label}. {' '.join(text.split())[:40]}" for label, text in choices)
        if found is not None:
            raise row.error(f"several answers to one choice: {contents}, {answer.alternatives[0]}")
        raise row.error(f"the answer {contents[:60]!r} is none of the choices {shown}")

    def _counts_from_one(self, rows: Sequence[UpstreamRow]) -> bool:
        """Return whether answers are numbers of choices counted from one: none is 0 and one equals
        the number of choices."""
        looking = Conversion(self.columns)
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

    def _tests(self, row: UpstreamRow, kind: Kind | None) -> "_Tests":
        """The tests of a row; of other trainers they may be where an answer would be."""
        hidden, function = self._test_list(row, "hidden_tests")
        if not hidden:
            hidden, function = self._test_list(row, "tests")
        public, called = self._test_list(row, "public_tests")
        if not hidden and not public:
            for column in NAMES["reference"]:
                cell = row.values.get(column)
                cell = structure(cell) if isinstance(cell, str) else cell
                while isinstance(cell, Mapping) and "ground_truth" in cell:
                    cell = cell["ground_truth"]
                    cell = structure(cell) if isinstance(cell, str) else cell
                found = io_tests(row, cell) if isinstance(cell, list | Mapping) else None
                if found is None and kind == "code" and column != "completion":
                    cell = [cell] if isinstance(cell, str) else cell
                    found = (cell, None) if isinstance(cell, list) and _all_assert(cell) else None
                if found is not None:
                    self._used.add(column)
                    self.assumed[f"tests from {column}"] += 1
                    hidden, function = found
                    break
        if public and not hidden:
            public, hidden = [], public
        return _Tests(public, hidden, function or called)

    def _test_list(self, row: UpstreamRow, name: str) -> tuple[list[str], str | None]:
        value = self._value(row, name)
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
                f"{name} are Python statements, such as assert double(2) == 4, or objects with "
                "input and output"
            )
        return value, None

    def _program(
        self, row: UpstreamRow, id: str, source: str, question: str, tests: "_Tests"
    ) -> OwnProblem:
        """A code problem. Its reference may be missing: then nothing proves its tests."""
        public, hidden = tests.public, tests.hidden
        if not hidden:
            raise lacking(row, "tests", "code")
        entry, code = self._value(row, "entry_point") or tests.function, self._solution(row)
        entry = entry if isinstance(entry, str) else None
        code = None if code in {*public, *hidden} else code
        setup = self._setup(row)
        starter = self._value(row, "starter_code")
        if isinstance(starter, str) and starter.strip() not in question:
            question = f"{question}\n\n{starter.strip()}"
        if code and entry and not public and len(hidden) == 1 and _CHECK.search(hidden[0]):
            whole = _completed(question, code, entry)
            if whole.startswith(question):
                self.assumed["taken for HumanEval's form: check(candidate)"] += 1
                named = {"task_id": str(row.values.get("task_id", id)), "entry_point": entry}
                named |= {"prompt": question + "\n", "test": hidden[0]}
                named["canonical_solution"] = whole[len(question) + 1 :]
                problem = humaneval(UpstreamRow(named, row.where, row.name))
                setup = "\n".join(filter(None, [setup, problem.test_setup]))
                problem = replace(problem, id=id, source=source, test_setup=setup)
                return OwnProblem(problem, row.where, has_examples=bool(problem.public_tests))
        if not public and is_empty(row.values.get("hidden_tests")) and len(hidden) > 1:
            self.assumed["of the tests the first is shown to workflows, the others are hidden"] += 1
            public, hidden = hidden[:1], hidden[1:]
        stubs, is_io = "", parse_io_test(hidden[0]) is not None
        if code:
            code = _completed(question, code, entry)
        if code and not is_io:
            entry, stubs = _interface(row, code, [*public, *hidden], setup, entry)
        elif entry is None and not is_io:
            entry = _called_by_all([*public, *hidden])
            if entry is None:
                raise lacking(row, "solution", "code")
        if entry and not re.search(rf"\b{re.escape(entry)}\s*\(", question):
            self.assumed["the function's signature or name added to the question"] += 1
            question = f"{question}\n\n{stubs or f'Name the function {entry}.'}"
        values = {"id": id, "kind": "code", "source": source, "question": question}
        values |= {"reference": code or "", "entry_point": entry, "test_setup": setup}
        hidden = [_called(test, entry) for test in hidden] if entry and not is_io else hidden
        values |= {"public_tests": public, "hidden_tests": hidden, "context": self._context(row)}
        fields = {name: value for name, value in values.items() if value is not None}
        return OwnProblem(Problem.from_row(_plain(fields), row.where), row.where)

    def _solution(self, row: UpstreamRow) -> str | None:
        value = self._value(row, "code")
        value = structure(value) or value if isinstance(value, str) else value
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, Mapping) and "role" in value:
            value = message_text(value)
        if not isinstance(value, str) or not value.strip():
            return None
        value = value.replace("\r\n", "\n")
        return extract_code(value) if "```" in value else value

    def _setup(self, row: UpstreamRow) -> str:
        setup = self._value(row, "test_setup") or ""
        imports = self._value(row, "test_imports") or []
        imports = [imports] if isinstance(imports, str) else imports
        if not isinstance(setup, str) or not isinstance(imports, list):
            raise row.error("test_setup is Python source, test_imports a list of it")
        return "\n".join(filter(None, [*map(str, imports), setup]))

    def _split(self, row: UpstreamRow) -> str | None:
        name = self._value(row, "split")
        if name is not None and str(name).lower() not in _SPLITS:
            raise row.error(f"split is {name!r}, not train, val or test")
        return None if name is None else _SPLITS[str(name).lower()]


def _plain(fields: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(fields))


def _defined(source: str) -> list[str]:
    tree = parse_trusted(source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, functions)] if tree else []


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


def _called(test: str, entry: str) -> str:
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
            calls.append(f"{_RUN_CASES.format(node.name)}")
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


_RUN_CASES = """_outcome = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase({}).run(_outcome)
assert _outcome.testsRun and _outcome.wasSuccessful(), _outcome"""


def _all_assert(tests: list[Any]) -> bool:
    """Return whether texts are programs that assert something and define no function but tests."""
    trees = [parse_trusted(test) if isinstance(test, str) else None for test in tests]
    return all(tree and any(isinstance(n, ast.Assert) for n in ast.walk(tree)) for tree in trees)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
