"""What a study on GPUs will take: hours, GPU hours, calls and tokens, by the arithmetic of a run's
plan (:mod:`flowright.app.plan.time_plan`) from what the study's ``gpus`` assumes. Nothing is asked,
and no data are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from flowright.config import load_config
from flowright.config.plan import PlanServerSection
from flowright.config.root import Config
from flowright.core.errors import ConfigError
from flowright.core.formatting import amount, duration
from flowright.study.cells import Cell, Run
from flowright.study.config import GpuSection

SERVICE = "judge_service"
"""The name in ``gpus.servers`` of all judges behind ``judge.service``."""


@dataclass(frozen=True, slots=True)
class CellPlan:
    """Of so many ``runs``, each of so many ``seconds``; calls and tokens (read and written) are of
    one run. ``judges`` and ``executor`` are names of ``gpus.servers``."""

    cell: Cell
    runs: int
    seconds: float
    judges: tuple[str, ...]
    executor: str
    judge_calls: float
    judge_tokens: float
    executor_calls: float
    executor_tokens: float

    @property
    def hours(self) -> float:
        """Of all its runs, one after another."""
        return self.runs * self.seconds / 3600


def gpu_plans(base: Path, section: GpuSection, runs: Sequence[Run]) -> list[CellPlan]:
    """A plan for each cell of these runs. Raises ConfigError with a line for each server that the
    section does not have, or not the seconds of its calls."""
    by_cell: dict[str, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell.name, []).append(run)
    problems: dict[str, None] = {}
    found = []
    for own in by_cell.values():
        config = load_config(base, own[0].overrides).on("cuda")
        lacking = [name for name in names_of(config) if not _is_known(section, name)]
        if lacking:
            problems |= dict.fromkeys(
                f"gpus.servers: no call_seconds of {name!r}; give what the plan shall assume"
                for name in lacking
            )
            continue
        found.append(_planned(config, section, own[0].cell, len(own)))
    if problems:
        raise ConfigError(*problems)
    return found


def judges_of(config: Config) -> tuple[str, ...]:
    """Who judges, by the names of ``gpus.servers``; nobody where rules do."""
    if config.judge.mode == "rules":
        return ()
    return (config.judge_model or SERVICE, *config.judge.panel)


def names_of(config: Config) -> tuple[str, ...]:
    """All servers of a run."""
    return tuple(dict.fromkeys((config.aflow_executor_model, *judges_of(config))))


def _is_known(section: GpuSection, name: str) -> bool:
    return name in section.servers and section.servers[name].call_seconds is not None


def _planned(config: Config, section: GpuSection, cell: Cell, runs: int) -> CellPlan:
    from flowright.app.plan.find_basis import assumed_basis  # loads torch
    from flowright.app.plan.time_plan import make_plan

    judges, executor = judges_of(config), config.aflow_executor_model
    given = {
        "sampler_tokens_per_second": section.sampler_tokens_per_second,
        "learner_tokens_per_second": section.learner_tokens_per_second,
        "calls_per_attempt": section.calls_per_attempt,
        "executor": _together(section, [executor]),
        "judge": _together(section, judges),
    }
    config = config.model_copy(update={"plan": config.plan.model_copy(update=given)})
    figures = {
        "policy_tokens_in": section.prompt_tokens,
        "policy_tokens_out": section.completion_tokens,
        "executor_calls": section.calls_per_attempt,
        "judge_calls": float(len(judges) * config.judge.samples),
    }
    basis = assumed_basis(config, figures, "assumed")
    plan = make_plan(config, basis, config.evaluation.final_problems, 0)
    total = plan.total
    return CellPlan(
        cell=cell,
        runs=runs,
        seconds=total["seconds"],
        judges=judges,
        executor=executor,
        judge_calls=total["judge_calls"],
        judge_tokens=total.get("judge_tokens_in", 0.0) + total.get("judge_tokens_out", 0.0),
        executor_calls=total["executor_calls"],
        executor_tokens=total.get("executor_tokens_in", 0.0)
        + total.get("executor_tokens_out", 0.0),
    )


def _together(section: GpuSection, names: Sequence[str]) -> PlanServerSection:
    """The mean call of several servers that are asked equally often."""
    servers = [section.servers[name] for name in names]
    known = {
        key: fmean(values)
        for key in ("call_seconds", "tokens_in", "tokens_out")
        if (values := [v for server in servers if (v := getattr(server, key)) is not None])
    }
    return PlanServerSection(**known)


def server_hours(plans: Sequence[CellPlan], at_once: int) -> dict[str, float]:
    """By server, the hours that it is up: while runs that ask it are under way, with so many of an
    arm's runs at once and the arms one after another."""
    hours: dict[str, float] = {}
    for plan in plans:
        rounds = -(-plan.runs // at_once)
        for name in dict.fromkeys((plan.executor, *plan.judges)):
            hours[name] = hours.get(name, 0.0) + rounds * plan.seconds / 3600
    return hours


def print_gpu_plan(
    plans: Sequence[CellPlan], section: GpuSection, at_once: int, console: Console
) -> None:
    """A row a cell, then the sums, the servers and what all of it was taken from."""
    told = "planned   from what gpus assumes; nothing of it was measured; calls / tokens"
    console.print(told, highlight=False, markup=False, soft_wrap=True)
    table = Table("", "runs", "a run", "GPU hours", "judges", "executors", box=None, pad_edge=False)
    for plan in plans:
        n = plan.runs
        judged, ran = (
            f"{amount(n * calls)} / {amount(n * tokens)}"
            for calls, tokens in (
                (plan.judge_calls, plan.judge_tokens),
                (plan.executor_calls, plan.executor_tokens),
            )
        )
        hours = f"{plan.hours * section.per_run:,.0f}"
        row = (f"  {plan.cell.name}", str(n), duration(plan.seconds), hours, judged, ran)
        table.add_row(*row)
    console.print(table, markup=False, highlight=False)
    lines = [*_sums(plans, section, at_once), *_assumptions(section)]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _sums(plans: Sequence[CellPlan], section: GpuSection, at_once: int) -> list[str]:
    own = sum(plan.hours for plan in plans) * section.per_run
    up = server_hours(plans, at_once)
    served = {name: hours * section.servers[name].gpus for name, hours in up.items()}
    whole = own + sum(served.values())
    each = ", ".join(
        f"{name} {section.servers[name].gpus:g} x {hours:,.0f} h" for name, hours in up.items()
    )
    elapsed = sum(-(-plan.runs // at_once) * plan.seconds for plan in plans)
    calls = sum(plan.runs * plan.judge_calls for plan in plans)
    executor = sum(plan.runs * plan.executor_calls for plan in plans)
    lines = [
        f"hours     {elapsed / 3600:,.0f} with {at_once} at once, arm after arm",
        f"GPU hours {whole:,.0f}: runs {own:,.0f}, servers {sum(served.values()):,.0f} ({each})",
        f"calls     {amount(calls)} of judges, {amount(executor)} of executors",
    ]
    if section.usd_per_hour is not None:
        lines.append(f"price     {whole * section.usd_per_hour:,.0f} USD")
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
        f"assumed   seconds of a call, whatever else a server is asked: {servers}",
    ]
