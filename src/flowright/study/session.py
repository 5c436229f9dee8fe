"""A study as one command: plan, claims, runs, tables, report."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flowright.checkout import here
from flowright.command_line import telling
from flowright.errors import RunError
from flowright.rendering.series import duration
from flowright.runs import Lock, check_writable, disk_errors
from flowright.study.cells import Cell, Run, cells_of, runs_of
from flowright.study.children import Start
from flowright.study.claims import read_claims, settle_claims
from flowright.study.collect import Collected, collect, steps_of, write_tables
from flowright.study.config import StudyConfig, load_study
from flowright.study.journal import Journal, left_of
from flowright.study.plan import Plan, make_plan, print_plan
from flowright.study.running import Command, Runner, held, log_path, start_of, train_command

WORDS = ("study", "folder", "--out")


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line asks for. ``command`` and ``start``: what a run is and how its process is
    started, for those who have another."""

    config: Path
    out: Path | None = None
    dry_run: bool = False
    report_only: bool = False
    at_once: int | None = None
    limit: int | None = None
    keep: Path | None = None
    command: Command = train_command
    start: Callable[[Run], Start] = start_of


@dataclass(frozen=True, slots=True)
class Opened:
    """A study and what is there of it."""

    study: StudyConfig
    cells: list[Cell]
    runs: list[Run]
    journal: Journal
    out: Path


def run_study(request: Request, console: Console | None = None) -> int:
    """All of it; the exit status: 1 where runs failed. Raises UserError for what can be mended."""
    console = console or Console()
    study = load_study(request.config)
    out = request.out or Path("outputs/studies") / study.name
    cells = cells_of(study)
    runs = runs_of(study, cells, out)
    opened = Opened(study, cells, runs, Journal.read(out), out)
    if request.dry_run:
        read_claims(out)
        left_of(runs, opened.journal)
        print_plan(_planned(opened, request), console, out)
        return 0
    check_writable(out)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = Lock(out, WORDS)
    try:
        lock.sign()
        return _locked(opened, request, console)
    finally:
        lock.release()


def _locked(opened: Opened, request: Request, console: Console) -> int:
    study, out, journal = opened.study, opened.out, opened.journal
    left = left_of(opened.runs, journal)
    began = journal.first_start is not None or any(run.folder.exists() for run in opened.runs)
    if request.report_only and not began:
        raise RunError(f"{out}: no run to report on; leave out --report-only")
    settle_claims(study, out, began)
    failed: list[Run] = []
    if not request.report_only and left:
        if busy := held(left):
            raise RunError(
                f"{busy[0].folder}: still worked at by a process that an earlier command left; "
                "wait for it, or stop it"
            )
        plan = _planned(opened, request)
        print_plan(plan, console, out)
        failed = _work(opened, request, plan.at_once, left[: request.limit], console)
    found = collect(opened.runs, journal, out)
    write_tables(found, out)
    from flowright.study.analysis import analyse
    from flowright.study.report import write_study_report

    seen = analyse(study, opened.cells, found)
    report = write_study_report(seen, journal, out)
    _conclude(opened, found, failed, report, console)
    if request.keep is not None:
        from flowright.study.keeping import keep

        folder = request.keep / study.name
        left_out = keep(seen, out, folder)
        lines = [f"kept      {folder}", *(f"not kept  {line}" for line in left_out)]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return 1 if failed else 0


def _planned(opened: Opened, request: Request) -> Plan:
    found = collect(opened.runs, opened.journal, opened.out, write=not request.dry_run)
    return make_plan(
        opened.study, opened.cells, opened.runs, opened.journal, request.at_once, found
    )


def _work(
    opened: Opened, request: Request, at_once: int, left: list[Run], console: Console
) -> list[Run]:
    again = here(f"python -m flowright.study {shlex.quote(str(request.config))}")
    if request.out is not None:
        again += f" --out {shlex.quote(str(request.out))}"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("runs", total=len(left))
        seconds: list[float] = []

        def tell(run: Run, status: int, took: float) -> None:
            bars.advance(bar)
            if status:
                line = f"failed    {run.name}, exit status {status}: {log_path(opened.out, run)}"
            else:
                seconds.append(took)
                steps_of(run, opened.out)  # read now what the report will need
                line = f"done      {run.name} in {duration(took)}"
            over = len(seconds) + len(runner.failed)
            remaining = len(left) - over
            line += f"; {over} of {len(left)}, {len(runner.failed)} failed"
            if seconds and remaining:
                waits = sum(seconds) / len(seconds) * remaining / at_once
                line += f", about {duration(waits)} left"
            bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

        runner = Runner(
            base=opened.study.base,
            out=opened.out,
            journal=opened.journal,
            at_once=at_once,
            command=request.command,
            start=request.start,
            tell=tell,
        )
        with telling(lambda: f"what is under way is saved; go on: {again}", runner.kill):
            runner.work(left)
    return runner.failed


def _conclude(
    opened: Opened, found: Collected, failed: list[Run], report: Path, console: Console
) -> None:
    finished = sum(row["finished"] for row in found.rows)
    lines = [f"finished  {finished} of {len(opened.runs)} runs"]
    lines += [f"failed    {run.name}: {log_path(opened.out, run)}" for run in failed]
    lines.append(f"results   {opened.out / 'results.parquet'}")
    lines.append(f"report    {report}")
    if found.simulated:
        lines.append("simulated: these numbers come from the embedded server")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
