#!/usr/bin/env python3
"""Measure how well answers follow instructions that a program can check.

    python scripts/evaluate_instructions.py --benchmark ifeval --responses answers.jsonl
    python scripts/evaluate_instructions.py --benchmark ifeval,ifbench --responses a.jsonl b.jsonl
    python scripts/evaluate_instructions.py --benchmark ifbench --data IFBench_test.jsonl \\
        --responses answers.jsonl --verdicts theirs.jsonl --json scores.json

A row of --responses has a prompt and a response. docs/instructions.md says what is measured, and
what has to be installed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", required=True, metavar="NAMES",
                        help="ifeval, ifbench, or both with a comma")  # fmt: skip
    parser.add_argument("--responses", type=Path, required=True, nargs="+", metavar="FILE",
                        help="answers that were given: rows prompt, response")  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="FILE", help="the benchmark's prompts")
    parser.add_argument("--folder", type=Path, default=Path("data/raw"), metavar="DIR",
                        help="where they are without --data (default: data/raw)")  # fmt: skip
    parser.add_argument("--verdicts", type=Path, nargs="+", default=(), metavar="FILE",
                        help="others' verdicts on these answers, to compare with")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="OUT", help="the record, with every verdict")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from rich.console import Console

    from flowright.constraints.screen import constraints_screen
    from flowright.errors import UserError

    try:
        record = work(options)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    console = Console()
    console.print(constraints_screen(record))
    if options.json is not None:
        console.print(f"{options.json}", markup=False, soft_wrap=True)
    return 0


def work(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return the record, which is written where --json says."""
    from flowright.constraints.files import read_answers
    from flowright.constraints.session import measure, open_benchmarks, write_record

    asked = open_benchmarks(options.benchmark, options.folder, options.data)
    record = measure(asked, read_answers(options.responses), options.verdicts)
    if options.json is not None:
        write_record(record, options.json)
    return record


if __name__ == "__main__":
    from flowright.command_line import run_command

    sys.exit(run_command(main, signals=False))
