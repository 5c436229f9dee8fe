"""Commands that make files to train on: preferences, transcripts, instructions, rubrics."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core.command_line import at_least_one, progress_bars, say, settings_of

if TYPE_CHECKING:
    from flowright.data.preference_files import PreferenceSplit, RowOptions
    from flowright.judging.rubrics.freezing import RubricRequest

PREFERENCE_FORMS = ("sft", "bradley_terry", "pointwise", "pairwise")
PROMPT_COLUMNS = ("prompt", "question", "instruction")
_NAMED = 3  # rows of a reason that are listed on the terminal; manifest.json has all


def add_preferences_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME",
                        help="llmbar, pandalm, autoj, hhh, evalbiasbench, helpsteer2")  # fmt: skip
    parser.add_argument("--from", dest="source", type=Path, default=Path("data/raw"),
                        metavar="DIR", help="the downloads (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("data/preferences"),
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--form", action="append", choices=PREFERENCE_FORMS, default=[],
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


def preferences(options: argparse.Namespace) -> int:
    """Make training files for judges out of downloaded preferences.

    flowright data download --only preferences
    flowright data preferences llmbar pandalm autoj hhh

    Writes FORM_train and FORM_val for SFT, Bradley-Terry, pointwise and pairwise training into
    --out, split by prompt, with manifest.json (counts, rows left out, hashes) and trained_on.json,
    which keeps a judge from being measured on its own training data. docs/datasets.md has more.
    """
    making = _check_preferences(options)
    split, written = _make_preferences(options, making)
    _show_preferences(split, written, options.out)
    return 0


def _check_preferences(options: argparse.Namespace) -> "RowOptions":
    """Check the arguments. Raises UserError with all mistakes."""
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


def _make_preferences(
    options: argparse.Namespace, making: "RowOptions"
) -> "tuple[PreferenceSplit, dict[str, dict[str, int]]]":
    """Write the files; the split, and by file how many rows of each source it has."""
    from flowright import __version__
    from flowright.core.errors import DataError
    from flowright.core.files import write_json
    from flowright.data.preference_files import (
        FORMS,
        HELD_OUT,
        off_topic_pairs,
        rows_of,
        split_preferences,
        write_training_file,
    )
    from flowright.data.sources.dataset import sha256_of

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
    # Counts and inputs of the files; no times, no local paths.
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
    return split, written


def _show_preferences(
    split: "PreferenceSplit", written: dict[str, dict[str, int]], out: Path
) -> None:
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
    from flowright.data.preference_files import OFF_TOPIC

    counted = Counter[str]()
    for source, number in sources.items():
        counted["off topic" if source.endswith(OFF_TOPIC) else source] += number
    return counted


def add_transcripts_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", nargs="+", type=Path, metavar="FILE",
                        help="labelled rows: .parquet or .jsonl")  # fmt: skip
    parser.add_argument("--judge", metavar="NAME",
                        help="the model to ask: a model of llm.file, or simulated")  # fmt: skip
    parser.add_argument("--by", choices=("model", "judge", "label"), default="model",
                        help="a model with the trained judge's own prompt, one of this package's "
                        "judges with its wording, or no judge: the label (default: %(default)s)",
                        )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("data/transcripts"), metavar="DIR",
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--as", dest="kept_as", choices=("parquet", "jsonl"), default="parquet",
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
    parser.add_argument("--config", type=Path, default=Path("config/judge_server.yaml"),
                        help="its judge, llm and simulated sections are the judge's")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--set", dest="overrides", action="append", default=[],
                        metavar="key=value", help="of --config, such as "
                        "llm.max_concurrency=16; repeat it")  # fmt: skip


def transcripts(options: argparse.Namespace) -> int:
    """Make judgements to learn from (SFT) out of labelled rows.

    flowright data transcripts data/judge/train.parquet --judge gpt-oss-120b
    flowright data transcripts pairs.jsonl --judge simulated --by judge --as jsonl
    flowright data transcripts pairs.jsonl --by label --wording short

    A judge is asked about each row, and its reasoning is kept if the verdict equals the label; or
    the label is the whole verdict, without reasoning. Rows are pairwise, pointwise or Bradley-Terry
    ones, and are split first, by conversation: sft_train and sft_val are written into --out, with
    trained_on.json. An interrupted command resumes (transcripts.outcomes.jsonl).
    docs/training_judges.md has more.
    """
    import uvloop
    from pydantic import ValidationError

    from flowright.core.errors import UserError
    from flowright.environments.judging.config import JudgingSection
    from flowright.environments.judging.transcripts import TranscriptRequest, make_transcripts

    given = {"method": "joint", "data": "files", "train_files": options.rows,
             "val_files": options.val, "val_share": options.val_share,
             "wording": options.wording}  # fmt: skip
    try:
        rows = JudgingSection.model_validate(given)
    except ValidationError as error:
        raise UserError(*(each["msg"] for each in error.errors())) from None
    making = settings_of(options, TranscriptRequest, rows=rows)
    with progress_bars() as (_, progress):
        made = uvloop.run(make_transcripts(making, progress))
    if made.simulated:
        print("SIMULATED: the embedded server judged; its thoughts teach nothing.")
    print(*made.lines, sep="\n")
    for path, done in made.sides.values():
        print(f"{path}: {done}")
    if any(done.failed for _, done in made.sides.values()):  # a server's failures
        print("the same command asks again about rows that got no reply")
        return 1
    return 0


def add_constraints_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--train", type=int, default=2000, help="prompts (default: 2000)")
    parser.add_argument("--val", type=int, default=300, help="prompts (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, nargs="+", default=(), metavar="FILE",
                        help="requests to hang instructions on, rows with one of "
                        f"{', '.join(PROMPT_COLUMNS)} "
                        "(default: simple ones of our own)")  # fmt: skip
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


def constraints(options: argparse.Namespace) -> int:
    """Draw prompts with instructions that a program can check, to train on.

    flowright data constraints --out data/instructions
    flowright data constraints --out DIR --data my_requests.jsonl \\
        --types ifeval,ifbench --sealed test_prompts.jsonl

    Writes train.jsonl and val.jsonl in IFEval's form (key, prompt, instruction_id_list, kwargs),
    and manifest.json. docs/instructions.md describes the drawing.
    """
    from flowright.core.errors import DataError
    from flowright.core.files import write_json, write_text
    from flowright.criteria.constraints.drawing import Drawing, chosen_types, draw
    from flowright.data.contamination import read_sealed_files, test_files

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
        _texts(options.data),
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
    for part, rows in drawn.rows.items():
        print(f"{options.out / part}.jsonl: {len(rows)} prompts")
    for text in drawn.sealed:
        print(f"left out, as a test set has it: {text}")
    return 0


def _texts(paths: Sequence[Path]) -> list[str]:
    """The prompts of files. Raises DataError."""
    from flowright.data.sources.dataset import read_table

    found: list[str] = []
    for path in paths:
        for row in read_table(path):
            name = next((name for name in PROMPT_COLUMNS if name in row), None)
            if name is None:
                raise row.error(f"no {', '.join(PROMPT_COLUMNS)} in it")
            found.append(row.text(name).strip())
    return found


def add_rubrics_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
                        help="rubric rows: .jsonl or .parquet")  # fmt: skip
    parser.add_argument("--judge", required=True, metavar="NAME",
                        help="the model that grades: a model of llm.file, or simulated",
                        )  # fmt: skip
    parser.add_argument("--writer", metavar="NAME",
                        help="the model that writes criteria (default: the judge)")  # fmt: skip
    parser.add_argument("--task", default="", metavar="TEXT",
                        help="criteria of a task: its description")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairs", type=Path, metavar="FILE",
                      help="labelled pairs, to find criteria by and to check them on")  # fmt: skip
    what.add_argument("--benchmark", metavar="NAME[/SUBSET]", help="likewise, of a benchmark")
    parser.add_argument("--each", action="store_true",
                        help="criteria of each prompt alone; pairs only check them")  # fmt: skip
    parser.add_argument("--prompts", type=Path, nargs="+", default=(), metavar="FILE",
                        help="prompts that get rows (default: those of the pairs)")  # fmt: skip
    parser.add_argument("--data", dest="folder", type=Path, default=Path("data/raw"),
                        metavar="DIR", help="the downloads (default: %(default)s)")  # fmt: skip
    parser.add_argument("--criteria", dest="most", type=at_least_one, default=6, metavar="N",
                        help="of a rubric, at most (default: 6)")  # fmt: skip
    parser.add_argument("--held-out", type=float, default=0.5, metavar="SHARE",
                        help="of the pairs, if criteria come from them (default: 0.5)")  # fmt: skip
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="prompts of the pairs")
    parser.add_argument("--require", action="store_true",
                        help="exit 1 unless labels are predicted above chance")  # fmt: skip
    parser.add_argument("--config", type=Path, default=Path("config/judge_server.yaml"),
                        help="its judge, llm and simulated sections are used")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--set", dest="overrides", action="append", default=[],
                        metavar="key=value", help="of --config; repeat it")  # fmt: skip


def rubrics(options: argparse.Namespace) -> int:
    """Make rubrics with a model, freeze them, and check that they predict labels.

    flowright data rubrics --task "Letters of a bank" --judge NAME --out rubric.jsonl
    flowright data rubrics --pairs pairs.jsonl --judge NAME --out rubric.jsonl --require
    flowright data rubrics --prompts prompts.jsonl --judge NAME --out rubrics.jsonl

    Writes rubric rows (prompt, rubrics) and a manifest, rubric.rubrics.json, with the hash of the
    criteria: changed rows are refused wherever rubrics are read. Criteria from pairs are chosen on
    one part of the pairs and checked on the other. An interrupted command resumes.
    docs/instructions.md has more.
    """
    import time

    import uvloop

    from flowright.judging.rubrics.freezing import freeze_rubrics

    began = time.monotonic()
    with progress_bars() as (bars, progress):
        request = _rubric_request(options, partial(say, bars.console))
        manifest = uvloop.run(freeze_rubrics(request, progress))
    _show_rubrics(manifest)
    print(f"{time.monotonic() - began:.0f} s; {options.out}: {manifest['rows']:,} rows, SHA-256 of "
          f"the criteria {manifest['criteria_sha256']}")  # fmt: skip
    check = manifest["check"]
    if check and check["predicts"]:
        return 0
    why = "it does not predict the labels above chance" if check else "no labels to check it with"
    print(f"WARNING: unproven rubric: {why}")
    return int(options.require)


def _rubric_request(options: argparse.Namespace, note: Callable[[str], None]) -> "RubricRequest":
    from flowright.core.errors import UserError
    from flowright.judging.measuring.judge_benchmark import BenchmarkRequest, labelled_pairs
    from flowright.judging.rubrics.freezing import RubricRequest, read_rubric_prompts

    problems: list[str] = []
    has_pairs = bool(options.pairs or options.benchmark)
    if not (options.task or has_pairs or options.prompts):
        problems.append("name --task, --pairs, --benchmark or --prompts")
    if options.task and options.each:
        problems.append("--task and --each: criteria are of the task or of each prompt")
    if options.out.suffix not in (".jsonl", ".parquet"):
        problems.append(f"--out {options.out}: .jsonl or .parquet")
    if not 0 < options.held_out < 1:
        problems.append(f"--held-out {options.held_out}: above 0 and below 1")
    if problems:
        raise UserError(*problems)
    asked = settings_of(options, BenchmarkRequest, judge=None)
    pairs = labelled_pairs(asked, note)[1] if has_pairs else ()
    decided = [pair for pair in pairs if pair.label != "tie"]
    if len(decided) < len(pairs):
        note(f"{len(pairs) - len(decided)} pairs are left out: their label is a tie")
    return settings_of(
        options,
        RubricRequest,
        basis="task" if options.task else "pairs" if has_pairs and not options.each else "problem",
        pairs=decided,
        prompts=read_rubric_prompts(options.prompts),
        writer=options.writer or options.judge,
    )


def _show_rubrics(manifest: dict[str, Any]) -> None:
    """Print the criteria, the check and the number of questions."""
    from rich.console import Console
    from rich.table import Table

    from flowright.core.formatting import percent
    from flowright.core.report import estimate_cell
    from flowright.core.untrusted import one_line

    if manifest["simulated"]:
        print("SIMULATED: the embedded server wrote or graded; its criteria teach nothing.")
    console, check = Console(), manifest["check"]
    for item in manifest.get("criteria", ()):
        print(f"{item['points']:>5g}  {one_line(item['criterion'])}")
    candidates = manifest.get("candidates")
    if candidates and not any(each["points"] for each in candidates):
        print("no criterion agrees with the training labels; these keep the writer's points")
    if check:
        table = Table("", "agreement", "rubric leads by", "undecided",
                      title=f"{check['pairs']} held-out pairs, ties count half")  # fmt: skip
        for name, found in check["figures"].items():
            cells = [estimate_cell(found.get(what), percent) for what in ("agreement", "lead")]
            shown = [f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in cells]
            table.add_row(name, *shown, str(found["undecided"]))
        console.print(table)
    counts = (f"{count:,} {stage}" for stage, count in manifest["questions"].items())
    print(f"asked: {', '.join(counts)}")
