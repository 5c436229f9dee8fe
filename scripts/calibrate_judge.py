#!/usr/bin/env python3
"""Fit how sure a judge that scores may be, on pairs that people labelled.

    python scripts/calibrate_judge.py models/my_judge --pairs held_out.jsonl

One half of the conversations fits a temperature, the other half measures it. Leaves
calibration.json beside the weights, which serving and measuring the judge read. The pairs are in
the forms of docs/training_judges.md, and none that the judge was trained on.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a run, a checkpoint, an adapter or a model")
    parser.add_argument("--pairs", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    given = parser.parse_args()

    # Imported late: --help answers at once.
    from flowright.app.launch import calibrate_judge

    return calibrate_judge(given.folder, given.pairs, given.device)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
