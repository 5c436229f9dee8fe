"""Warm start: teach a policy that cannot do its task yet, before GRPO does the rest.

python scripts/warm_start.py --config config/smollm2.yaml
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="as for train.py")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace what policy.warm_start.folder holds"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args()

    # Imported late: --help answers at once, and a config mistake before torch is loaded.
    from flowright.app.launch import warm_start
    from flowright.environments.registry import load_config

    return warm_start(load_config(arguments.config, arguments.overrides), arguments.overwrite)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
