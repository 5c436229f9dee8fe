#!/usr/bin/env python3
"""Measure how well answers follow instructions that a program can check.

    python scripts/evaluate_instructions.py --benchmark ifeval --responses answers.jsonl
    python scripts/evaluate_instructions.py --benchmark ifeval,ifbench --model smollm2-135m
    python scripts/evaluate_instructions.py --benchmark ifeval --server NAME --limit 20
    python scripts/evaluate_instructions.py --benchmark ifbench --data IFBench_test.jsonl \\
        --responses answers.jsonl --verdicts theirs.jsonl --json scores.json
    python scripts/evaluate_instructions.py --benchmark healthbench --data healthbench.jsonl \\
        --responses answers.jsonl --judge NAME

A row of --responses has a prompt and a response. Without it a model is asked, greedily unless told
otherwise; a call that was cut off goes on where it stopped. docs/instructions.md says what is
measured, and what has to be installed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from flowright.core.command_line import at_least_one
    from flowright.evaluation.responses.response_options import (
        add_drawing_options,
        add_model_options,
    )

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--benchmark", required=True, metavar="NAMES",
        help="ifeval, ifbench, or both with a comma; or healthbench")  # fmt: skip
    add("--responses", type=Path, nargs="+", metavar="FILE",
        help="answers that were given: rows prompt, response; no model is asked")  # fmt: skip
    add("--data", type=Path, metavar="FILE", help="the benchmark's prompts")
    add("--folder", type=Path, default=Path("data/raw"), metavar="DIR",
        help="where they are without --data (default: data/raw)")  # fmt: skip
    add("--verdicts", type=Path, nargs="+", default=(), metavar="FILE",
        help="others' verdicts on these answers, to compare with")  # fmt: skip
    add("--json", type=Path, metavar="OUT", help="the record, with every verdict")
    add("--save-responses", type=Path, metavar="FILE",
        help="a model's answers (default: outputs/instructions/MODEL.jsonl)")  # fmt: skip
    add("--limit", type=at_least_one, metavar="N", help="the first N prompts (all)")
    add("--overwrite", action="store_true", help="ask the model again for all")
    add("--judge", metavar="NAME", help="of healthbench: a model of --llm-file, or simulated")
    add_model_options(parser, ROOT / "config/aflow_llm.yaml", batch_size=64)
    add_drawing_options(parser, samples=None, temperature=0.0, top_p=1.0, top_k=-1, max_tokens=1280)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from rich.console import Console

    from flowright.core.errors import UserError

    console = Console()
    try:
        if options.benchmark == "healthbench":
            healthbench(options, console)
        else:
            instructions(options, console)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; replies are kept, the same command continues", file=sys.stderr)
        return 130
    if options.json is not None:
        console.print(f"{options.json}", markup=False, soft_wrap=True)
    return 0


def instructions(options: argparse.Namespace, console: Any) -> None:
    from flowright.criteria.constraints.checkers import read_answers
    from flowright.evaluation.responses.instruction_benchmarks import (
        open_prompts,
        score_instructions,
        write_record,
    )
    from flowright.evaluation.responses.response_reports import instructions_report
    from flowright.viewer.rendering.report import report_text

    sets = open_prompts(options.benchmark, options.folder, options.data, options.limit)
    generation: dict[str, Any] = {}
    if options.responses is not None:
        answers = read_answers(options.responses)
    else:
        answers, generation = ask(options, sets, console)
    record = score_instructions(sets, answers, options.verdicts) | {"generation": generation}
    if options.json is not None:
        write_record(record, options.json)
    console.print(report_text(instructions_report(record)))


def healthbench(options: argparse.Namespace, console: Any) -> None:
    import uvloop
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.evaluation.responses.instruction_benchmarks import score_healthbench
    from flowright.evaluation.responses.response_options import progress_bar
    from flowright.evaluation.responses.response_reports import scores_report
    from flowright.evaluation.responses.score_responses import GraderSettings
    from flowright.viewer.rendering.report import report_text

    if options.responses is None:
        raise UserError(
            "--benchmark healthbench: --responses FILE has the answers; "
            "python scripts/generate_responses.py --data-path FILE asks a model for them"
        )
    settings = GraderSettings(
        "rubric",
        options.judge,
        ROOT / "config/judge_server.yaml",
        [f"llm.file={options.llm_file}"],
        calls="each",  # as the benchmark's own program does
    )
    data = options.data or options.folder / "rubrics/healthbench_val.parquet"
    out = options.json or Path("outputs/instructions/healthbench.json")
    with progress_bar(Console(stderr=True), "healthbench") as progress:
        record = uvloop.run(
            score_healthbench(
                settings, data, options.responses, out, options.limit, options.overwrite, progress
            )
        )
    console.print(report_text(scores_report(record)))


def ask(
    options: argparse.Namespace, sets: Sequence[Any], console: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a model's answers to the benchmarks by prompt, and their settings for the record."""
    import uvloop
    from rich.console import Console

    from flowright.evaluation.responses.instruction_benchmarks import answer_benchmark
    from flowright.evaluation.responses.response_options import (
        draw_settings,
        model_name,
        progress_bar,
    )

    errors = Console(stderr=True)
    named = model_name(options, lambda line: errors.print(line, markup=False))
    settings = draw_settings(options)
    called = Path(named.model or named.server or "served").name
    path = options.save_responses or Path(f"outputs/instructions/{called}.jsonl")
    several = options.save_responses is None or len(sets) > 1
    answers: dict[str, str] = {}
    generation: dict[str, Any] = {}
    for one in sets:
        out = path.with_name(f"{path.stem}.{one.benchmark}{path.suffix}") if several else path
        with progress_bar(errors, one.benchmark) as progress:
            found = uvloop.run(
                answer_benchmark(named, settings, one, out, options.overwrite, progress)
            )
        answers |= found.answers
        generation[one.benchmark] = dict(found.about)
        for line in (*found.generated.lines(), str(out)):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return answers, generation


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
