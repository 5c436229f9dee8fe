"""Convert and mix the datasets into ``{train,val,test}_mixed.jsonl`` and ``manifest.json``.

``--split official`` trains on official train splits only, ``--split aflow`` on AFlow's validation
splits and tests on its test splits; ``--offline`` needs no files: docs/datasets.md. ``--own FILE``
makes the same files of questions and answers of your own: docs/datasets.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

if TYPE_CHECKING:
    from flowright.data.build import Mixed

# Of the official mode; AFlow's splits are taken whole, the offline mixture has its own.
OFFICIAL_SIZES = {"train": 6000, "val": 300, "test": 1500}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert and mix the datasets.")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        default=Path("data/raw"),
        metavar="DIR",
        help="folder of upstream files, as downloaded (default: %(default)s)",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--split", choices=["official", "aflow"], help="default: official")
    mode.add_argument("--offline", action="store_true", help="what the dependencies carry")
    mode.add_argument("--own", type=Path, action="append", metavar="FILE",
                      help="rows of your own: .jsonl, .json, .csv, .tsv, .parquet")  # fmt: skip
    parser.add_argument("--own-val", type=Path, action="append", default=[], metavar="FILE",
                        help="... to validate on (default: a tenth of --own)")  # fmt: skip
    parser.add_argument("--field", action="append", default=[], metavar="NAME=COLUMN",
                        help="what a column of --own is, such as question=frage")  # fmt: skip
    parser.add_argument("--kind", choices=["math", "code", "qa"], help="of all rows of --own")
    parser.add_argument("--out", type=Path, help="default: data/mixed; of --own data/own")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="NAME=SHARE",
        help="weight of a dataset, such as gsm8k=0.3, or of your own, package.module:DATASET=0.3; "
        "repeat it. Datasets that are not named are left out. Default: all kinds weigh the same",
    )
    for split in ("train", "val", "test"):
        parser.add_argument(f"--{split}", type=int, metavar="N", help=f"problems in {split}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    from flowright.core.errors import UserError

    try:
        check(options)
        options.out = options.out or Path("data/own" if options.own else "data/mixed")
        build = build_from_own if options.own else build_from_files
        mixed = build_offline_mixture(options) if options.offline else build(options)
        from flowright.data.build import write_mixture

        paths = write_mixture(mixed, options.out)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{error.filename or options.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    show(mixed)
    print("wrote", ", ".join(str(path) for path in paths))
    if options.own:
        train, val = (options.out / f"{split}_mixed.jsonl" for split in ("train", "val"))
        print(f"in the configuration: train_dataset={train} val_dataset={val}")
    return 0


def check(options: argparse.Namespace) -> None:
    """Complain about arguments that do not go together, all at once."""
    from flowright.core.errors import UserError

    problems = [
        f"--{split} {size}: at least 1"
        for split in ("train", "val", "test")
        if (size := getattr(options, split)) is not None and size < 1
    ]
    if options.own and options.share:
        problems.append("--share: rows of your own are mixed with others as package.module:DATASET")
    if not options.own:
        given = {"--own-val": options.own_val, "--field": options.field, "--kind": options.kind}
        problems += [f"{name}: goes with --own FILE" for name, value in given.items() if value]
    if options.offline and options.share:
        problems.append("--share: the offline mixture has fixed shares, a third for each kind")
    if problems:
        raise UserError(*problems)


def build_offline_mixture(options: argparse.Namespace) -> "Mixed":
    from flowright.data.build import Mixed, Sizes, facts
    from flowright.data.offline import build_offline

    splits = build_offline(options.seed, Sizes(options.train, options.val, options.test))
    return Mixed(splits, facts("offline", options.seed, splits))


def build_from_own(options: argparse.Namespace) -> "Mixed":
    from flowright.data.build import Mixed, facts, hold_out
    from flowright.data.own import Conversion
    from flowright.data.sources.dataset import sha256_of
    from flowright.data.sources.rows import read_table

    conversion = Conversion(parse_fields(options.field), options.kind)
    made = []
    for path, named in [*((p, None) for p in options.own), *((p, "val") for p in options.own_val)]:
        problems = conversion.problems(read_table(path), path.name.partition(".")[0])
        made += [(problem, named or split) for problem, split in problems]
    sizes = {"train": options.train, "val": options.val, "test": options.test}
    splits, dropped = hold_out(made, sizes, options.seed)
    for what, rows in conversion.assumed.items():
        print(f"assumed: {what} ({rows} rows)")
    if dropped:
        print(f"left out: {dropped} repetitions")
    inputs = {path.name: sha256_of(path) for path in (*options.own, *options.own_val)}
    counts = {"own": dropped} if dropped else {}
    return Mixed(splits, facts("own", options.seed, splits, dropped=counts, inputs=inputs))


def parse_fields(arguments: Sequence[str]) -> dict[str, str]:
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest
    from flowright.data.own import NAMES

    pairs = [argument.partition("=") for argument in arguments]
    problems = [
        f"--field {''.join(pair)}: write NAME=COLUMN; NAME is one of {', '.join(NAMES)}"
        f"{suggest(pair[0], list(NAMES))}"
        for pair in pairs
        if pair[0] not in NAMES or not pair[2]
    ]
    if problems:
        raise UserError(*problems)
    return {name: column for name, _, column in pairs}


def build_from_files(options: argparse.Namespace) -> "Mixed":
    from flowright.core.checkout import here
    from flowright.core.errors import UserError
    from flowright.data.build import Sizes, build_mixture

    if not options.source.is_dir():
        raise UserError(
            f"--from {options.source}: no such folder; fetch the datasets with "
            f"{here('python scripts/download_all_datasets.py')}, or use --offline"
        )
    mode = options.split or "official"
    default = OFFICIAL_SIZES if mode == "official" and not options.share else {}
    sizes = [
        size if (size := getattr(options, split)) is not None else default.get(split)
        for split in ("train", "val", "test")
    ]
    shares = parse_shares(options.share) if options.share else None
    mixed, warnings = build_mixture(options.source, mode, Sizes(*sizes), options.seed, shares)
    print(*warnings, sep="\n", end="\n" if warnings else "", file=sys.stderr)
    return mixed


def parse_shares(arguments: Sequence[str]) -> dict[str, float]:
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest
    from flowright.data.sources import DATASETS

    shares: dict[str, float] = {}
    problems: list[str] = []
    for argument in arguments:
        name, _, text = argument.partition("=")
        try:
            shares[name] = float(text)
        except ValueError:
            problems.append(f"--share {argument}: write NAME=NUMBER, such as gsm8k=0.3")
            continue
        if name not in DATASETS and ":" not in name:
            problems.append(f"--share {argument}: no such dataset{suggest(name, list(DATASETS))}")
        elif not 0 < shares[name] < float("inf"):
            problems.append(f"--share {argument}: a share is above 0")
    if problems:
        raise UserError(*problems)
    return shares


def show(mixed: "Mixed") -> None:
    from rich.console import Console
    from rich.table import Table

    from flowright.data.build import count
    from flowright.data.sources import SPLITS

    counts = {split: count(getattr(mixed.splits, split)) for split in SPLITS}
    rows = sorted({(kind, source) for c in counts.values() for kind in c for source in c[kind]})
    table = Table("kind", "source", *SPLITS, title=f"mixture ({mixed.facts['split']})")
    for kind, source in rows:
        numbers = [str(counts[split].get(kind, {}).get(source, 0)) for split in SPLITS]
        table.add_row(kind, source, *numbers)
    table.add_section()
    table.add_row("all", "", *(str(len(getattr(mixed.splits, split))) for split in SPLITS))
    Console().print(table)


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
