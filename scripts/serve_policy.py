"""Serve a trained policy as an OpenAI-compatible endpoint: it answers by writing and running a
workflow.

python scripts/serve_policy.py outputs/quickstart
python scripts/serve_policy.py outputs/training --executor gpt-oss-120b --samples 4 --port 8010

Where FLOWRIGHT_POLICY_KEY is set, callers have to send it as a bearer key. docs/serving.md says
what a request may hold and what comes back.
"""

import argparse
import os
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
    parser.add_argument("--host", default="127.0.0.1", help="default: this machine alone")
    parser.add_argument("--port", type=int, default=8010, help="0 for any free one")
    parser.add_argument("--name", help="of the model (default: the run's)")
    parser.add_argument(
        "--executor", metavar="NAME", help="a model of llm.file, or simulated (default: the run's)"
    )
    parser.add_argument("--kind", choices=("math", "code", "qa"), default="qa")
    parser.add_argument(
        "--samples", type=at_least_one, help="workflows drawn for each question (default: 1)"
    )
    parser.add_argument(
        "--in-flight", type=at_least_one, help="questions that are answered at once (default: 64)"
    )
    parser.add_argument("--queue", type=int, help="that wait for their turn (default: 256)")
    parser.add_argument("--seconds", type=float, help="of one answer (default: 600)")
    parser.add_argument("--max-body", type=at_least_one, help="bytes of a request (default: 1 MiB)")
    parser.add_argument("--config", type=Path, help="instead of the run's config.json")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args()

    from flowright.app.launch import serve_policy

    named = [f"aflow_executor_model={arguments.executor}"] if arguments.executor else []
    return serve_policy(
        source=arguments.source,
        config=arguments.config,
        overrides=[*named, *arguments.overrides],
        host=arguments.host,
        port=arguments.port,
        name=arguments.name,
        kind=arguments.kind,
        samples=arguments.samples,
        max_in_flight=arguments.in_flight,
        max_queue=arguments.queue,
        seconds=arguments.seconds,
        max_body_bytes=arguments.max_body,
        api_key=os.environ.get("FLOWRIGHT_POLICY_KEY"),
    )


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
