"""Run a study from its plan over claims and runs to its tables and report."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flowright.core.checkout import here
from flowright.core.command_line import on_signal, say
from flowright.core.errors import ConfigError, RunError
from flowright.core.files import Lock, check_writable, disk_errors, is_held
from flowright.core.formatting import duration
from flowright.study.collect import Collected, collect, steps_of, write_tables
from flowright.study.config import load_study
from flowright.study.plan import (
    gpu_plans,
    print_gpu_plan,
    print_plan,
    print_preflight,
)
from flowright.study.runner import (
    Command,
    Placement,
    Runner,
    Start,
    default_start,
    log_path,
    open_placement,
    planned_at_once,
    train_command,
)
from flowright.study.runs import (
    LoadedStudy,
    StudyJournal,
    StudyRun,
    cells_of,
    read_claims,
    runs_of,
    settle_claims,
    unfinished,
)
from flowright.study.transfer import answers_of, grade_all, judges_of, matrix, write_matrix


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """Options of the command line. ``command`` and ``start`` replace a run's command and the way
    its process is started."""

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
    start: Callable[[StudyRun], Start] = default_start


def run_study(request: StudyRequest, console: Console | None = None) -> int:
    """Run the study; return the exit status, 1 if runs failed. Raises UserError."""
    console = console or Console()
    study = load_study(request.config)
    out = request.out or Path("outputs/studies") / study.name
    cells = cells_of(study)
    runs = runs_of(study, cells, out)
    arms = [*dict.fromkeys(cell.arm for cell in cells)]
    if unknown := [name for name in request.arms if name not in arms]:
        raise ConfigError(f"--arm {unknown[0]}: {study.name} has {', '.join(arms)}")
    loaded = LoadedStudy(study, cells, runs, StudyJournal.read(out), out)
    if request.dry_run:
        read_claims(out)
        unfinished(runs, loaded.journal)
        at_once = planned_at_once(study, request.at_once)
        wanted = [run for run in runs if not request.arms or run.cell.arm in request.arms]
        _show_plan(loaded, wanted, at_once, console, write=False)
        return print_preflight(study.base, wanted, console)
    check_writable(out)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = Lock(out, ("study", "folder", "--out"))
    try:
        lock.sign()
        return _run_locked(loaded, request, console)
    finally:
        loaded.journal.close()
        lock.release()


def _run_locked(loaded: LoadedStudy, request: StudyRequest, console: Console) -> int:
    study, out, journal = loaded.study, loaded.out, loaded.journal
    left = unfinished(loaded.runs, journal)
    began = journal.first_start is not None or any(run.folder.exists() for run in loaded.runs)
    starts_none = request.report_only or request.transfer
    if starts_none and not began:
        option = "--transfer" if request.transfer else "--report-only"
        raise RunError(f"{out}: no run to report on; leave out {option}")
    settle_claims(study, out, began)
    if journal.damaged:
        numbers = ", ".join(map(str, journal.damaged))
        line = f"{journal.path}: cannot read line {numbers}; its seconds and failures are missing"
        say(console, line)
    failed: list[StudyRun] = []
    missing: list[str] = []
    if request.transfer:
        missing = _transfer(loaded, request, console)
    if not starts_none and left:
        if held := [run for run in left if is_held(run.folder)]:
            raise RunError(
                f"{held[0].folder}: still in use by a process of an earlier command; wait for it, "
                "or stop it"
            )
        wanted = [run for run in left if not request.arms or run.cell.arm in request.arms]
        options = request.at_once, request.command, request.start, request.ray
        with open_placement(study, *options) as placement:
            _show_plan(loaded, wanted, placement.at_once, console)
            failed = _train(loaded, request, placement, wanted[: request.limit], console)
    found = collect(loaded.runs, journal, out)
    write_tables(found, out)
    from flowright.study.figures import keep
    from flowright.study.study_report import write_study_report
    from flowright.study.summary import analyse

    analysis = analyse(study, loaded.cells, found)
    report = write_study_report(analysis, journal, out)
    _conclude(loaded, found, failed, report, console)
    if request.keep is not None:
        folder = request.keep / study.name
        left_out = keep(analysis, out, folder)
        for line in (f"kept      {folder}", *(f"not kept  {line}" for line in left_out)):
            say(console, line)
    return 1 if failed or missing else 0


def _transfer(loaded: LoadedStudy, request: StudyRequest, console: Console) -> list[str]:
    """Grade all answers by all judges and write the matrix; return lines about what is missing."""
    answers = answers_of(loaded.runs)
    missing = [f"{name}: kept no answers; its version did not yet" for name in answers.without]
    judges = judges_of(loaded.study.base, loaded.cells, loaded.runs)
    with _progress(console) as bars:
        bar = bars.add_task("answers")

        def progress(name: str, done: int, of: int) -> None:
            bars.update(bar, description=f"graded by {name}", completed=done, total=of)

        with on_signal(lambda: f"verdicts are kept; go on: {_again(request)} --transfer"):
            missing += grade_all(judges, loaded.runs, answers, loaded.out, progress)
    found = matrix(loaded.cells, loaded.runs, answers, judges)
    write_matrix(found, loaded.out)
    attempts, unscored, waiting = (
        sum(getattr(entry, name) for entry in found) for name in ("attempts", "unscored", "waiting")
    )
    line = (
        f"transfer  {len(answers.by_run)} policies x {len(judges)} judges, {attempts:,} gradings "
        f"of {len(answers.queries):,} different answers: {unscored:,} unscored, {waiting:,} not "
        "asked"
    )
    for shown in (line, *(f"missing   {line}" for line in missing)):
        say(console, shown)
    return missing


def _again(request: StudyRequest) -> str:
    """Build the command that continues."""
    again = here(f"python -m flowright.study {shlex.quote(str(request.config))}")
    again += f" --out {shlex.quote(str(request.out))}" if request.out is not None else ""
    again += "".join(f" --arm {shlex.quote(arm)}" for arm in request.arms)
    return again + (" --ray" if request.ray else "")


def _show_plan(
    loaded: LoadedStudy, runs: list[StudyRun], at_once: int, console: Console, write: bool = True
) -> None:
    """Print the plan of the study, and on GPUs what these of its runs take."""
    study = loaded.study
    found = collect(loaded.runs, loaded.journal, loaded.out, write=write)
    print_plan(loaded, at_once, found, console)
    if study.gpus is not None:
        print_gpu_plan(gpu_plans(study.base, study.gpus, runs), study.gpus, at_once, console)


def _train(
    loaded: LoadedStudy,
    request: StudyRequest,
    placement: Placement,
    left: list[StudyRun],
    console: Console,
) -> list[StudyRun]:
    again = _again(request)
    with _progress(console) as bars:
        bar = bars.add_task("runs", total=len(left))
        seconds: list[float] = []

        def on_done(run: StudyRun, status: int, took: float) -> None:
            bars.advance(bar)
            if status:
                line = f"failed    {run.name}, exit status {status}: {log_path(loaded.out, run)}"
            else:
                seconds.append(took)
                steps_of(run, loaded.out)  # fills the cache for the report
                line = f"done      {run.name} in {duration(took)}"
            over = len(seconds) + len(runner.failed)
            remaining = len(left) - over
            line += f"; {over} of {len(left)}, {len(runner.failed)} failed"
            if seconds and remaining:
                waits = sum(seconds) / len(seconds) * remaining / placement.at_once
                line += f", about {duration(waits)} left"
            say(bars.console, line)

        runner = Runner(
            base=loaded.study.base,
            out=loaded.out,
            journal=loaded.journal,
            at_once=placement.at_once,
            command=placement.command,
            start=placement.start,
            on_done=on_done,
        )
        with on_signal(lambda: f"what is under way is saved; go on: {again}", runner.kill):
            runner.work(left)
    return runner.failed


def _conclude(
    loaded: LoadedStudy, found: Collected, failed: list[StudyRun], report: Path, console: Console
) -> None:
    finished = sum(row["finished"] for row in found.rows)
    lines = [f"finished  {finished} of {len(loaded.runs)} runs"]
    lines += [f"failed    {run.name}: {log_path(loaded.out, run)}" for run in failed]
    lines.append(f"results   {loaded.out / 'results.parquet'}")
    lines.append(f"report    {report}")
    if found.simulated:
        lines.append("simulated: these numbers come from the embedded server")
    say(console, "\n".join(lines))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True)
