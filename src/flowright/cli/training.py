"""Commands that train, evaluate and export a policy."""

import argparse
import os
from pathlib import Path


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config`` and the overrides behind it."""
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="PATH|NAME",
        help="a YAML file, or the name of one in config/, such as quickstart",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as grpo.steps=10")


def add_train_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="check everything, train nothing")
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster (section ray)")


def train(options: argparse.Namespace) -> int:
    """Train a policy.

    flowright train --config quickstart
    flowright train --config config/training.yaml grpo.steps=10 --dry-run
    """
    from flowright.environments.registry import load_config

    config = load_config(options.config, options.overrides)
    if config.physical_gpus is not None:  # before torch starts
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbers of nvidia-smi
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.physical_gpus))
    from flowright.app import launch

    if options.dry_run:
        return launch.dry_run(config, options.resume)
    return (launch.train_on_ray if options.ray else launch.train)(config, options.resume)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        default=[],
        help="a checkpoint, or a run for its best one; may be repeated",
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
        help="a folder; the same command resumes what it holds (default: %(default)s)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another evaluation in --out"
    )
    parser.add_argument(
        "--papers",
        action="store_true",
        help="also compare with the tables of AFlow's, ScoreFlow's and FlowSteer's papers, in "
        "papers.md and papers.json of --out; a finished evaluation is not measured again",
    )


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate a policy beside fixed workflows: per dataset and kind, by judge and by gold.

    flowright evaluate --config quickstart --checkpoint RUN/checkpoints/step_000056
    """
    from flowright.app import launch
    from flowright.environments.registry import load_config

    config = load_config(options.config, options.overrides)
    return launch.evaluate(
        config, options.checkpoint, options.data, options.out, options.overwrite, options.papers
    )


def add_warm_start_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the contents of policy.warm_start.folder"
    )


def warm_start(options: argparse.Namespace) -> int:
    """Teach a policy its task by supervised training, before GRPO.

    flowright warm-start --config smollm2
    """
    from flowright.app import launch
    from flowright.environments.registry import load_config

    return launch.warm_start(load_config(options.config, options.overrides), options.overwrite)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        help="a run (its best checkpoint, or else its newest), a checkpoint, a peft adapter, a "
        "model's folder, or verl's global_step_N",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--merge",
        action="store_const",
        dest="form",
        const="merge",
        help="merge the adapter into its base; the default, except for verl's checkpoints, whose "
        "base and adapter are written side by side",
    )
    form.add_argument(
        "--adapter",
        action="store_const",
        dest="form",
        const="adapter",
        help="the adapter alone, as peft and vLLM load it",
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="of the weights (default: the dtype in the model's config)",
    )
    parser.add_argument("--base", help="the adapter's base, if its files name another")
    parser.add_argument("--lora-alpha", type=float, help="if verl's files lack it")
    parser.add_argument(
        "--max-shard-size", dest="most_bytes", metavar="SIZE", type=_size, default=5 * 10**9,
        help="of a file (default: 5GB)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace a model in --out")
    parser.add_argument(
        "--push-to-hub", dest="hub", metavar="NAME", help="also upload it, with HF_TOKEN"
    )


def export(options: argparse.Namespace) -> int:
    """Export a trained model as a Hugging Face folder: merged, or as an adapter.

    flowright export outputs/training --out models/mine
    """
    from flowright.app import launch

    return launch.export_model(**vars(options))


def _size(text: str) -> int:
    """Bytes in 5GB, 500MB or a plain number."""
    units = {"GB": 10**9, "MB": 10**6, "KB": 10**3}
    factor = units.get(text[-2:].upper())
    number = int(text) if factor is None else int(float(text[:-2]) * factor)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 byte")
    return number
