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
        "--checkpoint", type=Path, action="append", default=[], help="may be given several times"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="a task file to measure on; the best fixed workflow is then chosen on val_dataset",
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/evaluation"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args()
    from flowright.config import load_config
    from flowright.errors import UserError

    try:
        config = load_config(arguments.config, arguments.overrides)
        from flowright.app.launch import evaluate

        return evaluate(config, arguments.checkpoint, arguments.data, arguments.out)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
