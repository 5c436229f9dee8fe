"""The dry run: check everything that a run needs, print the plan and every problem at once."""

import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvloop
from rich.console import Console

from flowright.app.device import (
    GIB,
    MemoryDemand,
    free_memory,
    look_at_device,
    memory_table,
    planned_device,
    settings_text,
    with_settings,
)
from flowright.app.open_policies import (
    check_samplers,
    demand_of,
    fitted_tasks,
    gpus_of,
    model_at_hand,
    tokenizer_at_hand,
)
from flowright.app.preflight_checks import (
    check_choices,
    check_lengths,
    check_model,
    check_quantised,
    check_run,
    check_terms,
    check_text,
    load_tasks,
    position_warnings,
    with_steps,
)
from flowright.app.time_plan import fixed_data_lines, plan_lines, plan_run
from flowright.config.policy import SMOLLM2, TINY
from flowright.config.root import Config
from flowright.core.command_line import say
from flowright.core.errors import UserError
from flowright.core.files import disk_errors, nearest
from flowright.data.mixture import tasks_by_kind
from flowright.environments.base import Environment, TaskSets, make_environment, prompt_encoder
from flowright.grpo.objectives import choices_of, resolved
from flowright.grpo.problems import is_scaffolded, problems_of, shown_prompts
from flowright.grpo.teacher import check_teacher
from flowright.policy.base_models import is_cached
from flowright.policy.model_folders import load_config, load_tokenizer
from flowright.policy.sampling import fitting
from flowright.policy.tiny import POSITIONS
from flowright.runs.loggers import check_loggers

SPARE_DISK = 2 << 30  # bytes beside the checkpoints
LOOKED_AT = 32  # problems whose scaffolds are made


@dataclass(slots=True)
class Findings:
    """Findings of a dry run: the plan as pairs, a note on what is simulated, and one line per
    problem."""

    plan: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    note: str = ""

    def check(self, what: str, inspect_run: Callable[[], str]) -> bool:
        """Add an entry of the plan, or the problems of its check; return True if there was none."""
        try:
            self.plan.append((what, inspect_run()))
        except UserError as error:
            self.plan.append((what, "see below"))
            self.problems += [one for one in error.problems if one not in self.problems]
            return False
        return True


def dry_run(config: Config, console: Console, resume: bool = False) -> int:
    """Print plan and problems; return 0 if the run could start, else 2."""
    found = inspect_run(config, resume)
    for what, text in found.plan:
        if text:
            say(console, f"{what:<9} {text}")
    if found.note:
        say(console, found.note)
    if not found.problems:
        console.print("ready: everything that the run needs is there", highlight=False)
        return 0
    console.print(f"\n{len(found.problems)} to mend before this run can start:", highlight=False)
    for problem in found.problems:
        say(console, f"- {problem}")
    return 2


def inspect_run(config: Config, resume: bool = False) -> Findings:
    """Check everything that a run needs; only the cache of checked references is written."""
    found = Findings()
    check_choices(config.grpo)
    environment = make_environment(config)
    config = resolved(config, planned_device(config), environment)
    tasks: list[TaskSets] = []
    found.check("reward", lambda: check_terms(config))
    found.check("turns", lambda: check_lengths(config, environment))
    has_data = found.check("data", lambda: _data(environment, tasks))
    has_model = found.check("policy", lambda: _policy(config))
    demand = demand_of(config) if has_model or Path(config.strategy_model).is_dir() else None
    if demand is not None:
        demand = demand.fitted(_available(config))
        config = config.model_copy(update=with_settings(config, demand.settings))
    found.plan.append(("memory", _memory(demand, has_model, config.plan.gpu_gb)))
    if config.policy.quantised:
        found.check("quantised", lambda: check_quantised(config.policy))
    if config.policy.sharded:
        found.check("sharded", lambda: _sharded(config))
    found.check("device", lambda: f"\n{' ' * 10}".join(look_at_device(config, demand)))
    if not config.section.samples_nothing(config):
        found.check("sampler", lambda: uvloop.run(check_samplers(config, with_adapter=True)))
    if config.grpo.has_teacher:
        found.check("teacher", lambda: uvloop.run(check_teacher(config, tokenizer_at_hand(config))))
    for what, inspect_run in environment.checks():
        found.check(what, lambda inspect_run=inspect_run: uvloop.run(_line(inspect_run)))
    found.plan.append(("settings", _settings(config)))
    found.check("text", lambda: check_text(config))
    found.check("disk", lambda: _disk(config))
    if has_data and found.check("rows", lambda: _rows(config, environment, tasks)):
        config = with_steps(config, environment, tasks[0])
    if tasks:
        found.check("scaffolds", lambda: _scaffolds(config, environment, tasks[0]))
    found.plan.append(("training", _training(config)))
    found.check("run", lambda: check_run(config, resume))
    found.check("loggers", lambda: check_loggers(config.run))
    if tasks:
        found.check("plan", lambda: _plan(config, environment, tasks[0], bool(found.problems)))
    else:
        found.plan.append(("plan", "calls, tokens and time are planned once the data are there"))
    found.note = environment.simulated_note()
    return found


async def _line(inspect_run: Callable[[], Awaitable[str]]) -> str:
    return await inspect_run()


def _data(environment: Environment, loaded: list[TaskSets]) -> str:
    tasks = load_tasks(environment)
    loaded.append(tasks)
    parts = []
    for name, some in (("train", tasks.train), ("val", tasks.val)):
        counts = ", ".join(f"{len(those)} {kind}" for kind, those in tasks_by_kind(some).items())
        parts.append(f"{name} {len(some)} ({counts})")
    return "; ".join(parts)


def _rows(config: Config, environment: Environment, tasks: list[TaskSets]) -> str:
    """Fit the tasks to the policy; the fitted ones then are the data."""
    if (tokenizer := tokenizer_at_hand(config)) is not None:
        tasks[0] = fitted_tasks(config, environment, tasks[0], tokenizer)
    return f"\n{' ' * 10}".join(environment.task_notes())


def _scaffolds(config: Config, environment: Environment, tasks: TaskSets) -> str:
    """Hints shown to the first problems' attempts at the first step; empty without hints or a
    tokenizer."""
    tokenizer, longest = tokenizer_at_hand(config), config.policy.max_prompt_tokens
    if tokenizer is None or _has_fixed_data(config):
        return ""
    encode = prompt_encoder(environment, tokenizer, longest)
    fits = partial(fitting, tokenizer=tokenizer, max_tokens=longest)
    show = partial(shown_prompts, environment, fits, step=1, steps=config.grpo.steps)
    some = problems_of(environment, encode, list(enumerate(tasks.train[:LOOKED_AT])))
    attempts = config.grpo.group_size
    shown = [s for problem in some for s in problem.scaffolded(show, attempts).shown(attempts)]
    if not any(shown):
        return ""
    without = sum(one is not None and one.left_out for one in shown)
    corrects = choices_of(config.grpo).correction.weights is not None
    return (
        f"at step 1 {sum(map(is_scaffolded, shown))} of {len(shown)} attempts at the first "
        f"{len(some)} problems are shown one, {without} are not as it is too long; off_policy "
        f"{config.grpo.off_policy} {'corrects' if corrects else 'does not correct'} for that"
    )


def _training(config: Config) -> str:
    grpo = config.grpo
    settings = f"{grpo.loss}, lr {grpo.learning_rate:g}, KL {grpo.kl_coefficient:g}"
    if grpo.kl_coefficient:
        settings += f" ({grpo.divergence} in the {grpo.kl_in}, of {KL_GROUPS[grpo.kl_on]})"
    elif grpo.kl_every:
        settings += f" (measured every {grpo.kl_every} steps)"
    steps = f"{grpo.steps} steps of {grpo.prompts_per_step}"
    if _has_fixed_data(config):
        return f"{steps} rows, {settings}"
    samples = grpo.prompts_per_step * grpo.group_size
    return f"{steps} problems x {grpo.group_size} attempts = {samples} samples, {settings}"


KL_GROUPS = {"all": "all groups", "signal": "groups with a signal"}


def _has_fixed_data(config: Config) -> bool:
    return choices_of(config.grpo).objective.fixed_data


def _policy(config: Config) -> str:
    name, about = config.strategy_model, check_model(config)
    if config.policy.warm_start.folder or name == SMOLLM2:
        found = f"{name}: {about}"
    elif name == TINY:
        found = "tiny: embedded, cold-started on this machine at the first run"
    elif Path(name).is_dir():
        found = name
    else:
        found = f"{name} ({_on_hub(name)})"  # asked once, before transformers asks again and again
    model: Mapping[str, Any] = {"max_position_embeddings": POSITIONS} if name == TINY else {}
    if (at_hand := model_at_hand(config)) is not None:
        with suppress(OSError, ValueError):  # reported when it is loaded
            model = load_config(at_hand).to_dict()
            load_tokenizer(at_hand, config.policy.chat_template, local_files_only=True)
    return f"\n{' ' * 10}".join([found, *position_warnings(config.policy, model)])


def _on_hub(name: str) -> str:
    try:
        return "in the Hugging Face cache" if is_cached(name) else "will be downloaded"
    except OSError as error:
        raise UserError(
            f"strategy_model: {name} is neither a folder, nor in the Hugging Face cache, nor can "
            f"the hub be asked for it ({error}); download it and give its folder"
        ) from error


def _available(config: Config) -> int:
    """Return the free bytes of the planned device, `plan.gpu_gb` without it: a driver leaves a GiB
    less."""
    device = planned_device(config)
    if device == "cuda" and not torch.cuda.is_available():
        return round((config.plan.gpu_gb - 1) * GIB)
    return free_memory(torch.device(device))[0]


def _memory(demand: MemoryDemand | None, has_model: bool, gpu_gb: float) -> str:
    """Describe the memory; empty for a present model of unknown shape, such as the embedded one."""
    if demand is None:
        unknown = "unknown: the model's shape is not known; a folder with its config.json has it"
        return "" if has_model else unknown
    plan_lines = [*memory_table(demand.plan), f"with {settings_text(demand.settings)}"]
    if demand.device == "cuda" and not torch.cuda.is_available():
        plan_lines.append(f"planned for a GPU of {gpu_gb:g} GB (plan.gpu_gb)")
    if demand.device == "cpu":
        plan_lines.append("planned for the CPU; policy.device=cuda plans it for a GPU, here or not")
    return f"\n{' ' * 10}".join(plan_lines)


def _sharded(config: Config) -> str:
    gpus = gpus_of(config)
    if gpus == 1:
        raise UserError(
            "policy.sharded: one GPU; name several (physical_gpus), or set policy.sharded: false"
        )
    return (
        f"the layers' weights are split among {gpus} processes: torchrun --nproc_per_node "
        f"{gpus} train.py"
    )


def _settings(config: Config) -> str:
    """Settings that depend on the device or on other keys."""
    policy, grpo = config.policy, config.grpo
    layers = policy.gradient_checkpointing
    layers = (
        ("on" if layers else "off")
        if isinstance(layers, bool)
        else f"of prompts and in {layers} layers of completions"
    )
    computed = f"{policy.dtype}, gradient checkpointing {layers}"
    if _has_fixed_data(config):
        return computed
    nucleus = ""
    if policy.top_p < 1:
        nucleus = (
            f"\n{' ' * 10}WARNING: policy.top_p {policy.top_p:g}: tokens outside the nucleus are "
            "never drawn, so they are never learned; ratios are to the learner's own "
            "log-probabilities, which several optimizer steps cost a pass; watch "
            "policy/nucleus_mass"
        )
    return (
        f"{computed}, rollouts {config.pipeline.max_staleness} steps ahead of the learner, "
        f"off_policy {grpo.off_policy}, clip -{grpo.clip_low:g} +{grpo.clip_high:g}{nucleus}"
    )


def _plan(config: Config, environment: Environment, tasks: TaskSets, has_problems: bool) -> str:
    """Plan the run. Servers are probed only if they passed their checks."""
    tokenizer = tokenizer_at_hand(config)
    if _has_fixed_data(config):
        if tokenizer is None:
            return "tokens unknown: the policy's tokenizer is not at hand"
        return f"\n{' ' * 10}".join(fixed_data_lines(config, environment, tasks, tokenizer))
    if has_problems:
        config = config.model_copy(update={"plan": config.plan.model_copy(update={"probe": 0})})
    encode = None
    if tokenizer is not None:
        encode = prompt_encoder(environment, tokenizer, config.policy.max_prompt_tokens)
    plan = uvloop.run(plan_run(config, environment, tasks, encode))
    return f"\n{' ' * 10}".join(plan_lines(plan))


def _disk(config: Config) -> str:
    with disk_errors(config.run.output_dir):
        folder = nearest(config.run.output_dir.absolute())
    free = shutil.disk_usage(folder).free
    if free < SPARE_DISK:
        raise UserError(
            f"run.output_dir: {free / GIB:.1f} GiB free on {folder}; make room for at least "
            f"{SPARE_DISK / GIB:.0f} GiB or choose another output_dir"
        )
    return f"{free / GIB:.0f} GiB free for {config.run.output_dir}"
