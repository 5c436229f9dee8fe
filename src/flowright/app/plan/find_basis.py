"""Where a plan's basis comes from: an earlier run, a probe of the servers, or the environment's
demonstrations alone, and what the configuration gives in place of any. What nobody measured or gave
is absent, or a bound and called one.
"""

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from flowright.app.plan.attempts import (
    EXECUTOR,
    JUDGE,
    attempt_read,
    in_series,
    requests_of,
    scaled,
    with_calls,
)
from flowright.app.plan.basis import ROLES, Basis, from_records
from flowright.app.plan.earlier_run import from_run, newest_alike
from flowright.config.root import Config
from flowright.core.errors import ConfigError, UserError
from flowright.data.mixture import Mixture
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.environments.rollout import Completion, to_record
from flowright.llm.counters import metrics_since
from flowright.policy.sampling import Sample
from flowright.workflows.operators import OPERATORS

PROGRAMS = 64
"""Demonstrations that are read where nothing was measured."""

UNMEASURED = "nothing measured yet"


async def find_basis(
    config: Config, environment: Environment, tasks: TaskSets, prompt_tokens: float | None = None
) -> Basis:
    """The best that there is, with what the configuration gives. ``prompt_tokens``: of a prompt,
    counted. Raises UserError for an earlier run that is none, and where a probe fails."""
    if config.plan.earlier_run is not None:
        found = from_run(config.plan.earlier_run, config)
    elif (earlier := newest_alike(config)) is not None:
        found = earlier
    elif config.plan.probe:
        found = await probed(config, tasks)
    else:
        found = _from_demonstrations(config, environment, tasks)
    if prompt_tokens is not None:
        found = replace(found, figures={**found.figures, "policy_tokens_in": prompt_tokens})
    return _given(_bounded(found, config), config)


def assumed_basis(config: Config, figures: Mapping[str, float], source: str) -> Basis:
    """A basis of these figures of an attempt and of what the configuration's ``plan`` gives, where
    neither data nor servers need be at hand."""
    return _given(_bounded(Basis(source, figures), config), config)


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
    return from_records(
        records,
        counts,
        f"servers probed with {len(records)} attempts",
        ("an attempt is like those of the environment's baselines",),
    )


def _from_demonstrations(config: Config, environment: Environment, tasks: TaskSets) -> Basis:
    """Calls only, by the workflows that the environment would teach; nothing is timed."""
    shown = []
    if config.section.budget() is not None:  # other completions' calls are not known
        with suppress(UserError):
            shown = environment.demonstrations(tasks.train, PROGRAMS, 1, config.seed)
    rng = random.Random(config.seed)
    judges = 0 if config.judge.mode == "rules" else 1 + len(config.judge.panel)
    read = [attempt_read(one.completions[0], frozenset(OPERATORS), judges, rng) for one in shown]
    attempts = [attempt for attempt in read if attempt is not None]
    if not attempts:
        calls = environment.planned_calls(tasks.train)
        return Basis(UNMEASURED, {f"{role}_calls": count for role, count in calls.items()})
    return Basis(
        UNMEASURED,
        {f"{role}_calls": len(requests_of(attempts, role)) / len(attempts) for role in ROLES},
        attempts=attempts,
        assumed=(
            "calls as in programs of the grammar, loops to their end, one call an operator; their "
            "seconds of an exponential distribution",
        ),
    )


def _bounded(found: Basis, config: Config) -> Basis:
    """With the limits of the configuration where nothing is known."""
    most: dict[str, float] = {
        "policy_tokens_in": config.policy.max_prompt_tokens,
        "policy_tokens_out": config.policy.max_new_tokens,
    }
    if (budget := config.section.budget()) is not None:
        calls = found.figures.get("executor_calls", budget.max_llm_calls)
        room = budget.max_tokens
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
