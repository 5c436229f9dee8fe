"""The plan of a run: tokens and calls, hours, the balance of GPUs, a price; and its lines of text.

It computes from a :class:`flowright.app.plan_basis.Basis` and measures nothing; what the basis does
not know stays unknown. Not planned: loading, a cold start, checkpoints, resampled groups.

Seconds of one step, with sampling S, update U and a batch's rollouts R: batches are sampled up to s
(``pipeline.max_staleness``) steps ahead, so a batch's rollouts have s whole steps and the wait. In
the steady state a step takes

    max(S + U, (S + U + R) / (1 + s), B)

with B the seconds that a batch keeps the servers busy: calls x seconds / requests in flight. With
s = 0 that is S + U + R. R is :func:`flowright.app.plan_basis.batch_seconds` plus our own computing,
if it was measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from flowright.app.plan_basis import (
    FIGURES,
    ROLES,
    Basis,
    batch_seconds,
    busy_seconds,
    find_basis,
    sampled,
    slots,
)
from flowright.config.root import Config
from flowright.core.formatting import amount, duration
from flowright.data.mixture import Mixture
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets
from flowright.evaluation.evaluator import AT_ONCE
from flowright.grpo.fixed_data import groups_of
from flowright.policy.sampling import Prompt, Tokenizer

COUNTED = 64
"""Prompts whose tokens are counted."""

Figures = Mapping[str, float]
"""Amounts by name; unknown ones are absent."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Attempts of a part of the run, in ``batches`` of that many rollouts at a time; ``drawn`` of
    them, for ``prompts``, are the policy's."""

    attempts: int
    drawn: int
    prompts: int
    batches: Sequence[tuple[int, int]]
    """Numbers of batches and their attempts."""


@dataclass(frozen=True, slots=True)
class TimePlan:
    """``step`` has the FIGURES of a training step, ``phases`` those of each part of the run;
    ``seconds`` by stage of a step (sample, update, rollout, busy, step) and by phase;
    ``bounds`` names the figures that are the most there can be. Absent is unknown."""

    source: str
    step: Figures
    phases: Mapping[str, Figures]
    seconds: Figures
    bounds: frozenset[str]
    balance: float | None
    """Executor GPUs per trainer GPU that keep both busy."""
    usd: Mapping[str, float | None]
    """Cost by kind: GPUs, tokens."""
    assumed: tuple[str, ...]
    missing: tuple[str, ...]
    """Keys that would set the unknown figures."""

    @property
    def total(self) -> Figures:
        """The FIGURES of the whole run, and its ``seconds`` where all phases are known."""
        names = [name for name in FIGURES if all(name in some for some in self.phases.values())]
        found = {name: sum(some[name] for some in self.phases.values()) for name in names}
        if all(phase in self.seconds for phase in self.phases):
            found["seconds"] = sum(self.seconds[phase] for phase in self.phases)
        return found

    def to_json(self) -> dict[str, Any]:
        """The value of ``planned`` in ``plan.json``."""
        return {
            "source": self.source,
            "step": dict(self.step),
            "phases": {name: dict(some) for name, some in self.phases.items()},
            "total": dict(self.total),
            "seconds": dict(self.seconds),
            "bounds": sorted(self.bounds),
            "executor_gpus_per_trainer_gpu": self.balance,
            "usd": dict(self.usd),
            "assumed": list(self.assumed),
            "unknown_without": list(self.missing),
        }


async def plan_run(
    config: Config,
    environment: Environment,
    tasks: TaskSets,
    encode: Callable[[Task], Prompt] | None = None,
) -> TimePlan:
    """Plan a run with these tasks; ``encode`` counts prompt tokens, if a tokenizer is loaded.
    Raises UserError for an earlier run that is no run and for a probe that fails."""
    counted = None
    if encode is not None:
        some = Mixture(tasks.train, config.seed).distinct(COUNTED)
        counted = sum(len(encode(task).token_ids) for task in some) / len(some)
    basis = await find_basis(config, environment, tasks, counted)
    return make_plan(config, basis, len(tasks.val), len(environment.baselines()))


def make_plan(config: Config, basis: Basis, validation: int, baselines: int) -> TimePlan:
    """Plan a run with these numbers of validation problems and baselines."""
    phases = _phases(config, validation, baselines)
    seconds = _step_seconds(config, basis)
    seconds |= _phase_seconds(config, basis, phases, seconds)
    grpo = config.grpo
    step = _figures(basis, grpo.prompts_per_step * grpo.group_size, grpo.prompts_per_step)
    by_phase = {
        name: _figures(basis, phase.attempts, phase.prompts, phase.drawn)
        for name, phase in phases.items()
    }
    found = TimePlan(
        basis.source, step, by_phase, seconds, basis.bounds, _balance(config, basis, seconds), {},
        basis.assumed, _missing(config, basis),
    )  # fmt: skip
    return replace(found, usd=usd_of(config, found.total))


def _phases(config: Config, validation: int, baselines: int) -> dict[str, Phase]:
    grpo, section = config.grpo, config.evaluation
    size = grpo.prompts_per_step * grpo.group_size
    asked, compared = min(section.problems, validation), min(section.final_problems, validation)
    every = section.every
    evaluations = 1 + grpo.steps // every + (grpo.steps % every > 0) if every else 0
    rows = baselines + (baselines > 0) if section.baselines else 0  # one more, at equal tokens
    drawn = asked * section.samples
    tried = compared * (section.final_samples or section.samples)
    return {
        "training": Phase(
            grpo.steps * size, grpo.steps * size, grpo.steps * grpo.prompts_per_step,
            [(grpo.steps, size)],
        ),
        "evaluations": Phase(
            evaluations * drawn, evaluations * drawn, evaluations * asked,
            _parts(evaluations, drawn),
        ),
        "comparison": Phase(
            2 * tried + rows * compared, 2 * tried, 2 * compared,
            [*_parts(2, tried), *_parts(rows, compared)],
        ),
    }  # fmt: skip


def _parts(times: int, attempts: int) -> list[tuple[int, int]]:
    """Split evaluations into the batches that they are rolled out in."""
    whole, rest = divmod(attempts, AT_ONCE)
    return [(count, size) for count, size in ((times * whole, AT_ONCE), (times, rest)) if size]


def _figures(basis: Basis, attempts: int, prompts: int, drawn: int | None = None) -> Figures:
    """Figures of a number of attempts; each prompt of the policy is read once."""
    counts = {
        "policy_tokens_in": prompts,
        "policy_tokens_out": attempts if drawn is None else drawn,
    }
    return {name: n * counts.get(name, attempts) for name, n in basis.figures.items()}


def _step_seconds(config: Config, basis: Basis) -> dict[str, float]:
    """Seconds by stage, as in the module's docstring."""
    grpo = config.grpo
    size = grpo.prompts_per_step * grpo.group_size
    figures = _figures(basis, size, grpo.prompts_per_step)
    drawn, read = figures["policy_tokens_out"], figures["policy_tokens_in"]
    found: dict[str, float] = {}
    if basis.sampler is not None:
        found["sample"] = sampled(config, drawn, read) / basis.sampler
    if basis.learner is not None:
        found["update"] = grpo.epochs * (drawn + read) / basis.learner
    rollout = _rollout(config, basis, size)
    if rollout is not None:
        found["rollout"] = rollout
        found["busy"] = busy_seconds(basis.attempts, size, slots(config))
    if {"sample", "update", "rollout"} <= found.keys():
        ahead = config.pipeline.max_staleness or 0
        device = found["sample"] + found["update"]
        found["step"] = max(device, (device + found["rollout"]) / (1 + ahead), found["busy"])
    return found


def _rollout(config: Config, basis: Basis, attempts: int) -> float | None:
    """Seconds of rollouts that begin together; None if a role is not timed."""
    if attempts and _untimed(config, basis):
        return None
    waited = batch_seconds(basis.attempts, attempts, slots(config)) if attempts else 0.0
    return waited + basis.own * attempts


def _untimed(config: Config, basis: Basis) -> list[str]:
    """Roles with calls of unknown duration."""
    asked = [role for role in ROLES if basis.figures.get(f"{role}_calls", inf)]
    return [role for role in asked if role not in basis.timed]


def _phase_seconds(
    config: Config, basis: Basis, phases: Mapping[str, Phase], step: Figures
) -> dict[str, float]:
    found: dict[str, float] = {}
    if "step" in step:
        # The last batch's stages follow each other: nothing is left to overlap them with.
        alone = step["sample"] + step["update"] + step["rollout"]
        found["training"] = (config.grpo.steps - 1) * step["step"] + alone
    for name in ("evaluations", "comparison"):
        phase = phases[name]
        each = [(times, _rollout(config, basis, size)) for times, size in phase.batches]
        known = [times * seconds for times, seconds in each if seconds is not None]
        if len(known) == len(each) and (basis.sampler is not None or not phase.drawn):
            figures = _figures(basis, phase.attempts, phase.prompts, phase.drawn)
            tokens = figures["policy_tokens_out"], figures["policy_tokens_in"]
            sampling = sampled(config, *tokens) / basis.sampler if basis.sampler else 0.0
            found[name] = sum(known) + sampling
    return found


def _balance(config: Config, basis: Basis, seconds: Figures) -> float | None:
    """Executor GPUs E for each of T trainer GPUs so that a batch keeps both sides busy for as long:
    E / T x B / (S + U), as the servers' B shrinks with their number."""
    gpus = config.plan.executor_gpus
    if gpus is None or not {"sample", "update", "busy"} <= seconds.keys():
        return None
    return gpus / trainer_gpus(config) * seconds["busy"] / (seconds["sample"] + seconds["update"])


def trainer_gpus(config: Config) -> int:
    return config.plan.trainer_gpus or len(config.physical_gpus or ()) or 1


def usd_of(config: Config, total: Figures) -> dict[str, float | None]:
    """Cost of GPUs (GPUs x hours x price) and of tokens, for the prices that are set; None if the
    amount is unknown. Servers paid by the token use no GPUs of ours. ``total``: as
    :attr:`TimePlan.total`."""
    plan, found = config.plan, dict[str, float | None]()
    prices = {
        f"{role}_{name}": price
        for role, section in zip(ROLES, (plan.executor, plan.judge), strict=True)
        for name, price in (
            ("tokens_in", section.usd_per_million_in),
            ("tokens_out", section.usd_per_million_out),
        )
        if price is not None
    }
    if plan.usd_per_gpu_hour is not None:
        gpus = trainer_gpus(config) + (plan.executor_gpus or 0)
        known = "seconds" in total and (plan.executor_gpus is not None or prices)
        found["GPUs"] = gpus * total["seconds"] / 3600 * plan.usd_per_gpu_hour if known else None
    if prices:
        known = prices.keys() <= total.keys()
        paid = ((total[name] / 1e6 * price) for name, price in prices.items()) if known else ()
        found["tokens"] = sum(paid) if known else None
    return found


def _missing(config: Config, basis: Basis) -> tuple[str, ...]:
    keys = [f"plan.{role}.call_seconds" for role in _untimed(config, basis)]
    keys += ["plan.sampler_tokens_per_second"] if basis.sampler is None else []
    return (*keys, *(["plan.learner_tokens_per_second"] if basis.learner is None else []))


def plan_lines(plan: TimePlan) -> list[str]:
    """Render the whole plan for the dry run."""
    found = [plan.source, *_table(plan), *_time(plan)]
    if plan.balance is not None:
        found.append(
            f"executor GPUs per trainer GPU that keep both busy: {plan.balance:.2g} (servers are "
            f"busy {duration(plan.seconds['busy'])} of a step, sampling and update take "
            f"{duration(plan.seconds['sample'] + plan.seconds['update'])})"
        )
    found.append(_price(plan))
    return [*found, *(f"assumed: {line}" for line in plan.assumed)]


def start_line(plan: TimePlan) -> str:
    """Render the time and its source for a starting run."""
    if "seconds" not in plan.total:
        return f"time unknown: {plan.source}; a dry run (--dry-run) lists the keys that set it"
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
    """Lines on the time and the stages of a step, or on the keys that are missing."""
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


COUNTED_ROWS = 256
"""Rows whose tokens are counted."""


def fixed_data_lines(
    config: Config, environment: Environment, tasks: TaskSets, tokenizer: Tokenizer
) -> list[str]:
    """Plan a run on fixed data: tokens, and hours at a set rate. Shared beginnings of rows count
    once. Raises DataError."""
    scores = config.policy.head == "score"

    def mean_tokens(some: list[Task]) -> float:
        groups = [g for task in some for g in groups_of(environment, task, tokenizer, scores)]
        tokens = sum(len(g.prompt_ids) + sum(len(s.token_ids) for s in g.samples) for g in groups)
        return tokens / len(some)

    grpo, every = config.grpo, config.evaluation.every
    each = mean_tokens(Mixture(tasks.train, config.seed).distinct(COUNTED_ROWS))
    step = each * grpo.prompts_per_step
    lines = [
        f"{amount(each)} tokens a row; {amount(step)} a step, {amount(step * grpo.steps)} the run"
    ]
    if every and tasks.val:
        held = mean_tokens(Mixture(tasks.val, config.seed).distinct(COUNTED_ROWS)) * len(tasks.val)
        times = 1 + -(-grpo.steps // every)
        lines.append(f"{len(tasks.val):,} held-out rows of {amount(held)} tokens, {times} times")
    rate = config.plan.learner_tokens_per_second
    lines.append(
        f"time: training {duration(step * grpo.steps / rate)}"
        if rate
        else "time: unknown; give plan.learner_tokens_per_second"
    )
    return lines
