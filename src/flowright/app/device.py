"""The device of a run and its memory: the plan as a table, the settings that make it fit, and the
free memory. Before the model is loaded for the dry run, after it for a run.

The plan is :mod:`flowright.policy.memory`'s; it assumes prompts and completions of the configured
limits, so a run that it calls too large may still fit.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flowright.config.grpo import CHUNK_TOKENS, GrpoSection
from flowright.config.policy import DECODE_ROWS, TINY, PolicySection
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
    processes: int = 1

    @property
    def plan(self) -> Plan:
        return memory_plan(
            self.shape,
            self.policy,
            self.grpo,
            self.device,
            self.gpus,
            rewrites=self.rewrites,
            samples=self.samples,
            processes=self.processes,
        )

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
        settings = self.settings
        found = replace(self, **with_settings(self, dict.fromkeys(settings, "auto")))
        found = found.fitted(available)
        if found.plan.needed <= available:
            changes = {k: v for k, v in found.settings.items() if v is not settings[k]}
            advice = f"it fits with {settings_text(changes)}"
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

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the memory decides where they are `auto`, by key."""
        return memory_settings(self.policy, self.grpo)

    def fitted(self, available: int) -> "MemoryDemand":
        """Return the demand without `auto`: with as many rows as fit into so many bytes, as few
        recomputed layers, then as long chunks; with the least of each where none do."""
        found = replace(self, policy=self.policy.on(self.device))
        size, samples = self.grpo.group_size, self.grpo.prompts_per_step * self.grpo.group_size
        known, tokens = found.policy.gradient_checkpointing, self.grpo.micro_batch_tokens
        if found.policy.decode_batch == "auto":
            most = max(DECODE_ROWS, samples) // size * size
            rows = range(most, 0, -size) if found.plan.sampling else [DECODE_ROWS]
            found = found._first("sampling", available, ({ROWS: count} for count in rows))
        layers = [False, *range(self.shape.layers), True] if known == "auto" else [known]
        chunks = SHORT_CHUNKS if tokens == "auto" else [tokens]
        each = ({LAYERS: count, TOKENS: chunk} for chunk in chunks for count in layers)
        found = found._first("updating", available, each)
        if tokens == "auto" and found.grpo.chunk_tokens == CHUNK_TOKENS:
            each = ({TOKENS: chunk} for chunk in (*LONG_CHUNKS, CHUNK_TOKENS))
            found = found._first("updating", available, each)
        return found

    def _first(
        self, phase: str, available: int, choices: Iterable[Mapping[str, Any]]
    ) -> "MemoryDemand":
        """Return the first choice of settings whose phase fits, or the last."""
        found = self
        for settings in choices:
            found = replace(self, **with_settings(self, settings))
            if (1 + FRAGMENTS) * found.plan.phases[phase] <= available:
                break
        return found


ROWS, LAYERS = "policy.decode_batch", "policy.gradient_checkpointing"
TOKENS = "grpo.micro_batch_tokens"

SHORT_CHUNKS = (CHUNK_TOKENS, *(CHUNK_TOKENS >> n for n in range(1, 5)))
LONG_CHUNKS = (8 * CHUNK_TOKENS, 4 * CHUNK_TOKENS, 2 * CHUNK_TOKENS)
"""Larger ones would save little, and a tensor of one could have more than 2^31 numbers."""


def memory_settings(policy: PolicySection, grpo: GrpoSection) -> dict[str, Any]:
    """Return the settings that a memory plan decides where they are `auto`, by key."""
    return {
        ROWS: policy.decode_batch,
        LAYERS: policy.gradient_checkpointing,
        TOKENS: grpo.micro_batch_tokens,
    }


def with_settings(owner: MemoryDemand | Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner's sections ``policy`` and ``grpo`` with these settings."""
    parts: dict[str, dict[str, Any]] = {"policy": {}, "grpo": {}}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        parts[section][name] = value
    return {name: getattr(owner, name).model_copy(update=part) for name, part in parts.items()}


def settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in settings.items())


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
    free, total = free_memory(device)
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


def free_memory(device: torch.device) -> tuple[int, int]:
    """Return free and total bytes: of the GPU, or of the machine within its container's limit."""
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
