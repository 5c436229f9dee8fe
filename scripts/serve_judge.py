#!/usr/bin/env python3
"""Serve a judge over HTTP.

    python scripts/serve_judge.py --config config/judge_server.yaml
    python scripts/serve_judge.py --model outputs/my_judge
    python scripts/serve_judge.py --model models/my_judge --base-url http://localhost:8000/v1

--model is a judge that was trained: a run, a checkpoint, an adapter, or an exported model. It is
computed in this process; one that writes its verdicts may be served by vLLM instead (--base-url).
docs/judge_service.md describes the endpoints, config/judge_server.yaml the settings.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, help="a YAML file")
    parser.add_argument("--model", metavar="FOLDER", help="a trained judge (trained.folder)")
    parser.add_argument("--base-url", metavar="URL", help="who serves it (trained.base_url)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as server.port=0")
    options = parser.parse_intermixed_args()
    if options.config is None and options.model is None:
        parser.error("give --config FILE, or --model FOLDER")
    if options.base_url and not options.model:
        parser.error("--base-url serves the weights of --model FOLDER, which determines the prompt")

    # Imported late: --help answers at once.
    from flowright.config.loading import load_judge_server
    from flowright.core.errors import UserError

    try:
        named = {"trained.folder": options.model, "trained.base_url": options.base_url}
        given = [f"{key}={json.dumps(value)}" for key, value in named.items() if value]
        config = load_judge_server(options.config, [*given, *options.overrides])
        from flowright.judging.service.serve import run

        open_trained = None
        if config.trained.folder is not None:  # loads torch
            from flowright.evaluation.trained_judge import load_trained_judge as open_trained
        return run(config, lambda line: print(line, flush=True), open_trained)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
