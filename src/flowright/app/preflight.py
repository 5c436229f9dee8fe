"""The dry run: check everything that a run needs, print the plan and every problem at once."""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import uvloop
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of httpx, since 2.0 of httpx2
)
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from flowright.app.first_look import (
    check_choices,
    check_model_folder,
    check_quantised,
    check_run,
    load_tasks,
)
from flowright.app.memory_plan import GIB, Demand, table
from flowright.app.world import check_samplers
from flowright.config import SIMULATED, TINY, Config
from flowright.data.mixture import tasks_by_kind
from flowright.environments.environment import Environment, make_environment
from flowright.errors import UserError
from flowright.policy.memory import shape_of
from flowright.runs import disk_errors, nearest

SPARE_DISK = 2 << 30  # bytes beside the checkpoints


@dataclass(slots=True)
class Findings:
    """What the dry run found: the plan as pairs, and one line per problem."""

    plan: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def check(self, what: str, look: Callable[[], str]) -> bool:
        """Add one entry of the plan, or the problems met while looking: whether there was none."""
        try:
            self.plan.append((what, look()))
        except UserError as error:
            self.plan.append((what, "see below"))
            self.problems += error.problems
            return False
        return True


def dry_run(config: Config, console: Console, resume: bool = False) -> int:
    """Print plan and problems; 0 when the run could start, else 2."""
    found = Findings()
    check_choices(config.grpo)
    config = config.on("cpu" if _on_cpu(config) else "cuda")
    environment = make_environment(config)
    found.check("data", lambda: _data(environment))
    demand = _demand(config) if found.check("policy", lambda: _policy(config)) else None
    if demand is not None:
        found.plan.append(("memory", ("\n" + " " * 10).join(table(demand.plan))))
    if config.policy.quantised:
        found.check("quantised", lambda: check_quantised(config.policy))
    if config.policy.sharded:
        found.check("sharded", lambda: _sharded(config))
    found.check("device", lambda: _device(config, demand))
    found.check("sampler", lambda: uvloop.run(check_samplers(config)))
    for what, look in environment.checks():
        found.check(what, lambda look=look: uvloop.run(_line(look)))
    found.plan.append(("settings", _settings(config)))
    found.check("disk", lambda: _disk(config))
    grpo = config.grpo
    samples = grpo.prompts_per_step * grpo.group_size
    found.plan.append(
        (
            "training",
            f"{grpo.steps} steps of {grpo.prompts_per_step} problems x {grpo.group_size} attempts "
            f"= {samples} samples, {grpo.loss}, lr {grpo.learning_rate:g}, "
            f"KL {grpo.kl_coefficient:g}",
        )
    )
    found.check("run", lambda: check_run(config, resume))
    for what, text in found.plan:
        console.print(f"{what:<9} {text}", highlight=False, markup=False, soft_wrap=True)
    if SIMULATED in config.models:
        console.print("SIMULATED: the embedded server answers or judges", highlight=False)
    if not found.problems:
        console.print("ready: everything that the run needs is there", highlight=False)
        return 0
    console.print(f"\n{len(found.problems)} to mend before this run can start:", highlight=False)
    for problem in found.problems:
        console.print(f"- {problem}", highlight=False, markup=False, soft_wrap=True)
    return 2


async def _line(look: Callable[[], Awaitable[str]]) -> str:
    return await look()


def _data(environment: Environment) -> str:
    tasks = load_tasks(environment)
    parts = []
    for name, some in (("train", tasks.train), ("val", tasks.val)):
        counts = ", ".join(f"{len(those)} {kind}" for kind, those in tasks_by_kind(some).items())
        parts.append(f"{name} {len(some)} ({counts})")
    return "; ".join(parts)


def _policy(config: Config) -> str:
    name = config.strategy_model
    if name == TINY:
        return "tiny: embedded, cold-started on this machine at the first run"
    check_model_folder(name)
    if Path(name).is_dir():
        return name
    weights = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in weights):
        return f"{name} (in the Hugging Face cache)"
    try:
        HfApi().model_info(name, timeout=10)
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        raise UserError(
            f"strategy_model: {name} is neither a folder, nor in the Hugging Face cache, nor can "
            f"the hub be asked for it ({type(error).__name__}); download it and give its folder"
        ) from error
    return f"{name} (will be downloaded)"


def _device(config: Config, demand: Demand | None) -> str:
    section = config.policy
    if section.device == "cpu" or (section.device == "auto" and not torch.cuda.is_available()):
        if config.strategy_model != TINY and section.device == "auto":
            raise UserError(
                "policy.device: torch sees no GPU; a model like this needs one (check nvidia-smi "
                "and physical_gpus), or set policy.device: cpu to insist"
            )
        return "cpu"
    if not torch.cuda.is_available():
        raise UserError("policy.device: cuda, but torch sees no GPU; check nvidia-smi")
    free, total = torch.cuda.mem_get_info()
    line = f"{torch.cuda.get_device_name()}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
    shortage = demand.shortage(free) if demand is not None else None
    if shortage is not None:
        raise UserError(
            f"device: {line}: {shortage}; or end what else runs there, or choose another of "
            "physical_gpus"
        )
    return line


def _demand(config: Config) -> Demand | None:
    """None for a run without a GPU, and for a model whose shape is not at hand."""
    if config.strategy_model == TINY or config.policy.device == "cpu":
        return None
    try:
        architecture = AutoConfig.from_pretrained(config.strategy_model)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(architecture)
    except (OSError, ValueError):
        return None  # reported when it is loaded
    shape = shape_of(model, config.policy)
    return Demand(shape, config.policy, config.grpo, _gpus(config) if config.policy.sharded else 1)


def _sharded(config: Config) -> str:
    gpus = _gpus(config)
    if gpus == 1:
        raise UserError(
            "policy.sharded: one GPU; name several (physical_gpus), or set policy.sharded: false"
        )
    return (
        f"the layers' weights are split among {gpus} processes: torchrun --nproc_per_node "
        f"{gpus} train.py"
    )


def _gpus(config: Config) -> int:
    """Those of this machine that the run may have: one process each."""
    return len(config.physical_gpus or ()) or torch.cuda.device_count() or 1


def _on_cpu(config: Config) -> bool:
    """Whether it trains on a CPU: as configured, or the embedded policy without a GPU. A larger
    model is planned for the GPU that it needs."""
    device = config.policy.device
    without = device == "auto" and not torch.cuda.is_available()
    return device == "cpu" or (without and config.strategy_model == TINY)


def _settings(config: Config) -> str:
    """What depends on the device, where the configuration does not say it."""
    policy = config.policy
    return (
        f"{policy.dtype}, gradient checkpointing {'on' if policy.gradient_checkpointing else 'off'}"
        f", rollouts {config.pipeline.max_staleness} steps ahead of the learner"
    )


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
