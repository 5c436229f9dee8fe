"""A plan of time and money as people read it: lines of text, and nothing else."""

from flowright.app.plan_basis import FIGURES, ROLES
from flowright.app.time_plan import Figures, TimePlan
from flowright.rendering.series import amount, duration


def lines(plan: TimePlan) -> list[str]:
    """The plan for people, a line each."""
    total = plan.total
    said = [
        plan.source,
        f"a step: {_amounts(plan.step, plan.bounds)}",
        f"the run: {_amounts(total, plan.bounds)}",
    ]
    said += time_lines(plan)
    if plan.balance is not None:
        said.append(
            f"executor GPUs per trainer GPU that keep both busy: {plan.balance:.2g} (servers are "
            f"busy {duration(plan.seconds['busy'])} of a step, sampling and update take "
            f"{duration(plan.seconds['sample'] + plan.seconds['update'])})"
        )
    said += _price_line(plan)
    return said + [f"assumed: {line}" for line in plan.assumed]


def time_lines(plan: TimePlan) -> list[str]:
    """How long, and what a step is made of; or what keeps that from being known."""
    stages = [s for s in ("sample", "update", "rollout") if s in plan.seconds]
    each = ", ".join(f"{stage} {duration(plan.seconds[stage])}" for stage in stages)
    if "seconds" not in plan.total:
        known = f"; of a step, {each}" if each else ""
        keys = ", ".join(plan.missing)
        probe = ", plan.probe" if any("call_seconds" in key for key in plan.missing) else ""
        return [f"time: unknown without an earlier run or {keys}{probe}{known}"]
    parts = " + ".join(f"{phase} {duration(plan.seconds[phase])}" for phase in plan.phases)
    most = "at most " if plan.bounds & {"policy_tokens_in", "policy_tokens_out"} else ""
    step = duration(plan.seconds["step"])
    return [
        f"time: {most}{duration(plan.total['seconds'])} = {parts}",
        f"a step takes {step}: {each}",
    ]


def _price_line(plan: TimePlan) -> list[str]:
    if not plan.usd:
        return ["price: unknown without plan.usd_per_gpu_hour or prices of tokens"]
    known = [usd for usd in plan.usd.values() if usd is not None]
    least = "at least " if len(known) < len(plan.usd) else "at most " if plan.bounds else ""
    parts = " + ".join(
        f"{what} {'unknown' if usd is None else f'{usd:,.2f}'}" for what, usd in plan.usd.items()
    )
    total = f"{least}{sum(known):,.2f} USD" if known else "unknown"
    return [f"price: {total} ({parts})"]


def _amounts(figures: Figures, bounds: frozenset[str]) -> str:
    parts = []
    for who in ("policy", *ROLES):
        names = [name for name in FIGURES if name.startswith(f"{who}_") and name in figures]
        said = [
            f"{'up to ' if name in bounds else ''}{amount(figures[name])} "
            f"{name.removeprefix(f'{who}_').replace('_', ' ')}"
            for name in names
        ]
        parts.append(f"{who} {', '.join(said) or 'unknown'}")
    return "; ".join(parts)
