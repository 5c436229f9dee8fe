"""``plan.json``: a run's plan, and after the run its comparison with the measured figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.app.plan_basis import ROLES, USAGE
from flowright.app.preflight_checks import Start
from flowright.app.time_plan import plan_run, start_line, usd_of
from flowright.config.root import Config
from flowright.core.files import disk_errors, write_json
from flowright.core.formatting import duration
from flowright.environments.base import prompt_encoder
from flowright.policy.sampling import Tokenizer
from flowright.runs.run_files import read_metrics, read_plan

NAME = "plan.json"

NEAR = 0.15
"""Relative error of a planned figure from which on the terminal lists it."""


async def keep_plan(run: Path, start: Start, tokenizer: Tokenizer) -> str | None:
    """Plan a starting run and write the plan; return a line about it. A resumed run keeps its
    first plan. Raises UserError as :func:`flowright.app.time_plan.plan_run`."""
    if (run / NAME).exists():
        return None
    config, environment = start.config, start.environment
    encode = prompt_encoder(environment, tokenizer, config.policy.max_prompt_tokens)
    plan = await plan_run(config, environment, start.tasks, encode)
    with disk_errors(run):
        write_json(run / NAME, {"planned": plan.to_json()})
    return f"plan      {start_line(plan)}"


def compare_with_plan(
    run: Path, config: Config, seconds: float, asked: Mapping[str, float]
) -> list[str]:
    """Add the measured figures to ``plan.json``; return lines on time, price and large errors.
    ``seconds`` and ``asked`` (metrics ``servers/*``) are those of the comparison; the rest is in
    the run's metrics. Empty for a run without a plan."""
    path, plan = run / NAME, read_plan(run).get("planned")
    if plan is None:
        return []
    measured = _measured(read_metrics(run), config, seconds, asked)
    compared = {
        name: {"planned": figure, "measured": measured[name]}
        for name, figure in _planned(plan).items()
        if name in measured and (figure or measured[name])  # without servers both are 0
    }
    with disk_errors(path):
        write_json(path, {"planned": plan, "measured": measured, "compared": compared})
    return [*_taken(plan, measured, compared), *_off(plan, compared)]


def _planned(plan: Mapping[str, Any]) -> dict[str, float]:
    """The comparable figures. Only training counts the policy's tokens."""
    training = {
        name: value for name, value in plan["phases"]["training"].items() if "policy" in name
    }
    total = {name: value for name, value in plan["total"].items() if "policy" not in name}
    phases = {f"{n} seconds": plan["seconds"][n] for n in plan["phases"] if n in plan["seconds"]}
    return {**training, **total, **phases, **_sum_usd(plan["usd"])}


def _sum_usd(usd: Mapping[str, float | None]) -> dict[str, float]:
    """The sum as ``usd``, if every part is known."""
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
    """A line on figures with an error above NEAR; bounds only if they were exceeded."""
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
    """Return True if a figure was planned as an upper bound; times follow the policy's tokens."""
    if name.endswith("seconds"):
        return any(bound.startswith("policy") for bound in plan["bounds"])
    return name in plan["bounds"]
