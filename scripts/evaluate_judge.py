#!/usr/bin/env python3
"""Measure a judge on a benchmark, or on pairs of your own.

    python scripts/evaluate_judge.py --judge length --benchmark llmbar
    python scripts/evaluate_judge.py --judge gpt-oss-120b --benchmark judgebench --json judged.json
    python scripts/evaluate_judge.py --judge http://localhost:8888 --pairs pairs.jsonl --html a.html
    python scripts/evaluate_judge.py --outputs outputs.jsonl

--judge is length, random, a name of the LLM file (several with commas are a panel), the address of
a judge service, the folder of a judge that was trained, or a judge's YAML file. A call that was cut
off goes on where it stopped. docs/measuring_judges.md says what is measured, and how.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed

if TYPE_CHECKING:
    from rich.progress import Progress


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from flowright.core.command_line import at_least_one

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--benchmark", metavar="NAME[/SUBSET]", help="llmbar, pandalm, autoj, hhh, "
                      "evalbiasbench, judgebench or rewardbench2; llmbar/adversarial, hhh/honest: "
                      "a part of one")  # fmt: skip
    what.add_argument("--pairs", type=Path, metavar="FILE", help="pairs in LLMBar's form or ours")
    what.add_argument("--outputs", type=Path, metavar="FILE",
                      help="what a judge said, in JudgeBench's form: nobody is asked")  # fmt: skip
    parser.add_argument("--judge", metavar="NAME_OR_PATH", help="who is measured")
    parser.add_argument("--json", type=Path, metavar="OUT", help="the record (default: in outputs)")
    parser.add_argument("--html", type=Path, metavar="OUT", help="a page as well")
    parser.add_argument("--data", type=Path, default=Path("data/raw"), metavar="DIR",
                        help="where the downloaded files are (default: data/raw)")  # fmt: skip
    parser.add_argument("--ask", choices=("pairwise", "score", "pointwise"), default="pairwise",
                        help="which answer is better, or a score or grade of each")  # fmt: skip
    parser.add_argument("--mode", choices=("ranking", "ratings"),
                        help="RewardBench 2: the best of four, or a rating of each")  # fmt: skip
    parser.add_argument("--config", type=Path, default=ROOT / "config/judge_server.yaml",
                        help="its judge, llm and simulated sections are the judge's")  # fmt: skip
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="prompts; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--trained-on", type=Path, action="append", default=[], metavar="DIR",
                        help="a run, checkpoint or export with a trained_on.json that tells of "
                        "the judge; repeat it (default: the judge's folder)")  # fmt: skip
    parser.add_argument("--allow-trained-on", action="store_true",
                        help="measure on what it was trained on, and say so")  # fmt: skip
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="such as judge.max_tokens=4096"
    )
    options = parser.parse_intermixed_args(arguments)
    if (options.judge is None) != (options.outputs is not None):
        parser.error("--judge NAME says who is measured; --outputs FILE has a judge already")
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
            out = work(options, bars, lambda line: errors.print(line, markup=False, soft_wrap=True))
        finally:
            if bars.live.is_started:
                bars.stop()
        show(out, options.html)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; replies are kept, the same command continues", file=sys.stderr)
        return 130
    return 0


def work(options: argparse.Namespace, bars: "Progress", say: Callable[[str], None]) -> Path:
    """Measure, and return the record's path."""
    import uvloop

    from flowright.judging.measuring.benchmark_judges import JudgeName, OpenedJudge
    from flowright.judging.measuring.judge_benchmark import BenchmarkRequest, run_benchmark

    def progress(name: str, total: int) -> Callable[[], None]:
        bars.start()  # not before there is something to show
        bar = bars.add_task(name, total=total)
        return lambda: bars.advance(bar)

    def open_folder(named: JudgeName) -> "AbstractAsyncContextManager[OpenedJudge]":
        from flowright.evaluation.trained_judge import open_trained_judge  # loads torch

        return open_trained_judge(named)

    judge = None
    if options.judge is not None:
        judge = JudgeName(
            options.judge, options.config, options.overrides, options.ask, options.seed
        )
    request = BenchmarkRequest(
        judge=judge,
        benchmark=options.benchmark,
        pairs=options.pairs,
        outputs=options.outputs,
        folder=options.data,
        out=options.json,
        mode=options.mode,
        limit=options.limit,
        seed=options.seed,
        overwrite=options.overwrite,
        trained_on=options.trained_on,
        allow_trained_on=options.allow_trained_on,
    )
    return uvloop.run(run_benchmark(request, open_folder, progress, say))


def show(out: Path, html: Path | None) -> None:
    """Print the report and the paths of the files."""
    from rich.console import Console

    from flowright.judging.measuring.benchmark_report import benchmark_report, read_record
    from flowright.viewer.rendering.report import report_text, write_report

    report = benchmark_report(read_record(out))
    console = Console()
    console.print(report_text(report))
    console.print(f"{out}", markup=False, soft_wrap=True)
    if html is not None:
        write_report(report, html)
        console.print(f"{html}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
