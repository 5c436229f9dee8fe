#!/usr/bin/env python3
"""Score the responses of a file: for each data_source the mean over rows of the mean over samples.

    python scripts/score_responses.py data.path=out.parquet --reward rubric --judge gpt-oss-120b
    python scripts/score_responses.py data.path=out.parquet --reward verif --judge gpt-oss-120b
    python scripts/score_responses.py data.path=ifeval.parquet --reward constraints

The keys: data.path, data.prompt_key, data.response_key, data.data_source_key,
data.reward_model_key; and those of --config, such as judge.max_tokens=4096. A call that was cut off
goes on where it stopped. docs/instructions.md says what is counted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed

KEYS = {
    "data.prompt_key": "prompt",
    "data.response_key": "responses",
    "data.data_source_key": "source",
    "data.reward_model_key": "reward_model",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--reward", required=True, choices=("rubric", "verif", "constraints"),
        help="what a row is graded by")  # fmt: skip
    add("--judge", metavar="NAME", help="a model of the LLM file, or simulated")
    add("--calls", choices=("together", "each", "brackets"), default="together",
        help="all criteria in one call, each in its own, or VerIF's [[1]] (together)")  # fmt: skip
    add("--rules", choices=("run", "skip", "ignore"),
        help="of verif: run them, give them to the judge (VERIF_SKIP_RULES=1), or leave them out "
        "(VERIF_IGNORE_RULES=1); default: as these say, else run")  # fmt: skip
    add("--config", type=Path, default=ROOT / "config/judge_server.yaml", metavar="FILE",
        help="its judge, llm and simulated sections are the judge's")  # fmt: skip
    add("--json", type=Path, metavar="OUT", help="the record (default: beside the data)")
    add("--overwrite", action="store_true", help="start again")
    add("keys", nargs="+", metavar="key=value", help="data.path=FILE and others")
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    import uvloop
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.environments.instructions.config import rules_of_environment
    from flowright.evaluation.responses.response_options import progress_bar
    from flowright.evaluation.responses.response_reports import scores_report
    from flowright.evaluation.responses.score_responses import (
        GraderSettings,
        ResponseColumns,
        ScoreRequest,
        score_file,
    )
    from flowright.viewer.rendering.report import report_text

    console, errors = Console(), Console(stderr=True)
    try:
        given, overrides = divided(options.keys)
        data = Path(given.pop("data.path"))
        variables = os.environ if options.reward == "verif" else {}
        request = ScoreRequest(
            graders=GraderSettings(
                options.reward,
                options.judge,
                options.config,
                overrides,
                options.calls,
                options.rules or rules_of_environment(variables),
            ),
            data=data,
            out=options.json or data.with_name(f"{data.stem}.scores.json"),
            columns=ResponseColumns(**{KEYS[key]: value for key, value in given.items()}),
            overwrite=options.overwrite,
        )
        with progress_bar(errors, "graded") as progress:
            record = uvloop.run(score_file(request, progress))
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; grades are kept, the same command continues", file=sys.stderr)
        return 130
    console.print(report_text(scores_report(record)))
    console.print(f"{request.out}", markup=False, soft_wrap=True)
    return 0


def divided(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The keys of the data, and those of the judge. Raises UserError."""
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest

    ours: dict[str, str] = {}
    others: list[str] = []
    problems: list[str] = []
    for one in given:
        key, _, value = one.partition("=")
        if key.startswith("custom_reward_function"):
            problems.append(f"{key}: a reward is chosen by --reward, rubric, verif or constraints")
        elif not key.startswith("data."):
            others.append(one)
        elif key not in ("data.path", *KEYS):
            known = ["data.path", *KEYS]
            problems.append(f"{key}: no such key{suggest(key, known)} ({', '.join(known)})")
        else:
            ours[key] = value
    if not ours.get("data.path"):
        problems.append("data.path=FILE: which file is scored?")
    if problems:
        raise UserError(*problems)
    return ours, others


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
