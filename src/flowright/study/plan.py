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
from flowright.core.command_line import say
from flowright.core.errors import ConfigError, UserError
from flowright.core.formatting import amount, duration
from flowright.environments.registry import load_config
from flowright.study.arm_comparison import claim_values, least_effect, least_p
from flowright.study.collect import Collected
from flowright.study.config import ClaimSection, GpuSection, StudyConfig
from flowright.study.runs import LoadedStudy, StudyCell, StudyRun, is_finished

JUDGE_SERVICE = "judge_service"
"""Name in ``gpus.servers`` of all judges behind ``judge.service``."""


def power_of(
    study: StudyConfig, claim: ClaimSection, is_cell: bool, measured: float | None = None
) -> str:
    """Describe the smallest effect that a claim can find with these seeds, at the first and hardest
    of Holm's levels. ``is_cell``: it is about one arm, not a slope over doses; ``measured``: the
    standard deviation of its differences over seeds."""
    seeds = len(study.all_seeds)
    level = claim.alpha / max(1, len(study.claims))
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
    if claim.test == "log_rank":
        return f"smallest p {least:.2g}"
    effect = least_effect(claim.test, seeds, level, claim.direction == "none")
    if effect is None:
        return "no effect would be found with 80 % power; more seeds"
    if measured is None and not is_cell:
        return f"slopes of {effect:.2f} standard deviations of the seeds' slopes"
    spread, source = (study.assumed_sd, "assumed") if measured is None else (measured, "measured")
    found = f"(SD {spread:.3f}, {source})"
    if claim.direction == "none":
        return f"0 within {effect * spread:.3f} {found}"
    return f"{effect * spread + claim.threshold:.3f} {found}"


def print_plan(loaded: LoadedStudy, at_once: int, found: Collected, console: Console) -> None:
    """Print the arms with their finished runs, what is left by what this study's own runs have
    taken and shown so far, and what each claim can find."""
    study, runs = loaded.study, loaded.runs
    done = {run.name for run in runs if is_finished(run.folder)}
    left = len(runs) - len(done)
    histories = loaded.journal.histories.items()
    seconds = [history.seconds for name, history in histories if name in done and history.seconds]
    time = "unknown: no run of this study has finished; --limit-runs 1 measures one"
    if seconds:
        each = fmean(seconds)
        whole = duration(each * left / at_once)
        time = f"{whole} for what is left ({duration(each)} a run, as {len(seconds)} took)"
    called = [row["calls"] for row in found.rows if row["finished"] and row["calls"] is not None]
    calls = "unknown: no run of this study has finished"
    if called:
        calls = f"{fmean(called) * left:,.0f} of judges and executors for what is left"
    lines = [f"study     {study.name}", *_arms(loaded, done)]
    lines += [
        f"runs      {len(runs)} ({len(loaded.cells)} arms x {len(study.all_seeds)} seeds), "
        f"{left} left, {at_once} at once",
        f"time      {time}",
        f"calls     {calls}",
        f"folder    {loaded.out}",
    ]
    if study.claims:
        lines.append(
            f"claims    {len(study.claims)}, with the smallest effect that each finds with 80 % "
            "power at Holm's first level"
        )
    width = max((len(claim.id) for claim in study.claims), default=0)
    names = {cell.name for cell in loaded.cells}
    for claim in study.claims:
        values: list[float] = []
        if claim.test != "log_rank":
            values = [*claim_values(study, loaded.cells, claim, found).values()]
        spread = stdev(values) if len(values) > 2 else None
        power = power_of(study, claim, claim.arm in names, spread)
        sides = f"{claim.measure} of {claim.arm} v {claim.against or study.control}"
        lines.append(f"  {claim.id:<{width}}  {claim.kind:<12}  {sides}, {claim.test}: {power}")
    say(console, "\n".join(lines))


def _arms(loaded: LoadedStudy, done: set[str]) -> list[str]:
    width = max(len(cell.name) for cell in loaded.cells)
    lines = []
    for cell in loaded.cells:
        own = [run.name in done for run in loaded.runs if run.cell == cell]
        counted = f"{sum(own)} of {len(own)}"
        notes = [f"{key}={value}" for key, value in cell.overrides.items()]
        notes += ["control"] if cell.name == loaded.study.control else []
        notes += [f"shortcut {cell.shortcut}"] if cell.shortcut else []
        lines.append(f"  {cell.name:<{width}}  {counted:>8}  {', '.join(notes)}".rstrip())
    return lines


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
    say(console, "\n".join(lines))
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
    say(console, head)
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
    say(console, "\n".join([*_sums(plans, section, at_once), *_assumptions(section)]))


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
