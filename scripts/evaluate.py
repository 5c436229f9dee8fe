"""Evaluate a policy beside fixed workflows: per dataset and kind, by judge and by gold.

python scripts/evaluate.py --config config/quickstart.yaml --checkpoint RUN/checkpoints/step_000056
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        default=[],
        help="or a run, for the best of its checkpoints; may be given several times",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="a task file to measure on; the best fixed workflow is then chosen on val_dataset",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("outputs/evaluation"),
        help="a folder; the same call goes on with what it holds (default: %(default)s)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another evaluation that --out holds"
    )
    parser.add_argument(
        "--papers",
        action="store_true",
        help="also the table of AFlow's, ScoreFlow's and FlowSteer's papers with ours in it, into "
        "papers.md and papers.json of --out; of an evaluation that --out holds without asking "
        "any model",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args()

    # Imported late: --help answers at once, and a config mistake before torch is loaded.
    from flowright.app.launch import evaluate
    from flowright.environments.registry import load_config

    config = load_config(arguments.config, arguments.overrides)
    checkpoints, data, out = arguments.checkpoint, arguments.data, arguments.out
    return evaluate(config, checkpoints, data, out, arguments.overwrite, arguments.papers)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
