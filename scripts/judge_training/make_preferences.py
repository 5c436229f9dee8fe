"""Make training files for judges out of downloaded preferences.

    python scripts/download_all_datasets.py --only preferences
    python scripts/judge_training/make_preferences.py llmbar pandalm autoj hhh

writes FORM_train and FORM_val for SFT, Bradley-Terry, pointwise and pairwise into --out, split by
prompt, with manifest.json (counts, what was left out, hashes) and trained_on.json, by which a judge
is not measured on what it was trained on. docs/datasets.md says more.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # need not be installed

if TYPE_CHECKING:
    from flowright.data.preference_files import PreferenceSplit, RowOptions

FORMS = ("sft", "bradley_terry", "pointwise", "pairwise")
_NAMED = 3  # rows of a reason that are named on the screen; manifest.json has all


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME",
                        help="llmbar, pandalm, autoj, hhh, evalbiasbench, helpsteer2")  # fmt: skip
    parser.add_argument("--from", dest="source", type=Path, default=Path("data/raw"),
                        metavar="DIR", help="the downloads (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("data/preferences"),
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--form", action="append", choices=FORMS, default=[],
                        help="repeat it (default: all four)")  # fmt: skip
    parser.add_argument("--as", dest="kept", choices=("parquet", "jsonl"), default="parquet",
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--hold-out", action="append", default=[], metavar="NAME[/SUBSET]",
                        help="not to be trained on, such as llmbar/manual; repeat it; none: "
                        "nothing (default: evalbiasbench, LLMBar but for natural)")  # fmt: skip
    parser.add_argument("--val-share", type=float, default=0.1, metavar="SHARE",
                        help="of the prompts, to validate on (default: %(default)s)")  # fmt: skip
    parser.add_argument("--grades", metavar="WORSE,BETTER",
                        help="labels, 0 to 4, of a pair's answers in the pointwise form, such "
                        "as 0,1 (default: only rated answers are in it)")  # fmt: skip
    parser.add_argument("--ties", action="store_true",
                        help="keep ties in the Bradley-Terry form, with strength 0")  # fmt: skip
    parser.add_argument("--off-topic", type=float, default=0.0, metavar="TIMES",
                        help="how often a pair to train on is there once more, against a good "
                        "answer to another question, 0 to 8 (default: 0)")  # fmt: skip
    parser.add_argument("--only-off-topic", action="store_true",
                        help="train on these alone")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    from flowright.core.errors import UserError

    try:
        making = check(options)
        split, written = make(options, making)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    show(split, written, options.out)
    return 0


def check(options: argparse.Namespace) -> "RowOptions":
    """How rows are made. Raises UserError with all that is wrong with the arguments."""
    from flowright.core.errors import UserError
    from flowright.data.preference_files import RowOptions

    problems: list[str] = []
    grades = None
    if options.grades is not None:
        parts = options.grades.split(",")
        if len(parts) == 2 and set(parts) <= set("01234"):
            grades = (int(parts[0]), int(parts[1]))
        if grades is None or grades[0] >= grades[1]:
            problems.append(
                f"--grades {options.grades}: write WORSE,BETTER, numbers from 0 to 4, such as 0,1"
            )
    if not 0 < options.val_share < 1:
        problems.append(f"--val-share {options.val_share}: above 0 and below 1")
    if not 0 <= options.off_topic <= 8:
        problems.append(f"--off-topic {options.off_topic}: from 0 to 8")
    if options.only_off_topic and not options.off_topic:
        problems.append("--only-off-topic: say how many, such as --off-topic 1")
    if "none" in options.hold_out and len(options.hold_out) > 1:
        problems.append("--hold-out none: goes with no other --hold-out")
    if problems:
        raise UserError(*problems)
    return RowOptions(grades, options.ties, options.seed)


def make(
    options: argparse.Namespace, making: "RowOptions"
) -> "tuple[PreferenceSplit, dict[str, dict[str, int]]]":
    """Write the files; the split, and by file how many rows of each source it has."""
    from flowright.core.errors import DataError
    from flowright.data.off_topic import off_topic_pairs
    from flowright.data.preference_files import (
        FORMS,
        HELD_OUT,
        rows_of,
        split_preferences,
        write_training_file,
    )

    held_out = (
        [name for name in options.hold_out if name != "none"] if options.hold_out else HELD_OUT
    )
    split = split_preferences(
        options.names,
        options.source,
        held_out=held_out,
        val_share=options.val_share,
        seed=options.seed,
    )
    off_topic = off_topic_pairs(split.train, options.off_topic, options.seed)
    train = off_topic if options.only_off_topic else (*split.train, *off_topic)
    written: dict[str, dict[str, int]] = {}
    for form in options.form or FORMS:
        # A plain answer is there already, without the other question's beside it.
        for side, rows in (("train", split.train if form == "sft" else train), ("val", split.val)):
            path = options.out / f"{form}_{side}.{options.kept}"
            made = rows_of(form, rows, making)
            written[path.name] = dict(sorted(Counter(row["source"] for row in made).items()))
            if made:
                write_training_file(path, form, made)
            else:
                path.unlink(missing_ok=True)
    if not any(written.values()):
        raise DataError("no row fits any of the forms that were asked for")
    split.trained_on.write(options.out)
    write_manifest(options, split, written)
    return split, written


def write_manifest(
    options: argparse.Namespace, split: "PreferenceSplit", written: dict[str, dict[str, int]]
) -> None:
    """What the files hold and what they were made from. No times, no local paths."""
    from flowright import __version__
    from flowright.core.files import write_json
    from flowright.data.sources.dataset import sha256_of

    facts: dict[str, Any] = {
        "flowright": __version__,
        "seed": options.seed,
        "val_share": options.val_share,
        "grades": options.grades,
        "ties": options.ties,
        "off_topic": options.off_topic,
        "only_off_topic": options.only_off_topic,
        "split_sha256": split.sha256,
        "rows": written,
        "held_out": split.held_out,
        "held_out_unread": split.unread,
        "left_out": split.left_out,
        "inputs_sha256": {path: sha256_of(options.source / path) for path in split.paths},
    }
    write_json(options.out / "manifest.json", facts)


def show(split: "PreferenceSplit", written: dict[str, dict[str, int]], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    counted = {name: _by_column(counts) for name, counts in written.items()}
    columns = sorted({column for counts in counted.values() for column in counts})
    table = Table("file", *columns, "all", title="training files")
    for name, counts in counted.items():
        numbers = [str(counts[column]) for column in columns]
        table.add_row(name if counts else f"{name}: not written", *numbers, str(counts.total()))
    Console().print(table)
    for reason, named in split.left_out.items():
        more = ", ..." if len(named) > _NAMED else ""
        print(f"left out, {reason}: {len(named)} ({', '.join(named[:_NAMED])}{more})")
    for name, count in split.held_out.items():
        print(f"held out: {name}, {count}")
    for name in split.unread:
        print(f"held out: {name}, whose files are not there: no text was compared with it")
    print(f"split by prompt, SHA-256 {split.sha256}")
    print(f"wrote {out}")


def _by_column(sources: dict[str, int]) -> "Counter[str]":
    """Rows by source, the off-topic ones of all sources together."""
    from flowright.data.off_topic import SOURCE

    counted = Counter[str]()
    for source, number in sources.items():
        counted["off topic" if source.endswith(SOURCE) else source] += number
    return counted


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
