#!/usr/bin/env python3
"""Look at rollouts in the browser: every attempt of a run, finished or running.

    python scripts/view.py                     # all runs in outputs/
    python scripts/view.py my-run              # one run, by name or directory
    python scripts/view.py outputs/study       # all runs in a folder

It serves pages on this machine alone and writes nothing but an index beside each run, which can be
deleted at any time. From another machine: ssh -L 8765:localhost:8765 HOST. docs/viewing.md shows
the pages.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run", nargs="?", help="a run directory or its name, or a folder of runs; default: all"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("outputs"), metavar="DIR",
        help="where runs are (default: outputs)",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="default: this machine alone")
    parser.add_argument("--port", type=int, default=8765, help="0 takes a free one (default: 8765)")
    parser.add_argument(
        "--export", type=Path, metavar="FOLDER",
        help="write pages into a new folder, to be opened without a server, and end",
    )  # fmt: skip
    parser.add_argument(
        "--select", default="", metavar="QUERY",
        help="with --export: which attempts, as in an address: 'outcome=wrong&sort=reward'",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=int, default=200, metavar="N",
        help="with --export: attempts of each run, with their groups (default: 200)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from flowright.viewer.run_list import find_root

    root = find_root(options.run, options.output_dir)
    if options.export is not None:
        from flowright.viewer.exports import export_pages

        pages = export_pages(root, options.export, options.select, options.most)
        print(f"{pages} pages: {options.export / 'index.html'}")
        return 0

    from flowright.viewer.server import serve

    return serve(root, options.host, options.port, lambda line: print(line, flush=True))


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
