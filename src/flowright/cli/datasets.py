"""Commands that download the datasets and mix them into task files."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core import arguments as add

if TYPE_CHECKING:
    from flowright.data.build import Mixed
    from flowright.data.download import Download
    from flowright.data.own import OwnProblem
    from flowright.data.sources.dataset import Source

SUITE_NAMES = ("flowsteer12", "aflow6")  # of data/suites.yaml, which a command line need not read
# Sizes of the official mode; AFlow's splits are taken whole, the offline mixture has its own.
OFFICIAL_SIZES = {"train": 6000, "val": 300, "test": 1500}


def add_download_options(parser: argparse.ArgumentParser) -> None:
    add.text(parser, "names", "only these, or package.module:DATASET (default: those of --only)",
             "NAME", nargs="*")  # fmt: skip
    add.choice(parser, "--only", ("tasks", "preferences", "instructions", "all"), "problems for a "
               "policy, preferences for a judge, benchmarks of instruction following, or all "
               "(default: tasks)")  # fmt: skip
    add.path(parser, "--out", "default: %(default)s", default=Path("data/raw"))
    add.path(parser, "--from", "a folder of upstream files", "DIR", dest="source")
    add.flag(parser, "--no-network", "only look into --from DIR")


def download(options: argparse.Namespace) -> int:
    """Download the datasets, for policies, judges or instruction following.

    flowright data download                       # GSM8K, HumanEval, MBPP, MMLU, HotpotQA, ...
    flowright data download gsm8k mbpp
    flowright data download --only preferences    # to train and measure judges
    flowright data download --only instructions   # IFEval, IFBench, HealthBench, VerInstruct

    Each file is looked for on the Hugging Face hub, at its official address and in --from DIR, in
    this order; an interrupted download resumes. docs/datasets.md lists the files. Exit status: 0 if
    every required file is present, 1 if one is missing, 2 for wrong arguments.
    """
    from rich.console import Console

    from flowright.core.command_line import say
    from flowright.core.errors import UserError
    from flowright.data.download import Downloader, Web

    chosen = _choose(options.names, options.only)
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
                say(console, f"  {note}")
    return _summarise(downloads, console)


def _choose(names: Sequence[str], only: str | None) -> "list[Source]":
    """The datasets of these names or import paths; without names those of a group."""
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest
    from flowright.data.sources.registry import (
        AFLOW,
        DATASETS,
        DEFAULT_DATASETS,
        INSTRUCTIONS,
        PREFERENCES,
        load_dataset,
    )

    if names and only:
        raise UserError(f"--only {only}: names say it already; give one or the other")
    tasks = (*DEFAULT_DATASETS, AFLOW.name)
    known = (*DATASETS, AFLOW.name, *PREFERENCES, *INSTRUCTIONS)
    unknown = [name for name in names if name not in known and ":" not in name]
    if unknown:
        listed = ", ".join((*known, "or your own as package.module:NAME"))
        raise UserError(*(f"{n}: no such dataset{suggest(n, known)} ({listed})" for n in unknown))
    if not names:
        groups = {
            "tasks": tasks,
            "preferences": tuple(PREFERENCES),
            "instructions": tuple(INSTRUCTIONS),
            "all": (*tasks, *PREFERENCES, *INSTRUCTIONS),
        }
        names = groups[only or "tasks"]
        closed = [n for n in names if n in PREFERENCES and not PREFERENCES[n].open]
        for name in closed:
            print(f"{name}: left out, its authors state no licence; name it to measure with it")
        names = [name for name in names if name not in closed]
    found: dict[str, Source] = {AFLOW.name: AFLOW, **PREFERENCES, **INSTRUCTIONS}
    return [found.get(name) or load_dataset(name) for name in dict.fromkeys(names)]


def _summarise(downloads: "list[Download]", console: Any) -> int:
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


def add_mix_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "--from", "folder of upstream files, as downloaded (default: %(default)s)",
             "DIR", dest="source", default=Path("data/raw"))  # fmt: skip
    mode = parser.add_mutually_exclusive_group()
    add.choice(mode, "--split", ["official", "aflow"], "default: official")
    add.flag(mode, "--offline", "what the dependencies carry")
    add.choice(mode, "--suite", SUITE_NAMES, "the problems that a paper trains and measures on")
    add.path(mode, "--own", "rows of your own: .jsonl, .json, .csv, .tsv, .parquet", "FILE",
             action="append")  # fmt: skip
    add.path(parser, "--own-val", "... to validate on (default: a tenth of --own)", "FILE",
             action="append", default=[])  # fmt: skip
    add.each(parser, "--field", "what a column of --own is, such as question=frage", "NAME=COLUMN")
    add.choice(parser, "--kind", ["math", "code", "qa"], "of all rows of --own")
    add.flag(parser, "--skip-bad", "leave out unusable rows of --own, and count them")
    add.path(parser, "--out", "default: data/mixed; of --own data/own")
    add.whole(parser, "--seed", "default: %(default)s", default=0)
    add.each(parser, "--share", "weight of a dataset, such as gsm8k=0.3, or of your own, "
             "package.module:DATASET=0.3; repeat it. Datasets that are not named are left out. "
             "Default: all kinds weigh the same", "NAME=SHARE")  # fmt: skip
    for split in ("train", "val", "test"):
        add.whole(parser, f"--{split}", f"problems in {split}", "N")


def mix(options: argparse.Namespace) -> int:
    """Convert and mix the datasets into {train,val,test}_mixed.jsonl and manifest.json.

    flowright data mix                      # official train splits only, from data/raw
    flowright data mix --split aflow        # AFlow's validation splits, tests on its test splits
    flowright data mix --suite flowsteer12  # what FlowSteer trains and measures on
    flowright data mix --offline            # from datasets the dependencies carry
    flowright data mix --own FILE           # your own questions and answers: docs/datasets.md

    docs/datasets.md has the details.
    """
    from flowright.core.errors import UserError
    from flowright.data.build import write_mixture

    _check_mix(options)
    options.out = options.out or Path("data/own" if options.own else "data/mixed")
    build = _mix_own if options.own else _mix_files
    try:
        mixed = _mix_offline(options) if options.offline else build(options)
        paths = write_mixture(mixed, options.out)
    except OSError as error:
        raise UserError(f"{error.filename or options.out}: {error.strerror or error}") from None
    _show_mixture(mixed)
    print("wrote", ", ".join(str(path) for path in paths))
    if options.own:
        train, val = (options.out / f"{split}_mixed.jsonl" for split in ("train", "val"))
        print(f"in the configuration: train_dataset={train} val_dataset={val}")
    return 0


def _sizes(options: argparse.Namespace) -> dict[str, int | None]:
    return {"train": options.train, "val": options.val, "test": options.test}


def _check_mix(options: argparse.Namespace) -> None:
    """Complain about arguments that do not go together, all at once."""
    from flowright.core.errors import UserError

    problems = [
        f"--{split} {size}: at least 1"
        for split, size in _sizes(options).items()
        if size is not None and size < 1
    ]
    if options.own and options.share:
        problems.append("--share: rows of your own are mixed with others as package.module:DATASET")
    if not options.own:
        given = {"--own-val": options.own_val, "--field": options.field, "--kind": options.kind}
        given |= {"--skip-bad": options.skip_bad}
        problems += [f"{name}: goes with --own FILE" for name, value in given.items() if value]
    if options.suite and (options.share or any(_sizes(options).values())):
        problems.append(f"--suite {options.suite}: has its own shares and sizes")
    if options.offline and options.share:
        problems.append("--share: the offline mixture has fixed shares, a third for each kind")
    if problems:
        raise UserError(*problems)


def _mix_offline(options: argparse.Namespace) -> "Mixed":
    from flowright.data.build import Mixed, facts
    from flowright.data.loading import build_offline

    splits = build_offline(options.seed, _sizes(options))
    return Mixed(splits, facts("offline", options.seed, splits))


def _mix_own(options: argparse.Namespace) -> "Mixed":
    from flowright.core.tables import raise_problems
    from flowright.data.build import Mixed, facts, hold_out
    from flowright.data.own import Conversion, OwnProblem
    from flowright.data.sources.dataset import read_table, sha256_of

    conversion = Conversion(_parse_fields(options.field), options.kind, options.skip_bad)
    own: list[OwnProblem] = []
    for path, named in [*((p, None) for p in options.own), *((p, "val") for p in options.own_val)]:
        problems = conversion.problems(read_table(path), path.name.partition(".")[0])
        own += [replace(one, split=named or one.split) for one in problems]
    for what, rows in conversion.assumed.items():
        print(f"assumed: {what} ({rows} rows)")
    own, bad = _proven(own)
    left_out = [*conversion.left_out, *bad]
    if not options.skip_bad:
        raise_problems(left_out)
    for line in left_out[:3] + [f"and {len(left_out) - 3:,} more"] * (len(left_out) > 3):
        print(f"left out: {line}")
    named = [(one.problem, one.split) for one in own]
    splits, dropped = hold_out(named, _sizes(options), options.seed)
    if dropped:
        print(f"left out: {dropped} repetitions")
    inputs = {path.name: sha256_of(path) for path in (*options.own, *options.own_val)}
    counts = {"own": dropped} if dropped else {}
    return Mixed(splits, facts("own", options.seed, splits, dropped=counts, inputs=inputs))


def _proven(own: "list[OwnProblem]") -> "tuple[list[OwnProblem], list[str]]":
    """Run the reference of each program against its tests: the problems that passed, and a line
    about each that failed. Prints notes."""
    import asyncio

    from flowright.config.policy import TinySection
    from flowright.core.command_line import progress_bars
    from flowright.core.errors import UserError
    from flowright.grading.references import ReferenceReport, check_references
    from flowright.sandbox import Sandbox

    # By number: ids of rows may repeat.
    tasks = [replace(one.problem, id=str(n)) for n, one in enumerate(own)]
    examples = {str(n) for n, one in enumerate(own) if one.has_examples}

    async def check() -> ReferenceReport:
        with progress_bars() as (_, begin):
            async with Sandbox() as sandbox:
                return await check_references(
                    tasks, sandbox, TinySection().cache_dir, begin, examples
                )

    try:
        report = asyncio.run(check()) if any(t.kind == "code" for t in tasks) else ReferenceReport()
    except UserError as error:  # a machine that cannot isolate programs
        print(f"references: not checked; {error}")
        report = ReferenceReport()
    for line in report.lines():
        print(f"references: {line}")
    borrowed = [f"{one.where}: {', '.join(found)}" for one in own if (found := _borrowed(one))]
    if borrowed:
        more = f" and {len(borrowed) - 3:,} rows more" * (len(borrowed) > 3)
        print(
            "references: tests use names of the solution beside its function, which it may give "
            f"any meaning: {'; '.join(borrowed[:3])}{more}"
        )
    kept = [
        replace(one, problem=replace(one.problem, public_tests=report.public_tests(task)))
        for one, task in zip(own, tasks, strict=True)
        if task.id not in report.failed
    ]
    return kept, [f"{own[int(id)].where}: {why}" for id, why in report.failed.items()]


def _borrowed(one: "OwnProblem") -> tuple[str, ...]:
    """Return what the tests take from a solution and the reference cannot bring."""
    from flowright.sandbox import suite_names

    task = one.problem
    names = suite_names(task.test_setup, task.tests, task.entry_point, task.reference)
    return names.borrowed(task.entry_point)


def _parse_fields(arguments: Sequence[str]) -> dict[str, str]:
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest
    from flowright.data.answers import NAMES

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


def _mix_files(options: argparse.Namespace) -> "Mixed":
    from flowright.core.checkout import here
    from flowright.core.errors import UserError
    from flowright.data.build import build_mixture

    if not options.source.is_dir():
        raise UserError(
            f"--from {options.source}: no such folder; fetch the datasets with "
            f"{here('python scripts/download_all_datasets.py')}, or use --offline"
        )
    if options.suite:
        from flowright.data.suites import build_suite

        mixed, warnings = build_suite(options.suite, options.source, options.seed)
        print(*warnings, sep="\n", end="\n" if warnings else "", file=sys.stderr)
        return mixed
    mode = options.split or "official"
    default = OFFICIAL_SIZES if mode == "official" and not options.share else {}
    sizes = {**default, **{split: n for split, n in _sizes(options).items() if n is not None}}
    shares = _parse_shares(options.share) if options.share else None
    mixed, warnings = build_mixture(options.source, mode, sizes, options.seed, shares)
    print(*warnings, sep="\n", end="\n" if warnings else "", file=sys.stderr)
    return mixed


def fetch_suite(name: str) -> Path:
    """Download what is absent of a suite, mix it, and return the file of its test problems. Raises
    UserError where nothing of it can be had."""
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.data.build import write_mixture
    from flowright.data.download import Downloader, Web
    from flowright.data.suites import SUITES, build_suite

    raw, out = Path("data/raw"), Path("data/mixed") / name
    downloads = [*Downloader(raw, web=Web()).run(SUITES[name].sources)]
    for note in (note for download in downloads for note in download.notes):
        print(note, file=sys.stderr)
    _summarise(downloads, Console(stderr=True))
    mixed, warnings = build_suite(name, raw, 0)
    print(*warnings, sep="\n", end="\n" if warnings else "", file=sys.stderr)
    if not mixed.splits.test:
        raise UserError(f"--suite {name}: none of its test problems is in {raw}")
    write_mixture(mixed, out)
    return out / "test_mixed.jsonl"


def enough_for_all(path: Path) -> int:
    """Return the problems to draw of a task file, kinds in equal shares, so that none is left."""
    from collections import Counter

    from flowright.data.task import read_tasks

    by_kind = Counter(task.kind for task in read_tasks(path))
    return len(by_kind) * max(by_kind.values())


def _parse_shares(arguments: Sequence[str]) -> dict[str, float]:
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest
    from flowright.data.sources.registry import DATASETS

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


def _show_mixture(mixed: "Mixed") -> None:
    from rich.console import Console
    from rich.table import Table

    from flowright.data.build import count
    from flowright.data.sources.dataset import SPLITS

    counts = {split: count(getattr(mixed.splits, split)) for split in SPLITS}
    rows = sorted({(kind, source) for c in counts.values() for kind in c for source in c[kind]})
    table = Table("kind", "source", *SPLITS, title=f"mixture ({mixed.facts['split']})")
    for kind, source in rows:
        numbers = [str(counts[split].get(kind, {}).get(source, 0)) for split in SPLITS]
        table.add_row(kind, source, *numbers)
    table.add_section()
    table.add_row("all", "", *(str(len(getattr(mixed.splits, split))) for split in SPLITS))
    Console().print(table)
