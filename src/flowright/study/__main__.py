"""A study from its file to its report: ``python -m flowright.study CONFIG.yaml``."""

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flowright.study",
        description="Run all arms and seeds of a study and write its report; the same command goes "
        "on where it was interrupted.",
    )
    from flowright.core.command_line import at_least_one

    parser.add_argument("config", type=Path, help="a YAML file of config/study/")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--report-only", action="store_true", help="start no run")
    parser.add_argument(
        "--at-once", type=at_least_one, help="runs at once; default: the cores or GPUs"
    )
    parser.add_argument("--out", type=Path, help="default: outputs/studies/NAME")
    parser.add_argument("--limit-runs", type=at_least_one, help="start so many runs at most")
    parser.add_argument(
        "--transfer",
        action="store_true",
        help="start no run; have the judge of every arm grade the answers of every policy",
    )
    parser.add_argument("--ray", action="store_true", help="runs on a Ray cluster (RAY_ADDRESS)")
    parser.add_argument(
        "--arm",
        action="append",
        metavar="NAME",
        help="start runs of this arm alone, such as the one whose judge is served; may be repeated",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="copy claims, tables and plots to DIR/NAME"
    )
    arguments = parser.parse_args()

    from flowright.study.session import Request, run_study

    return run_study(
        Request(
            config=arguments.config,
            out=arguments.out,
            dry_run=arguments.dry_run,
            report_only=arguments.report_only,
            at_once=arguments.at_once,
            limit=arguments.limit_runs,
            transfer=arguments.transfer,
            ray=arguments.ray,
            arms=tuple(arguments.arm or ()),
            keep=arguments.keep,
        )
    )


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
