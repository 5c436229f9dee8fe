"""A plan of time and money as people read it: lines of text, and nothing else."""

from flowright.app.plan.basis import FIGURES
from flowright.app.plan.time_plan import TimePlan
from flowright.core.formatting import amount, duration


def lines(plan: TimePlan) -> list[str]:
    """All of the plan, for the dry run."""
    said = [plan.source, *_table(plan), *_time(plan)]
    if plan.balance is not None:
        said.append(
            f"executor GPUs per trainer GPU that keep both busy: {plan.balance:.2g} (servers are "
            f"busy {duration(plan.seconds['busy'])} of a step, sampling and update take "
            f"{duration(plan.seconds['sample'] + plan.seconds['update'])})"
        )
    said.append(_price(plan))
    return [*said, *(f"assumed: {line}" for line in plan.assumed)]


def start_line(plan: TimePlan) -> str:
    """How long, and by what; for a run that begins."""
    if "seconds" not in plan.total:
        return f"time unknown: {plan.source}; train.py --dry-run says what would tell it"
    return f"{_sum(plan)}, {plan.source}"


def _table(plan: TimePlan) -> list[str]:
    total = plan.total
    rows = [("", "a step", "the run")]
    for name in FIGURES:
        if name in total:
            most = "up to " if name in plan.bounds else ""
            step, run = (f"{most}{amount(some[name])}" for some in (plan.step, total))
            rows.append((name.replace("_", " "), step, run))
    return [f"{name:<19} {one:>14} {other:>14}" for name, one, other in rows]


def _time(plan: TimePlan) -> list[str]:
    """How long, and what a step is made of; or what keeps that from being known."""
    stages = [s for s in ("sample", "update", "rollout") if s in plan.seconds]
    each = ", ".join(f"{stage} {duration(plan.seconds[stage])}" for stage in stages)
    if "seconds" in plan.total:
        return [f"time: {_sum(plan)}", f"a step takes {duration(plan.seconds['step'])}: {each}"]
    calls = [key for key in plan.missing if key.endswith("call_seconds")]
    rates = [key for key in plan.missing if key not in calls]
    keys = [" and ".join(calls) + " (or plan.probe)"] if calls else []
    known = f"; of a step, {each}" if each else ""
    return [f"time: unknown; a first run measures it, or give {', '.join(keys + rates)}{known}"]


def _sum(plan: TimePlan) -> str:
    most = "at most " if plan.bounds & {"policy_tokens_in", "policy_tokens_out"} else ""
    parts = " + ".join(
        f"{phase} {duration(plan.seconds[phase])}" for phase in plan.phases if plan.seconds[phase]
    )
    return f"{most}{duration(plan.total['seconds'])} = {parts}"


def _price(plan: TimePlan) -> str:
    if not plan.usd:
        return "price: not planned; give plan.usd_per_gpu_hour, or prices of tokens"
    known = [usd for usd in plan.usd.values() if usd is not None]
    least = "at least " if len(known) < len(plan.usd) else "at most " if plan.bounds else ""
    parts = " + ".join(
        f"{what} {'unknown' if usd is None else f'{usd:,.2f}'}" for what, usd in plan.usd.items()
    )
    total = f"{least}{sum(known):,.2f} USD" if known else "unknown"
    return f"price: {total} ({parts})"
