"""Tests of input and output: programs that read and print, and functions with JSON arguments."""

import pytest

from flowright.sandbox import IOTest, Limits, Sandbox, parse_io_test
from flowright.sandbox.programs import same_output

SQUARES = [str(IOTest("3\n", "9\n")), str(IOTest("-4\n", "16\n"))]


def test_the_form_of_a_test() -> None:
    for test in (IOTest("3\n", "9\n"), IOTest([[1, 2], "a"], {"k": 1.5})):
        assert parse_io_test(str(test)) == test
    others = ("assert f(1) == 2", "{", '{"input": 3, "output": 9}', '{"input": "3"}', "[]")
    assert [parse_io_test(other) for other in others] == [None] * 5


@pytest.mark.parametrize(
    "expected, printed",
    [
        ("9\n", "9"), ("9", "9 \n\n"), ("a\nb\n", "a  \r\nb"), ("1 2 3", " 1  2 3"), ("1", "1.0"),
        ("0.5", ".50"), ("0.3", "0.30000000000000004"), ("0.33333", "0.3333333333"), ("", "\n"),
        ("0.333333333", "0.33333"), ("1e-3", "0.001"), ("x = 1.50", "x = 1.5"), ("-0.0", "0"),
        ("1\n\n2", "1\n\n2"), ("7" * 500, "7" * 500),
    ],
)  # fmt: skip
def test_the_same_output(expected: str, printed: str) -> None:
    assert same_output(expected, printed)


@pytest.mark.parametrize(
    "expected, printed",
    [
        ("9", "10"), ("9", ""), ("", "9"), ("9", "9 9"), ("1 2", "1\n2"), ("1\n2", "1 2"),
        ("1", "1.0000001"),
        ("YES", "Yes"), ("  *\n***", "*\n***"), ("a b", "a  b"), ("0.5", "0.5001"), ("0.5", "1/2"),
        ("0.00000012", "0"), ("987654321", "987654321.4"), ("9007199254740993", "9007199254740992"),
        ("nan", "1"), ("1", "nan"), ("0.5", "inf"), ("7" * 500, "7" * 499 + "8"),
        ("1\n2", "1\n\n2"),
        ("100000.5", "100000.6"), ("9", "The answer is 9"),
    ],
)  # fmt: skip
def test_another_output(expected: str, printed: str) -> None:
    assert not same_output(expected, printed)


@pytest.mark.parametrize(
    "solution, passed",
    [
        ("print(int(input()) ** 2)", 2),
        ("import sys\nfor line in sys.stdin:\n    print(int(line) ** 2, end=' ')", 2),
        ("def main():\n    print(int(input()) ** 2)\nif __name__ == '__main__':\n    main()", 2),
        ("import sys\nprint(int(input()) ** 2)\nsys.exit()", 2),
        ("print(int(input()) ** 2)\nexit()", 2),
        ("print(int(input()) ** 2)\nquit(0)\n1 / 0", 2),
        ("print(9)", 1),
        ("print(9); 1 / 0", 0),
        ("def square(x): return x * x", 0),
        ("import os\nprint(int(input()) ** 2, flush=True)\nos._exit(3)", 0),
        ("print(9, 16)", 0),
        ("def (", 0),
    ],
)
async def test_programs_that_read_and_print(sandbox: Sandbox, solution: str, passed: int) -> None:
    report = await sandbox.check(solution, "", SQUARES, None)
    assert report.count == passed and report.passed == (passed == 2), report
    assert [result.source for result in report.results] == SQUARES


async def test_a_failure_shows_both_outputs(sandbox: Sandbox) -> None:
    report = await sandbox.check("print(9)", "", SQUARES, None)
    assert report.results[1].message == "printed '9\\n', expected '16\\n'"


async def test_a_program_over_a_limit_is_not_run_again(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=0.2, wall_seconds=5.0)
    report = await sandbox.check("while True: pass", "", SQUARES, None, limits)
    assert report.status == "timeout" and report.count == 0
    assert report.results[1].message == "not run (over the time limit)"


async def test_an_output_longer_than_what_is_kept_of_others(sandbox: Sandbox) -> None:
    wanted = "\n".join(map(str, range(60_000)))
    tests = [str(IOTest("60000", wanted))]
    program = "print(*range(int(input())), sep='\\n')"
    limits = Limits(output_bytes=1000)
    assert (await sandbox.check(program, "", tests, None, limits)).passed


@pytest.mark.parametrize(
    "solution, right",
    [
        ("def f(xs, k): return [x * k for x in xs]", True),
        ("class Solution:\n    def f(self, xs, k): return tuple(x * k for x in xs)", True),
        ("def f(xs, k): return (x * k for x in xs)", False),
        ("def f(xs, k): return xs", False),
        ("class L(list):\n    def __eq__(s, o): return True\ndef f(xs, k): return L()", False),
        ("_same_value = lambda *a: True\ndef f(xs, k): return 0", False),
    ],
)
async def test_functions_with_arguments(sandbox: Sandbox, solution: str, right: bool) -> None:
    tests = [str(IOTest([[1, 2], 3], [3, 6])), str(IOTest([[0.28868], 3], [0.86604]))]
    report = await sandbox.check(solution, "", tests, "f")
    assert report.passed == right, report


async def test_arguments_without_a_function_pass_nothing(sandbox: Sandbox) -> None:
    assert not (await sandbox.check("x = 1", "", [str(IOTest([1], 1))], None)).passed
