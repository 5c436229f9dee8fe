"""An adapter that changes nothing, in the shape of a run's: what a server says of it, it will say
of every version. The model is not loaded, only its shape.
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from flowright.config.policy import LoraSection
from flowright.core.files import disk_errors, nearest
from flowright.policy.adapter import ADAPTER_FILE, lora_config


@contextmanager
def empty_adapter(model: str, section: LoraSection, parent: Path) -> Iterator[Path | None]:
    """A folder below ``parent`` with an adapter of zeros, in bfloat16, for as long as it is open;
    it goes with every folder that was made for it. None where the model's shape is not at hand."""
    try:
        with torch.device("meta"):
            empty: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    except (OSError, ValueError):
        yield None  # reported by who looks at the policy
        return
    parent = parent.absolute()
    with disk_errors(parent):
        stays = nearest(parent)
    folder = parent / f"dry-run-{secrets.token_hex(4)}"
    try:
        with disk_errors(parent):
            folder.mkdir(parents=True)
            _write(folder, empty, section)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another may have come to need it
            while parent != stays:
                parent.rmdir()
                parent = parent.parent


def _write(folder: Path, model: nn.Module, section: LoraSection) -> None:
    """Raises OSError."""
    lora_config(section).save_pretrained(str(folder))
    state: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in section.target_modules:
            sizes = {
                "A": (section.rank, module.in_features),
                "B": (module.out_features, section.rank),
            }
            for half, size in sizes.items():
                key = f"base_model.model.{name}.lora_{half}.weight"
                state[key] = torch.zeros(size, dtype=torch.bfloat16)
    (folder / ADAPTER_FILE).write_bytes(safetensors_bytes(state, {"format": "pt"}))
