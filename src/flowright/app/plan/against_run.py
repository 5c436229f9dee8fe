"""A run's plan in its directory, and how far off it was once the run is over: ``plan.json``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.app.first_look import Start
from flowright.app.plan.basis import ROLES, USAGE
from flowright.app.plan.time_plan import plan_run, usd_of
from flowright.app.plan.words import start_line
from flowright.config.root import Config
from flowright.core.files import disk_errors, write_json
from flowright.core.formatting import duration
from flowright.environments.base import prompt_encoder
from flowright.policy.sampling import Tokenizer
from flowright.runs.run_files import read_metrics, read_plan

NAME = "plan.json"

NEAR = 0.15
"""So far off, relative to the plan, a figure may be before the screen says so."""


async def keep_plan(run: Path, start: Start, tokenizer: Tokenizer) -> str | None:
    """Plan a run that begins and write the plan; a line about it. A resumed run is held to its
    first plan. Raises UserError as :func:`flowright.app.plan.time_plan.plan_run`."""
    if (run / NAME).exists():
        return None
    config, environment = start.config, start.environment
    encode = prompt_encoder(environment, tokenizer, config.policy.max_prompt_tokens)
    plan = await plan_run(config, environment, start.tasks, encode)
    with disk_errors(run):
        write_json(run / NAME, {"planned": plan.to_json()})
    return f"plan      {start_line(plan)}"


def settle(run: Path, config: Config, seconds: float, asked: Mapping[str, float]) -> list[str]:
    """Add what was measured to ``plan.json``; lines about time, price and what was off. The
    comparison took so many ``seconds`` and ``asked`` servers for that (metrics ``servers/*``); the
    rest is in the run's metrics. Nothing where the run has no plan."""
    path, plan = run / NAME, read_plan(run).get("planned")
    if plan is None:
        return []
    measured = _measured(read_metrics(run), config, seconds, asked)
    compared = {
        name: {"planned": figure, "measured": measured[name]}
        for name, figure in _planned(plan).items()
        if name in measured and (figure or measured[name])  # servers that nobody asks are none
    }
    with disk_errors(path):
        write_json(path, {"planned": plan, "measured": measured, "compared": compared})
    return [*_taken(plan, measured, compared), *_off(plan, compared)]


def _planned(plan: Mapping[str, Any]) -> dict[str, float]:
    """The figures that a run can be held to. Only training counts the policy's tokens."""
    training = {
        name: value for name, value in plan["phases"]["training"].items() if "policy" in name
    }
    total = {name: value for name, value in plan["total"].items() if "policy" not in name}
    phases = {f"{n} seconds": plan["seconds"][n] for n in plan["phases"] if n in plan["seconds"]}
    return {**training, **total, **phases, **_sum_usd(plan["usd"])}


def _sum_usd(usd: Mapping[str, float | None]) -> dict[str, float]:
    """Under ``usd``, where all that is paid for is known."""
    known = [each for each in usd.values() if each is not None]
    return {"usd": sum(known)} if known and len(known) == len(usd) else {}


def _measured(
    rows: Sequence[Mapping[str, float]],
    config: Config,
    seconds: float,
    asked: Mapping[str, float],
) -> dict[str, float]:
    grpo = config.grpo
    steps = [row for row in rows if "tokens/completion_mean" in row]
    groups = [grpo.prompts_per_step + row.get("reward/resampled_groups", 0.0) for row in steps]
    found = {
        "policy_tokens_in": sum(
            n * row["tokens/prompt_mean"] for n, row in zip(groups, steps, strict=True)
        ),
        "policy_tokens_out": sum(
            n * grpo.group_size * row["tokens/completion_mean"]
            for n, row in zip(groups, steps, strict=True)
        ),
    }
    for role in ROLES:
        for name, key in USAGE.items():
            metric = f"servers/{role}/{key}"
            found[f"{role}_{name}"] = sum(row.get(metric, 0.0) for row in [*rows, asked])
    found["evaluations seconds"] = sum(row.get("time/evaluate", 0.0) for row in rows)
    trained = sum(row["time/step"] - row.get("time/evaluate", 0.0) for row in steps)
    found["training seconds"], found["comparison seconds"] = trained, seconds
    found["seconds"] = trained + seconds + found["evaluations seconds"]
    return found | _sum_usd(usd_of(config, found))


Compared = Mapping[str, Mapping[str, float]]


def _taken(
    plan: Mapping[str, Any], measured: Mapping[str, float], compared: Compared
) -> Iterator[str]:
    took = f"plan      took {duration(measured['seconds'])} without loading"
    if "seconds" not in compared:
        yield f"{took}; no time was planned ({plan['source']}): the next plan can go by this run"
        return
    most = "at most " if _is_bound(plan, "seconds") else ""
    took += f", planned {most}{duration(compared['seconds']['planned'])}"
    if "usd" in compared:
        most = "at most " if plan["bounds"] else ""
        usd = compared["usd"]
        took += f"; {usd['measured']:,.2f} USD, planned {most}{usd['planned']:,.2f}"
    yield took


def _off(plan: Mapping[str, Any], compared: Compared) -> Iterator[str]:
    """A line of what was further off than NEAR; of what was planned at most, what went above."""
    ratios = {
        name: each["measured"] / each["planned"]
        for name, each in compared.items()
        if each["planned"] and name not in ("seconds", "usd")
    }
    off = [
        f"{name.removesuffix(' seconds').replace('_', ' ')} {ratio:.2f}"
        for name, ratio in ratios.items()
        if ratio - 1 > NEAR or (1 - ratio > NEAR and not _is_bound(plan, name))
    ]
    if off:
        yield (
            f"          measured / planned, where not within {NEAR:.0%}: {', '.join(off)}; all: "
            f"{NAME} and the report"
        )


def _is_bound(plan: Mapping[str, Any], name: str) -> bool:
    """Whether a figure was planned as the most that there can be; times follow the policy's
    tokens."""
    if name.endswith("seconds"):
        return any(bound.startswith("policy") for bound in plan["bounds"])
    return name in plan["bounds"]
