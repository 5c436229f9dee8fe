#!/usr/bin/env python3
"""Judge a file of answers (JSON Lines, JSON, CSV, TSV, Parquet) row by row.

    python scripts/judge_file.py --in answers.jsonl --out judged.jsonl --config config/judge_server.yaml
    python scripts/judge_file.py --in answers.parquet --out judged.parquet --url http://localhost:8888

Every column is kept; score, correct, source, status and explanation are added, empty where there is
no verdict. Given again, the command goes on where it stopped (OUT.progress). A service's key is
read from JUDGE_MODEL_API_KEY. docs/judge_service.md says more.

Exit status: 0 every row has a score, 1 some have none, 2 a mistake in the call or the file, 3 the
judge is down, 130 stopped by Ctrl-C.
"""  # noqa: E501

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from flowright.config.root import JudgeServerConfig

FIELDS = ("prompt", "completion", "answer", "answer_type", "criteria", "alternatives", "evidence",
          "rival")  # fmt: skip


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from flowright.core.command_line import at_least_one

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--in", dest="source", type=Path, required=True, metavar="FILE",
                        help="rows to judge: .jsonl, .json, .csv, .tsv or .parquet")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
                        help="where they go, judged: .jsonl or .parquet")  # fmt: skip
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--config", type=Path, help="a judge: a YAML file as for the service")
    who.add_argument("--url", help="a judge service that runs")
    for field in FIELDS:
        names = {0: "its usual names", 1: field, 2: "none"}
        usual = names[(FIELDS.index(field) > 2) + (FIELDS.index(field) > 4)]
        parser.add_argument(f"--{field.replace('_', '-')}", metavar="COLUMN",
                            help=f"the column of the {field} (default: {usual})")  # fmt: skip
    parser.add_argument("--concurrency", type=at_least_one, default=64, metavar="N",
                        help="rows at once (default: 64)")  # fmt: skip
    parser.add_argument("--retry-failed", action="store_true",
                        help="also judge again what was left without a score")  # fmt: skip
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="of --config, such as judge.gate=false"
    )
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    # Imported late: --help answers at once.
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress as Bars, TimeRemainingColumn

    from flowright.core.command_line import on_signal

    columns = (*Bars.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with (
        on_signal(lambda: "stopping; the same command goes on from here"),
        Bars(*columns, console=Console(stderr=True), transient=True) as bars,
    ):
        counts = work(options, bars)
    return show(counts, options.out)


def work(options: argparse.Namespace, bars: "Bars") -> Counter[str]:
    """Judge, write the output, and return how many rows ended how."""
    import uvloop

    from flowright.core.errors import UserError
    from flowright.core.files import disk_errors
    from flowright.core.journal import Journal
    from flowright.judging.service.judge_file import (
        Judged,
        Key,
        check_out,
        judge_rows,
        open_progress,
        survey,
        write_judged,
    )
    from flowright.judging.service.serve import open_backend

    check_out(options.out)
    if options.source.resolve() == options.out.resolve():
        raise UserError("--out: is --in, which is kept as it is")
    config = configured(options)
    found = survey(options.source, {field: getattr(options, field) for field in FIELDS})

    async def judge(progress: Journal) -> dict[Key, Judged]:
        async with open_backend(config) as (opened, ready):
            if problems := await ready():
                raise UserError(*problems)
            if opened.simulated:
                bars.console.print("simulated: no language model judges here")
            if found.columns.answer is None:
                bars.console.print(
                    "no reference: the judge goes by the question alone; see --answer"
                )
            bar = bars.add_task(options.source.name, total=found.rows)
            advance = lambda: bars.advance(bar)  # noqa: E731
            return await judge_rows(options.source, found.columns, opened.judge, progress,
                                    options.concurrency, options.retry_failed, advance)  # fmt: skip

    with disk_errors(options.out):
        path = options.out.with_name(options.out.name + ".progress")
        with open_progress(path, asked(config, found.columns)) as progress:
            judged = uvloop.run(judge(progress))
            return write_judged(options.source, options.out, found.added, judged)


def configured(options: argparse.Namespace) -> "JudgeServerConfig":
    """The judge of --config, or of the service at --url."""
    from pydantic import ValidationError

    from flowright.config.loading import load_judge_server
    from flowright.config.root import JudgeServerConfig
    from flowright.core.errors import UserError

    if options.config:
        return load_judge_server(options.config, options.overrides)
    if options.overrides:
        raise UserError(f"{options.overrides[0]}: settings go with --config")
    service = {"judge_url": options.url, "api_key": os.environ.get("JUDGE_MODEL_API_KEY")}
    try:
        return JudgeServerConfig.model_validate({"judge": {"service": service}})
    except ValidationError:
        raise UserError(f"--url {options.url}: an address such as http://localhost:8888") from None


def asked(config: "JudgeServerConfig", columns: Any) -> dict[str, Any]:
    """What decides the verdicts: a resumed file must not have those of two judges."""
    from dataclasses import asdict

    from flowright.judging.build import fingerprint

    section = config.judge
    service = section.service.judge_url if section.service else None
    told = section.model_dump(include={"model", "mode", "gate", "panel"}, mode="json")
    judge = {**told, "service": service, "asked": fingerprint(section)}
    return {"judge": judge, "columns": asdict(columns)}


def show(counts: Counter[str], out: Path) -> int:
    """The summary; returns the exit status."""
    total = counts.total()
    scored = sum(counts[name] for name in ("right", "wrong", "tie"))
    shares = {"right": counts["right"], "wrong": counts["wrong"], "tie": counts["tie"],
              "unscored": total - scored}  # fmt: skip
    told = [f"{name} {n} ({n / total:.1%})" for name, n in shares.items() if n or name != "tie"]
    print(f"{out}: {total} rows: {', '.join(told)}")
    failed = {name: n for name, n in counts.items() if name not in ("right", "wrong", "tie")}
    if failed:
        why = ", ".join(f"{name} {n}" for name, n in sorted(failed.items()))
        print(f"unscored are: {why}; --retry-failed judges them again")
    return 1 if failed else 0


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
