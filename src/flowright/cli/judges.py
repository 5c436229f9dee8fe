"""Commands on judges: exam, benchmarks, calibration, scoring a file, serving over HTTP."""

import argparse
import json
import os
from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core import arguments as add
from flowright.core.command_line import on_signal, progress_bars, say, settings_of
from flowright.core.errors import UserError

if TYPE_CHECKING:
    from flowright.config.root import JudgeServerConfig
    from flowright.core.report import Report

JUDGE_FILE = Path("config/judge_server.yaml")
FIELDS = ("prompt", "completion", "answer", "answer_type", "criteria", "alternatives", "evidence",
          "rival")  # fmt: skip


def add_exam_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    add.path(what, "--data", "labelled answers, or a mixture of tasks")
    add.path(what, "--build", "only make labelled answers", "MIXTURE")
    add.path(parser, "--config", "of the judge: a YAML file as for the service")
    add.path(parser, "--out", "folder of the exam, or file of --build")
    add.count(parser, "--limit", "questions; default: all")
    add.whole(parser, "--seed", "of every draw (default: 0)", default=0)
    add.count(parser, "--repeats", "verdicts per unchanged answer (default: 3)", default=3)
    add.text(parser, "--perturbations", "default: all; '' for none", "A,B")
    parser.add_argument("--no-pairs", dest="pairs", action="store_false",
                        help="skip the test of the order of two")  # fmt: skip
    add.path(parser, "--evalbiasbench", "ask about its pairs as well; DIR has the downloads", "DIR")
    add.count(parser, "--concurrency", "queries at once (default: 32)", default=32)
    add.number(parser, "--price-in", "per million prompt tokens", "X")
    add.number(parser, "--price-out", "... of completion tokens", "X")
    add.overrides(parser, "such as judge.gate=false")


def exam(options: argparse.Namespace) -> int:
    """Examine a judge on labelled answers, or make such answers from a mixture.

    flowright judge exam --config config/judge_server.yaml --data labelled.jsonl
    flowright judge exam --build data/mixed/val_mixed.jsonl --out labelled.jsonl

    --data takes a mixture file as well. Writes exam.json, exam.html and verdicts.jsonl, and prints
    a table. docs/measuring_judges.md describes the measures.
    """
    if options.build and not options.out:
        raise UserError("--build needs --out FILE")
    if options.data and not options.config:
        raise UserError("--data needs --config FILE, such as config/judge_server.yaml")
    if (options.price_in is None) != (options.price_out is None):
        raise UserError("--price-in and --price-out go together")
    import uvloop
    from rich.console import Console

    from flowright.config.loading import load_judge_server
    from flowright.data.sources.registry import read_pairs
    from flowright.judging.measuring.exam_probes import ExamPlan
    from flowright.judging.measuring.exam_report import exam_report, read_exam
    from flowright.judging.measuring.judge_exam import (
        ExamRequest,
        build_file,
        chosen_perturbations,
        run_exam,
    )

    with progress_bars() as (bars, progress):
        show = partial(say, bars.console)
        if options.build:
            draw = (options.limit, options.seed)
            uvloop.run(build_file(options.build, options.out, *draw, progress, show))
            return 0
        options.perturbations = chosen_perturbations(options.perturbations)
        options.config = load_judge_server(options.config, options.overrides)
        folder = options.evalbiasbench
        biased = tuple(read_pairs("evalbiasbench", folder)) if folder else ()
        plan = settings_of(options, ExamPlan)
        request = settings_of(options, ExamRequest, plan=plan, biased=biased)
        folder = uvloop.run(run_exam(request, progress, show))
    _show_report(exam_report(read_exam(folder)), folder / "exam.html")
    say(Console(), f"{folder / 'exam.html'}, exam.json and verdicts.jsonl beside it")
    return 0


def _show_report(report: "Report", page: Path | None) -> None:
    """Print a report, and write it as a page."""
    from rich.console import Console

    from flowright.viewer.rendering.report import report_text, write_report

    if page is not None:
        write_report(report, page)
    Console().print(report_text(report))


def add_benchmark_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    add.text(what, "--benchmark", "llmbar, pandalm, autoj, hhh, evalbiasbench, judgebench or "
             "rewardbench2; llmbar/adversarial, rewardbench2/math,safety: subsets of one",
             "NAME[/SUBSET]")  # fmt: skip
    add.path(what, "--pairs", "pairs in LLMBar's form or ours", "FILE")
    add.path(what, "--outputs", "a judge's replies in JudgeBench's form; no judge is asked", "FILE")
    add.path(what, "--answers", "two sets of answers to the same questions", "FILE", nargs=2)
    add.text(parser, "--judge", "the judge to measure", "NAME_OR_PATH")
    add.text(parser, "--against", "a second judge on the same rows, or its record (.json)",
             "NAME_OR_PATH")  # fmt: skip
    add.path(parser, "--json", "the record (default: in outputs)", "OUT", dest="out")
    add.path(parser, "--html", "a page as well", "OUT")
    add.path(parser, "--data", "where the downloaded files are (default: data/raw)", "DIR",
             dest="folder", default=Path("data/raw"))  # fmt: skip
    add.choice(parser, "--ask", ("pairwise", "score", "pointwise"), "which answer is better, or a "
               "score or grade of each", dest="way", default="pairwise")  # fmt: skip
    add.choice(parser, "--mode", ("ranking", "ratings"), "RewardBench 2: the best of four, or a "
               "rating of each")  # fmt: skip
    add.path(parser, "--config", "its judge, llm and simulated sections are the judge's",
             default=JUDGE_FILE)  # fmt: skip
    add.count(parser, "--limit", "prompts; default: all")
    add.whole(parser, "--seed", "of every draw (default: 0)", default=0)
    add.flag(parser, "--overwrite", "start again")
    add.path(parser, "--trained-on", "a run, checkpoint or export with the judge's "
             "trained_on.json; repeat it (default: the judge's folder)", "DIR", action="append",
             default=[])  # fmt: skip
    add.flag(parser, "--allow-trained-on", "measure on its training data, and mark the result")
    add.overrides(parser, "such as judge.max_tokens=4096")


def benchmark(options: argparse.Namespace) -> int:
    """Measure a judge on a benchmark, or on pairs of your own.

    flowright judge benchmark --judge length --benchmark llmbar
    flowright judge benchmark --judge gpt-oss-120b --benchmark judgebench --json judged.json
    flowright judge benchmark --judge http://localhost:8888 --pairs pairs.jsonl --html a.html
    flowright judge benchmark --outputs outputs.jsonl
    flowright judge benchmark --judge gpt-oss-120b --answers new.json old.json
    flowright judge benchmark --judge gpt-oss-120b --against length --benchmark llmbar

    --judge is length, random, a name of the LLM file (several with commas are a panel), the address
    of a judge service, the folder of a trained judge, or a judge's YAML file. An interrupted
    command resumes. docs/measuring_judges.md describes the measures.
    """
    if (options.judge is None) != (options.outputs is not None):
        raise UserError("give --judge NAME, or --outputs FILE, which holds a judge's replies")
    import uvloop
    from rich.console import Console

    from flowright.judging.measuring.benchmark_judges import JudgeName, OpenedJudge
    from flowright.judging.measuring.benchmark_report import benchmark_report, read_record
    from flowright.judging.measuring.judge_benchmark import BenchmarkRequest, run_benchmark

    def open_folder(named: JudgeName) -> AbstractAsyncContextManager[OpenedJudge]:
        from flowright.evaluation.trained_judge import open_trained_judge  # loads torch

        return open_trained_judge(named)

    judge, against = (
        settings_of(options, JudgeName, judge=name) if name is not None else None
        for name in (options.judge, options.against)
    )
    request = settings_of(options, BenchmarkRequest, judge=judge, against=against)
    with progress_bars() as (bars, progress):
        show = partial(say, bars.console)
        out = uvloop.run(run_benchmark(request, open_folder, progress, show))
    _show_report(benchmark_report(read_record(out)), options.html)
    for path in filter(None, (out, options.html)):
        say(Console(), str(path))
    return 0


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "folder", "a run, a checkpoint, an adapter or a model")
    add.path(parser, "--pairs", metavar="FILE", nargs="+", required=True)
    add.choice(parser, "--device", ("auto", "cpu", "cuda"), default="auto")


def calibrate(options: argparse.Namespace) -> int:
    """Calibrate the confidence of a judge that scores, on pairs that people labelled.

    flowright judge calibrate models/my_judge --pairs held_out.jsonl

    One half of the conversations fits a temperature, the other half measures it. Writes
    calibration.json beside the weights, which serving and measuring the judge read. The pairs have
    the forms of docs/training_judges.md; the judge must not have been trained on them.
    """
    from rich.console import Console

    from flowright.app.launch import prepared

    console = Console()
    with prepared(console, "nothing was written"):
        from flowright.core.report import calibration_section
        from flowright.evaluation.trained_judge import calibrate_folder
        from flowright.viewer.rendering.report import section_text

        calibration, lines = calibrate_folder(options.folder, options.pairs, options.device)
        if section := calibration_section(calibration.record):
            console.print(section_text(section))
        for line in lines:
            say(console, line)
    return 0


def add_score_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "--in", "rows to judge: .jsonl, .json, .csv, .tsv or .parquet", "FILE",
             dest="source", required=True)  # fmt: skip
    add.path(parser, "--out", "where they go, judged: .jsonl or .parquet", "FILE", required=True)
    by = parser.add_mutually_exclusive_group(required=True)
    add.path(by, "--config", "a judge: a YAML file as for the service")
    add.text(by, "--url", "a judge service that runs")
    for field in FIELDS:
        names = {0: "its usual names", 1: field, 2: "none"}
        usual = names[(FIELDS.index(field) > 2) + (FIELDS.index(field) > 4)]
        add.text(parser, f"--{field.replace('_', '-')}",
                 f"the column of the {field} (default: {usual})", "COLUMN")  # fmt: skip
    add.count(parser, "--concurrency", "rows at once (default: 64)", default=64)
    add.flag(parser, "--retry-failed", "also judge again what was left without a score")
    add.overrides(parser, "of --config, such as judge.gate=false")


def score(options: argparse.Namespace) -> int:
    """Judge a file of answers (JSON Lines, JSON, CSV, TSV, Parquet) row by row.

    flowright judge score --in answers.jsonl --out judged.jsonl --config config/judge_server.yaml
    flowright judge score --in answers.parquet --out judged.parquet --url http://localhost:8888

    Every column is kept; score, correct, source, status and explanation are added, empty if there
    is no verdict. The same command resumes an interrupted one (OUT.progress). A service's key is
    read from JUDGE_MODEL_API_KEY. docs/judge_service.md has more.

    Exit status: 0 if every row has a score, 1 if some have none, 2 for a mistake in the call or the
    file, 3 if the judge is down, 130 after Ctrl-C.
    """
    import uvloop

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

    with on_signal(lambda: "the same command goes on from here"), progress_bars() as (bars, add):
        check_out(options.out)
        if options.source.resolve() == options.out.resolve():
            raise UserError("--out: is --in, which is kept as it is")
        config = _judge_of(options)
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
                advance = add(options.source.name, found.rows)
                scorer = opened.weighted(config.judge.right_from)
                return await judge_rows(options.source, found.columns, scorer, progress,
                                 options.concurrency, options.retry_failed, advance)  # fmt: skip

        path = options.out.with_name(options.out.name + ".progress")
        identity = _identity(config, found.columns)
        with disk_errors(options.out), open_progress(path, identity) as progress:
            judged = uvloop.run(judge(progress))
            counts = write_judged(options.source, options.out, found.added, judged)
    return _show_scores(counts, options.out)


def _judge_of(options: argparse.Namespace) -> "JudgeServerConfig":
    """The judge of --config, or of the service at --url."""
    from pydantic import ValidationError

    from flowright.config.loading import load_judge_server
    from flowright.config.root import JudgeServerConfig

    if options.config:
        return load_judge_server(options.config, options.overrides)
    if options.overrides:
        raise UserError(f"{options.overrides[0]}: settings go with --config")
    service = {"judge_url": options.url, "api_key": os.environ.get("JUDGE_MODEL_API_KEY")}
    try:
        return JudgeServerConfig.model_validate({"judge": {"service": service}})
    except ValidationError:
        raise UserError(f"--url {options.url}: an address such as http://localhost:8888") from None


def _identity(config: "JudgeServerConfig", columns: Any) -> dict[str, Any]:
    """Settings that decide the verdicts: a resumed file must not mix two judges."""
    from dataclasses import asdict

    from flowright.judging.build import fingerprint
    from flowright.judging.terms import terms_hash

    section = config.judge
    service = section.service.judge_url if section.service else None
    shown = section.model_dump(include={"model", "mode", "gate", "panel"}, mode="json")
    judge = {**shown, "service": service, "asked": fingerprint(section)}
    if config.reward.has_terms:
        judge["terms"] = terms_hash(config.reward)
    return {"judge": judge, "columns": asdict(columns)}


def _show_scores(counts: Counter[str], out: Path) -> int:
    """The summary; returns the exit status."""
    total = counts.total()
    scored = sum(counts[name] for name in ("right", "wrong", "tie"))
    shares = {"right": counts["right"], "wrong": counts["wrong"], "tie": counts["tie"],
              "unscored": total - scored}  # fmt: skip
    shown = [f"{name} {n} ({n / total:.1%})" for name, n in shares.items() if n or name != "tie"]
    print(f"{out}: {total} rows: {', '.join(shown)}")
    failed = {name: n for name, n in counts.items() if name not in ("right", "wrong", "tie")}
    if failed:
        why = ", ".join(f"{name} {n}" for name, n in sorted(failed.items()))
        print(f"unscored are: {why}; --retry-failed judges them again")
    return 1 if failed else 0


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "--config", "a YAML file")
    add.text(parser, "--model", "a trained judge (trained.folder)", "FOLDER")
    add.text(parser, "--base-url", "who serves it (trained.base_url)", "URL")
    add.overrides(parser, "such as server.port=0")


def serve(options: argparse.Namespace) -> int:
    """Serve a judge over HTTP.

    flowright judge serve --config config/judge_server.yaml
    flowright judge serve --model outputs/my_judge
    flowright judge serve --model models/my_judge --base-url http://localhost:8000/v1

    --model is a trained judge: a run, a checkpoint, an adapter, or an exported model. It runs in
    this process; one that writes its verdicts may be served by vLLM instead (--base-url).
    docs/judge_service.md describes the endpoints, config/judge_server.yaml the settings.
    """
    if options.config is None and options.model is None:
        raise UserError("give --config FILE, or --model FOLDER")
    if options.base_url and not options.model:
        raise UserError("--base-url goes with --model FOLDER, which has the judge's prompt")
    from flowright.config.loading import load_judge_server

    named = {"trained.folder": options.model, "trained.base_url": options.base_url}
    overrides = [f"{key}={json.dumps(value)}" for key, value in named.items() if value]
    config = load_judge_server(options.config, [*overrides, *options.overrides])
    from flowright.judging.service.serve import run

    open_trained = None
    if config.trained.folder is not None:  # loads torch
        from flowright.evaluation.trained_judge import load_trained_judge as open_trained
    return run(config, lambda line: print(line, flush=True), open_trained)
