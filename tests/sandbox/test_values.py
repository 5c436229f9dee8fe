"""What tests see of a solution: values that cross, changed arguments, names of the reference."""

import asyncio
import json
from pathlib import Path

from flowright.sandbox import Sandbox, suite_names

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("solutions.jsonl").read_text().splitlines()
]


async def test_solutions_beside_their_reference(sandbox: Sandbox) -> None:
    reports = await asyncio.gather(*(
        sandbox.check(
            row.get("solution", row["reference"]), "", [row["test"]], row["entry"],
            reference=row["reference"],
        )
        for row in ROWS
    ))  # fmt: skip
    pairs = zip(ROWS, reports, strict=True)
    wrong = [
        (row, report.results[0].message) for row, report in pairs if report.passed != row["right"]
    ]
    assert wrong == []


def test_names_of_the_reference_are_the_tests_own() -> None:
    reference = (
        "import numpy as np\nfrom math import floor\nTABLE = [f(1)]\nK = 2\nG = f\n"
        "ok = lambda x: f(x)\ndef helper(x): return f(x)\ndef f(x): return K\n"
        "class Node: pass\nclass P:\n    def __eq__(self, o): return True\nclass Q(P): pass\n"
    )
    tests = ("assert [np, floor, TABLE, K, G, ok, helper, f, Node, P, Q, other]",)
    names = suite_names("", tests, "f", reference)
    assert names.own == ("K", "P", "Q", "floor", "helper", "np", "ok")
    assert names.shared == ("P", "Q") and names.classes == ("Node",)
    assert names.borrowed("f") == ("G", "Node", "TABLE", "other")
    assert suite_names("", tests, None, reference).own == ("floor", "np")
    assert suite_names("", tests, "f", "def (").own == ()


async def test_without_a_reference_names_are_the_solution_s(sandbox: Sandbox) -> None:
    solution, test = "K = 3\ndef f(): return K", "assert f() == K"
    assert (await sandbox.check(solution, "", [test], "f")).passed
    for broken in ("K = 1 / 0", "def (", "import no_such_module as K"):
        assert (await sandbox.check(solution, "", [test], "f", reference=broken)).passed
