#!/usr/bin/env python3
"""Draw prompts with instructions that a program can check, to train on.

    python scripts/instructions/draw_constraints.py --out data/instructions
    python scripts/instructions/draw_constraints.py --out DIR --data my_requests.jsonl \\
        --types ifeval,ifbench --sealed test_prompts.jsonl

Writes train.jsonl and val.jsonl in IFEval's form (key, prompt, instruction_id_list, kwargs), and
manifest.json. docs/instructions.md says what is drawn.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed

if TYPE_CHECKING:
    from flowright.criteria.constraints.drawing import Drawn

COLUMNS = ("prompt", "question", "instruction")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--train", type=int, default=2000, help="prompts (default: 2000)")
    parser.add_argument("--val", type=int, default=300, help="prompts (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, nargs="+", default=(), metavar="FILE",
                        help="requests to hang instructions on, rows with one of "
                        f"{', '.join(COLUMNS)} (default: simple ones of our own)")  # fmt: skip
    parser.add_argument("--per-prompt", default="1-2", metavar="N-N",
                        help="instructions of a prompt (default: 1-2)")  # fmt: skip
    parser.add_argument("--types", default="ifeval", metavar="NAMES",
                        help="ifeval, ifbench, or ids, with commas (default: ifeval)")  # fmt: skip
    parser.add_argument("--easy", type=float, default=2.0, metavar="TIMES",
                        help="how often an easy instruction is drawn for one that is not, 0 for "
                        "never (default: 2)")  # fmt: skip
    parser.add_argument("--sealed", type=Path, nargs="+", default=(), metavar="FILE",
                        help="prompts of test sets, none of which is drawn")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=Path("data/raw"), metavar="DIR",
                        help="IFEval's, IFBench's and HealthBench's files are sealed where they "
                        "are here "
                        "(default: data/raw)")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from flowright.core.errors import UserError

    try:
        drawn = work(options)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    for part, rows in drawn.rows.items():
        print(f"{options.out / part}.jsonl: {len(rows)} prompts")
    for text in drawn.sealed:
        print(f"left out, as a test set has it: {text}")
    return 0


def work(options: argparse.Namespace) -> "Drawn":
    """Draw, and write what was drawn."""
    from flowright.core.errors import DataError
    from flowright.core.files import write_json, write_text
    from flowright.criteria.constraints.drawing import Drawing, chosen_types, draw
    from flowright.data.sealed import read_sealed_files, test_files

    fewest, _, most = options.per_prompt.partition("-")
    most = most or fewest
    if not (fewest.isdigit() and most.isdigit() and 1 <= int(fewest) <= int(most)):
        raise DataError(f"--per-prompt {options.per_prompt}: write 1, or 1-2")
    if min(options.train, options.val) < 0 or options.easy < 0:
        raise DataError("--train, --val and --easy are not below 0")
    sealed_files = [*options.sealed, *test_files(options.folder)]
    types = chosen_types(options.types)
    drawing = Drawing(types, options.easy, int(fewest), int(most), options.seed)
    drawn = draw(
        drawing,
        {"train": options.train, "val": options.val},
        texts(options.data),
        read_sealed_files(sealed_files),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    for part, rows in drawn.rows.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(options.out / f"{part}.jsonl", "".join(lines))
    manifest = {
        "seed": options.seed,
        "types": list(types),
        "easy": options.easy,
        "per_prompt": [int(fewest), int(most)],
        "data": [str(path) for path in options.data],
        "sealed": [str(path) for path in sealed_files],
        "left_out": list(drawn.sealed),
        "drawn": drawn.counts(),
    }
    write_json(options.out / "manifest.json", manifest)
    return drawn


def texts(paths: Sequence[Path]) -> list[str]:
    """The prompts of files. Raises DataError."""
    from flowright.data.sources.rows import read_table

    found: list[str] = []
    for path in paths:
        for row in read_table(path):
            name = next((name for name in COLUMNS if name in row), None)
            if name is None:
                raise row.error(f"no {', '.join(COLUMNS)} in it")
            found.append(row.text(name).strip())
    return found


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
