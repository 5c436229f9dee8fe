"""What a study will take and what it can find, before anything is started."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console

from flowright.core.formatting import duration
from flowright.study.cells import Cell, Run
from flowright.study.collect import Collected
from flowright.study.compare import values_of_claim
from flowright.study.config import ClaimSection, StudyConfig
from flowright.study.journal import Journal, is_finished
from flowright.study.paired import least_effect, least_p


@dataclass(frozen=True, slots=True)
class Plan:
    """``seconds`` and ``calls`` are of one run as earlier ones took them, from so many of them
    (``basis``); None where nothing tells. ``spreads`` are standard deviations over seeds, by
    claim."""

    study: StudyConfig
    cells: Sequence[Cell]
    runs: Sequence[Run]
    finished: int
    at_once: int
    seconds: float | None
    calls: float | None
    basis: int
    spreads: Mapping[str, float]

    @property
    def left(self) -> int:
        return len(self.runs) - self.finished

    @property
    def seconds_left(self) -> float | None:
        """Of the whole study, with so many runs at once."""
        return None if self.seconds is None else self.seconds * self.left / self.at_once


def make_plan(
    study: StudyConfig,
    cells: Sequence[Cell],
    runs: Sequence[Run],
    journal: Journal,
    at_once: int,
    found: Collected,
) -> Plan:
    """A plan by what this study's own runs have taken and shown so far."""
    done = {run.name for run in runs if is_finished(run.folder)}
    taken = [h.seconds for name, h in journal.histories.items() if name in done and h.seconds > 0]
    calls = [row["calls"] for row in found.rows if row["finished"] and row["calls"] is not None]
    return Plan(
        study=study,
        cells=cells,
        runs=runs,
        finished=len(done),
        at_once=at_once,
        seconds=fmean(taken) if taken else None,
        calls=fmean(calls) if calls else None,
        basis=len(taken),
        spreads=_measured_sd(study, cells, found),
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _measured_sd(study: StudyConfig, cells: Sequence[Cell], found: Collected) -> dict[str, float]:
    """By claim, of those that at least three seeds tell something of."""
    known: dict[str, float] = {}
    for claim in study.claims:
        if claim.test != "log_rank":
            values = [*values_of_claim(study, cells, claim, found).values()]
            if len(values) > 2:
                known[claim.id] = stdev(values)
    return known


def power_of(plan: Plan, claim: ClaimSection) -> str:
    """What a claim can find with these seeds, in words. The first of Holm's levels is the
    hardest."""
    seeds = len(plan.study.all_seeds)
    level = claim.alpha / max(1, len(plan.study.claims))
    logs = claim.test == "log_rank"
    least = 0.5**seeds if logs else least_p(claim.test, seeds)
    if least > claim.alpha:
        return f"smallest p {least:.2g}: it cannot hold; more seeds"
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
    told = "measured" if measured is not None else "assumed"
    if claim.direction == "none":
        return f"0 within {effect * spread:.3f} (SD {spread:.3f}, {told})"
    return f"{effect * spread + claim.threshold:.3f} (SD {spread:.3f}, {told})"


def print_plan(plan: Plan, console: Console, out: Path) -> None:
    """The plan in lines: arms with their runs, what is left of them, what each claim can find."""
    study, seeds = plan.study, plan.study.all_seeds
    lines = [f"study     {study.name}", *_arms(plan)]
    lines += [
        f"runs      {len(plan.runs)} ({len(plan.cells)} arms x {len(seeds)} seeds), "
        f"{plan.left} left, {plan.at_once} at once",
        f"time      {_time(plan)}",
        f"calls     {_calls(plan)}",
        f"folder    {out}",
    ]
    if study.claims:
        lines.append(
            f"claims    {len(study.claims)}, with the smallest effect that each finds with 80 % "
            "power at Holm's first level"
        )
        wide = max(len(claim.id) for claim in study.claims)
        for claim in study.claims:
            sides = f"{claim.measure} of {claim.arm} v {claim.against or study.control}"
            found = f"{sides}, {claim.test}: {power_of(plan, claim)}"
            lines.append(f"  {claim.id:<{wide}}  {claim.kind:<12}  {found}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _arms(plan: Plan) -> list[str]:
    """Of each arm and dose, how many runs are finished, and what it sets."""
    wide = max(len(cell.name) for cell in plan.cells)
    lines = []
    for cell in plan.cells:
        own = [run for run in plan.runs if run.cell == cell]
        done = f"{sum(is_finished(run.folder) for run in own)} of {len(own)}"
        told = [f"{key}={value}" for key, value in cell.overrides.items()]
        told += ["control"] if cell.name == plan.study.control else []
        told += [f"shortcut {cell.shortcut}"] if cell.shortcut else []
        lines.append(f"  {cell.name:<{wide}}  {done:>8}  {', '.join(told)}".rstrip())
    return lines


def _time(plan: Plan) -> str:
    if plan.seconds is None or plan.seconds_left is None:
        return "unknown: no run of this study has finished; --limit-runs 1 measures one"
    each = f"{duration(plan.seconds)} a run, as {plan.basis} took"
    return f"{duration(plan.seconds_left)} for what is left ({each})"


def _calls(plan: Plan) -> str:
    if plan.calls is None:
        return "unknown: no run of this study has finished"
    return f"{plan.calls * plan.left:,.0f} of judges and executors for what is left"
