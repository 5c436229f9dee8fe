#!/usr/bin/env python3
"""Examine a judge on labelled answers, or make such answers of a mixture.

    python scripts/examine_judge.py --config config/judge_server.yaml --data labelled.jsonl
    python scripts/examine_judge.py --build data/mixed/val_mixed.jsonl --out labelled.jsonl

--data takes a mixture file as well. Writes exam.json, exam.html and verdicts.jsonl, and prints a
table. docs/measuring_judges.md says what is measured, and how.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

if TYPE_CHECKING:
    from rich.progress import Progress


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from flowright.core.command_line import at_least_one

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=Path, help="labelled answers, or a mixture of tasks")
    what.add_argument("--build", type=Path, metavar="MIXTURE", help="only make labelled answers")
    parser.add_argument("--config", type=Path, help="of the judge: a YAML file as for the service")
    parser.add_argument("--out", type=Path, help="folder of the exam, or file of --build")
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="questions; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    parser.add_argument("--repeats", type=at_least_one, default=3, metavar="N",
                        help="times that every answer is judged as it is (default: 3)")  # fmt: skip
    parser.add_argument("--perturbations", metavar="A,B", help="default: all; '' for none")
    parser.add_argument("--no-pairs", action="store_true", help="leave the order of two out")
    parser.add_argument("--evalbiasbench", type=Path, metavar="DIR",
                        help="ask about its pairs as well; DIR has the downloads")  # fmt: skip
    parser.add_argument("--concurrency", type=at_least_one, default=32, metavar="N",
                        help="queries at once (default: 32)")  # fmt: skip
    parser.add_argument("--price-in", type=float, metavar="X", help="per million prompt tokens")
    parser.add_argument("--price-out", type=float, metavar="X", help="... of completion tokens")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="such as judge.gate=false"
    )
    options = parser.parse_intermixed_args(arguments)
    if options.build and not options.out:
        parser.error("--build needs --out FILE")
    if options.data and not options.config:
        parser.error("--data needs --config FILE, such as config/judge_server.yaml")
    if (options.price_in is None) != (options.price_out is None):
        parser.error("--price-in and --price-out go together")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from flowright.core.errors import UserError

    errors = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=errors, transient=True)
    try:
        try:
            folder = work(options, bars, lambda line: errors.print(line, markup=False))
        finally:
            if bars.live.is_started:
                bars.stop()
        if folder is not None:
            show(folder)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; verdicts.jsonl has what was said so far, if anything was", file=sys.stderr)
        return 130
    return 0


def work(options: argparse.Namespace, bars: "Progress", say: Callable[[str], None]) -> Path | None:
    """Run the exam and return its folder; or build, and return None."""
    import uvloop

    from flowright.config.loading import load_judge_server
    from flowright.data.sources.preference_registry import read_pairs
    from flowright.judging.measuring.exam_probes import ExamPlan
    from flowright.judging.measuring.judge_exam import (
        ExamRequest,
        build_file,
        chosen_perturbations,
        run_exam,
    )

    def progress(name: str, total: int) -> Callable[[], None]:
        bars.start()  # not before there is something to show
        bar = bars.add_task(name, total=total)
        return lambda: bars.advance(bar)

    if options.build:
        built = build_file(options.build, options.out, options.limit, options.seed, progress, say)
        return uvloop.run(built)
    plan = ExamPlan(
        perturbations=chosen_perturbations(options.perturbations),
        repeats=options.repeats,
        seed=options.seed,
        concurrency=options.concurrency,
        price_in=options.price_in,
        price_out=options.price_out,
    )
    config = load_judge_server(options.config, options.overrides)
    biased = ()
    if options.evalbiasbench:
        biased = tuple(read_pairs("evalbiasbench", options.evalbiasbench))
    with_pairs = not options.no_pairs
    request = ExamRequest(
        config, options.data, plan, options.limit, with_pairs, options.out, biased
    )
    return uvloop.run(run_exam(request, progress, say))


def show(folder: Path) -> None:
    """Print the report and the paths of the files."""
    from rich.console import Console

    from flowright.judging.measuring.exam_report import exam_report, read_exam
    from flowright.viewer.rendering.report import report_text, write_report

    report = exam_report(read_exam(folder))
    page = folder / "exam.html"
    write_report(report, page)
    console = Console()
    console.print(report_text(report))
    console.print(f"{page}, exam.json and verdicts.jsonl beside it", markup=False)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
