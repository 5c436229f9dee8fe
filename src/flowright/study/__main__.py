"""The command line of a study: ``python -m flowright.study CONFIG.yaml``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flowright.core.command_line import at_least_one, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the study, return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flowright.study",
        description="Run all arms and seeds of a study and write its report; the same command "
        "continues an interrupted one.",
    )
    add = parser.add_argument
    add("config", type=Path, help="a YAML file of config/study/")
    add("--dry-run", action="store_true", help="print the plan, write nothing")
    add("--report-only", action="store_true", help="start no run")
    add("--at-once", type=at_least_one, help="runs at once; default: the cores or GPUs")
    add("--out", type=Path, help="default: outputs/studies/NAME")
    add("--limit-runs", type=at_least_one, help="most runs to start")
    add(
        "--transfer",
        action="store_true",
        help="start no run; have the judge of every arm grade the answers of every policy",
    )
    add("--ray", action="store_true", help="runs on a Ray cluster (RAY_ADDRESS)")
    add(
        "--arm",
        action="append",
        metavar="NAME",
        help="start runs of this arm alone, such as the one whose judge is served; may be repeated",
    )
    add("--keep", type=Path, metavar="DIR", help="copy claims, tables and plots to DIR/NAME")
    options = parser.parse_args(arguments)

    from flowright.study.command import StudyRequest, run_study

    return run_study(
        StudyRequest(
            config=options.config,
            out=options.out,
            dry_run=options.dry_run,
            report_only=options.report_only,
            at_once=options.at_once,
            limit=options.limit_runs,
            transfer=options.transfer,
            ray=options.ray,
            arms=tuple(options.arm or ()),
            keep=options.keep,
        )
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
