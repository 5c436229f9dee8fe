#!/usr/bin/env python3
"""Serve a judge over HTTP: python scripts/serve_judge.py --config config/judge_server.yaml

docs/judge_service.md describes the endpoints, config/judge_server.yaml the settings.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as server.port=0")
    options = parser.parse_intermixed_args()

    # Imported late: --help answers at once.
    from flowright.config import load_judge_server
    from flowright.errors import UserError

    try:
        config = load_judge_server(options.config, options.overrides)
        from flowright.judge_service.serve import run

        return run(config, lambda line: print(line, flush=True))
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    from flowright.command_line import run_command

    sys.exit(run_command(main, signals=False))
