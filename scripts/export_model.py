"""Export what was trained as a Hugging Face folder: merged and whole, or as an adapter.

python scripts/export_model.py outputs/training --out models/mine
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def size(text: str) -> int:
    """A type for argparse: 5GB, 500MB or bytes."""
    units = {"GB": 10**9, "MB": 10**6, "KB": 10**3}
    factor = units.get(text[-2:].upper())
    number = int(text) if factor is None else int(float(text[:-2]) * factor)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 byte")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source",
        type=Path,
        help="a run (its best checkpoint, or else its newest), a checkpoint, a peft adapter, a "
        "model's folder, or verl's global_step_N",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder that is to be made")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--merge",
        action="store_const",
        dest="form",
        const="merge",
        help="add the adapter to its base; default but for verl's, whose base and adapter are "
        "written side by side",
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
        help="of the weights (default: what the model's config says)",
    )
    parser.add_argument("--base", help="the adapter's base, where it is not what its files name")
    parser.add_argument("--lora-alpha", type=float, help="where verl's files do not say it")
    parser.add_argument(
        "--max-shard-size", type=size, default=5 * 10**9, help="of a file (default: 5GB)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model in --out")
    parser.add_argument("--push-to-hub", metavar="NAME", help="upload it, too, with HF_TOKEN")
    given = parser.parse_args()

    # Imported late: --help answers at once.
    from flowright.app.launch import export_model

    return export_model(
        source=given.source,
        out=given.out,
        form=given.form,
        dtype=given.dtype,
        overwrite=given.overwrite,
        base=given.base,
        lora_alpha=given.lora_alpha,
        most_bytes=given.max_shard_size,
        hub=given.push_to_hub,
    )


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
