"""Download the datasets: ``python scripts/download_all_datasets.py [NAME ...]``.

Each file is looked for on the Hugging Face hub, at its official address and in ``--from DIR``, in
this order; see docs/datasets.md. Exit code 0: everything required is there; 1: something is
missing; 2: wrong arguments.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowright.data.download import Outcome
    from flowright.data.sources import Dataset


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Download GSM8K, HumanEval, MBPP, MMLU, HotpotQA, CommonsenseQA, DROP and "
        "AFlow's splits. A call that was interrupted goes on where it stopped."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--out", type=Path, default=Path("data/raw"), help="default: %(default)s")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="a folder of upstream files"
    )
    parser.add_argument("--no-network", action="store_true", help="only look into --from DIR")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="of a silent server, in seconds"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    from flowright.errors import UserError

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
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from flowright.data.download import Downloader
    from flowright.data.transfer import Web

    chosen = choose(options.names)
    if options.source is not None and not options.source.is_dir():
        from flowright.errors import UserError

        raise UserError(f"--from {options.source}: no such folder")
    console = Console()
    outcomes: list[Outcome] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:

        def bar(name: str):
            task: TaskID | None = None

            def show(done: int, total: int | None) -> None:
                nonlocal task  # drawn once a server answers
                if task is None:
                    task = bars.add_task(name, total=total)
                bars.update(task, completed=done, total=total)

            return show

        web = None if options.no_network else Web(seconds=options.timeout)
        downloader = Downloader(options.out, web=web, from_folder=options.source, progress=bar)
        for dataset in chosen:
            console.print(f"[bold]{dataset.name}[/]  licence: {dataset.licence}", soft_wrap=True)
            for outcome in downloader.run([dataset]):
                outcomes.append(outcome)
                for note in outcome.notes:
                    console.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
    return summarise(outcomes, console)


def choose(names: Sequence[str]) -> "list[Dataset]":
    """The datasets of these names; all of them and AFlow's archive if there are none."""
    from flowright.data.sources import AFLOW, DATASETS, DEFAULT_DATASETS
    from flowright.errors import UserError
    from flowright.plugins import suggest

    known = {name: DATASETS[name] for name in DEFAULT_DATASETS} | {AFLOW.name: AFLOW}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            *(
                f"{n}: no such dataset{suggest(n, list(known))} ({', '.join(known)})"
                for n in unknown
            )
        )
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())


def summarise(outcomes: "list[Outcome]", console) -> int:
    """Print the table; the exit code."""
    from rich.table import Column, Table

    table = Table(Column("file", overflow="fold"), "from", Column("bytes", justify="right"), "")
    for outcome in outcomes:
        absent = "missing" if outcome.required else "absent, not required"
        table.add_row(
            outcome.path,
            outcome.origin or absent,
            f"{outcome.size:,}" if outcome.origin else "",
            "SHA-256 differs" if outcome.origin and outcome.differs else "",
            style="red" if outcome.origin is None and outcome.required else None,
        )
    console.print(table)
    missing = [outcome for outcome in outcomes if outcome.origin is None and outcome.required]
    if missing:
        console.print(
            f"{len(missing)} files are missing. Bring them in a folder with the names above and "
            "call again with --from DIR.",
            soft_wrap=True,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
