"""HumanEval and MBPP: write a function; tests of input and output. Nothing is executed here.

Public tests may be shown to the policy, hidden ones may not; no test is both, and together they
decide. For MBPP the first assert is public. For HumanEval the docstring's examples are, and the
official ``check`` is hidden less those of its asserts that are among them.
"""

import ast
import base64
import contextlib
import io
import json
import pickle
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from flowright.core.errors import DataError
from flowright.data.sources.dataset import UpstreamRow, read_upstream
from flowright.data.task import Problem
from flowright.sandbox import IOTest, bound_names, parse_trusted

_LARGEST = 256 << 20  # bytes of one row's tests

# Public tests by entry point that the official solution fails, because the docstring is wrong (47,
# 116, 148), or AFlow's file is (41, 53), or because prose looks like an example (130). A workflow
# that sees them would be misled.
_WRONG = {
    "car_race_collision": ("(1) == 0", "(2) == 0", "(3) == 0", "(10) == 0"),
    "median": ("([-10, 4, 6, 1000, 10, 20]) == 15.0",),
    "add": ("([2, 3]) == 5", "([5, 7]) == 12"),
    "sort_array": (
        "([1, 5, 2, 3, 4]) == [1, 2, 3, 4, 5]",
        "([-2, -3, -4, -5, -6]) == [-6, -5, -4, -3, -2]",
        "([1, 0, 2, 3, 4]) == [0, 1, 2, 3, 4]",
    ),
    "tri": ("(1) == 3", "(4) == 3"),
    "bf": ("('Earth', 'Mercury') == 'Venus'",),
}


def humaneval(row: UpstreamRow) -> Problem:
    """An official row; ``public_tests``, where :func:`with_public_tests` added them, are used
    instead of the docstring's examples."""
    task_id, prompt, entry = row.text("task_id"), row.text("prompt"), row.text("entry_point")
    if "public_tests" in row:
        given = [re.sub(r"\bcandidate\b", entry, test) for test in row.texts("public_tests")]
    else:
        given = docstring_examples(prompt, entry)
    shown = [test for test in given if not _misleading(test, entry)]
    public, check = _apart(tuple(dict.fromkeys(shown)), row, entry)
    return Problem(
        id=f"humaneval/{task_id.rpartition('/')[2]}",
        kind="code",
        source="humaneval",
        question=f"Complete this Python program.\n\n{prompt.strip()}",
        reference=prompt + row.text("canonical_solution"),
        entry_point=entry,
        test_setup=_helpers(prompt, entry, row),
        public_tests=public,
        hidden_tests=(f"{check}\n\ncheck({entry})",),
    )


def _apart(public: tuple[str, ...], row: UpstreamRow, entry: str) -> tuple[tuple[str, ...], str]:
    """Public tests, and ``check`` without them. Where nothing would be left of it, the last
    examples are not public."""
    check = row.text("test").strip()
    tree = _parse(check, row)
    body = next(n.body for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check")
    spelt = [_as_test(statement, entry) for statement in body]
    while True:
        examples = {same_test(test) for test in public}
        left = [part for part, test in zip(body, spelt, strict=True) if test not in examples]
        if len(left) == len(body) or any(map(_asserts_something, left)):
            break
        public = public[:-1]
    lines = check.split("\n")
    for part in body:
        if part not in left:
            for number in range(part.lineno, (part.end_lineno or part.lineno) + 1):
                lines[number - 1] = ""
    return public, "\n".join(lines)


def _asserts_something(statement: ast.stmt) -> bool:
    """Some checks have an ``assert True`` for show."""
    return any(
        isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
        for node in ast.walk(statement)
    )


def _as_test(statement: ast.stmt, entry: str) -> str | None:
    """An assert of ``check`` as a public test would be spelt, without its message; else None."""
    if not isinstance(statement, ast.Assert):
        return None
    return re.sub(r"\bcandidate\b", entry, ast.unparse(ast.Assert(test=statement.test)))


def with_public_tests(path: Path) -> Iterator[UpstreamRow]:
    """AFlow's HumanEval rows with the tests of its ``humaneval_public_test.jsonl``, five of which
    are missing there and stay empty."""
    tests = {
        row.text("problem_id"): row.texts("test")
        for row in read_upstream(path.with_name("humaneval_public_test.jsonl"))
    }
    for row in read_upstream(path):
        yield row.inner(row.values, row.name, public_tests=tests.get(row.text("task_id"), []))


def mbpp(row: UpstreamRow) -> Problem:
    """A row of ``mbpp.jsonl`` (``text``) or ``sanitized-mbpp.json`` (``prompt``); hub rows are the
    same. The signature comes from the reference: the text alone does not name the function."""
    full = "text" in row
    tests = row.texts("test_list")
    challenge = row.texts("challenge_test_list") if "challenge_test_list" in row else []
    setup = row.text("test_setup_code") if "test_setup_code" in row else ""
    imports = row.texts("test_imports") if "test_imports" in row else []
    setup = "\n".join([*imports, setup.strip()]).strip()
    code = row.text("code")
    entry, stubs = interface(row, code, tests, setup)
    text = row.text("text" if full else "prompt").strip()
    return _mbpp(row, f"{text}\n\n{stubs}", code, entry, setup, [*tests, *challenge])


def mbpp_aflow(row: UpstreamRow) -> Problem:
    """A row of AFlow's files: ``prompt`` has the signature. Their ``mbpp_public_test.jsonl`` holds
    the first assert of every row and is not needed. The broken reference of 630 is mended."""
    code = row.text("code")
    if row.integer("task_id") == 630:
        code = code.replace("def adjac(test_tup):", "def adjac(ele, sub = []):")
    setup = "\n".join(row.texts("test_imports"))
    entry, tests = row.text("entry_point"), row.texts("test_list")
    return _mbpp(row, row.text("prompt").strip(), code, entry, setup, tests)


def _mbpp(
    row: UpstreamRow, question: str, code: str, entry: str, setup: str, tests: list[str]
) -> Problem:
    if not tests:
        raise row.error("test_list is empty")
    public, rest = tests[0], tests[1:]
    # Row 37 of the full set has one test three times: it is public and hidden.
    hidden = [test for test in rest if same_test(test) != same_test(public)] or [public]
    return Problem(
        id=f"mbpp/{row.integer('task_id')}",
        kind="code",
        source="mbpp",
        question=question,
        reference=code,
        entry_point=entry,
        test_setup=setup,
        public_tests=(public,),
        hidden_tests=tuple(hidden),
    )


def io_tests(row: UpstreamRow, value: object) -> tuple[list[str], str | None] | None:
    """Return the tests of input and output that a field of APPS, TACO, PRIME, verl or LiveCodeBench
    holds, in the form of a task, and the function that they call if they give arguments; None for
    a value of another form.

    Known are ``{"inputs": [...], "outputs": [...], "fn_name": ...}`` and lists of
    ``{"input": ..., "output": ..., "testtype": ...}``, as objects, as JSON or as LiveCodeBench
    packs its private ones. Raises DataError for inputs without outputs.
    """
    value = _unpacked(value)
    function = None
    if isinstance(value, dict) and isinstance(value.get("inputs"), list):
        inputs, outputs = value["inputs"], value.get("outputs")
        function = value.get("fn_name") or None
    elif isinstance(value, list) and value and all(map(_is_case, value)):
        inputs = [case["input"] for case in value]
        outputs = [case["output"] for case in value]
        if any(case.get("testtype") == "functional" for case in value):
            metadata = _unpacked(row.values.get("metadata"))
            function = metadata.get("func_name") if isinstance(metadata, dict) else None
            function = function or next(
                (case["fn_name"] for case in value if "fn_name" in case), None
            )
            if function is None:
                raise row.error("functional tests, but metadata names no func_name")
    else:
        return None
    if not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise row.error(f"{len(inputs)} inputs need as many outputs")
    if function is None:
        return [
            str(IOTest(_joined(i), _joined(o))) for i, o in zip(inputs, outputs, strict=True)
        ], None
    arguments = [_arguments(row, given) for given in inputs]
    results = [_json(row, output) if isinstance(output, str) else output for output in outputs]
    if all(isinstance(result, list) and len(result) == 1 for result in outputs):
        results = [result for (result,) in outputs]  # APPS puts each result into a list
    tests = [str(IOTest(a, r)) for a, r in zip(arguments, results, strict=True)]
    return tests, str(function)


def _is_case(value: object) -> bool:
    return isinstance(value, dict) and {"input", "output"} <= value.keys()


class _Texts(pickle.Unpickler):
    """Loads what needs no class, so that no code of the file's runs."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no text")


def _unpacked(value: object) -> Any:
    """The value of JSON; of LiveCodeBench's, which is base64 of zlib of a pickled JSON, too. Any
    other is returned as it is."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value)
    with contextlib.suppress(ValueError, zlib.error, pickle.UnpicklingError, EOFError, IndexError):
        packed = base64.b64decode(value, validate=True)
        text = zlib.decompressobj().decompress(packed, _LARGEST)
        return json.loads(_Texts(io.BytesIO(text)).load())
    return value


def _joined(value: object) -> str:
    """Standard input or output; APPS has some as lists of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(row: UpstreamRow, given: object) -> list[Any]:
    """The arguments of a call, a JSON value a line where they are a text."""
    if isinstance(given, str):
        return [_json(row, line) for line in given.split("\n") if line.strip()]
    return given if isinstance(given, list) else [given]


def _json(row: UpstreamRow, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise row.error(f"an argument or result is not JSON: {text[:60]!r}") from None


def mbpp_description(task: Problem) -> str:
    """The words of an MBPP question, without its signature: what makes two of them the same."""
    return re.split(r"\n+(?=(?:import|from|def|class)\b)", task.question, maxsplit=1)[0]


def same_test(test: str) -> str:
    """A test in one spelling, so that two can be compared."""
    tree = parse_trusted(test)
    return ast.unparse(tree) if tree else " ".join(test.split())


def _misleading(test: str, entry: str) -> bool:
    wrong = [f"assert {entry}{rest}" for rest in _WRONG.get(entry, ())]
    return not parse_trusted(test) or same_test(test) in ("", *wrong)


def _helpers(prompt: str, entry: str, row: UpstreamRow) -> str:
    """The functions that a HumanEval prompt gives beside the one asked for (tests of 32, 38 and 50
    call them), so that a solution need not repeat them."""
    tree = _parse(prompt, row)
    given = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name != entry]
    return "\n\n\n".join(ast.get_source_segment(prompt, node) or "" for node in given)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def interface(row: UpstreamRow, code: str, tests: list[str], setup: str) -> tuple[str, str]:
    """The name of the function, or class, that all tests call, and the first lines of everything
    that the tests take from the solution: some need a class as well. What these lines use of the
    reference's imports and values stands before them."""
    tree = _parse(code, row)
    bound = bound_names(tree)
    defined = {name: nodes[-1] for name, nodes in bound.items() if _is_callable(nodes[-1])}
    called = [_calls(_parse(test, row)) & set(defined) for test in tests]
    entries = [name for name in defined if all(name in names for names in called)]
    entries.sort(key=lambda name: isinstance(defined[name], ast.ClassDef))
    if not entries:
        raise row.error("no function of the reference is called by all tests")
    read = set().union(*(_names(_parse(test, row)) for test in (*tests, setup)))
    classes = {name for name in read & set(defined) if isinstance(defined[name], ast.ClassDef)}
    wanted = set().union(*called, classes) | _calls(_parse(setup, row)) & set(defined)
    parts = [_shown(defined[name]) for name in defined if name in wanted]
    used = set().union(*(_names(part) for part in parts)) - set(defined)
    needed = [node for name in used & set(bound) for node in bound[name][-1:]]
    given = "\n".join(ast.unparse(node) for node in tree.body if node in needed)
    stubs = [_NO_BODY.sub(":", ast.unparse(part)).replace("\n\n", "\n") for part in parts]
    return entries[0], "\n\n".join(filter(None, [given, *stubs]))


_NO_BODY = re.compile(r":\n +\.\.\.$", re.MULTILINE)


def _is_callable(node: ast.stmt) -> bool:
    lambdas = isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
    return lambdas or isinstance(node, Definition)


def _shown(node: ast.stmt) -> ast.stmt:
    """A function without its body; a class with its methods so and, where it has decorators or
    bases, its fields."""
    empty: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return type(node)(node.name, node.args, empty, [], lineno=1)
        case ast.ClassDef():
            bases = [base for base in node.bases if ast.unparse(base) != "object"]
            fields = (ast.Assign, ast.AnnAssign) if bases or node.decorator_list else ()
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            body = [_shown(part) for part in node.body if isinstance(part, (*functions, *fields))]
            return ast.ClassDef(node.name, bases, node.keywords, body or empty, node.decorator_list)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args=arguments)):
            return ast.FunctionDef(name, arguments, empty, [], lineno=1)
    return node


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _calls(tree: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def _parse(source: str, row: UpstreamRow) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except SyntaxError as error:
        raise DataError(f"{row.where}: not Python in line {error.lineno}: {error.msg}") from None


_BETWEEN = re.compile(r"\s*(?:#\s*)?(?:={1,3}>|={1,2}|-+>|➞|→|returns|should\s+return)\s*")
_LOWER = {"true": "True", "false": "False", "none": "None"}


def docstring_examples(prompt: str, entry_point: str) -> list[str]:
    """``assert f(x) == y`` for the examples in the docstring of ``entry_point`` in ``prompt``."""
    found: dict[str, None] = {}
    for docstring in _docstrings(prompt, entry_point):
        lines = docstring.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            example = _example(line, following, entry_point)
            if example is not None:
                found[example] = None
    return list(found)


def _expression(text: str) -> ast.expr | None:
    """The expression that a text is, None if it is anything else."""
    tree = parse_trusted(text.strip())
    match tree.body if tree else []:
        case [ast.Expr(value=value)]:
            return value
    return None


def _docstrings(prompt: str, entry_point: str) -> list[str]:
    """All bare strings in the function: some prompts have an import before the docstring."""
    tree = parse_trusted(prompt)
    body = tree.body if tree else []
    function = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == entry_point]
    values = [n.value for f in function for n in f.body if isinstance(n, ast.Expr)]
    return [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def _example(line: str, following: str, entry_point: str) -> str | None:
    start = re.search(rf"(?<![\w.]){re.escape(entry_point)}\(", line)
    if start is None:
        return None
    call = _call(line[start.start() :])
    if call is None:
        return None
    before, rest = line[: start.start()].strip(), line[start.start() + len(call) :]
    between = _BETWEEN.match(rest)
    if between is not None:
        value = _literal(rest[between.end() :])
    elif before == ">>>" and not rest.strip():
        value = _literal(following)
    else:
        value = None
    return None if value is None else f"assert {call} == {value}"


def _call(text: str) -> str | None:
    """The shortest prefix of ``text`` that is a call with literal arguments."""
    for end in (match.end() for match in re.finditer(r"\)", text)):
        match _expression(text[:end]):
            case None:
                continue
            case ast.Call(args=args, keywords=[]) if all(map(_is_literal, args)):
                return text[:end]
            case _:
                return None
    return None


def _literal(text: str) -> str | None:
    """The literal that ``text`` is, apart from a full stop or a remark behind it."""
    for candidate in (re.split(r"\s+(?:#|\()", text, maxsplit=1)[0], text):
        stripped = candidate.strip().rstrip(".,;")
        spelt = _LOWER.get(stripped, stripped)
        value = _expression(spelt)
        if value is not None and _is_literal(value):
            return spelt
    return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True
