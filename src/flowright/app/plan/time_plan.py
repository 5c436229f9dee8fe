"""The arithmetic of a run's plan: tokens and calls, hours, GPUs that keep each other busy, a price.

It stands on a :class:`flowright.app.plan.basis.Basis`; nothing is asked or measured here. What the
basis does not know stays unknown. Not in it: loading, a cold start, checkpoints, resampled groups.

Seconds of one step, with sampling S, update U and a batch's rollouts R: batches are sampled up to s
(``pipeline.max_staleness``) steps ahead, and a batch's rollouts have s whole steps and what is
waited for. In the steady state a step takes

    max(S + U, (S + U + R) / (1 + s), B)

where B is for how long a batch keeps the servers busy: calls x seconds / requests in flight. With
s = 0 that is S + U + R. R is a batch's requests put through the request slots on paper
(:mod:`flowright.app.plan.replay`), and our own computing where it was measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from flowright.app.plan.basis import FIGURES, ROLES, Basis, sampled, slots
from flowright.app.plan.find_basis import find_basis
from flowright.app.plan.replay import batch_seconds, busy_seconds
from flowright.config.root import Config
from flowright.data.mixture import Mixture
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets
from flowright.evaluation.evaluator import AT_ONCE
from flowright.policy.sampling import Prompt

COUNTED = 64
"""Prompts whose tokens are counted."""

Figures = Mapping[str, float]
"""Amounts by name; what is unknown is absent."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Attempts of a part of the run, in ``batches`` of that many rollouts at a time; ``drawn`` of
    them, for ``prompts``, are the policy's."""

    attempts: int
    drawn: int
    prompts: int
    batches: Sequence[tuple[int, int]]
    """How many batches of how many attempts."""


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
    """By what is paid for: GPUs, tokens."""
    assumed: tuple[str, ...]
    missing: tuple[str, ...]
    """Keys that would make what is unknown known."""

    @property
    def total(self) -> Figures:
        """The FIGURES of the whole run, and its ``seconds`` where all phases are known."""
        names = [name for name in FIGURES if all(name in some for some in self.phases.values())]
        found = {name: sum(some[name] for some in self.phases.values()) for name in names}
        if all(phase in self.seconds for phase in self.phases):
            found["seconds"] = sum(self.seconds[phase] for phase in self.phases)
        return found

    def to_json(self) -> dict[str, Any]:
        """What ``plan.json`` has under ``planned``."""
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
    """The plan of a run with these tasks; ``encode`` counts prompts where a tokenizer is at hand.
    Raises UserError for an earlier run that is none, and where a probe fails."""
    counted = None
    if encode is not None:
        some = Mixture(tasks.train, config.seed).distinct(COUNTED)
        counted = sum(len(encode(task).token_ids) for task in some) / len(some)
    basis = await find_basis(config, environment, tasks, counted)
    return make_plan(config, basis, len(tasks.val), len(environment.baselines()))


def make_plan(config: Config, basis: Basis, validation: int, baselines: int) -> TimePlan:
    """The plan of a run with so many validation problems and baselines."""
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
    """So many evaluations in the parts that they are rolled out in."""
    whole, rest = divmod(attempts, AT_ONCE)
    return [(count, size) for count, size in ((times * whole, AT_ONCE), (times, rest)) if size]


def _figures(basis: Basis, attempts: int, prompts: int, drawn: int | None = None) -> Figures:
    """Of so many attempts; each prompt of the policy is read once."""
    counts = {
        "policy_tokens_in": prompts,
        "policy_tokens_out": attempts if drawn is None else drawn,
    }
    return {name: n * counts.get(name, attempts) for name, n in basis.figures.items()}


def _step_seconds(config: Config, basis: Basis) -> dict[str, float]:
    """By stage, as the module's docstring has them."""
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
    """Seconds of that many rollouts which begin together; None where a role is not timed."""
    if attempts and _untimed(config, basis):
        return None
    waited = batch_seconds(basis.attempts, attempts, slots(config)) if attempts else 0.0
    return waited + basis.own * attempts


def _untimed(config: Config, basis: Basis) -> list[str]:
    """Roles that are asked, and nobody knows how long that takes."""
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
    """GPUs x hours x price, and tokens x price, where prices are given; None where what they are of
    is unknown. Servers that are paid by the token have no GPUs of ours. ``total``: as
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
