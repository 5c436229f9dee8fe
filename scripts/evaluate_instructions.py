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
    from flowright.evaluation.responses.options import add_drawing_options, add_model_options

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
        print("stopped; what a model said is kept, the same command goes on", file=sys.stderr)
        return 130
    if options.json is not None:
        console.print(f"{options.json}", markup=False, soft_wrap=True)
    return 0


def instructions(options: argparse.Namespace, console: Any) -> None:
    from flowright.criteria.constraints.checkers import read_answers
    from flowright.criteria.constraints.screen import constraints_screen
    from flowright.criteria.constraints.session import measure, open_benchmarks, write_record
    from flowright.evaluation.responses.benchmarks import first_prompts

    asked = open_benchmarks(options.benchmark, options.folder, options.data)
    if options.limit is not None:
        asked = first_prompts(asked, options.limit)
    generation: dict[str, Any] = {}
    if options.responses is not None:
        answers = read_answers(options.responses)
    else:
        answers, generation = ask(options, asked, console)
    record = measure(asked, answers, options.verdicts) | {"generation": generation}
    if options.json is not None:
        write_record(record, options.json)
    console.print(constraints_screen(record))


def healthbench(options: argparse.Namespace, console: Any) -> None:
    import uvloop
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.evaluation.responses.bars import progress_bar
    from flowright.evaluation.responses.healthbench import score_healthbench
    from flowright.evaluation.responses.score_session import Judged
    from flowright.evaluation.responses.screen import scores_screen

    if options.responses is None:
        raise UserError(
            "--benchmark healthbench: --responses FILE has the answers; "
            "python scripts/generate_responses.py --data-path FILE asks a model for them"
        )
    judged = Judged(
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
                judged, data, options.responses, out, options.limit, options.overwrite, progress
            )
        )
    console.print(scores_screen(record))


def ask(
    options: argparse.Namespace, asked: Sequence[Any], console: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """A model's answers to the benchmarks, by prompt, and how they came about."""
    import uvloop
    from rich.console import Console

    from flowright.evaluation.responses.bars import progress_bar
    from flowright.evaluation.responses.benchmarks import answer_benchmark, responses_file
    from flowright.evaluation.responses.options import drawing_of, named_of

    errors = Console(stderr=True)
    named = named_of(options, lambda line: errors.print(line, markup=False))
    drawing = drawing_of(options)
    called = Path(named.model or named.server or "served").name
    path = options.save_responses or Path(f"outputs/instructions/{called}.jsonl")
    several = options.save_responses is None or len(asked) > 1
    answers: dict[str, str] = {}
    generation: dict[str, Any] = {}
    for one in asked:
        out = responses_file(path, one.benchmark, several)
        with progress_bar(errors, one.benchmark) as progress:
            told = uvloop.run(
                answer_benchmark(named, drawing, one, out, options.overwrite, progress)
            )
        answers |= told.answers
        generation[one.benchmark] = dict(told.told)
        for line in (*told.generated.lines(), str(out)):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return answers, generation


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
