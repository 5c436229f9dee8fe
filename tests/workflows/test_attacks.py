"""Hostile workflows: each ends in time with its blame, leaks nothing, and the next one runs.

The rows of attacks.jsonl whose kind is ``workflow``, and some of our own.
"""

import ast
import json
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from workflow_doubles import ScriptedModel, ScriptedSandbox, task

from flowright.config.workflow import WorkflowSection
from flowright.core.errors import Blame, FailureError, Reason
from flowright.workflows.executor import Executor
from flowright.workflows.source import MAX_SOURCE_CHARS, read_workflow as read

ROWS = {
    row["id"]: row["code"]
    for line in (Path(__file__).parents[1] / "sandbox/attacks.jsonl").read_text().splitlines()
    if (row := json.loads(line))["kind"] == "workflow"
}
# The program asks for what there is not: the type checker says so, or it crashes.
REFUSED = {Reason.TYPE, Reason.UNSUPPORTED, Reason.CRASHED}
SPENT = {Reason.TIME_BUDGET, Reason.MEMORY_BUDGET, Reason.CALL_BUDGET}

# What each row may come to: an answer, which tells nothing, or a failure for one of these reasons.
ALLOWED: dict[str, set[Reason | str]] = {
    "w_inf_swallow": {Reason.TIME_BUDGET},
    "w_gather_flood": {Reason.CALL_BUDGET},
    "w_huge_prompt": {Reason.SIZE_BUDGET, Reason.MEMORY_BUDGET},
    "w_bad_kwargs": {Reason.TYPE},
    "w_hostile_object": {Reason.BAD_ARGUMENT, Reason.TYPE},
    "w_operator_globals": {"done", *REFUSED},
    "w_subclasses": {*REFUSED},
    "w_open_key": {*REFUSED},
    "w_socket": {Reason.UNSUPPORTED},
    "w_print_flood": {Reason.TIME_BUDGET},
    "w_return_cyclic": {Reason.NO_ANSWER},
    "w_return_deep": {Reason.NO_ANSWER},
    "w_return_object": {Reason.NO_ANSWER},
    "w_sleep": {Reason.NO_ANSWER},
    "w_async_sleep": {"done"},
    "w_parse_nest": {Reason.SYNTAX},
    "w_tasks_left": {"answer"},
    "w_cross_talk": {*REFUSED},
}
OWN: dict[str, tuple[str, set[Reason | str]]] = {
    "regex": ("import re\nre.match('(a+)+$', 'a' * 60 + 'b')", {Reason.NO_ANSWER, *SPENT}),
    "power": ("9 ** 9 ** 9", {Reason.CRASHED, *SPENT}),
    "shift": ("1 << (1 << 40)", {Reason.CRASHED, *SPENT}),
    "repeat": ("'a' * 10 ** 12", {Reason.MEMORY_BUDGET}),
    "width": ("f'{1:>1000000000}'", {Reason.CRASHED, *SPENT}),
    "range": ("list(range(10 ** 12))", {*SPENT}),
    "join": ("''.join(['a' * 10 ** 6] * 10 ** 6)", {Reason.MEMORY_BUDGET}),
    "forever": ("import itertools\nlist(itertools.count())", {*SPENT}),
    "product": ("import itertools\nsum(1 for _ in itertools.product(*[range(9)] * 99))", {*SPENT}),
    "json": ("import json\njson.loads('[' * 10 ** 6)", {Reason.CRASHED}),
    "recursion": ("def f(n): return [f(n + 1)]\nf(0)", {Reason.CRASHED}),
    "repr": ("x = []\nfor _ in range(10 ** 5): x = [x]\nlen(str(x)) > 0", {"True", *REFUSED}),
    "compare": (
        "x = []\ny = []\nfor _ in range(10 ** 5): x, y = [x], [y]\nx == y",
        {"True", *REFUSED},
    ),
    "hash": ("x = ()\nfor _ in range(10 ** 5): x = (x,)\nhash(x) != 0", {"True", *REFUSED}),
    "sleepers": (
        "import asyncio\nawait asyncio.gather(*[asyncio.sleep(1) for _ in range(10**6)])",
        {*SPENT},
    ),
    "sleeping": ("import asyncio\nwhile True: await asyncio.sleep(0)", {*SPENT}),
    "names": ("while True:\n    try: frobnicate(1)\n    except NameError: pass", {
        *SPENT, *REFUSED}),
    "attributes": ("while True:\n    try: hex.frobnicate\n    except AttributeError: pass", {
        *SPENT, *REFUSED}),
    "files": ("from pathlib import Path\nPath('@SECRETFILE@').read_text()", {*REFUSED}),
    "environment": ("import os\nstr(dict(os.environ))", {"{}", *REFUSED}),
    "one variable": ("import os\nstr(os.getenv('HOME'))", {"None", *REFUSED}),
    "a directory": ("import os\nstr(os.listdir('/'))", {*REFUSED}),
    "eval is sandboxed like the rest": ("eval('open(\"@SECRETFILE@\").read()')", {*REFUSED}),
    "dunder import": ("__import__('os').getcwd()", {*REFUSED}),
    "an operator overwritten": ("answer = 1\nlen('ab')", {"2"}),
    "a problem forged": ("globals_problem = 'x' * 30000\nglobals_problem", {Reason.SIZE_BUDGET}),
    "a long name": (f"{'x' * 15000} = 1", {"done"}),
    "many functions": ("\n".join(f"def f{i}(): pass" for i in range(800)), {"done"}),
    "many branches": ("x = 0\n" + "\n".join(f"if x: y{i} = 1" for i in range(700)), {"done"}),
    "types without end": (
        "x = 1\n" + "\n".join(f"x = [x, '{i}'] if x else ({{'a': x}}, {i})" for i in range(120)),
        {"done", *SPENT},
    ),
    "a tower of lambdas": (f"x = {'lambda: ' * 90}1", {"done", Reason.SYNTAX, Reason.CRASHED}),
    "a chain of calls": (
        f"x = problem{'.strip()' * 900}",
        {"done", Reason.SYNTAX, Reason.CRASHED, Reason.UNSUPPORTED},
    ),
    "a long sum": (f"x = {'1 + ' * 3000}1", {"done", Reason.SYNTAX, Reason.CRASHED,
                                             Reason.UNSUPPORTED}),
}  # fmt: skip
ATTACKS = {**{name: (ROWS[name], ALLOWED[name]) for name in ROWS}, **OWN}
CONTROL = "async def workflow(problem):\n    return await answer(problem)"
MODEL = ScriptedModel()


def as_workflow(code: str) -> str:
    """The snippet as the body of a workflow that returns its last value."""
    try:
        tree = ast.parse(f"async def workflow(problem):\n{_indented(code)}")
    except (SyntaxError, RecursionError, MemoryError):
        return f"async def workflow(problem):\n{_indented(code)}"
    function = tree.body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    last = function.body[-1]
    if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Await):
        lines = code.rstrip("\n").split("\n")
        lines[last.lineno - 2] = f"return {lines[last.lineno - 2]}"
        code = "\n".join(lines)
    else:
        code = f"{code.rstrip()}\nreturn 'done'"
    return f"async def workflow(problem):\n{_indented(code)}"


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.split("\n"))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def executor() -> AsyncIterator[Executor]:
    limits = WorkflowSection(own_seconds=0.4, memory_mb=32, workers=1, total_seconds=5.0)
    async with Executor(MODEL, ScriptedSandbox(), limits) as made:
        yield made


def test_every_row_has_an_expectation() -> None:
    assert ROWS.keys() == ALLOWED.keys()
    assert len(ROWS) == 18


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
async def test_attacks(checked: bool, executor: Executor, tmp_path: Path) -> None:
    """Once as completions, once past the type checker, so that the second wall is tested too."""
    failures: list[str] = []
    for name, (code, allowed) in ATTACKS.items():
        try:
            await attack(code, allowed, checked, executor, tmp_path)
        except (AssertionError, FailureError, pytest.fail.Exception) as error:
            failures.append(f"{name}: {error}")
    assert failures == []


async def attack(
    code: str, allowed: set[Reason | str], checked: bool, executor: Executor, tmp_path: Path
) -> None:
    secret = secrets.token_hex(8)
    (tmp_path / "answers").write_text(secret)
    MODEL.requests.clear()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        code = code.replace("@SECRETFILE@", str(tmp_path / "answers"))
        code = code.replace("@PORT@", str(listener.getsockname()[1]))
        text = as_workflow(code)
        assert len(text) <= MAX_SOURCE_CHARS
        try:
            workflow = await executor.validate(text) if checked else read(text)
            execution = await executor.execute(workflow, task(), "attack")
            outcome, failure = execution.answer, execution.failure
        except FailureError as error:
            outcome, failure = None, error.failure
        with pytest.raises(BlockingIOError):
            listener.accept()
    if failure is not None:
        assert failure.blame is Blame.POLICY, str(failure)
        assert failure.reason in allowed, str(failure)
    else:
        assert outcome in allowed, outcome
    assert len(MODEL.requests) <= 16
    assert MODEL.in_flight == 0
    for text in (str(outcome), str(failure), *MODEL.prompts):
        assert secret not in text
        assert "R4-SECRET" not in text or "assert" in code
    control = await executor.execute(await executor.validate(CONTROL), task(), "control")
    assert control.answer == "42"
