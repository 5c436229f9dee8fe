"""A run's plan in its directory, and how far off it was once the run is over: ``plan.json``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.app.first_look import Start
from flowright.app.plan_basis import ROLES
from flowright.app.plan_words import time_lines
from flowright.app.time_plan import plan_run
from flowright.config import Config
from flowright.environments.environment import prompt_encoder
from flowright.policy.prompt import Tokenizer
from flowright.rendering.series import amount, duration
from flowright.runs import disk_errors, read_metrics, read_plan, write_json

NAME = "plan.json"


async def keep_plan(run: Path, start: Start, tokenizer: Tokenizer) -> list[str]:
    """Plan a run that begins and write the plan; lines about it. A resumed run is held to its first
    plan. Raises UserError as :func:`flowright.app.time_plan.plan_run`."""
    if (run / NAME).exists():
        return []
    config, environment = start.config, start.environment
    encode = prompt_encoder(environment, tokenizer, config.policy.max_prompt_tokens)
    plan = await plan_run(config, environment, start.tasks, encode)
    with disk_errors(run):
        write_json(run / NAME, {"planned": plan.to_json()})
    return [f"plan      {time_lines(plan)[0]}"]


def settle(run: Path, config: Config, seconds: float, asked: Mapping[str, float]) -> list[str]:
    """Add what was measured to ``plan.json``; a line for each figure that was planned, too. The
    comparison took so many ``seconds`` and ``asked`` servers for that (metrics ``servers/*``); the
    rest is in the run's metrics. Nothing where the run has no plan."""
    path, planned = run / NAME, read_plan(run).get("planned")
    if planned is None:
        return []
    measured = _measured(read_metrics(run), config, seconds, asked)
    compared = {
        name: {"planned": planned_figure, "measured": measured[name]}
        for name, planned_figure in _planned(planned).items()
        if name in measured
    }
    with disk_errors(path):
        write_json(path, {"planned": planned, "measured": measured, "compared": compared})
    bounds = set(planned["bounds"])
    return [_line(name, each, name in bounds) for name, each in compared.items()]


def _planned(plan: Mapping[str, Any]) -> dict[str, float]:
    """The figures that a run can be held to. Only training counts the policy's tokens."""
    training = {
        name: value for name, value in plan["phases"]["training"].items() if "policy" in name
    }
    total = {name: value for name, value in plan["total"].items() if "policy" not in name}
    return {**training, **total, **{f"{name} seconds": s for name, s in _phases(plan).items()}}


def _phases(plan: Mapping[str, Any]) -> dict[str, float]:
    return {name: plan["seconds"][name] for name in plan["phases"] if name in plan["seconds"]}


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
    names = {"calls": "calls", "tokens_in": "prompt_tokens", "tokens_out": "completion_tokens"}
    for role in ROLES:
        for name, key in names.items():
            metric = f"servers/{role}/{key}"
            found[f"{role}_{name}"] = sum(row.get(metric, 0.0) for row in [*rows, asked])
    found["evaluations seconds"] = sum(row.get("time/evaluate", 0.0) for row in rows)
    trained = sum(row["time/step"] - row.get("time/evaluate", 0.0) for row in steps)
    found["training seconds"], found["comparison seconds"] = trained, seconds
    found["seconds"] = trained + seconds + found["evaluations seconds"]
    return found


def _line(name: str, each: Mapping[str, float], is_bound: bool) -> str:
    form = duration if name.endswith("seconds") else amount
    planned, measured = each["planned"], each["measured"]
    what = name.removesuffix("seconds").replace("_", " ").strip() or "whole run"
    where = ", training" if name.startswith("policy") else ""
    ratio = f" ({measured / planned:.0%} of it)" if planned else ""
    most = "at most " if is_bound else ""
    return f"plan      {what}{where}: planned {most}{form(planned)}, was {form(measured)}{ratio}"
