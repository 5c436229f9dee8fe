"""Write a run's report again: ``python scripts/make_report.py [RUN]``; prints where it is."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

from flowright.core.errors import UserError
from flowright.viewer.monitoring.live import add_run_arguments, find_run
from flowright.viewer.monitoring.report import write_report


def main() -> int:
    parser = argparse.ArgumentParser(description="Write report.html for a run, finished or not.")
    add_run_arguments(parser)
    options = parser.parse_args()
    try:
        print(write_report(find_run(options.run, options.output_dir)))
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
