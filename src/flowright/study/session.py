"""A study as one command: plan, claims, runs, tables, report."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flowright.core.checkout import here
from flowright.core.command_line import telling
from flowright.core.errors import ConfigError, RunError
from flowright.core.files import Lock, check_writable, disk_errors
from flowright.core.formatting import duration
from flowright.study.cells import Cell, Run, cells_of, runs_of
from flowright.study.children import Start
from flowright.study.claims import read_claims, settle_claims
from flowright.study.collect import Collected, collect, steps_of, write_tables
from flowright.study.config import StudyConfig, load_study
from flowright.study.gpu_plan import gpu_plans, print_gpu_plan
from flowright.study.journal import Journal, left_of
from flowright.study.placing import Places, open_places, planned_at_once
from flowright.study.plan import Plan, make_plan, print_plan
from flowright.study.preflight import needs_of, print_needs
from flowright.study.running import Command, Runner, held, log_path, start_of, train_command
from flowright.study.transfer import answers_of, grade_all, graders_of
from flowright.study.transfer_table import entries, write_matrix

if TYPE_CHECKING:
    from flowright.study.analysis import Analysed

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
    transfer: bool = False
    ray: bool = False
    arms: tuple[str, ...] = ()
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
    if unknown := [name for name in request.arms if name not in {c.arm for c in cells}]:
        raise ConfigError(f"--arm {unknown[0]}: {study.name} has {', '.join(_arms(cells))}")
    opened = Opened(study, cells, runs, Journal.read(out), out)
    if request.dry_run:
        read_claims(out)
        left_of(runs, opened.journal)
        at_once = planned_at_once(study, request.at_once)
        wanted = [run for run in runs if not request.arms or run.cell.arm in request.arms]
        _show_plan(opened, wanted, at_once, console, write=False)
        return print_needs(needs_of(study.base, wanted), console)
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
    reads = request.report_only or request.transfer
    if reads and not began:
        option = "--transfer" if request.transfer else "--report-only"
        raise RunError(f"{out}: no run to report on; leave out {option}")
    settle_claims(study, out, began)
    if journal.damaged:
        told = ", ".join(map(str, journal.damaged))
        console.print(f"{journal.path}: nothing can be read in line {told}; seconds and failures "
                      "that it told of are missing", markup=False, soft_wrap=True)  # fmt: skip
    failed: list[Run] = []
    missing: list[str] = []
    if request.transfer:
        missing = _transfer(opened, request, console)
    if not reads and left:
        if busy := held(left):
            raise RunError(
                f"{busy[0].folder}: still worked at by a process that an earlier command left; "
                "wait for it, or stop it"
            )
        wanted = [run for run in left if not request.arms or run.cell.arm in request.arms]
        given = request.at_once, request.command, request.start, request.ray
        with open_places(study, *given) as places:
            _show_plan(opened, wanted, places.at_once, console)
            failed = _work(opened, request, places, wanted[: request.limit], console)
    found = collect(opened.runs, journal, out)
    write_tables(found, out)
    from flowright.study.analysis import analyse
    from flowright.study.report import write_study_report

    seen = analyse(study, opened.cells, found)
    report = write_study_report(seen, journal, out)
    _conclude(opened, found, failed, report, console)
    if request.keep is not None:
        _keep(seen, out, request.keep / study.name, console)
    return 1 if failed or missing else 0


def _keep(seen: "Analysed", out: Path, folder: Path, console: Console) -> None:
    """What a repository keeps of the study."""
    from flowright.study.keeping import keep

    left_out = keep(seen, out, folder)
    lines = [f"kept      {folder}", *(f"not kept  {line}" for line in left_out)]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _transfer(opened: Opened, request: Request, console: Console) -> list[str]:
    """Grade all answers by all judges and write the matrix; lines about what is missing."""
    answers = answers_of(opened.runs)
    missing = [f"{name}: kept no answers; its version did not yet" for name in answers.without]
    graders = graders_of(opened.study.base, opened.cells, opened.runs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("answers")

        def tell(name: str, done: int, of: int) -> None:
            bars.update(bar, description=f"graded by {name}", completed=done, total=of)

        with telling(lambda: f"what was said is kept; go on: {_again(request)} --transfer"):
            missing += grade_all(graders, opened.runs, answers, opened.out, tell)
    found = entries(opened.cells, opened.runs, answers, graders)
    write_matrix(found, opened.out)
    told = sum(entry.attempts for entry in found)
    unscored, waiting = (sum(getattr(e, name) for e in found) for name in ("unscored", "waiting"))
    lines = [
        f"transfer  {len(answers.by_run)} policies x {len(graders)} judges, {told:,} gradings of "
        f"{len(answers.queries):,} different answers: {unscored:,} unscored, {waiting:,} not asked",
        *(f"missing   {line}" for line in missing),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return missing


def _again(request: Request) -> str:
    """The command that goes on."""
    again = here(f"python -m flowright.study {shlex.quote(str(request.config))}")
    again += f" --out {shlex.quote(str(request.out))}" if request.out is not None else ""
    again += "".join(f" --arm {shlex.quote(arm)}" for arm in request.arms)
    return again + (" --ray" if request.ray else "")


def _show_plan(
    opened: Opened, runs: list[Run], at_once: int, console: Console, write: bool = True
) -> None:
    """The plan of the study, and on GPUs what these of its runs take."""
    print_plan(_planned(opened, at_once, write), console, opened.out)
    if opened.study.gpus is not None:
        section = opened.study.gpus
        plans = gpu_plans(opened.study.base, section, runs)
        print_gpu_plan(plans, section, at_once, console)


def _arms(cells: list[Cell]) -> list[str]:
    return [*dict.fromkeys(cell.arm for cell in cells)]


def _planned(opened: Opened, at_once: int, write: bool) -> Plan:
    found = collect(opened.runs, opened.journal, opened.out, write=write)
    return make_plan(opened.study, opened.cells, opened.runs, opened.journal, at_once, found)


def _work(
    opened: Opened, request: Request, places: Places, left: list[Run], console: Console
) -> list[Run]:
    again = _again(request)
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
                waits = sum(seconds) / len(seconds) * remaining / places.at_once
                line += f", about {duration(waits)} left"
            bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

        runner = Runner(
            base=opened.study.base,
            out=opened.out,
            journal=opened.journal,
            at_once=places.at_once,
            command=places.command,
            start=places.start,
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
