"""Make judgements to learn from (SFT) out of labelled rows: a judge is asked about each, and a thought
is kept where its verdict is the label; or the label is the whole verdict, without a thought.

    python scripts/judge_training/make_transcripts.py data/judge/train.parquet --judge gpt-oss-120b
    python scripts/judge_training/make_transcripts.py pairs.jsonl --judge simulated --by judge --as jsonl
    python scripts/judge_training/make_transcripts.py pairs.jsonl --by label --wording short

Rows are pairwise, pointwise or Bradley-Terry ones. They are split first, by conversation: sft_train
and sft_val are written into --out, with trained_on.json. A call that was cut off goes on where it
stopped (transcripts.outcomes.jsonl). docs/training_judges.md says more.
"""  # noqa: E501

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from flowright.environments.judging.transcripts import Made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from flowright.core.command_line import at_least_one

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=Path, metavar="FILE",
                        help="labelled rows: .parquet or .jsonl")  # fmt: skip
    parser.add_argument("--judge", metavar="NAME",
                        help="who is asked: a model of llm.file, or simulated")  # fmt: skip
    parser.add_argument("--by", choices=("model", "judge", "label"), default="model",
                        help="a model that is shown the trained judge's own prompt, a judge of "
                        "the house in its words, or nobody: the label alone (default: %(default)s)",
                        )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("data/transcripts"), metavar="DIR",
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--as", dest="kept", choices=("parquet", "jsonl"), default="parquet",
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--val", type=Path, action="append", default=[], metavar="FILE",
                        help="held-out rows; repeat it (default: a share of all)")  # fmt: skip
    parser.add_argument("--val-share", type=float, default=0.05, metavar="SHARE",
                        help="of the conversations, held out (default: %(default)s)")  # fmt: skip
    parser.add_argument("--wording", default="standard", metavar="NAME",
                        help="judging.wording of the judge to be trained")  # fmt: skip
    parser.add_argument("--tries", type=at_least_one, default=4, metavar="N",
                        help="of a row, until a verdict is its label (default: 4)")  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.7, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=at_least_one, default=2048, metavar="N",
                        help="of a reply (default: %(default)s)")  # fmt: skip
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="rows of each side")
    parser.add_argument("--config", type=Path, default=ROOT / "config/judge_server.yaml",
                        help="its judge, llm and simulated sections are the judge's")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--set", dest="overrides", action="append", default=[],
                        metavar="key=value", help="of --config, such as "
                        "llm.max_concurrency=16; repeat it")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress as Bars, TimeRemainingColumn

    from flowright.core.errors import UserError

    columns = (*Bars.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            made = work(options, bars)
    except UserError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; what was tried is kept, the same command goes on", file=sys.stderr)
        return 130
    return show(made)


def work(options: argparse.Namespace, bars: "Bars") -> "Made":
    import uvloop
    from pydantic import ValidationError

    from flowright.core.errors import UserError
    from flowright.environments.judging.config import JudgingSection
    from flowright.environments.judging.transcripts import Making, make_transcripts

    given = {"method": "joint", "data": "files", "train_files": options.rows,
             "val_files": options.val, "val_share": options.val_share,
             "wording": options.wording}  # fmt: skip
    try:
        rows = JudgingSection.model_validate(given)
    except ValidationError as error:
        raise UserError(*(each["msg"] for each in error.errors())) from None

    def progress(name: str, total: int) -> Callable[[], None]:
        bar = bars.add_task(name, total=total)
        return lambda: bars.advance(bar)

    making = Making(
        rows, options.judge, options.config, options.out, options.by, options.kept,
        options.tries, options.temperature, options.max_tokens, options.seed, options.limit,
        options.overwrite, options.overrides,
    )  # fmt: skip
    return uvloop.run(make_transcripts(making, progress))


def show(made: "Made") -> int:
    """Print the counts; 1 where a server's failures have left rows without a transcript."""
    if made.simulated:
        print("SIMULATED: the embedded server judged; its thoughts teach nothing.")
    print(*made.lines, sep="\n")
    failed = 0
    for path, done in made.sides.values():
        print(f"{path}: {done}")
        failed += done.failed
    if failed:
        print("the same command asks again about rows that got no reply")
    return 1 if failed else 0


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
