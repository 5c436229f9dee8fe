"""The plan of a run: tokens and calls, hours, the balance of GPUs, a price; its lines of text, and
``plan.json``, where the measured figures join it.

A plan computes from a :class:`flowright.app.plan_basis.Basis` and measures nothing; what the basis
does not know stays unknown. Not planned: loading, a cold start, checkpoints, resampled groups.

Seconds of one step, with sampling S, update U and a batch's rollouts R: batches are sampled up to s
(``pipeline.max_staleness``) steps ahead, so a batch's rollouts have s whole steps and the wait. In
the steady state a step takes

    max(S + U, (S + U + R) / (1 + s), B)

with B the seconds that a batch keeps the servers busy. With s = 0 that is S + U + R. R and B are
those of :func:`flowright.app.plan_basis.batch_seconds`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flowright.app.plan_basis import (
    FIGURES,
    ROLES,
    USAGE,
    Basis,
    Figures,
    batch_seconds,
    busy_seconds,
    find_basis,
    sampled,
)
from flowright.config.root import Config
from flowright.core.files import disk_errors, write_json
from flowright.core.formatting import Record, amount, duration
from flowright.data.mixture import Mixture, tasks_by_kind
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets, prompt_encoder
from flowright.evaluation.evaluator import AT_ONCE
from flowright.grpo.fixed_data import groups_of
from flowright.policy.sampling import Prompt, Tokenizer
from flowright.runs.run_files import read_evaluation, read_metrics, read_plan
from flowright.runs.totals import SERVERS, requests, seconds_by_phase

NAME = "plan.json"

COUNTED = 64
"""Prompts whose tokens are counted."""
COUNTED_ROWS = 256
"""Rows of fixed data whose tokens are counted."""

_GPUS = Path("/proc/driver/nvidia/gpus")
"""GPUs of this machine, those that CUDA_VISIBLE_DEVICES hides included."""

NEAR = 0.15
"""Relative error of a planned figure from which on the terminal lists it."""


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
    balance: Sequence[str]
    """Lines on the bottleneck and the best split of the GPUs."""
    usd: Mapping[str, float | None]
    """Cost by kind: GPUs, tokens."""
    assumed: tuple[str, ...]
    unknown_without: tuple[str, ...]
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
        return asdict(self) | {"bounds": sorted(self.bounds), "total": dict(self.total)}


async def plan_run(
    config: Config,
    environment: Environment,
    tasks: TaskSets,
    encode: Callable[[Task], Prompt] | None = None,
) -> TimePlan:
    """Plan a run with these tasks; ``encode`` counts prompt tokens, if a tokenizer is loaded.
    Raises UserError as :func:`find_basis`."""
    counted = None
    if encode is not None:
        some = Mixture(tasks.train, config.seed).distinct(COUNTED)
        counted = sum(len(encode(task).token_ids) for task in some) / len(some)
    basis = await find_basis(config, environment, tasks, counted)
    baselines = environment.all_baselines()
    measured, tried = len(baselines), (0, 0)
    if environment.reward_bounds is None:  # the best ones are chosen, and measured with the shown
        tried = (measured, min(config.evaluation.final_problems, len(tasks.train)))
        shown = sum(baseline.shown for baseline in baselines)
        measured = min(measured, shown + 2 + len(tasks_by_kind(tasks.val)))
    return make_plan(config, basis, len(tasks.val), measured, tried, len([*_GPUS.glob("*")]))


def make_plan(
    config: Config,
    basis: Basis,
    validation: int,
    baselines: int,
    tried: tuple[int, int] = (0, 0),
    gpus: int = 0,
) -> TimePlan:
    """Plan a run with these numbers of validation problems and of baselines that are measured on
    them; ``tried``: baselines, and the other problems that the best are chosen on; ``gpus``: those
    of this machine."""
    grpo, phases = config.grpo, _phases(config, validation, baselines, tried)
    step = _figures(basis, Phase([(1, grpo.prompts_per_step * grpo.group_size)],
                                 grpo.prompts_per_step))  # fmt: skip
    seconds = _seconds(config, basis, step, phases)
    balance = _balance(config, basis, seconds, gpus)
    missing = [f"plan.{role}.call_seconds" for role in basis.untimed()]
    missing += ["plan.sampler_tokens_per_second"] if basis.sampler is None else []
    missing += ["plan.learner_tokens_per_second"] if basis.learner is None else []
    by_phase = {name: _figures(basis, phase) for name, phase in phases.items()}
    found = TimePlan(
        basis.source, step, by_phase, seconds, basis.bounds, balance, {}, basis.assumed,
        tuple(missing),
    )  # fmt: skip
    return replace(found, usd=usd_of(config, found.total))


def _balance(config: Config, basis: Basis, seconds: Figures, gpus: int) -> list[str]:
    """Render the bottleneck of a step and the best split of the GPUs; nothing if seconds are
    unknown, or the servers have no GPUs of ours. More servers take more requests at a time, more
    ranks share the batch."""
    plan = config.plan
    is_paid = plan.executor.usd_per_million_out is not None
    servers = plan.executor_gpus or (0 if is_paid else basis.servers.get("executor", 0))
    busy, ranks = seconds.get("busy", 0.0), trainer_gpus(config)
    device = seconds.get("sample", 0.0) + seconds.get("update", 0.0)
    if not (servers and busy and {"sample", "update"} <= seconds.keys()):
        return []
    total, most = max(servers + ranks, gpus), _most(basis.bounds)
    takes = {n: (busy * servers / n, device * ranks / (total - n)) for n in range(1, total)}
    best = min(takes, key=lambda n: (max(takes[n]), n != servers))
    name, ratio = ("servers", busy / device) if busy > device else ("trainer", device / busy)
    shares = f"{duration(takes[best][0])} and {most}{duration(takes[best][1])} of a step"
    return [
        f"bottleneck: the {name}, {ratio:.2g} to 1 (the servers are busy {duration(busy)} of a "
        f"step, sampling and update take {most}{duration(device)})",
        f"best split of {total} GPUs: {best} for the servers (launch_vllm_safe.sh executor "
        f"--replicas) and {total - best} for the trainer, {shares}",
        *(() if plan.executor_gpus else ("assumed: a server has one GPU (plan.executor_gpus)",)),
    ]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: ``batches`` are numbers of batches and their attempts, of which ``fixed``
    are not the policy's; the others are for ``prompts``."""

    batches: Sequence[tuple[int, int]]
    prompts: int
    fixed: int = 0

    @property
    def attempts(self) -> int:
        return sum(times * size for times, size in self.batches)


def _phases(
    config: Config, validation: int, baselines: int, tried: tuple[int, int]
) -> dict[str, Phase]:
    grpo, section = config.grpo, config.evaluation
    size = grpo.prompts_per_step * grpo.group_size
    asked, compared = min(section.problems, validation), min(section.final_problems, validation)
    every = section.every
    evaluations = 1 + grpo.steps // every + (grpo.steps % every > 0) if every else 0
    rows = baselines + (baselines > 0) if section.baselines else 0  # one more, at equal tokens
    names, others = tried if section.baselines else (0, 0)
    size_of_row = compared * (section.final_samples or section.samples)
    return {
        "training": Phase([(grpo.steps, size)], grpo.steps * grpo.prompts_per_step),
        "evaluations": Phase(_parts(evaluations, asked * section.samples), evaluations * asked),
        "comparison": Phase(
            [*_parts(2 + rows, size_of_row), *_parts(names, others)],
            2 * compared,
            rows * size_of_row + names * others,
        ),
    }


def _parts(times: int, attempts: int) -> list[tuple[int, int]]:
    """Split evaluations into the batches that they are rolled out in."""
    whole, rest = divmod(attempts, AT_ONCE)
    return [(count, size) for count, size in ((times * whole, AT_ONCE), (times, rest)) if size]


def _figures(basis: Basis, phase: Phase) -> Figures:
    """Figures of a phase's attempts; each prompt of the policy is read once."""
    counts = {
        "policy_tokens_in": phase.prompts,
        "policy_tokens_out": phase.attempts - phase.fixed,
    }
    return {name: n * counts.get(name, phase.attempts) for name, n in basis.figures.items()}


def _seconds(
    config: Config, basis: Basis, step: Figures, phases: Mapping[str, Phase]
) -> dict[str, float]:
    """Seconds by stage, as in the module's docstring, and by phase."""
    grpo, found, known = config.grpo, dict[str, float](), not basis.untimed()
    size = grpo.prompts_per_step * grpo.group_size
    drawn, read = step["policy_tokens_out"], step["policy_tokens_in"]
    if basis.sampler is not None:
        found["sample"] = sampled(config, drawn, read) / basis.sampler
    if basis.learner is not None:
        found["update"] = grpo.epochs * (drawn + read) / basis.learner
    if known:
        found["rollout"] = batch_seconds(config, basis, size)
        found["busy"] = busy_seconds(config, basis, size)
    if {"sample", "update", "rollout"} <= found.keys():
        ahead = config.pipeline.max_staleness or 0
        device = found["sample"] + found["update"]
        alone = device + found["rollout"]
        found["step"] = max(device, alone / (1 + ahead), found["busy"])
        # The last batch's stages follow each other: nothing is left to overlap them with.
        found["training"] = (grpo.steps - 1) * found["step"] + alone
    for name in ("evaluations", "comparison"):
        phase, figures = phases[name], _figures(basis, phases[name])
        drawn, read = figures["policy_tokens_out"], figures["policy_tokens_in"]
        if (known or not phase.attempts) and (basis.sampler is not None or not drawn):
            found[name] = sampled(config, drawn, read) / basis.sampler if basis.sampler else 0.0
            found[name] += sum(
                times * batch_seconds(config, basis, size) for times, size in phase.batches
            )
    return found


def trainer_gpus(config: Config) -> int:
    return len(config.physical_gpus or ()) or 1


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


def plan_lines(plan: TimePlan) -> list[str]:
    """Render the whole plan for the dry run."""
    found = [plan.source, *_table(plan), *_time(plan), *plan.balance]
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
        if total.get(name):
            most = "up to " if name in plan.bounds else ""
            step, run = (f"{most}{amount(some[name])}" for some in (plan.step, total))
            rows.append((name.replace("_", " "), step, run))
    return [f"{name:<19} {one:>14} {other:>14}" for name, one, other in rows]


def _time(plan: TimePlan) -> list[str]:
    """Lines on the time and the stages of a step, or on the keys that are missing."""
    stages = [s for s in ("sample", "update", "rollout") if plan.seconds.get(s)]
    each = ", ".join(f"{stage} {duration(plan.seconds[stage])}" for stage in stages)
    if "seconds" in plan.total:
        return [f"time: {_sum(plan)}", f"a step takes {duration(plan.seconds['step'])}: {each}"]
    calls = [key for key in plan.unknown_without if key.endswith("call_seconds")]
    rates = [key for key in plan.unknown_without if key not in calls]
    keys = [" and ".join(calls) + " (or plan.probe)"] if calls else []
    known = f"; of a step, {each}" if each else ""
    return [f"time: unknown; a first run measures it, or give {', '.join(keys + rates)}{known}"]


def _most(bounds: frozenset[str]) -> str:
    return "at most " if bounds & {"policy_tokens_in", "policy_tokens_out"} else ""


def _sum(plan: TimePlan) -> str:
    most = _most(plan.bounds)
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


# The plan and the run.


async def keep_plan(
    run: Path, config: Config, environment: Environment, tasks: TaskSets, tokenizer: Tokenizer
) -> str | None:
    """Plan a starting run and write the plan; return a line about it. A resumed run keeps its
    first plan. Raises UserError as :func:`find_basis`."""
    if (run / NAME).exists():
        return None
    encode = prompt_encoder(environment, tokenizer, config.policy.max_prompt_tokens)
    plan = await plan_run(config, environment, tasks, encode)
    with disk_errors(run):
        write_json(run / NAME, {"planned": plan.to_json()})
    return f"plan      {start_line(plan)}"


def compare_with_plan(run: Path, config: Config) -> list[str]:
    """Add the measured figures of a run with its comparison to ``plan.json``; return lines on time,
    price and large errors. Empty for a run without a plan."""
    path, plan = run / NAME, read_plan(run).get("planned")
    if plan is None:
        return []
    measured = _measured(read_metrics(run), read_evaluation(run), config)
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
    rows: Sequence[Record], evaluation: Record | None, config: Config
) -> dict[str, float]:
    grpo = config.grpo
    steps = [row for row in rows if "tokens/completion_mean" in row]
    groups = [grpo.prompts_per_step + row.get("reward/resampled_groups", 0.0) for row in steps]
    found: dict[str, float] = {
        "policy_tokens_in": sum(
            n * row["tokens/prompt_mean"] for n, row in zip(groups, steps, strict=True)
        ),
        "policy_tokens_out": sum(
            n * grpo.group_size * row["tokens/completion_mean"]
            for n, row in zip(groups, steps, strict=True)
        ),
    }
    asked, seconds = requests(rows, evaluation), seconds_by_phase(rows, evaluation)
    for role in ROLES:
        for name, key in USAGE.items():
            found[f"{role}_{name}"] = asked.get(f"{SERVERS}{role}/{key}", 0.0)
    for phase in ("training", "evaluations", "comparison"):
        found[f"{phase} seconds"] = seconds.get(phase, 0.0)
    found["seconds"] = sum(seconds.values())
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
