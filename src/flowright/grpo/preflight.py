"""The dry run: check everything that a run needs, print the plan and every problem at once."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import torch
import uvloop
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from flowright.config import SIMULATED, Config, load_entries
from flowright.data.task import KINDS
from flowright.errors import UserError
from flowright.grpo.world import TINY, is_simulated, load_tasks, open_sandbox
from flowright.judge.remote import RemoteJudge
from flowright.llm.client import ChatClient
from flowright.policy.vllm_fleet import check_servers

ACTIVATION_SHARE = 0.35
"""Of the card's memory, what activations, logits and the cache of a step may take: a rule of thumb
until the first step has measured it (`gpu/memory_gb`)."""

SPARE_DISK = 2 << 30  # bytes beside the checkpoints


@dataclass(slots=True)
class Findings:
    """What the dry run found: the plan as pairs, and one line per problem."""

    plan: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def check(self, what: str, look: Callable[[], str]) -> None:
        """Add one entry of the plan, or the problems met while looking."""
        try:
            self.plan.append((what, look()))
        except UserError as error:
            self.plan.append((what, "see below"))
            self.problems += error.problems


def dry_run(config: Config, console: Console) -> int:
    """Print plan and problems; 0 when the run could start, else 2."""
    found = Findings()
    found.check("data", lambda: _data(config))
    found.check("policy", lambda: _policy(config))
    found.check("device", lambda: _device(config))
    found.check("servers", lambda: uvloop.run(_servers(config)))
    found.check("sandbox", lambda: uvloop.run(_sandbox(config)))
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
    found.plan.append(("run", str(config.run.output_dir / config.run.name)))
    for what, text in found.plan:
        console.print(f"{what:<9} {text}", highlight=False, markup=False, soft_wrap=True)
    if is_simulated(config):
        console.print("SIMULATED: the embedded server answers or judges", highlight=False)
    if not found.problems:
        console.print("ready: everything that the run needs is there", highlight=False)
        return 0
    console.print(f"\n{len(found.problems)} to mend before this run can start:", highlight=False)
    for problem in found.problems:
        console.print(f"- {problem}", highlight=False, markup=False, soft_wrap=True)
    return 2


def _data(config: Config) -> str:
    tasks = load_tasks(config)
    parts = []
    for name, some in (("train", tasks.train), ("val", tasks.val)):
        counts = ", ".join(f"{sum(t.kind == kind for t in some)} {kind}" for kind in KINDS)
        parts.append(f"{name} {len(some)} ({counts})")
    return "; ".join(parts)


def _policy(config: Config) -> str:
    name = config.strategy_model
    if name == TINY:
        return "tiny: embedded, cold-started on this machine at the first run"
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise UserError(f"strategy_model: {name} is a folder without config.json")
        if not list(Path(name).glob("*.safetensors")):
            raise UserError(f"strategy_model: {name} has no *.safetensors files")
        return name
    if name.startswith((".", "/", "~")):
        raise UserError(f"strategy_model: no such folder: {name}")
    weights = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in weights):
        return f"{name} (in the Hugging Face cache)"
    try:
        HfApi().model_info(name, timeout=10)
    except (HfHubHTTPError, HFValidationError, httpx2.HTTPError, OSError) as error:
        raise UserError(
            f"strategy_model: {name} is neither a folder, nor in the Hugging Face cache, nor can "
            f"the hub be asked for it ({type(error).__name__}); download it and give its folder"
        ) from error
    return f"{name} (will be downloaded)"


def _device(config: Config) -> str:
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
    need = _weights_bytes(config) / (1 - ACTIVATION_SHARE)
    line = f"{torch.cuda.get_device_name()}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    if need > free:
        raise UserError(
            f"device: {line}, but about {need / 2**30:.0f} GiB are needed; end what else runs "
            "there, choose another of physical_gpus, or a smaller strategy_model"
        )
    return f"{line}; about {need / 2**30:.0f} GiB needed"


def _weights_bytes(config: Config) -> float:
    """Base weights and, where it samples itself, the folded copy that it decodes with."""
    if config.strategy_model == TINY:
        return 64 << 20
    try:
        architecture = AutoConfig.from_pretrained(config.strategy_model)
    except (OSError, ValueError):
        return 0.0  # reported with the policy
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(architecture)
    width = 4 if config.policy.dtype == "float32" else 2
    copies = 1.0 if config.policy.sampler == "vllm" else 2.0
    return copies * width * sum(p.numel() for p in model.parameters())


async def _servers(config: Config) -> str:
    problems: list[str] = []
    shown = []
    for name, entry in load_entries(config.llm.file, config.models).items():
        client = ChatClient(name, entry, config.llm)
        try:
            problems += await client.check()
        finally:
            await client.aclose()
        shown.append(f"{name} at {', '.join(entry.base_urls)}")
    if config.judge.service is not None:
        service = RemoteJudge(config.judge.service)
        try:
            problems += await service.check()
        finally:
            await service.aclose()
        shown.append(f"judge service at {service.name}{' (simulated)' * service.simulated}")
    if config.policy.sampler == "vllm":
        problems += await check_servers(config.policy, config.served_policy)
        shown.append(f"policy at {', '.join(config.policy.vllm.base_urls)}")
    if problems:
        raise UserError(*problems)
    if is_simulated(config):
        shown.append(f"{SIMULATED}: started with the run on a free loopback port")
    return "; ".join(shown)


async def _sandbox(config: Config) -> str:
    async with open_sandbox(config) as sandbox:
        return str(sandbox.isolation)


def _disk(config: Config) -> str:
    folder = config.run.output_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < SPARE_DISK:
        raise UserError(
            f"run.output_dir: {free / 2**30:.1f} GiB free on {folder}; make room for at least "
            f"{SPARE_DISK / 2**30:.0f} GiB or choose another output_dir"
        )
    return f"{free / 2**30:.0f} GiB free for {config.run.output_dir}"
