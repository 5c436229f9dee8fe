"""The device of a run and its memory: the plan as a table, the settings that make it fit, and the
free memory. Before the model is loaded for the dry run, after it for a run.

The plan is :mod:`flowright.policy.memory`'s; it assumes prompts and completions of the configured
limits, so a run that it calls too large may still fit.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """Render the plan in GiB, a line per part: first the parts of both phases, then each phase's
    own."""
    rows = [("GiB, at the configured limits", "sampling", "updating")]
    rows += [(name, _gib(size), _gib(size)) for name, size in plan.held.items()]
    rows += [(name, _gib(size), "") for name, size in plan.sampling.items()]
    rows += [(name, "", _gib(size)) for name, size in plan.updating.items()]
    phases = plan.phases
    rows.append(("together", _gib(phases["sampling"]), _gib(phases["updating"])))
    return [f"{name:<33} {one:>8} {other:>8}" for name, one, other in rows]


def memory_summary(plan: Plan) -> str:
    """Render the plan as one line."""
    phases = ", ".join(f"{name} {_gib(size)} GiB" for name, size in plan.phases.items())
    return f"{phases}; {_gib(plan.needed)} GiB with {FRAGMENTS:.0%} for fragments"


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Memory that a run needs of a GPU, whose layers ``gpus`` processes share, or of the machine,
    if ``device`` is ``cpu``. ``rewrites``: the chat template changes earlier turns."""

    shape: ModelShape
    policy: PolicySection
    grpo: GrpoSection
    gpus: int = 1
    device: str = "cuda"
    rewrites: bool = False
    samples: bool = True

    @property
    def plan(self) -> Plan:
        policy, grpo, flags = self.policy, self.grpo, (self.rewrites, self.samples)
        return memory_plan(self.shape, policy, grpo, self.device, self.gpus, *flags)

    @property
    def least(self) -> int:
        """Bytes that only another model or a lower adapter rank can reduce."""
        plan = self.plan
        decoding = ("merged adapter", "weights to decode with")
        return sum(plan.held.values()) + sum(plan.sampling.get(name, 0) for name in decoding)

    def shortage(self, available: int) -> str | None:
        """Describe a shortage of ``available`` bytes and a remedy; None without one."""
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
            advice = f"lower {' or '.join(self.policy.length_keys)}"
        return (
            f"{_gib(plan.needed)} GiB may be needed while {largest}, and {_gib(available)} GiB are "
            f"free; {advice}"
        )

    def _less(self) -> str:
        """Advice that lowers the memory of one device."""
        if self.policy.train == "full":
            return "train an adapter (policy.train: lora), or set policy.sharded over several"
        if self.policy.quantised:
            return "an adapter of a lower policy.lora.rank"
        quantised = "policy.quantised: nf4"
        return (
            f"policy.sharded over several, or {quantised}" if self.device == "cuda" else quantised
        )

    def announce(self, available: int) -> list[str]:
        """Return the plan and a warning if it exceeds ``available`` bytes. Raises ConfigError if no
        setting can make it fit."""
        if self.least > available:
            raise ConfigError(f"strategy_model: {self.shortage(available)}")
        lines = [f"memory    {memory_summary(self.plan)}"]
        shortage = self.shortage(available)
        if shortage is not None:
            what = "GPU" if self.device == "cuda" else "machine"
            lines.append(f"WARNING: the {what} may run out of memory: {shortage}")
        return lines

    def fitting(self, available: int) -> Mapping[str, str] | None:
        """Return the first settings that fit, by key: gradient checkpointing and then smaller
        chunks for the update, fewer rows for sampling. None if these are not enough."""
        policy, grpo, found = self.policy.on(self.device), self.grpo, {}
        while True:
            plan = replace(self, policy=policy, grpo=grpo).plan
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
                tokens = max(policy.tokens_behind_prompt, grpo.micro_batch_tokens // 2)
                if tokens >= grpo.micro_batch_tokens:
                    return None
                grpo = grpo.model_copy(update={"micro_batch_tokens": tokens})
                found["grpo.micro_batch_tokens"] = str(tokens)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


_CGROUP = Path("/sys/fs/cgroup")


def planned_device(config: Config) -> str:
    """Kind of device of the planned run, even if its GPU is missing, which :func:`look_at_device`
    reports."""
    return "cuda" if config.policy.device == "cuda" else choose_device(config.policy).type


def gpus_here() -> list[str]:
    """GPUs of this machine, by nvidia-smi's numbers."""
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
    if device.type == "cpu" and config.policy.device == "auto" and config.physical_gpus:
        lines.append(
            f"WARNING: physical_gpus: {list(config.physical_gpus)}, but torch sees no GPU, so this "
            "trains on the CPU; check nvidia-smi, or set policy.device: cuda to make it an error"
        )
    elif device.type == "cpu" and config.strategy_model != TINY:
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
    """Free and total bytes: of the GPU, or of the machine within its container's limit."""
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
