"""What a plan of time and money stands on: what an attempt is like and how fast the parts are, from
an earlier run, from a probe of the servers, or from the environment's demonstrations alone. No plan
is made here. What nobody measured or gave is absent, or a bound and called one.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from zstandard import ZstdError

from flowright.app.replay import (
    DRAWS,
    EXECUTOR,
    JUDGE,
    Attempt,
    attempt_of,
    attempt_read,
    in_series,
    like_the_executor,
    replayed,
    scaled,
    with_calls,
)
from flowright.config import SIMULATED, Config
from flowright.data.mixture import Mixture
from flowright.environments.environment import Environment, TaskSets, make_environment
from flowright.environments.rollout import Completion, to_record
from flowright.errors import ConfigError, RunError, UserError
from flowright.llm.counters import metrics_since
from flowright.policy.sampler import Sample
from flowright.runs import changes_of, read_config, read_metrics, read_rollouts, rollout_steps
from flowright.workflows.operators import OPERATORS

ROLES = (EXECUTOR, JUDGE)
FIGURES = (
    *("policy_tokens_in", "policy_tokens_out"),
    *(f"{role}_{what}" for role in ROLES for what in ("calls", "tokens_in", "tokens_out")),
)
"""Of an attempt: tokens of its prompt and completion, and what large models are asked for it."""

READ_STEPS = 6
"""Of an earlier run, evenly spread: what is read of its rollouts."""
PROGRAMS = 64
"""Demonstrations that are read where nothing was measured."""

_SAME = (
    *("environment", "strategy_model", "aflow_executor_model", "judge.model", "judge.mode"),
    *("executor.max_tokens", "policy.prompt", "policy.sampler", "policy.dtype"),
)


@dataclass(frozen=True, slots=True)
class Basis:
    """``figures`` are means of an attempt by FIGURES, ``bounds`` those that are no means but the
    most that there can be. ``attempts`` stand for all others; their requests' seconds are known for
    the roles in ``timed``. ``sampler`` and ``learner`` are tokens a second. ``own``: seconds of
    our own computing that an attempt adds to a batch's rollouts."""

    source: str
    figures: Mapping[str, float] = field(default_factory=dict)
    bounds: frozenset[str] = frozenset()
    attempts: Sequence[Attempt] = ()
    timed: frozenset[str] = frozenset()
    sampler: float | None = None
    learner: float | None = None
    own: float = 0.0
    assumed: tuple[str, ...] = ()


def slots(config: Config) -> dict[str, int]:
    """Requests in flight by who shares them, as :func:`flowright.app.replay.replayed` reads it."""
    shared = config.judge_model == config.aflow_executor_model
    pools = [f"{EXECUTOR}+{JUDGE}"] if shared else list(ROLES)
    return dict.fromkeys(pools, config.llm.max_concurrency)


async def find_basis(
    config: Config, environment: Environment, tasks: TaskSets, prompt_tokens: float | None = None
) -> Basis:
    """The best that there is, with what the configuration gives. ``prompt_tokens``: of a prompt,
    counted. Raises UserError for an earlier run that is none, and where a probe fails."""
    if config.plan.earlier_run is not None:
        found = from_run(config.plan.earlier_run, config)
    elif (earlier := _newest(config)) is not None:
        found = earlier
    elif config.plan.probe:
        found = await probed(config, tasks)
    else:
        found = _from_demonstrations(config, environment, tasks)
    if prompt_tokens is not None:
        found = replace(found, figures={**found.figures, "policy_tokens_in": prompt_tokens})
    return _given(_bounded(found, config), config)


def from_run(run: Path, config: Config) -> Basis:
    """What the records of an earlier run show. Raises RunError where there are none to read."""
    try:
        return _read(run, config)
    except (KeyError, TypeError, ValueError, ZstdError) as error:
        raise RunError(
            f"plan.earlier_run: {run}: its records cannot be read ({type(error).__name__}: {error})"
            "; name another run"
        ) from error


def _read(run: Path, config: Config) -> Basis:
    before = read_config(run)
    rows = [row for row in read_metrics(run) if "time/update" in row]
    steps = rollout_steps(run)
    if not before or not rows or not steps:
        raise RunError(f"plan.earlier_run: {run}: no run with a step to measure by")
    rows = rows[1:] or rows  # the first one pays for whatever is first-time
    picked = {row["step"]: row for row in rows if row["step"] in steps}
    every = max(1, len(picked) // READ_STEPS)
    batches = [(row, [*read_rollouts(run, step)]) for step, row in [*picked.items()][::every]]
    if not batches:
        raise RunError(f"plan.earlier_run: {run}: no step kept its rollouts; name another run")
    records = [record for _, batch in batches for record in batch]
    source = f"as measured in {run} ({len(rows)} steps)"
    found = _from_records(records, _sums(rows), source)
    grpo = before["grpo"]
    prompts = grpo["prompts_per_step"]
    size = prompts * grpo["group_size"]
    drawn = size * sum(row["tokens/completion_mean"] for row in rows)
    asked = prompts * sum(row["tokens/prompt_mean"] for row in rows)
    sampling, updating = (sum(row[f"time/{name}"] for row in rows) for name in ("sample", "update"))
    differing = changes_of(_chosen(before, config), _chosen(_plain(config), config))
    return replace(
        found,
        figures={
            **found.figures,
            "policy_tokens_in": asked / prompts / len(rows),
            "policy_tokens_out": drawn / size / len(rows),
        },
        sampler=drawn / sampling if sampling > 0 else None,
        learner=grpo["epochs"] * (drawn + asked) / updating if updating > 0 else None,
        own=_own(found, before, config, [row for row, _ in batches]),
        assumed=tuple(f"the earlier run had another {line}" for line in differing),
    )


def _own(found: Basis, before: Mapping[str, Any], config: Config, rows: Sequence[Any]) -> float:
    """What an earlier run's rollouts took beyond their requests, for each attempt; ``found`` has
    the attempts of the steps ``rows``, in their order. Where batches overlapped, the one's waiting
    is in the other's time, and nothing can be told."""
    if (before.get("pipeline") or {}).get("max_staleness"):
        return 0.0
    size = len(found.attempts) // len(rows)
    places = dict.fromkeys(slots(config), int(before["llm"]["max_concurrency"]))
    waited = [
        replayed(found.attempts[size * i : size * (i + 1)], places, seed)
        for i in range(len(rows))
        for seed in range(DRAWS)
    ]
    took = sum(row["time/rollout"] for row in rows) / len(rows)
    return max(0.0, took - sum(waited) / len(waited)) / size


async def probed(config: Config, tasks: TaskSets) -> Basis:
    """Roll out the environment's baselines on some train problems, in an environment of their own:
    what the run's own remembers is not touched. Raises UserError where it cannot be opened."""
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
            Completion(task, Sample((), (), one.completion, "stop", -1), f"plan/{task.id}/{i}")
            for i, one in enumerate(baselines)
        ]
        for task in some
    ]
    async with environment.open(some):
        rollouts = [r for group in await environment.rollout(groups) for r in group]
        records = [to_record(r, environment.record(r), 0, 0, 0, None) for r in rollouts]
        counts = metrics_since(environment.counters())
    return _from_records(
        records,
        counts,
        f"servers probed with {len(records)} attempts",
        ("an attempt is like those of the environment's baselines",),
    )


def _from_records(
    records: Sequence[Mapping[str, Any]],
    counts: Mapping[str, float],
    source: str,
    assumed: tuple[str, ...] = (),
) -> Basis:
    """``counts``: the metrics ``servers/*``, whose seconds on the wire leave queues out."""
    usages = {
        EXECUTOR: [((record.get("execution") or {}).get("usage") or {}) for record in records],
        JUDGE: [((record.get("verdict") or {}).get("usage") or {}) for record in records],
    }
    names = {"calls": "calls", "tokens_in": "prompt_tokens", "tokens_out": "completion_tokens"}
    figures = {
        f"{role}_{name}": sum(usage.get(key, 0) for usage in some) / len(records)
        for role, some in usages.items()
        for name, key in names.items()
    }
    means = {
        role: counts[f"servers/{role}/wire_seconds"] / calls
        for role in ROLES
        if (calls := counts.get(f"servers/{role}/calls", 0.0))
        and f"servers/{role}/wire_seconds" in counts
    }
    attempts = scaled(like_the_executor([attempt_of(record) for record in records]), means)
    return Basis(source, figures, frozenset(), attempts, frozenset(ROLES), assumed=assumed)


def _from_demonstrations(config: Config, environment: Environment, tasks: TaskSets) -> Basis:
    """Calls only, by the programs that the environment would teach; nothing is timed."""
    try:
        shown = environment.demonstrations(tasks.train, PROGRAMS, 1, config.seed)
    except UserError:
        shown = []
    rng = random.Random(config.seed)
    judges = 0 if config.judge.mode == "rules" else 1 + len(config.judge.panel)
    read = [attempt_read(one.completions[0], frozenset(OPERATORS), judges, rng) for one in shown]
    attempts = [attempt for attempt in read if attempt is not None]
    source = "nothing measured yet"
    if not attempts:
        return Basis(source)
    requests = [r for attempt in attempts for wave in attempt for chain in wave for r in chain]
    calls = {f"{role}_calls": sum(r.role == role for r in requests) for role in ROLES}
    return Basis(
        source,
        {name: count / len(attempts) for name, count in calls.items()},
        attempts=attempts,
        assumed=(
            "calls as in programs of the grammar, loops to their end, one call an operator",
            "calls take seconds of an exponential distribution",
        ),
    )


def _bounded(found: Basis, config: Config) -> Basis:
    """With the limits of the configuration where nothing is known."""
    most: dict[str, float] = {
        "policy_tokens_in": config.policy.max_prompt_tokens,
        "policy_tokens_out": config.policy.max_new_tokens,
    }
    if config.environment == "workflow":
        calls = found.figures.get("executor_calls", config.workflow.max_llm_calls)
        room = config.workflow.max_tokens
        most["executor_calls"] = calls
        most["executor_tokens_in"] = room
        most["executor_tokens_out"] = min(calls * config.executor.max_tokens, room)
    bounds = frozenset(most) - frozenset(found.figures)
    return replace(found, figures={**most, **found.figures}, bounds=bounds)


def _given(found: Basis, config: Config) -> Basis:
    """With what the configuration gives in place of anything else."""
    plan = config.plan
    figures, means = dict(found.figures), dict[str, float]()
    if plan.calls_per_attempt is not None:
        calls = figures.get("executor_calls", 0.0)
        for name in ("executor_tokens_in", "executor_tokens_out"):
            if name in figures and name not in found.bounds and calls:
                figures[name] *= plan.calls_per_attempt / calls
        figures["executor_calls"] = plan.calls_per_attempt
    given = {"executor_calls"} if plan.calls_per_attempt is not None else set[str]()
    for role, section in ((EXECUTOR, plan.executor), (JUDGE, plan.judge)):
        for name, each in (("tokens_in", section.tokens_in), ("tokens_out", section.tokens_out)):
            if each is not None and f"{role}_calls" in figures:
                figures[f"{role}_{name}"] = each * figures[f"{role}_calls"]
                given.add(f"{role}_{name}")
        if section.call_seconds is not None:
            means[role] = section.call_seconds
        elif section.tokens_per_second is not None and figures.get(f"{role}_tokens_out"):
            # Little's law, all places taken: seconds = requests in flight / calls a second.
            written = figures[f"{role}_tokens_out"] / figures[f"{role}_calls"]
            means[role] = config.llm.max_concurrency * written / section.tokens_per_second
    rng = random.Random(config.seed)
    attempts = found.attempts or [
        in_series([figures.get(f"{role}_calls", 0.0) for role in ROLES], rng)
        for _ in range(PROGRAMS)
    ]
    return replace(
        found,
        figures=figures,
        bounds=found.bounds - given,
        attempts=with_calls(
            scaled(attempts, means), {role: figures.get(f"{role}_calls", 0.0) for role in ROLES}
        ),
        timed=found.timed | frozenset(means),
        sampler=plan.sampler_tokens_per_second or found.sampler,
        learner=plan.learner_tokens_per_second or found.learner,
    )


def _newest(config: Config) -> Basis | None:
    """Of the run of the same models whose state changed last, of those that can be read."""
    states = config.run.output_dir.glob("*/state.json")
    wanted = _chosen(_plain(config), config)
    for state in sorted(states, key=lambda path: -path.stat().st_mtime):
        try:
            if _chosen(read_config(state.parent), config) == wanted:
                return from_run(state.parent, config)
        except RunError:  # it keeps nobody from starting another
            continue
    return None


def _plain(config: Config) -> dict[str, Any]:
    return json.loads(config.model_dump_json())


def _chosen(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The settings that make runs' figures alike, by key."""
    keys = [*_SAME, *(["simulated.latency_ms"] if SIMULATED in config.models else [])]
    return {
        key: reduce(lambda value, name: (value or {}).get(name), key.split("."), plain)
        for key in keys
    }


def _sums(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(n for row in rows for n in row if n.startswith("servers/"))
    return {name: sum(row.get(name, 0.0) for row in rows) for name in names}
