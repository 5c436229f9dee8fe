"""Weights by name, read one at a time when they are wanted, and their files: a model's safetensors,
read and written. What the tensors mean is not known here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flowright.core.errors import RunError
from flowright.policy.tuning import disk_errors_of_safetensors

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
