"""The basis of a plan of time and money: an attempt's requests to large models, and the speed of
the parts.

It comes from an earlier run, a probe of the servers or the environment's demonstrations, and from
the section ``plan``. Unmeasured amounts are absent, or bounds and named so.
"""

import ast
import json
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from zstandard import ZstdError

from flowright.app.device import planned_device
from flowright.config.llm import SIMULATED
from flowright.config.root import Config
from flowright.core.errors import ConfigError, RunError, UserError
from flowright.core.journal import changes_of
from flowright.data.mixture import Mixture
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.environments.rollout import Completion, to_record
from flowright.llm.counters import metrics_since
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_config, read_metrics, read_rollouts, rollout_steps
from flowright.workflows.operators import OPERATORS

EXECUTOR, JUDGE = "executor", "judge"

_ASKS_NOTHING = frozenset({"test"})


@dataclass(frozen=True, slots=True)
class RoleLoad:
    """An attempt's requests to one role: their number, the sum of their seconds at a server, and
    the seconds of the longest chain of requests that wait for each other."""

    calls: int = 0
    work: float = 0.0
    path: float = 0.0

    def times(self, factor: float) -> "RoleLoad":
        return RoleLoad(self.calls, self.work * factor, self.path * factor)


Attempt = Mapping[str, RoleLoad]
"""The load of an attempt by role; the judge's requests follow the executor's."""


def path_of(attempt: Attempt) -> float:
    """Seconds of an attempt whose requests never wait for a slot."""
    return sum(load.path for load in attempt.values())


def sums_of(attempts: Sequence[Attempt], role: str) -> tuple[int, float]:
    """Calls and seconds of all attempts for a role."""
    loads = [attempt.get(role, RoleLoad()) for attempt in attempts]
    return sum(load.calls for load in loads), sum(load.work for load in loads)


def attempt_of(record: Mapping[str, Any]) -> Attempt:
    """Read a rollout's record. Operator calls that overlapped are a wave; waves follow each other.
    The judge's calls come last and share the verdict's seconds, which include waiting."""
    calls = sorted(
        (call for call in (record.get("execution") or {}).get("trace") or () if call["exchanges"]),
        key=lambda call: call["started"],
    )
    count, work, path, wave, until = 0, 0.0, 0.0, 0.0, -1.0
    for call in calls:
        if call["started"] >= until:
            path, wave = path + wave, 0.0
        chain = sum(exchange["seconds"] for exchange in call["exchanges"])
        count, work, wave = count + len(call["exchanges"]), work + chain, max(wave, chain)
        until = max(until, call["started"] + call["seconds"])
    verdict = record.get("verdict") or {}
    judged = (verdict.get("usage") or {}).get("calls", 0)
    seconds = verdict["seconds"] if judged else 0.0
    executor = RoleLoad(count, work, path + wave)
    return {EXECUTOR: executor, JUDGE: RoleLoad(judged, seconds, seconds)}


def attempt_read(
    program: str, operators: frozenset[str], judges: int, rng: random.Random
) -> Attempt | None:
    """Read a program as if every loop went to its end, every branch were taken and an operator
    asked once, with ``judges`` in parallel after it; seconds are drawn from an exponential
    distribution of mean 1. None for a text that is no program."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError):
        return None
    widths = _widths(tree, operators - _ASKS_NOTHING)
    return {EXECUTOR: _waves(widths, rng), JUDGE: _waves([judges] * (judges > 0), rng)}


def _waves(widths: Sequence[int], rng: random.Random) -> RoleLoad:
    """Waves of parallel requests, each of them as long as its longest."""
    drawn = [[rng.expovariate(1.0) for _ in range(width)] for width in widths if width]
    return RoleLoad(sum(map(len, drawn)), sum(map(sum, drawn)), sum(map(max, drawn)))


def _widths(node: ast.AST, operators: frozenset[str]) -> list[int]:
    """Calls of each wave of a syntax tree; those of a comprehension are parallel."""
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        times = _times(node.generators[0].iter)
        return [times * width for width in _widths(node.elt, operators)]
    if isinstance(node, ast.For):
        body = [width for inner in node.body for width in _widths(inner, operators)]
        return body * _times(node.iter)
    inner = [w for child in ast.iter_child_nodes(node) for w in _widths(child, operators)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return [*inner, 1] if node.func.id in operators else inner
    return inner


def _times(iterated: ast.expr) -> int:
    """The n of ``range(n)``; 1 if the text does not have it."""
    match iterated:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))]):
            return max(0, count)
        case _:
            return 1


def in_series(calls: Mapping[str, float], rng: random.Random) -> Attempt:
    """An attempt with known numbers of calls, one after another, timed as in :func:`attempt_read`.
    Fractions are drawn."""
    return {role: _waves([1] * int(mean + rng.random()), rng) for role, mean in calls.items()}


def scaled(attempts: Sequence[Attempt], means: Mapping[str, float]) -> list[Attempt]:
    """Scale the seconds, so that the mean request of each role takes that long."""
    factors: dict[str, float] = {}
    for role, mean in means.items():
        calls, work = sums_of(attempts, role)
        if work:
            factors[role] = mean * calls / work
    return [
        {role: load.times(factors.get(role, 1.0)) for role, load in attempt.items()}
        for attempt in attempts
    ]


def with_calls(attempts: Sequence[Attempt], calls: Mapping[str, float]) -> list[Attempt]:
    """Scale the seconds as if each attempt had that many calls of a role on average."""
    means: dict[str, float] = {}
    for role, wanted in calls.items():
        count, work = sums_of(attempts, role)
        if count:
            means[role] = work / count * wanted * len(attempts) / count
    return scaled(attempts, means)


def busy_seconds(attempts: Sequence[Attempt], count: int, slots: Mapping[str, int]) -> float:
    """Seconds for which ``count`` attempts like these keep all slots of the busiest pool: calls x
    mean seconds / slots. No schedule is faster."""
    work = {pool: sum(sums_of(attempts, role)[1] for role in pool.split("+")) for pool in slots}
    return max(work[pool] * count / len(attempts) / slots[pool] for pool in slots)


def batch_seconds(attempts: Sequence[Attempt], count: int, slots: Mapping[str, int]) -> float:
    """Seconds until ``count`` attempts like these, begun together, are done: sqrt(B^2 + L^2).

    B are the :func:`busy_seconds`, L is the expected longest path of ``count`` attempts. The time
    is at least the larger and at most the sum of both (Graham 1969). On a run's records, with 20
    to 1,000 attempts and 2 to 256 slots, this is within 12 % of simulating the queue.
    """
    if not attempts or not count:
        return 0.0
    paths, n = sorted(map(path_of, attempts)), len(attempts)
    longest = sum(
        path * (((i + 1) / n) ** count - (i / n) ** count) for i, path in enumerate(paths)
    )
    return math.hypot(busy_seconds(attempts, count, slots), longest)


ROLES = (EXECUTOR, JUDGE)
USAGE = {"calls": "calls", "tokens_in": "prompt_tokens", "tokens_out": "completion_tokens"}
"""Figures of a role, by their names in a record's usage and in the metrics ``servers/*``."""
FIGURES = (
    *("policy_tokens_in", "policy_tokens_out"),
    *(f"{role}_{what}" for role in ROLES for what in USAGE),
)
"""Figures of an attempt: tokens of its prompt and completion, calls and tokens of large models."""

READING = 0.5
"""Cost of reading a token on a CPU, relative to drawing one; a GPU reads a whole prompt in the time
of a few. By SmolLM2-135M: 29 s for a step of 1,800 and 3,650, 45 s for an evaluation of 9,000
and 2,280."""


@dataclass(frozen=True, slots=True)
class Basis:
    """``figures`` are means of an attempt by FIGURES; ``bounds`` names those that are upper bounds
    instead. ``attempts`` are a sample; the seconds of their requests are known for the roles in
    ``timed``. ``sampler`` and ``learner`` are tokens a second; the sampler's are those of
    :func:`sampled`. ``own``: seconds of our own computing that an attempt adds to a batch."""

    source: str
    figures: Mapping[str, float] = field(default_factory=dict)
    bounds: frozenset[str] = frozenset()
    attempts: Sequence[Attempt] = ()
    timed: frozenset[str] = frozenset()
    sampler: float | None = None
    learner: float | None = None
    own: float = 0.0
    assumed: tuple[str, ...] = ()


def sampled(config: Config, drawn: float, read: float) -> float:
    """Tokens the sampler processes: completions, plus on a CPU half of each prompt once."""
    reads = config.policy.sampler == "local" and planned_device(config) == "cpu"
    return drawn + READING * read if reads else drawn


def slots(config: Config) -> dict[str, int]:
    """Requests in flight by pool: a role, or both roles joined by ``+`` if one model plays them."""
    shared = config.judge_model == config.aflow_executor_model
    pools = [f"{EXECUTOR}+{JUDGE}"] if shared else list(ROLES)
    return dict.fromkeys(pools, config.llm.max_concurrency)


def from_records(
    records: Sequence[Mapping[str, Any]],
    counts: Mapping[str, float],
    source: str,
    assumed: tuple[str, ...] = (),
) -> Basis:
    """Average records of attempts. ``counts``: the metrics ``servers/*``, whose seconds on the wire
    exclude waiting for a slot."""
    usages = {
        EXECUTOR: [((record.get("execution") or {}).get("usage") or {}) for record in records],
        JUDGE: [((record.get("verdict") or {}).get("usage") or {}) for record in records],
    }
    figures = {
        f"{role}_{name}": sum(usage.get(key, 0) for usage in some) / len(records)
        for role, some in usages.items()
        for name, key in USAGE.items()
    }
    means = {
        role: counts[f"servers/{role}/wire_seconds"] / calls
        for role in ROLES
        if (calls := counts.get(f"servers/{role}/calls", 0.0))
        and f"servers/{role}/wire_seconds" in counts
    }
    attempts = [attempt_of(record) for record in records]
    calls, work = sums_of(attempts, EXECUTOR)
    if calls:  # a verdict's seconds include waiting for a slot
        means = {JUDGE: work / calls, **means}
    attempts = scaled(attempts, means)
    return Basis(source, figures, frozenset(), attempts, frozenset(ROLES), assumed=assumed)


READ_STEPS = 6
"""Most steps of an earlier run whose rollouts are read, evenly spread."""

_SAME = (
    *("environment", "strategy_model", "aflow_executor_model", "judge.model", "judge.mode"),
    *("executor.max_tokens", "policy.prompt", "policy.sampler", "policy.dtype"),
)


def from_run(run: Path, config: Config) -> Basis:
    """Measure an earlier run's records. Raises RunError if there are none to read."""
    try:
        return _read(run, config)
    except (KeyError, TypeError, ValueError, ZstdError) as error:
        raise RunError(
            f"plan.earlier_run: {run}: its records cannot be read ({type(error).__name__}: {error})"
            "; name another run"
        ) from error


def check_earlier_run(run: Path | None) -> None:
    """Raise RunError if there is no such run; its records are not read."""
    if run is not None and not read_config(run):
        raise RunError(f"plan.earlier_run: {run}: no run; name a run directory")


def newest_alike(config: Config) -> Basis | None:
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
    steps = rollout_steps(run)
    if not before or not rows or not steps:
        raise RunError(f"plan.earlier_run: {run}: no run with a step to measure by")
    rows = rows[1:] or rows  # the first one pays for whatever is first-time
    picked = {row["step"]: row for row in rows if row["step"] in steps}
    every = -(-len(picked) // READ_STEPS) or 1
    batches = {step: [*read_rollouts(run, step)] for step in [*picked][::every]}
    records = [record for batch in batches.values() for record in batch]
    if not records:
        raise RunError(f"plan.earlier_run: {run}: no step kept its rollouts; name another run")
    counted = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    source = f"as measured in {run} ({counted})"
    found = from_records(records, _sums(rows), source)
    grpo = before["grpo"]
    prompts = grpo["prompts_per_step"]
    size = prompts * grpo["group_size"]
    drawn = size * sum(row["tokens/completion_mean"] for row in rows)
    asked = prompts * sum(row["tokens/prompt_mean"] for row in rows)
    sampling, updating = (sum(row[f"time/{name}"] for row in rows) for name in ("sample", "update"))
    every_attempt = iter(found.attempts)
    attempts = [[next(every_attempt) for _ in batch] for batch in batches.values()]
    took = [picked[step]["time/rollout"] for step in batches]
    differing = changes_of(_chosen(before, config), _chosen(_plain(config), config))
    return replace(
        found,
        figures={
            **found.figures,
            "policy_tokens_in": asked / prompts / len(rows),
            "policy_tokens_out": drawn / size / len(rows),
        },
        sampler=sampled(config, drawn, asked) / sampling if sampling > 0 else None,
        learner=grpo["epochs"] * (drawn + asked) / updating if updating > 0 else None,
        own=_own(attempts, took, before, config),
        assumed=tuple(f"the earlier run had another {line}" for line in differing),
    )


def _own(
    batches: Sequence[Sequence[Attempt]],
    took: Sequence[float],
    before: Mapping[str, Any],
    config: Config,
) -> float:
    """Seconds that an earlier run's rollouts took beyond their requests, per attempt; ``took`` are
    those of each batch. 0 if batches overlapped: then each includes the others' waiting."""
    if (before.get("pipeline") or {}).get("max_staleness"):
        return 0.0
    limits = dict.fromkeys(slots(config), int(before["llm"]["max_concurrency"]))
    waited = sum(batch_seconds(batch, len(batch), limits) for batch in batches)
    return max(0.0, sum(took) - waited) / sum(map(len, batches))


def _plain(config: Config) -> dict[str, Any]:
    return json.loads(config.model_dump_json())


def _chosen(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Settings by key that two runs must share for their figures to be comparable."""
    keys = [*_SAME, *(["simulated.latency_ms"] if SIMULATED in config.models else [])]
    keys += config.section.plan_keys
    return {
        key: reduce(lambda value, name: (value or {}).get(name), key.split("."), plain)
        for key in keys
    }


def _sums(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(n for row in rows for n in row if n.startswith("servers/"))
    return {name: sum(row.get(name, 0.0) for row in rows) for name in names}


PROGRAMS = 64
"""Demonstrations that are read if nothing was measured."""

UNMEASURED = "nothing measured yet"


async def find_basis(
    config: Config, environment: Environment, tasks: TaskSets, prompt_tokens: float | None = None
) -> Basis:
    """Return the best available basis, with the configuration's own figures over it.
    ``prompt_tokens``: the counted tokens of a prompt. Raises UserError for an earlier run that is
    no run and for a probe that fails."""
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
    return _with_plan_keys(_bounded(found, config), config)


def assumed_basis(config: Config, figures: Mapping[str, float], source: str) -> Basis:
    """Return a basis from figures of an attempt and the section ``plan``; no data, no servers."""
    return _with_plan_keys(_bounded(Basis(source, figures), config), config)


async def probed(config: Config, tasks: TaskSets) -> Basis:
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
    """Count calls in the workflows of a warm start; nothing is timed."""
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
        {f"{role}_calls": sums_of(attempts, role)[0] / len(attempts) for role in ROLES},
        attempts=attempts,
        assumed=(
            "calls as in programs of the grammar, loops to their end, one call an operator; their "
            "seconds of an exponential distribution",
        ),
    )


def _bounded(found: Basis, config: Config) -> Basis:
    """Add the configuration's limits as bounds for unknown figures."""
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


def _with_plan_keys(found: Basis, config: Config) -> Basis:
    """Put the figures of the section ``plan`` over the others."""
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
    calls = {role: figures.get(f"{role}_calls", 0.0) for role in ROLES}
    attempts = found.attempts or [in_series(calls, rng) for _ in range(PROGRAMS)]
    return replace(
        found,
        figures=figures,
        bounds=found.bounds - given,
        attempts=with_calls(scaled(attempts, means), calls),
        timed=found.timed | frozenset(means),
        sampler=plan.sampler_tokens_per_second or found.sampler,
        learner=plan.learner_tokens_per_second or found.learner,
    )
