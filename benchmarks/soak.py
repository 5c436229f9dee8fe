"""Many executions, some of them hostile, under load: none lost, hung, misjudged or left behind.

Right solutions (references of HumanEval), wrong ones (that return their arguments) and, as a share
of ``--attacks``, the hostile ones of tests/sandbox/attacks.jsonl, in an order that is drawn; beside
them ``--hogs`` processes that compute, as training does. Every ``--report`` executions one line
says what was found and what this process and its children hold; the last line sums up.

    python benchmarks/soak.py [--executions 50000] [--in-flight 8] [--hogs 2] [--attacks 0.05]
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import uvloop
from verdicts import Case, busy, humaneval

from flowright.core.errors import FailureError
from flowright.sandbox import Limits, Sandbox

TESTS = Path(__file__).parents[1] / "tests"
USUAL = """def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(5, 7) == 12
    assert candidate(-1, 1) == 0
"""
LONGEST = 30.0
"""Seconds after which an execution counts as hung: three times what its limits allow."""


def attacks(path: Path) -> list[Case]:
    """The hostile solutions of a file; their marks stay as they are and lead nowhere."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Case(row["id"], row["code"], "", (f"{row.get('test') or USUAL}\ncheck(add)",), "add")
        for row in rows
        if row["kind"] == "solution" and not row["goal"].startswith("control")
    ]


def draw(share: float, hostile: list[Case], seed: int) -> Iterator[tuple[Case, bool]]:
    """Cases without end, and whether each has to pass."""
    rng = random.Random(seed)
    honest = humaneval()
    while True:
        if rng.random() < share:
            yield rng.choice(hostile), False
        elif rng.random() < 0.25:
            case = rng.choice(honest)
            yield replace(case, solution=f"def {case.entry}(*a, **k): return a\n"), False
        else:
            yield rng.choice(honest), True


def held() -> dict[str, int]:
    """What this process holds: MiB of memory, descriptors; and how many processes it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children, zombies = 0, 0
    below = {os.getpid()}
    for entry in sorted(int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in below:
            below.add(entry)
            children += 1
            zombies += fields[0] == "Z"
    return {
        "MiB": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "processes": children,
        "zombies": zombies,
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=50_000)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--hogs", type=int, default=2)
    parser.add_argument("--attacks", type=float, default=0.05)
    parser.add_argument("--report", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    limits = Limits(cpu_seconds=1.0, wall_seconds=10.0, memory_bytes=256 << 20)
    cases = draw(arguments.attacks, attacks(TESTS / "sandbox/attacks.jsonl"), arguments.seed)
    found: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    done = 0
    began = time.perf_counter()

    async def work(sandbox: Sandbox) -> None:
        nonlocal done
        while done < arguments.executions:
            done += 1
            number = done
            case, right = next(cases)
            start = time.perf_counter()
            try:
                report = await sandbox.check(
                    f"{case.solution}\n# {number}", case.setup, case.tests, case.entry
                )
            except FailureError:
                found["lost"] += 1
                continue
            found["executions"] += 1
            found["hung"] += time.perf_counter() - start > LONGEST
            if report.passed != right:
                found["false verdicts"] += 1
                wrong[case.name] += 1
            if number % arguments.report == 0:
                print(f"{number:>7} {time.perf_counter() - began:6.0f} s {dict(found)} {held()}")

    with busy(arguments.hogs):
        async with Sandbox(limits) as sandbox:
            print(f"isolation: {sandbox.isolation}")
            await asyncio.gather(*(work(sandbox) for _ in range(arguments.in_flight)))
            retried = sandbox.retried
    names = ("executions", "lost", "hung", "false verdicts")
    print({name: found[name] for name in names} | {"tried again": retried}, dict(wrong), held())


if __name__ == "__main__":
    uvloop.run(main())
