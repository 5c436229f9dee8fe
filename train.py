"""Train a policy that writes workflows: python train.py --config config/training.yaml"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))  # need not be installed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="a YAML file of config/")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="check everything, train nothing")
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster (section ray)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as grpo.steps=10")
    arguments = parser.parse_intermixed_args()

    # Imported late: --help answers at once, and a config mistake before torch is loaded.
    from flowright.environments.registry import load_config

    config = load_config(arguments.config, arguments.overrides)
    if config.physical_gpus is not None:  # before torch starts
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbers of nvidia-smi
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.physical_gpus))
    from flowright.app.launch import dry_run, train, train_on_ray

    if arguments.dry_run:
        return dry_run(config, arguments.resume)
    return (train_on_ray if arguments.ray else train)(config, arguments.resume)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
