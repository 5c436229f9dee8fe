"""The basis of a plan of time and money: an attempt's requests to large models, and the speed of
the parts.

It comes from an earlier run's metrics, a probe of the servers or the environment, and from the
section ``plan``. Unmeasured amounts are absent, or bounds and named so.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from flowright.app.device import planned_device
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.config.section import Concurrency
from flowright.core.errors import ConfigError, RunError
from flowright.core.journal import changes_of
from flowright.data.mixture import Mixture
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.environments.episode import Episode
from flowright.llm.counters import metrics_since
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_config, read_metrics

ROLES = ("executor", "judge")
USAGE = {"calls": "calls", "tokens_in": "prompt_tokens", "tokens_out": "completion_tokens"}
"""Figures of a role, by their names in the metrics ``servers/*``."""
FIGURES = (
    *("policy_tokens_in", "policy_tokens_out"),
    *(f"{role}_{what}" for role in ROLES for what in USAGE),
)
"""Figures of an attempt: tokens of its prompt and completion, calls and tokens of large models."""

Figures = Mapping[str, float]
"""Amounts by name; unknown ones are absent."""

READING = 0.5
"""Cost of reading a token on a CPU, relative to drawing one; a GPU reads a whole prompt in the time
of a few. By SmolLM2-135M: 29 s for a step of 1,800 and 3,650, 45 s for an evaluation of 9,000
and 2,280."""

UNMEASURED = "nothing measured yet"

_SAME = (
    *("environment", "strategy_model", "aflow_executor_model", "judge.model", "judge.mode"),
    *("executor.max_tokens", "policy.prompt", "policy.sampler", "policy.dtype"),
)


@dataclass(frozen=True, slots=True)
class Basis:
    """``figures`` are means of an attempt by FIGURES; ``bounds`` names those that are upper bounds
    instead. ``call_seconds``: mean seconds of a call at a server, of the roles where they are
    known; ``servers``: addresses of each, 1 where unknown. ``path``: share of an attempt's seconds
    at servers that it waits for, less than 1 where its calls run beside each other. ``sampler`` and
    ``learner`` are tokens a second; the sampler's are those of :func:`sampled`. ``own``: seconds of
    our own computing that an attempt adds to a batch."""

    source: str
    figures: Figures = field(default_factory=dict)
    bounds: frozenset[str] = frozenset()
    call_seconds: Mapping[str, float] = field(default_factory=dict)
    servers: Mapping[str, int] = field(default_factory=dict)
    path: float = 1.0
    sampler: float | None = None
    learner: float | None = None
    own: float = 0.0
    assumed: tuple[str, ...] = ()

    def served(self) -> list[float]:
        """Return the seconds of an attempt at the servers of each role."""
        return [
            self.figures.get(f"{role}_calls", 0.0) * self.call_seconds.get(role, 0.0)
            for role in ROLES
        ]

    def untimed(self) -> list[str]:
        """Return the roles with calls of unknown duration."""
        asked = [role for role in ROLES if self.figures.get(f"{role}_calls", math.inf)]
        return [role for role in asked if role not in self.call_seconds]


def sampled(config: Config, drawn: float, read: float) -> float:
    """Return the tokens the sampler processes: completions, plus on a CPU half of each prompt
    once."""
    reads = config.policy.sampler == "local" and planned_device(config) == "cpu"
    return drawn + READING * read if reads else drawn


def busy_seconds(config: Config, basis: Basis, attempts: int) -> float:
    """Return the seconds for which attempts keep the busiest servers: calls x mean seconds /
    requests in flight. Roles that one model plays share its requests. No schedule is faster."""
    each = [
        work / config.llm.in_flight(basis.servers.get(role, 1))
        for role, work in zip(ROLES, basis.served(), strict=True)
    ]
    shared = config.judge_model in config.executor_models
    return attempts * (sum(each) if shared else max(each))


def batch_seconds(config: Config, basis: Basis, attempts: int) -> float:
    """Return the seconds until attempts that begin together are done: sqrt(B^2 + L^2) and our own
    computing.

    B are the :func:`busy_seconds`, L is the longest attempt's chain of k calls, with exponential
    durations: mean x (1 + sqrt(2 ln(attempts) / k)), the bound for the largest of normal draws. The
    time is at least the larger and at most the sum of both (Graham 1969).
    """
    if not attempts:
        return 0.0
    calls = basis.path * sum(basis.figures.get(f"{role}_calls", 0.0) for role in ROLES)
    spread = math.sqrt(2 * math.log(attempts) / max(calls, 1.0))
    longest = basis.path * sum(basis.served()) * (1 + spread)
    return math.hypot(busy_seconds(config, basis, attempts), longest) + basis.own * attempts


async def find_basis(
    config: Config, environment: Environment, tasks: TaskSets, prompt_tokens: float | None = None
) -> Basis:
    """Return the best available basis, with the configuration's own figures over it: an earlier
    run, a probe of the servers, or the calls that the environment plans with. ``prompt_tokens``:
    the counted tokens of a prompt. Raises UserError for an earlier run that is no run and for a
    probe that fails."""
    if config.plan.earlier_run is not None:
        found = from_run(config.plan.earlier_run, config)
    elif (earlier := _newest_alike(config)) is not None:
        found = earlier
    elif config.plan.probe:
        found = await _probed(config, tasks)
    else:
        calls = environment.planned_calls(tasks.train)
        found = Basis(UNMEASURED, {f"{role}_calls": count for role, count in calls.items()})
    found = replace(found, servers=_server_counts(config))
    if prompt_tokens is not None:
        found = replace(found, figures={**found.figures, "policy_tokens_in": prompt_tokens})
    return _completed(found, config)


def assumed_basis(config: Config, figures: Figures, source: str) -> Basis:
    """Return a basis from figures of an attempt and the section ``plan``; no data, no servers."""
    return _completed(Basis(source, figures), config)


def from_run(run: Path, config: Config) -> Basis:
    """Measure an earlier run by its metrics. Raises RunError if there are none to read."""
    try:
        return _read(run, config)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"plan.earlier_run: {run}: its records cannot be read ({type(error).__name__}: {error})"
            "; name another run"
        ) from error


def _newest_alike(config: Config) -> Basis | None:
    """Measure the latest readable run of the same models; None without one."""
    states = config.run.output_dir.glob("*/state.json")
    wanted = _chosen(_plain(config), config)
    for state in sorted(states, key=lambda path: -path.stat().st_mtime):
        try:
            if _chosen(read_config(state.parent), config) == wanted:
                return from_run(state.parent, config)
        except RunError:  # a damaged run does not keep another from starting
            continue
    return None


def _read(run: Path, config: Config) -> Basis:
    before = read_config(run)
    rows = [row for row in read_metrics(run) if "time/update" in row]
    if not before or not rows:
        raise RunError(f"plan.earlier_run: {run}: no run with a step to measure by")
    rows = rows[1:] or rows  # the first one pays for whatever is first-time
    rows = [row for row in rows if "time/evaluate" not in row] or rows  # evaluations ask, too
    grpo, prompts = before["grpo"], before["grpo"]["prompts_per_step"]
    size = prompts * grpo["group_size"]
    drawn = size * sum(row["tokens/completion_mean"] for row in rows)
    asked = prompts * sum(row["tokens/prompt_mean"] for row in rows)
    sampling, updating, rollout = (
        sum(row[f"time/{name}"] for row in rows) for name in ("sample", "update", "rollout")
    )
    counted = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    found = _measured_by(rows, size * len(rows), f"as measured in {run} ({counted})")
    own = 0.0
    if not (before.get("pipeline") or {}).get("max_staleness"):  # else batches wait beside others
        bounds = {key: n for key in Concurrency.model_fields if (n := before["llm"].get(key))}
        llm = config.llm.model_copy(update=dict(Concurrency.model_validate(bounds)))
        there = replace(found, servers=_server_counts(config))
        waited = batch_seconds(config.model_copy(update={"llm": llm}), there, size)
        own = max(0.0, rollout / len(rows) - waited) / size
    tokens = {"policy_tokens_in": asked / prompts / len(rows),
              "policy_tokens_out": drawn / size / len(rows)}  # fmt: skip
    differing = changes_of(_chosen(before, config), _chosen(_plain(config), config))
    return replace(
        found,
        figures={**found.figures, **tokens},
        sampler=sampled(config, drawn, asked) / sampling if sampling > 0 else None,
        learner=grpo["epochs"] * (drawn + asked) / updating if updating > 0 else None,
        own=own,
        assumed=tuple(f"the earlier run had another {line}" for line in differing),
    )


def _measured_by(rows: Sequence[Figures], attempts: int, source: str) -> Basis:
    """Average the metrics of attempts; seconds on the wire exclude waiting for a place."""

    def total(name: str) -> float:
        return sum(row.get(name, 0.0) for row in rows)

    figures = {
        f"{role}_{name}": total(f"servers/{role}/{key}") / attempts
        for role in ROLES
        for name, key in USAGE.items()
    }
    seconds = {
        role: total(f"servers/{role}/wire_seconds") / calls
        for role in ROLES
        if (calls := total(f"servers/{role}/calls"))
    }
    found = Basis(source, figures, call_seconds=seconds)
    waited = (total("time/execute") + total("time/judge")) / len(rows)
    served = sum(found.served())
    return replace(found, path=min(1.0, waited / served) if waited and served else 1.0)


def _server_counts(config: Config) -> dict[str, int]:
    entries = load_entries(config.llm.file, config.models, config.simulated)
    asked = zip(ROLES, (config.executor_models, (config.judge_model,)), strict=True)
    counts = {
        role: sum(len(entries[n].base_urls) for n in some if n in entries) for role, some in asked
    }
    return {role: count for role, count in counts.items() if count}


def _plain(config: Config) -> dict[str, Any]:
    return json.loads(config.model_dump_json())


def _chosen(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Settings by key that two runs must share for their figures to be comparable."""
    keys = [*_SAME, *(["simulated.latency_ms"] if config.simulated.played(config.models) else [])]
    keys += config.section.plan_keys
    return {
        key: reduce(lambda value, name: (value or {}).get(name), key.split("."), plain)
        for key in keys
    }


async def _probed(config: Config, tasks: TaskSets) -> Basis:
    """Roll out the environment's baselines on some train problems, in an environment of their own,
    so that the run's caches stay as they are. Raises UserError if it cannot be opened."""
    environment = make_environment(config)
    some = Mixture(tasks.train, f"{config.seed}/plan").distinct(config.plan.probe)
    baselines = environment.baselines()
    if not baselines:
        raise ConfigError(
            f"plan.probe: environment {config.environment} has no baselines to probe with; set it "
            "to 0, or give plan.executor.call_seconds"
        )
    groups = [
        [
            Episode.single(task, Sample((), (), one.completion, "stop", -1), f"plan/{task.id}/{i}")
            for i, one in enumerate(baselines)
        ]
        for task in some
    ]
    async with environment.open(some):
        rollouts = [r for group in await environment.rollout(groups) for r in group]
        metrics = environment.summarise(rollouts) | metrics_since(environment.counters())
    found = _measured_by([metrics], len(rollouts), f"servers probed with {len(rollouts)} attempts")
    return replace(found, assumed=("an attempt is like those of the environment's baselines",))


def _completed(found: Basis, config: Config) -> Basis:
    """Add the configuration's limits as bounds for unknown figures, and put those of the section
    ``plan`` over the others."""
    plan = config.plan
    most: dict[str, float] = {
        "policy_tokens_in": config.policy.max_prompt_tokens,
        "policy_tokens_out": config.policy.tokens_behind_prompt,
    }
    if (budget := config.section.budget()) is not None:
        calls = found.figures.get("executor_calls", budget.max_llm_calls)
        room = budget.max_tokens
        most["executor_calls"] = calls
        most["executor_tokens_in"] = room
        most["executor_tokens_out"] = min(calls * config.executor.max_tokens, room)
    bounds = set(most) - set(found.figures)
    figures, seconds = {**most, **found.figures}, dict(found.call_seconds)
    if plan.calls_per_attempt is not None:
        calls = figures.get("executor_calls", 0.0)
        for name in ("executor_tokens_in", "executor_tokens_out"):
            if name in figures and name not in bounds and calls:
                figures[name] *= plan.calls_per_attempt / calls
        figures["executor_calls"] = plan.calls_per_attempt
        bounds.discard("executor_calls")
    for role, section in zip(ROLES, (plan.executor, plan.judge), strict=True):
        for name, each in (("tokens_in", section.tokens_in), ("tokens_out", section.tokens_out)):
            if each is not None and f"{role}_calls" in figures:
                figures[f"{role}_{name}"] = each * figures[f"{role}_calls"]
                bounds.discard(f"{role}_{name}")
        if section.call_seconds is not None:
            seconds[role] = section.call_seconds
    return replace(
        found,
        figures=figures,
        bounds=frozenset(bounds),
        call_seconds=seconds,
        sampler=plan.sampler_tokens_per_second or found.sampler,
        learner=plan.learner_tokens_per_second or found.learner,
    )
