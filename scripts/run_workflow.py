"""Answer a question with a trained policy: it writes a workflow, and the workflow runs.

python scripts/run_workflow.py outputs/quickstart "What is 12 * 34?"
python scripts/run_workflow.py outputs/training "Who wrote Emma?" --executor gpt-oss-120b

Exit status: 0 with an answer, 1 where the policy's workflow failed, 2 where something else did.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    from flowright.core.command_line import at_least_one

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="a run (its best checkpoint, or else its newest), or a checkpoint"
    )
    parser.add_argument("question", help="or - to read it from standard input")
    parser.add_argument("--kind", choices=("math", "code", "qa"), default="qa")
    parser.add_argument(
        "--executor", metavar="NAME", help="a model of llm.file, or simulated (default: the run's)"
    )
    parser.add_argument(
        "--samples",
        type=at_least_one,
        default=1,
        help="workflows that are drawn; the first that gives an answer counts (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--temperature", type=float, help="default: that of the run's evaluations")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    parser.add_argument("--config", type=Path, help="instead of the run's config.json")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args()

    from flowright.app.launch import run_workflow

    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    named = [f"aflow_executor_model={arguments.executor}"] if arguments.executor else []
    return run_workflow(
        source=arguments.source,
        question=question,
        kind=arguments.kind,
        samples=arguments.samples,
        seed=arguments.seed,
        temperature=arguments.temperature,
        as_json=arguments.json,
        config=arguments.config,
        overrides=[*named, *arguments.overrides],
    )


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
