"""Weights by name, read one at a time when they are wanted, and their files: a model's safetensors,
read and written. What the tensors mean is not known here.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes, save_file
from torch import Tensor

from flowright.core.errors import RunError
from flowright.policy.tuning import ADAPTER_FILE, CONFIG_FILE, disk_errors_of_safetensors

Weights = Mapping[str, Callable[[], Tensor]]
"""By name, each read on the CPU by a call."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def in_folder(folder: Path) -> Weights:
    """Those of a folder's safetensors. Raises RunError where it has none, or has not all that its
    index names."""
    single = folder / SINGLE
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    found: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                names = list(opened.keys())
        except SafetensorError as error:
            raise RunError(f"{file}: not a whole safetensors file ({error}); copy it again") from (
                error
            )
        found |= {name: _Stored(file, name) for name in names}
    index = folder / INDEX
    if index.is_file():
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if missing := sorted(set(named.values()) - {file.name for file in files}):
            raise RunError(f"{index}: names {missing[0]}, which is not there; copy it, too")
        found = {name: found[name] for name in named if name in found}
    if not found:
        raise RunError(
            f"{folder}: no safetensors in it; where it holds pytorch_model.bin, load it in "
            "transformers and save it again"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    file: Path
    name: str

    def __call__(self) -> Tensor:
        with safe_open(self.file, framework="pt") as opened:
            return opened.get_tensor(self.name)


def in_memory(tensors: Mapping[str, Tensor]) -> Weights:
    """Tensors that are here already."""
    return {name: lambda tensor=tensor: tensor for name, tensor in tensors.items()}


def rounded(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """As it is written: in ``dtype`` where it holds fractions. Raises RunError where a number is
    not finite, or is not any more."""
    if not tensor.is_floating_point():
        return tensor.contiguous()
    if lost := int((~tensor.isfinite()).sum()):
        raise RunError(
            f"{name}: {lost} of its {tensor.numel()} numbers are not finite: what was trained is "
            "broken; export an earlier checkpoint"
        )
    cast = tensor.to(dtype)
    if lost := int((~cast.isfinite()).sum()):
        raise RunError(
            f"{name}: {lost} of its {tensor.numel()} numbers are too large for "
            f"{str(dtype).removeprefix('torch.')}; give --dtype bfloat16"
        )
    return cast.contiguous()


def write(weights: Weights, folder: Path, dtype: torch.dtype, most_bytes: int) -> None:
    """Put all weights into ``folder``, in files of up to ``most_bytes`` (a larger tensor has its
    own) with an index where there are several, as transformers names them. One file's tensors are
    in memory at a time. Raises RunError as :func:`rounded`, and OSError."""
    where: dict[str, int] = {}
    held: dict[str, Tensor] = {}
    parts: list[Path] = []
    size = total = count = 0

    def flush() -> None:
        path = folder / f"part-{len(parts)}"
        with disk_errors_of_safetensors():
            save_file(held, path, {"format": "pt"})
        where.update(dict.fromkeys(held, len(parts)))
        parts.append(path)
        held.clear()

    for name, read in weights.items():
        tensor = rounded(read(), dtype, name)
        if held and size + tensor.nbytes > most_bytes:
            flush()
            size = 0
        held[name] = tensor.clone()  # save_file refuses what shares its memory
        size, total, count = size + tensor.nbytes, total + tensor.nbytes, count + tensor.numel()
    flush()
    names = [f"model-{n + 1:05d}-of-{len(parts):05d}.safetensors" for n in range(len(parts))]
    if len(parts) == 1:
        parts[0].rename(folder / SINGLE)
        return
    for part, name in zip(parts, names, strict=True):
        part.rename(folder / name)
    index: dict[str, Any] = {
        "metadata": {"total_parameters": count, "total_size": total},
        "weight_map": {name: names[where[name]] for name in sorted(where)},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


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
