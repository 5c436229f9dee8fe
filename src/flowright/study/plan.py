"""A study's plan before anything is started: what is missing, what it takes, what it can find."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from flowright.config.llm import SIMULATED
from flowright.config.root import Config
from flowright.config.run import PlanServerSection
from flowright.core.errors import ConfigError, UserError
from flowright.core.formatting import amount, duration
from flowright.environments.registry import load_config
from flowright.study.arm_comparison import claim_values, least_effect, least_p
from flowright.study.cells import StudyCell, StudyRun
from flowright.study.collect import Collected
from flowright.study.config import ClaimSection, GpuSection, StudyConfig
from flowright.study.study_records import StudyJournal, is_finished

JUDGE_SERVICE = "judge_service"
"""Name in ``gpus.servers`` of all judges behind ``judge.service``."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """``seconds`` and ``calls`` per run, averaged over ``basis`` finished ones, or None;
    ``spreads`` are measured standard deviations over seeds, by claim."""

    study: StudyConfig
    cells: Sequence[StudyCell]
    runs: Sequence[StudyRun]
    finished: int
    at_once: int
    seconds: float | None
    calls: float | None
    basis: int
    spreads: Mapping[str, float]

    @property
    def left(self) -> int:
        return len(self.runs) - self.finished


def plan_study(
    study: StudyConfig,
    cells: Sequence[StudyCell],
    runs: Sequence[StudyRun],
    journal: StudyJournal,
    at_once: int,
    found: Collected,
) -> StudyPlan:
    """Plan by what this study's own runs have taken and shown so far."""
    done = {run.name for run in runs if is_finished(run.folder)}
    seconds = [h.seconds for name, h in journal.histories.items() if name in done and h.seconds > 0]
    calls = [row["calls"] for row in found.rows if row["finished"] and row["calls"] is not None]
    values = {
        claim.id: [*claim_values(study, cells, claim, found).values()]
        for claim in study.claims
        if claim.test != "log_rank"
    }
    return StudyPlan(
        study=study,
        cells=cells,
        runs=runs,
        finished=len(done),
        at_once=at_once,
        seconds=fmean(seconds) if seconds else None,
        calls=fmean(calls) if calls else None,
        basis=len(seconds),
        spreads={name: stdev(known) for name, known in values.items() if len(known) > 2},
    )


def power_of(plan: StudyPlan, claim: ClaimSection) -> str:
    """Describe the smallest effect that a claim can find with these seeds, at the first and hardest
    of Holm's levels."""
    seeds = len(plan.study.all_seeds)
    level = claim.alpha / max(1, len(plan.study.claims))
    logs = claim.test == "log_rank"
    least = least_p(claim.test, seeds)
    if least > claim.alpha:
        signs = " by signs alone" if claim.test == "t" else ""
        enough = next(n for n in count(seeds) if least_p(claim.test, n) <= claim.alpha)
        return f"smallest p{signs} {least:.2g}: {seeds} seeds cannot hold it; give {enough}"
    if least > level:
        return (
            f"smallest p {least:.2g} cannot reach Holm's first level {level:.2g}: it holds only "
            "beside others that do"
        )
    if logs:
        return f"smallest p {least:.2g}"
    effect = least_effect(claim.test, seeds, level, claim.direction == "none")
    if effect is None:
        return "no effect would be found with 80 % power; more seeds"
    measured = plan.spreads.get(claim.id)
    if measured is None and claim.arm not in {cell.name for cell in plan.cells}:
        return f"slopes of {effect:.2f} standard deviations of the seeds' slopes"
    spread = measured if measured is not None else plan.study.assumed_sd
    source = "measured" if measured is not None else "assumed"
    if claim.direction == "none":
        return f"0 within {effect * spread:.3f} (SD {spread:.3f}, {source})"
    return f"{effect * spread + claim.threshold:.3f} (SD {spread:.3f}, {source})"


def print_plan(plan: StudyPlan, console: Console, out: Path) -> None:
    """Print the arms with their finished runs, what is left, and what each claim can find."""
    study, seeds = plan.study, plan.study.all_seeds
    time = "unknown: no run of this study has finished; --limit-runs 1 measures one"
    if plan.seconds is not None:
        left = duration(plan.seconds * plan.left / plan.at_once)
        time = f"{left} for what is left ({duration(plan.seconds)} a run, as {plan.basis} took)"
    calls = "unknown: no run of this study has finished"
    if plan.calls is not None:
        calls = f"{plan.calls * plan.left:,.0f} of judges and executors for what is left"
    lines = [f"study     {study.name}", *_arms(plan)]
    lines += [
        f"runs      {len(plan.runs)} ({len(plan.cells)} arms x {len(seeds)} seeds), "
        f"{plan.left} left, {plan.at_once} at once",
        f"time      {time}",
        f"calls     {calls}",
        f"folder    {out}",
    ]
    if study.claims:
        lines.append(
            f"claims    {len(study.claims)}, with the smallest effect that each finds with 80 % "
            "power at Holm's first level"
        )
        width = max(len(claim.id) for claim in study.claims)
        for claim in study.claims:
            sides = f"{claim.measure} of {claim.arm} v {claim.against or study.control}"
            found = f"{sides}, {claim.test}: {power_of(plan, claim)}"
            lines.append(f"  {claim.id:<{width}}  {claim.kind:<12}  {found}")
    print_lines(lines, console)


def _arms(plan: StudyPlan) -> list[str]:
    width = max(len(cell.name) for cell in plan.cells)
    lines = []
    for cell in plan.cells:
        own = [run for run in plan.runs if run.cell == cell]
        done = f"{sum(is_finished(run.folder) for run in own)} of {len(own)}"
        notes = [f"{key}={value}" for key, value in cell.overrides.items()]
        notes += ["control"] if cell.name == plan.study.control else []
        notes += [f"shortcut {cell.shortcut}"] if cell.shortcut else []
        lines.append(f"  {cell.name:<{width}}  {done:>8}  {', '.join(notes)}".rstrip())
    return lines


def print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines as they are."""
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


# Preflight: the dry run of train.py for every cell.


def print_preflight(base: Path, runs: Sequence[StudyRun], console: Console) -> int:
    """Check the first run of every cell and print a line for each problem; return the exit status,
    2 if anything is missing. Cells whose policy, judge and executor are all embedded need nothing
    but this checkout and are skipped."""
    checked, missing = 0, dict[str, list[str]]()
    firsts = {run.cell.name: run for run in reversed(runs)}
    for name, run in reversed(firsts.items()):
        config = load_config(base, run.overrides)
        if run.embedded and config.models <= {SIMULATED} and config.judge.service is None:
            continue
        checked += 1
        for problem in _problems(config):
            missing.setdefault(problem, []).append(name)
    if not checked:
        return 0
    lines = [f"checked   {checked} arms and doses, as train.py --dry-run does"]
    for problem, cells in missing.items():
        some = ", ".join(cells) if len(cells) < checked else "all"
        lines.append(f"missing   {problem} [{some}]")
    lines += [] if missing else ["ready     everything that the runs need is there"]
    print_lines(lines, console)
    return 2 if missing else 0


def _problems(config: Config) -> list[str]:
    from flowright.app.preflight import inspect_run  # loads torch

    # Under another name: an existing directory is no problem, since a study resumes its runs.
    other = config.run.model_copy(update={"name": f"{config.run.name}.dry_run"})
    try:
        return inspect_run(config.model_copy(update={"run": other})).problems
    except UserError as error:
        return [*error.problems]


# The plan of a study on GPUs, by the arithmetic of a run's plan on the assumptions of ``gpus``.


@dataclass(frozen=True, slots=True)
class CellPlan:
    """``runs`` runs, each of which takes the ``total`` of a run's plan. ``judges`` and ``executor``
    are names of ``gpus.servers``."""

    cell: StudyCell
    runs: int
    judges: tuple[str, ...]
    executor: str
    total: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Seconds of a run."""
        return self.total["seconds"]

    @property
    def hours(self) -> float:
        """Hours of all runs, one after another."""
        return self.runs * self.seconds / 3600

    def calls(self, role: str) -> float:
        """Calls of all runs by role, ``judge`` or ``executor``."""
        return self.runs * self.total[f"{role}_calls"]

    def tokens(self, role: str) -> float:
        """Tokens of these calls, read and written."""
        return self.runs * sum(self.total.get(f"{role}_tokens_{way}", 0.0) for way in ("in", "out"))


def gpu_plans(base: Path, section: GpuSection, runs: Sequence[StudyRun]) -> list[CellPlan]:
    """Plan each cell of these runs. Raises ConfigError with a line for each server that the section
    lacks, or whose seconds per call are missing."""
    by_cell: dict[str, list[StudyRun]] = {}
    for run in runs:
        by_cell.setdefault(run.cell.name, []).append(run)
    problems: dict[str, None] = {}
    found = []
    for own in by_cell.values():
        config = load_config(base, own[0].overrides).on("cuda")
        servers = (config.aflow_executor_model, *_judges(config))
        lacking = [
            name
            for name in dict.fromkeys(servers)
            if name not in section.servers or section.servers[name].call_seconds is None
        ]
        problems |= dict.fromkeys(
            f"gpus.servers: no call_seconds of {name!r}; give what the plan shall assume"
            for name in lacking
        )
        if not lacking:
            found.append(_plan_cell(config, section, own[0].cell, len(own)))
    if problems:
        raise ConfigError(*problems)
    return found


def _judges(config: Config) -> tuple[str, ...]:
    if config.judge.mode == "rules":
        return ()
    return (config.judge_model or JUDGE_SERVICE, *config.judge.panel)


def _plan_cell(config: Config, section: GpuSection, cell: StudyCell, runs: int) -> CellPlan:
    from flowright.app.plan_basis import assumed_basis  # loads torch
    from flowright.app.time_plan import make_plan

    judges, executor = _judges(config), config.aflow_executor_model
    assumed = {
        "sampler_tokens_per_second": section.sampler_tokens_per_second,
        "learner_tokens_per_second": section.learner_tokens_per_second,
        "calls_per_attempt": section.calls_per_attempt,
        "executor": _mean_server(section, [executor]),
        "judge": _mean_server(section, judges),
    }
    config = config.model_copy(update={"plan": config.plan.model_copy(update=assumed)})
    figures = {
        "policy_tokens_in": section.prompt_tokens,
        "policy_tokens_out": section.completion_tokens,
        "executor_calls": section.calls_per_attempt,
        "judge_calls": float(len(judges) * config.judge.samples),
    }
    basis = assumed_basis(config, figures, "assumed")
    total = make_plan(config, basis, config.evaluation.final_problems, 0).total
    return CellPlan(cell, runs, judges, executor, total)


def _mean_server(section: GpuSection, names: Sequence[str]) -> PlanServerSection:
    """Average the calls of servers that are called equally often."""
    servers = [section.servers[name] for name in names]
    known = {
        key: fmean(values)
        for key in ("call_seconds", "tokens_in", "tokens_out")
        if (values := [v for server in servers if (v := getattr(server, key)) is not None])
    }
    return PlanServerSection(**known)


def server_hours(plans: Sequence[CellPlan], at_once: int) -> dict[str, float]:
    """Return the hours that each server is up: while runs that call it are under way, ``at_once``
    runs of an arm together and the arms one after another."""
    hours: dict[str, float] = {}
    for plan in plans:
        rounds = -(-plan.runs // at_once)
        for name in dict.fromkeys((plan.executor, *plan.judges)):
            hours[name] = hours.get(name, 0.0) + rounds * plan.seconds / 3600
    return hours


def print_gpu_plan(
    plans: Sequence[CellPlan], section: GpuSection, at_once: int, console: Console
) -> None:
    """Print a row per cell, then the sums, the servers and all assumptions."""
    head = "planned   from what gpus assumes; nothing of it was measured; calls / tokens"
    print_lines([head], console)
    table = Table("", "runs", "a run", "GPU hours", "judges", "executors", box=None, pad_edge=False)
    for plan in plans:
        judged, executed = (
            f"{amount(plan.calls(role))} / {amount(plan.tokens(role))}"
            for role in ("judge", "executor")
        )
        hours = f"{plan.hours * section.per_run:,.0f}"
        row = (f"  {plan.cell.name}", str(plan.runs), duration(plan.seconds), hours)
        table.add_row(*row, judged, executed)
    console.print(table, markup=False, highlight=False)
    print_lines([*_sums(plans, section, at_once), *_assumptions(section)], console)


def _sums(plans: Sequence[CellPlan], section: GpuSection, at_once: int) -> list[str]:
    own = sum(plan.hours for plan in plans) * section.per_run
    up = server_hours(plans, at_once)
    served = sum(hours * section.servers[name].gpus for name, hours in up.items())
    each = ", ".join(
        f"{name} {section.servers[name].gpus:g} x {hours:,.0f} h" for name, hours in up.items()
    )
    elapsed = sum(-(-plan.runs // at_once) * plan.seconds for plan in plans)
    calls, executor = (sum(plan.calls(role) for plan in plans) for role in ("judge", "executor"))
    lines = [
        f"hours     {elapsed / 3600:,.0f} with {at_once} at once, arm after arm",
        f"GPU hours {own + served:,.0f}: runs {own:,.0f}, servers {served:,.0f} ({each})",
        f"calls     {amount(calls)} of judges, {amount(executor)} of executors",
    ]
    if section.usd_per_hour is not None:
        lines.append(f"price     {(own + served) * section.usd_per_hour:,.0f} USD")
    return lines


def _assumptions(section: GpuSection) -> list[str]:
    servers = ", ".join(
        f"{name} {server.call_seconds:g}"
        for name, server in section.servers.items()
        if server.call_seconds is not None
    )
    return [
        f"assumed   {section.per_run} GPU a run; {section.prompt_tokens:g} tokens a prompt, "
        f"{section.completion_tokens:g} a completion, {section.calls_per_attempt:g} calls of the "
        f"executor an attempt; {section.sampler_tokens_per_second:g} tokens a second drawn, "
        f"{section.learner_tokens_per_second:g} learned",
        f"assumed   seconds of a call, whatever the server's load: {servers}",
    ]
