"""Commands that make files to train on: preferences, transcripts, instructions, rubrics."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core import arguments as add
from flowright.core.command_line import progress_bars, say, settings_of

if TYPE_CHECKING:
    from flowright.data.preference_files import PreferenceSplit, RowOptions
    from flowright.judging.rubrics.freezing import RubricRequest

PREFERENCE_FORMS = ("sft", "bradley_terry", "pointwise", "pairwise")
PROMPT_COLUMNS = ("prompt", "question", "instruction")
_NAMED = 3  # rows of a reason that are listed on the terminal; manifest.json has all


def add_preferences_options(parser: argparse.ArgumentParser) -> None:
    add.text(parser, "names", "llmbar, pandalm, autoj, hhh, evalbiasbench, helpsteer2", "NAME",
             nargs="+")  # fmt: skip
    add.path(parser, "--from", "the downloads (default: %(default)s)", "DIR", dest="source",
             default=Path("data/raw"))  # fmt: skip
    add.path(parser, "--out", "default: %(default)s", default=Path("data/preferences"))
    add.each(parser, "--form", "repeat it (default: all four)", choices=PREFERENCE_FORMS)
    add.choice(parser, "--as", ("parquet", "jsonl"), "default: %(default)s", dest="kept",
               default="parquet")  # fmt: skip
    add.each(parser, "--hold-out", "not to be trained on, such as llmbar/manual; repeat it; none: "
             "nothing (default: evalbiasbench, LLMBar but for natural)",
             "NAME[/SUBSET]")  # fmt: skip
    add.number(parser, "--val-share", "of the prompts, to validate on (default: %(default)s)",
               "SHARE", default=0.1)  # fmt: skip
    add.text(parser, "--grades", "labels, 0 to 4, of a pair's answers in the pointwise form, such "
             "as 0,1 (default: only rated answers are in it)", "WORSE,BETTER")  # fmt: skip
    add.flag(parser, "--ties", "keep ties in the Bradley-Terry form, with strength 0")
    add.number(parser, "--off-topic", "how often a pair to train on is there once more, against a "
               "good answer to another question, 0 to 8 (default: 0)", "TIMES",
               default=0.0)  # fmt: skip
    add.flag(parser, "--only-off-topic", "train on these alone")
    add.whole(parser, "--seed", "default: %(default)s", default=0)


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
    add.path(parser, "rows", "labelled rows: .parquet or .jsonl", "FILE", nargs="+")
    add.text(parser, "--judge", "the model to ask: a model of llm.file, or simulated", "NAME")
    add.choice(parser, "--by", ("model", "judge", "label"), "a model with the trained judge's own "
               "prompt, one of this package's judges with its wording, or no judge: the label "
               "(default: %(default)s)", default="model")  # fmt: skip
    add.path(parser, "--out", "default: %(default)s", "DIR", default=Path("data/transcripts"))
    add.choice(parser, "--as", ("parquet", "jsonl"), "default: %(default)s", dest="kept_as",
               default="parquet")  # fmt: skip
    add.path(parser, "--val", "held-out rows; repeat it (default: a share of all)", "FILE",
             action="append", default=[])  # fmt: skip
    add.number(parser, "--val-share", "of the conversations, held out (default: %(default)s)",
               "SHARE", default=0.05)  # fmt: skip
    add.text(parser, "--wording", "judging.wording of the judge to be trained", "NAME",
             default="standard")  # fmt: skip
    add.count(parser, "--tries", "of a row, until a verdict is its label (default: 4)", default=4)
    add.number(parser, "--temperature", "default: %(default)s", default=0.7)
    add.count(parser, "--max-tokens", "of a reply (default: %(default)s)", default=2048)
    add.count(parser, "--limit", "rows of each side")
    add.path(parser, "--config", "its judge, llm and simulated sections are the judge's",
             default=Path("config/judge_server.yaml"))  # fmt: skip
    add.whole(parser, "--seed", "of every draw (default: 0)", default=0)
    add.flag(parser, "--overwrite", "start again")
    add.each(parser, "--set", "of --config, such as llm.max_concurrency=16; repeat it",
             "key=value", dest="overrides")  # fmt: skip


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
    add.path(parser, "--out", metavar="DIR", required=True)
    add.whole(parser, "--train", "prompts (default: 2000)", default=2000)
    add.whole(parser, "--val", "prompts (default: 300)", default=300)
    add.whole(parser, "--seed", default=0)
    parser.add_argument("--data", type=Path, nargs="+", default=(), metavar="FILE",
                        help="requests to hang instructions on, rows with one of "
                        f"{', '.join(PROMPT_COLUMNS)} "
                        "(default: simple ones of our own)")  # fmt: skip
    add.text(parser, "--per-prompt", "instructions of a prompt (default: 1-2)", "N-N",
             default="1-2")  # fmt: skip
    add.text(parser, "--types", "ifeval, ifbench, or ids, with commas (default: ifeval)", "NAMES",
             default="ifeval")  # fmt: skip
    add.number(parser, "--easy", "how often an easy instruction is drawn for one that is not, 0 "
               "for never (default: 2)", "TIMES", default=2.0)  # fmt: skip
    add.path(parser, "--sealed", "prompts of test sets, none of which is drawn", "FILE", nargs="+",
             default=())  # fmt: skip
    add.path(parser, "--folder", "IFEval's, IFBench's and HealthBench's files are sealed where "
             "they are here (default: data/raw)", "DIR", default=Path("data/raw"))  # fmt: skip


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
    add.path(parser, "--out", "rubric rows: .jsonl or .parquet", "FILE", required=True)
    add.text(parser, "--judge", "the model that grades: a model of llm.file, or simulated", "NAME",
             required=True)  # fmt: skip
    add.text(parser, "--writer", "the model that writes criteria (default: the judge)", "NAME")
    add.text(parser, "--task", "criteria of a task: its description", "TEXT", default="")
    what = parser.add_mutually_exclusive_group()
    add.path(what, "--pairs", "labelled pairs, to find criteria by and to check them on", "FILE")
    add.text(what, "--benchmark", "likewise, of a benchmark", "NAME[/SUBSET]")
    add.flag(parser, "--each", "criteria of each prompt alone; pairs only check them")
    add.path(parser, "--prompts", "prompts that get rows (default: those of the pairs)", "FILE",
             nargs="+", default=())  # fmt: skip
    add.path(parser, "--data", "the downloads (default: %(default)s)", "DIR", dest="folder",
             default=Path("data/raw"))  # fmt: skip
    add.count(parser, "--criteria", "of a rubric, at most (default: 6)", dest="most", default=6)
    add.number(parser, "--held-out", "of the pairs, if criteria come from them (default: 0.5)",
               "SHARE", default=0.5)  # fmt: skip
    add.count(parser, "--limit", "prompts of the pairs")
    add.flag(parser, "--require", "exit 1 unless labels are predicted above chance")
    add.path(parser, "--config", "its judge, llm and simulated sections are used",
             default=Path("config/judge_server.yaml"))  # fmt: skip
    add.whole(parser, "--seed", "of every draw (default: 0)", default=0)
    add.flag(parser, "--overwrite", "start again")
    add.each(parser, "--set", "of --config; repeat it", "key=value", dest="overrides")


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
