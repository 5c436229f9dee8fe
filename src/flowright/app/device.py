"""Where a run trains and whether it fits there: one answer for the dry run, which gives it before
the model is loaded, and for the run, which gives it after. No model is loaded here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from flowright.config.grpo import GrpoSection
from flowright.config.policy import TINY, PolicySection
from flowright.config.root import Config
from flowright.core.errors import ConfigError
from flowright.policy.memory import FRAGMENTS, ModelShape, Plan, memory_plan
from flowright.policy.model import choose_device

GIB = 2**30


def memory_table(plan: Plan) -> list[str]:
    """The plan in GiB, one line each: what is held in both phases, then each phase's own."""
    rows = [("GiB, at the configured limits", "sampling", "updating")]
    rows += [(name, _gib(size), _gib(size)) for name, size in plan.held.items()]
    rows += [(name, _gib(size), "") for name, size in plan.sampling.items()]
    rows += [(name, "", _gib(size)) for name, size in plan.updating.items()]
    phases = plan.phases
    rows.append(("together", _gib(phases["sampling"]), _gib(phases["updating"])))
    return [f"{name:<33} {one:>8} {other:>8}" for name, one, other in rows]


def memory_summary(plan: Plan) -> str:
    """In one line."""
    phases = ", ".join(f"{name} {_gib(size)} GiB" for name, size in plan.phases.items())
    return f"{phases}; {_gib(plan.needed)} GiB with {FRAGMENTS:.0%} for fragments"


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What a run asks of a GPU's memory, where ``gpus`` share the weights of the layers, or of the
    machine's, where ``device`` is ``cpu``."""

    shape: ModelShape
    policy: PolicySection
    grpo: GrpoSection
    gpus: int = 1
    device: str = "cuda"

    @property
    def plan(self) -> Plan:
        return memory_plan(self.shape, self.policy, self.grpo, self.device, self.gpus)

    @property
    def least(self) -> int:
        """Bytes that no knob but the model and the adapter's rank lowers."""
        plan = self.plan
        decoding = ("merged adapter", "weights to decode with")
        return sum(plan.held.values()) + sum(plan.sampling.get(name, 0) for name in decoding)

    def shortage(self, available: int) -> str | None:
        """What is missing of ``available`` bytes, and what to lower; None where nothing is."""
        plan = self.plan
        if plan.needed <= available:
            return None
        phases = plan.phases
        largest = max(phases, key=lambda name: phases[name])
        found = self.fitting(available)
        if found is not None:
            advice = "it fits with " + ", ".join(f"{key}: {value}" for key, value in found.items())
        elif self.least > available:
            larger = " or a larger GPU" if self.device == "cuda" else ""
            advice = (
                f"weights and optimizer alone take {_gib(self.least)} GiB: choose a smaller "
                f"strategy_model{larger}, or {self._less()}"
            )
        else:
            advice = "lower policy.max_prompt_tokens or policy.max_new_tokens"
        return (
            f"{_gib(plan.needed)} GiB may be needed while {largest}, and {_gib(available)} GiB are "
            f"free; {advice}"
        )

    def _less(self) -> str:
        """What takes less of one device's memory."""
        if self.policy.train == "full":
            return "train an adapter (policy.train: lora)"
        if self.policy.quantised:
            return "an adapter of a lower policy.lora.rank"
        quantised = "policy.quantised: nf4"
        return (
            f"policy.sharded over several, or {quantised}" if self.device == "cuda" else quantised
        )

    def announce(self, available: int) -> list[str]:
        """What to say before a run with ``available`` bytes: the plan, and a warning where it does
        not fit. Raises ConfigError where what no knob lowers does not."""
        if self.least > available:
            raise ConfigError(f"strategy_model: {self.shortage(available)}")
        lines = [f"memory    {memory_summary(self.plan)}"]
        shortage = self.shortage(available)
        if shortage is not None:
            what = "GPU" if self.device == "cuda" else "machine"
            lines.append(f"WARNING: the {what} may run out of memory: {shortage}")
        return lines

    def fitting(self, available: int) -> Mapping[str, str] | None:
        """The first settings that fit, by key: while updating gradient checkpointing and then
        smaller chunks, while sampling fewer rows. None where these are not enough."""
        policy, grpo, found = self.policy.on(self.device), self.grpo, {}
        while True:
            plan = memory_plan(self.shape, policy, grpo, self.device, self.gpus)
            if plan.needed <= available:
                return found
            phases = plan.phases
            if phases["sampling"] >= phases["updating"] and plan.sampling:
                rows = max(grpo.group_size, policy.decode_batch // 2)
                if rows >= policy.decode_batch:
                    return None
                policy = policy.model_copy(update={"decode_batch": rows})
                found["policy.decode_batch"] = str(rows)
            elif not policy.gradient_checkpointing:
                policy = policy.model_copy(update={"gradient_checkpointing": True})
                found["policy.gradient_checkpointing"] = "true"
            else:
                tokens = max(policy.max_new_tokens, grpo.micro_batch_tokens // 2)
                if tokens >= grpo.micro_batch_tokens:
                    return None
                grpo = grpo.model_copy(update={"micro_batch_tokens": tokens})
                found["grpo.micro_batch_tokens"] = str(tokens)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


_CGROUP = Path("/sys/fs/cgroup")


def planned_device(config: Config) -> str:
    """The kind of device that the run is planned for, also where the GPU that it names is missing,
    which :func:`look_at_device` says."""
    return "cuda" if config.policy.device == "cuda" else choose_device(config.policy).type


def gpus_here() -> list[str]:
    """The GPUs of this machine, as nvidia-smi numbers them."""
    return [str(number) for number in range(torch.cuda.device_count())]


def look_at_device(
    config: Config, demand: MemoryDemand | None, device: torch.device | None = None
) -> list[str]:
    """A line about the device and its free memory, then warnings. ``device``: where the policy is
    already, default: where it will be.

    Raises ConfigError where there is no such device, or where its memory cannot hold what no
    setting lowers; whatever else may be too large is a warning.
    """
    loaded = device is not None
    device = device or choose_device(config.policy)
    free, total = _memory(device)
    if loaded:
        free += torch.cuda.memory_reserved(device) if device.type == "cuda" else _own_memory()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    lines = [f"{name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"]
    if device.type == "cpu" and config.strategy_model != TINY:
        lines.append(
            "WARNING: torch sees no GPU, so this trains on the CPU, which is slow for all but "
            "small models; check nvidia-smi and physical_gpus if there is one"
            if config.policy.device == "auto"
            else "WARNING: policy.device is cpu, which is slow for all but small models"
        )
    if demand is not None:
        lines += demand.announce(free)[1:]
    return lines


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes that can be had, and all there are: of the GPU, or of the machine and its container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = total
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = (_text(_CGROUP / f"memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    return free, total


def _own_memory() -> int:
    pages = _text(Path("/proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
