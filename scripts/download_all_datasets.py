"""Download the datasets: ``python scripts/download_all_datasets.py [NAME ...]``.

``--only preferences`` brings what judges are trained and measured on, ``--only instructions`` what
instruction following is. Each file is looked for on
the Hugging Face hub, at its official address and in ``--from DIR``, in this order; see
docs/datasets.md. Exit code 0: everything required is there; 1: something is missing; 2: wrong
arguments.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

if TYPE_CHECKING:
    from flowright.data.download import Download
    from flowright.data.sources import Source


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Download GSM8K, HumanEval, MBPP, MMLU, HotpotQA, CommonsenseQA, DROP and "
        "AFlow's splits, or preferences for judges, or IFEval, IFBench, HealthBench and "
        "VerInstruct, or your own. A call that was interrupted goes on where it stopped."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these, or package.module:DATASET (default: those of --only)",
    )
    parser.add_argument(
        "--only",
        choices=("tasks", "preferences", "instructions", "all"),
        help="problems for a policy, preferences for a judge, benchmarks of instruction "
        "following, or all (default: tasks)",
    )
    parser.add_argument("--out", type=Path, default=Path("data/raw"), help="default: %(default)s")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="a folder of upstream files"
    )
    parser.add_argument("--no-network", action="store_true", help="only look into --from DIR")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    from flowright.core.errors import UserError

    try:
        return download(options)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; call again to go on", file=sys.stderr)
        return 130


def download(options: argparse.Namespace) -> int:
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.data.download import Downloader, Web

    chosen = choose(options.names, options.only)
    if options.source is not None and not options.source.is_dir():
        raise UserError(f"--from {options.source}: no such folder")
    console = Console()
    downloads: list[Download] = []
    web = None if options.no_network else Web()
    downloader = Downloader(options.out, web=web, from_folder=options.source)
    for dataset in chosen:
        console.print(f"[bold]{dataset.name}[/]  licence: {dataset.licence}", soft_wrap=True)
        for download in downloader.run([dataset]):
            downloads.append(download)
            for note in download.notes:
                console.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
    return summarise(downloads, console)


def choose(names: Sequence[str], only: str | None) -> "list[Source]":
    """The datasets of these names or import paths; without names those of a group."""
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest
    from flowright.data.sources import AFLOW, DEFAULT_DATASETS, load_dataset
    from flowright.data.sources.preference_registry import INSTRUCTIONS, PREFERENCES

    if names and only:
        raise UserError(f"--only {only}: names say it already; give one or the other")
    tasks = (*DEFAULT_DATASETS, AFLOW.name)
    known = (*tasks, *PREFERENCES, *INSTRUCTIONS)
    unknown = [name for name in names if name not in known and ":" not in name]
    if unknown:
        listed = ", ".join((*known, "or your own as package.module:NAME"))
        raise UserError(*(f"{n}: no such dataset{suggest(n, known)} ({listed})" for n in unknown))
    if not names:
        groups = {
            "tasks": tasks,
            "preferences": tuple(PREFERENCES),
            "instructions": tuple(INSTRUCTIONS),
            "all": known,
        }
        names = groups[only or "tasks"]
        closed = [n for n in names if n in PREFERENCES and not PREFERENCES[n].open]
        for name in closed:
            print(f"{name}: left out, its authors state no licence; name it to measure with it")
        names = [name for name in names if name not in closed]
    found: dict[str, Source] = {AFLOW.name: AFLOW, **PREFERENCES, **INSTRUCTIONS}
    return [found.get(name) or load_dataset(name) for name in dict.fromkeys(names)]


def summarise(downloads: "list[Download]", console) -> int:
    """Print the table; the exit code."""
    from rich.table import Column, Table

    table = Table(Column("file", overflow="fold"), "from", Column("bytes", justify="right"), "")
    for download in downloads:
        absent = "missing" if download.required else "absent, not required"
        table.add_row(
            download.path,
            download.origin or absent,
            f"{download.size:,}" if download.origin else "",
            "SHA-256 differs" if download.origin and download.differs else "",
            style="red" if download.origin is None and download.required else None,
        )
    console.print(table)
    missing = [download for download in downloads if download.origin is None and download.required]
    if missing:
        console.print(
            f"{len(missing)} files are missing. Bring them in a folder with the names above and "
            "call again with --from DIR.",
            soft_wrap=True,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
