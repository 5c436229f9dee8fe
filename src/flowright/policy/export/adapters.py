"""LoRA adapters as files and as entries of a state dict: read, written, and added to the weights
that they were trained beside. How a layer computes with one is :mod:`flowright.policy.lora`'s.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from flowright.core.errors import RunError
from flowright.policy.adapter import ADAPTER_FILE, CONFIG_FILE
from flowright.policy.export.weights import Weights, in_folder, rounded

_WRAPPED = "base_model.model."
_HALF = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
_NOT_ADDED = {
    "use_dora": "DoRA",
    "fan_in_fan_out": "weights that are stored transposed (fan_in_fan_out)",
    "trainable_token_indices": "single rows of the embedding (trainable_token_indices)",
    "lora_bias": "biases of the adapter itself (lora_bias)",
    "target_parameters": "parameters that are no layer's weight (target_parameters)",
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """``halves``: by layer, A [rank, in] and B [out, rank]. ``saved``: whole weights that were
    trained beside them (peft's ``modules_to_save``), by their names in the model. ``config``: as
    peft writes it."""

    config: Mapping[str, Any]
    halves: Mapping[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]
    saved: Weights

    @property
    def base(self) -> str | None:
        """The model that it was trained beside, where it says so."""
        return self.config.get("base_model_name_or_path") or None

    def __str__(self) -> str:
        rank, alpha = self.config.get("r"), self.config.get("lora_alpha")
        layers = sorted({name.rsplit(".", 1)[-1] for name in self.halves})
        beside = f", and {', '.join(self.saved)} whole" if self.saved else ""
        return f"LoRA of rank {rank}, alpha {alpha}, on {', '.join(layers)}{beside}"


def read_adapter(folder: Path) -> Adapter:
    """A peft adapter. Raises RunError where it is none, or of a kind that is not added here."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / CONFIG_FILE}: cannot be read ({error}); copy it again") from (
            error
        )
    kind = config.get("peft_type")
    if kind != "LORA":
        raise RunError(f"{folder}: a peft adapter of type {kind}; LORA is what is read here")
    halves, rest = _halves(in_folder(folder))
    if not halves:
        raise RunError(f"{folder}: no lora_A and lora_B in its {ADAPTER_FILE}")
    return Adapter(config, halves, {plain_name(name): read for name, read in rest.items()})


def split_adapter(weights: Weights) -> tuple[Weights, Weights]:
    """A state dict of a model with an adapter in it: the model's own weights under their plain
    names, and the adapter's entries; no entries for a model without one."""
    halves = {name: read for name, read in weights.items() if _HALF.fullmatch(name)}
    strange = [name for name in weights if "lora_" in name and name not in halves]
    if strange:
        raise RunError(f"{strange[0]}: a part of an adapter that is not LoRA on a layer's weight")
    own = {
        plain_name(name): read
        for name, read in weights.items()
        if name not in halves and ".original_module." not in name
    }
    return own, halves


def adapter_of(entries: Weights, config: Mapping[str, Any]) -> Adapter:
    """Of :func:`split_adapter`'s entries. ``config`` lacks what the entries say themselves."""
    halves, _ = _halves(entries)
    ranks = {name: int(a().shape[0]) for name, (a, _) in halves.items()}
    rank = int(config.get("r") or max(ranks.values()))
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "lora_dropout": 0.0,
        **{key: value for key, value in config.items() if value is not None},
        "r": rank,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in halves}),
        "inference_mode": True,
    }
    if set(ranks.values()) != {rank} and not said.get("rank_pattern"):
        raise RunError(f"the adapter has ranks {sorted(set(ranks.values()))}, its file says {rank}")
    return Adapter(said, halves, {})


def plain_name(name: str) -> str:
    """Of a weight, as the model has it without peft around it."""
    name = name.removeprefix(_WRAPPED)
    name = re.sub(r"\.modules_to_save\.default\.", ".", name)
    return re.sub(r"\.base_layer\.(weight|bias)$", r".\1", name)


def _halves(
    weights: Weights,
) -> tuple[Mapping[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]], Weights]:
    found: dict[str, dict[str, Callable[[], Tensor]]] = {}
    rest: dict[str, Callable[[], Tensor]] = {}
    for name, read in weights.items():
        if half := _HALF.fullmatch(name):
            found.setdefault(half[1].removeprefix(_WRAPPED), {})[half[2]] = read
        else:
            rest[name] = read
    if lone := [layer for layer, both in found.items() if both.keys() != {"A", "B"}]:
        raise RunError(f"{lone[0]}: the adapter has one of lora_A and lora_B only")
    return {layer: (both["A"], both["B"]) for layer, both in found.items()}, rest


def merged(base: Weights, adapter: Adapter) -> Weights:
    """The base with the adapter added, W + scale B A (Hu et al. 2021, arXiv 2106.09685, section
    4.1), in float32. Raises RunError for a kind of adapter that is not added so, and for layers
    that the base has not."""
    for key, words in _NOT_ADDED.items():
        if adapter.config.get(key):
            raise RunError(f"the adapter has {words}, which is not merged here; use --adapter")
    if adapter.config.get("bias", "none") != "none":
        raise RunError("the adapter trained biases, which is not merged here; use --adapter")
    lacking = [layer for layer in adapter.halves if f"{layer}.weight" not in base]
    if lacking:
        raise RunError(
            f"the base has no {lacking[0]}.weight, which the adapter was trained beside; give the "
            "base that it was trained on with --base"
        )
    added = {
        f"{layer}.weight": _Sum(base[f"{layer}.weight"], a, b, scale(adapter.config, layer), layer)
        for layer, (a, b) in adapter.halves.items()
    }
    return {**base, **added, **adapter.saved}


@dataclass(frozen=True, slots=True)
class _Sum:
    weight: Callable[[], Tensor]
    a: Callable[[], Tensor]
    b: Callable[[], Tensor]
    scale: float
    layer: str

    def __call__(self) -> Tensor:
        weight, a, b = self.weight(), self.a(), self.b()
        if weight.shape != (b.shape[0], a.shape[1]):
            raise RunError(
                f"{self.layer}: the adapter is for a layer of {(b.shape[0], a.shape[1])}, the base "
                f"has {tuple(weight.shape)}; give the base that it was trained on with --base"
            )
        return weight.float() + self.scale * (b.float() @ a.float())


def scale(config: Mapping[str, Any], layer: str) -> float:
    """alpha/r, or alpha over its root for a rank-stabilised one (arXiv 2312.03732), with what peft
    lets layers have of their own."""
    rank = _own(config.get("rank_pattern"), layer, config["r"])
    alpha = _own(config.get("alpha_pattern"), layer, config["lora_alpha"])
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _own(patterns: Mapping[str, float] | None, layer: str, default: float) -> float:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return default


def write_adapter(
    adapter: Adapter, folder: Path, base: str | None, dtype: torch.dtype | None = None
) -> None:
    """As peft has it, in ``dtype`` or else as it was trained. Raises RunError for numbers that are
    not finite, and OSError."""
    entries = {
        f"{_WRAPPED}{layer}.lora_{half}.weight": read
        for layer, both in adapter.halves.items()
        for half, read in zip("AB", both, strict=True)
    }
    entries |= {f"{_WRAPPED}{name}": read for name, read in adapter.saved.items()}
    tensors: dict[str, Tensor] = {}
    for name, read in entries.items():
        tensor = read()
        tensors[name] = rounded(tensor, dtype or tensor.dtype, name)
    config = {**adapter.config, "base_model_name_or_path": base}
    folder.mkdir(exist_ok=True)
    (folder / ADAPTER_FILE).write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
