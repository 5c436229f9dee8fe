"""What it costs to run VerIF's rule functions in the sandbox, and what they say.

Every rule of a file is called once, with its row's instruction and one response: a plain text, or
the one given. Wall time; what a worker takes to start is not in it.

    python benchmarks/verif_rules.py FILE.parquet [--response TEXT_FILE] [--workers 2]
"""

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path

import uvloop

from flowright.criteria.rubrics.checkers import PLAIN_RESPONSE, RuleResult, run_rule
from flowright.criteria.rubrics.rows import read_verif
from flowright.sandbox import Sandbox


async def measure(path: Path, response: str, workers: int) -> None:
    found = read_verif([path])
    print(*found.report.lines(), sep="\n")
    rules = [(row, c) for row in found.rows for c in row.constraints if c.kind == "rule"]
    async with Sandbox(workers=workers) as sandbox:
        began = time.monotonic()
        results: list[RuleResult] = await asyncio.gather(
            *(run_rule(c.function, row.instruction, response, sandbox) for row, c in rules)
        )
        seconds = time.monotonic() - began
    said = Counter(result.followed for result in results)
    each = 1000 * seconds / len(rules)
    print(f"{len(rules)} rules in {seconds:.1f} s with {workers} workers, {each:.0f} ms each")
    print(f"followed {said[True]}, not followed {said[False]}, said nothing {said[None]}")
    for (row, constraint), result in zip(rules, results, strict=True):
        if result.fault or result.failure:
            print(f"{row.id}: {constraint.text[:60]!r}: {result.fault or result.failure}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What VerIF's rule functions cost and say.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--response", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    response = given.response.read_text(encoding="utf-8") if given.response else PLAIN_RESPONSE
    uvloop.run(measure(given.file, response, given.workers))


if __name__ == "__main__":
    main()
