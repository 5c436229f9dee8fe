"""Weights by name, each read when it is wanted, and LoRA adapters beside them: read from
safetensors and written.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flowright.core.errors import RunError
from flowright.core.files import read_object
from flowright.policy.tuning import (
    ADAPTER_FILE,
    CONFIG_FILE,
    disk_errors_of_safetensors,
    save_tensors,
)

Weights = Mapping[str, Callable[[], Tensor]]
"""By name, each read on the CPU by a call."""

Halves = Mapping[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]
"""By layer, A [rank, in] and B [out, rank] of an adapter."""

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"

_WRAPPED = "base_model.model."
_HALF = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")


def in_folder(folder: Path) -> Weights:
    """Return the weights in a folder's safetensors. Raises RunError for a folder without any, or
    without all that its index names."""
    single = folder / _SINGLE
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    found: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as stored:
                names = stored.keys()
                found |= {name: partial(_stored, file, name) for name in names}
        except SafetensorError as error:
            raise RunError(
                f"{file}: not a whole safetensors file ({error}); copy it again"
            ) from error
    index = folder / _INDEX
    if index.is_file():
        try:
            named: dict[str, str] = dict(read_object(index)["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{index}: cannot be read ({error}); copy it again") from error
        if missing := sorted(set(named.values()) - {file.name for file in files}):
            raise RunError(f"{index}: names {missing[0]}, which is missing; copy it, too")
        found = {name: found[name] for name in named if name in found}
    if not found:
        raise RunError(
            f"{folder}: no safetensors in it; where it holds pytorch_model.bin, load it in "
            "transformers and save it again"
        )
    return found


def _stored(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt") as stored:
        return stored.get_tensor(name)


def rounded(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Cast a tensor of fractions to ``dtype``. Raises RunError for numbers that are not finite
    before or after."""
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
    """Write all weights into ``folder``, in files of up to ``most_bytes`` (a larger tensor has its
    own) with an index for several, as transformers names them. Holds all of them in ``dtype``, as
    much as a loaded model. Raises RunError as :func:`rounded`, and OSError."""
    # Clones: of tensors that share memory, only one would be written.
    state = {name: rounded(read(), dtype, name).clone() for name, read in weights.items()}
    with disk_errors_of_safetensors():
        save_torch_state_dict(state, folder, max_shard_size=most_bytes)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter. ``saved``: whole weights that were trained beside it (peft's
    ``modules_to_save``), by their names in the model. ``config``: as peft writes it."""

    config: Mapping[str, Any]
    halves: Halves
    saved: Weights

    @property
    def base(self) -> str | None:
        """The model that it was trained beside, by its config."""
        return self.config.get("base_model_name_or_path") or None

    def __str__(self) -> str:
        rank, alpha = self.config.get("r"), self.config.get("lora_alpha")
        layers = sorted({name.rsplit(".", 1)[-1] for name in self.halves})
        beside = f", and {', '.join(self.saved)} whole" if self.saved else ""
        return f"LoRA of rank {rank}, alpha {alpha}, on {', '.join(layers)}{beside}"


def read_adapter(folder: Path) -> Adapter:
    """Read a peft adapter. Raises RunError for a folder without one, or with one that is not
    LoRA."""
    try:
        config = read_object(folder / CONFIG_FILE)
    except (OSError, ValueError) as error:
        message = f"{folder / CONFIG_FILE}: cannot be read ({error}); copy it again"
        raise RunError(message) from error
    kind = config.get("peft_type")
    if kind != "LORA":
        raise RunError(f"{folder}: a peft adapter of type {kind}; only LORA is read")
    saved, halves = split_adapter(in_folder(folder))
    if not halves:
        raise RunError(f"{folder}: no lora_A and lora_B in its {ADAPTER_FILE}")
    return Adapter(config, halves, saved)


def split_adapter(weights: Weights) -> tuple[Weights, Halves]:
    """Split the weights of a model with a peft adapter into the model's own, under their plain
    names, and the adapter's."""
    own: dict[str, Callable[[], Tensor]] = {}
    found: dict[str, dict[str, Callable[[], Tensor]]] = {}
    for name, read in weights.items():
        if half := _HALF.fullmatch(name):
            found.setdefault(half[1].removeprefix(_WRAPPED), {})[half[2]] = read
        elif ".original_module." not in name:
            own[_plain_name(name)] = read
    if lone := [layer for layer, both in found.items() if both.keys() != {"A", "B"}]:
        raise RunError(f"{lone[0]}: the adapter has only one of lora_A and lora_B")
    return own, {layer: (both["A"], both["B"]) for layer, both in found.items()}


def _plain_name(name: str) -> str:
    """Return a weight's name in the model without peft."""
    name = name.removeprefix(_WRAPPED).replace(".modules_to_save.default.", ".")
    return re.sub(r"\.base_layer\.(weight|bias)$", r".\1", name)


def adapter_of(halves: Halves, config: Mapping[str, Any]) -> Adapter:
    """Make an adapter of weights whose ``config`` may lack what the weights show."""
    ranks = {int(a().shape[0]) for a, _ in halves.values()}
    rank = int(config.get("r") or max(ranks))
    whole = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "lora_dropout": 0.0,
        **{key: value for key, value in config.items() if value is not None},
        "r": rank,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in halves}),
        "inference_mode": True,
    }
    if ranks != {rank} and not whole.get("rank_pattern"):
        raise RunError(f"the adapter has ranks {sorted(ranks)}, its config {rank}")
    return Adapter(whole, halves, {})


def write_adapter(
    adapter: Adapter, folder: Path, base: str | None, dtype: torch.dtype | None = None
) -> None:
    """Write an adapter as peft does, in ``dtype`` or else as it was trained. Raises RunError for
    numbers that are not finite, and OSError."""
    entries = {
        f"{_WRAPPED}{layer}.lora_{half}.weight": read
        for layer, both in adapter.halves.items()
        for half, read in zip("AB", both, strict=True)
    }
    entries |= {f"{_WRAPPED}{name}": read for name, read in adapter.saved.items()}
    tensors = {
        name: rounded(tensor := read(), dtype or tensor.dtype, name)
        for name, read in entries.items()
    }
    folder.mkdir(exist_ok=True)
    save_tensors(tensors, folder / ADAPTER_FILE)
    config = {**adapter.config, "base_model_name_or_path": base}
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
