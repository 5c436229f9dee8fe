"""Training a LoRA adapter beside frozen weights: making, loading and saving it. How a layer
computes with one is :mod:`flowright.policy.lora`'s.
"""

import json
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save as safetensors_bytes
from torch import Tensor, nn

from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import ConfigError, RunError
from flowright.policy.lora import LoraLinear, cast_once, merged
from flowright.policy.quantised import unpack
from flowright.policy.scalar import NAME as SCALAR
from flowright.policy.tuning import OF_ITS_RUN, refuse_misfits, save_model

ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


class LoraTuning:
    """A LoRA adapter on every target layer (Hu et al. 2021, arXiv 2106.09685); the base is frozen,
    and with the adapter off it is the reference. Saved as a peft adapter, which vLLM loads."""

    folder = "adapter"

    def __init__(self, model: PeftModel) -> None:
        self.model: Any = model

    @property
    def causal_lm(self) -> Any:
        return self.model.get_base_model()

    def reference(self) -> AbstractContextManager[None]:
        return self.model.disable_adapter()

    def decoding(self) -> AbstractContextManager[None]:
        """Merged in float32. In half precision the sum would lose a young adapter, and a quantised
        base has nothing to add to: there the adapter stays beside its layer."""
        layers = [m for m in self.model.modules() if isinstance(m, LoraLinear)]
        plain = all(layer.base_dtype == layer.get_base_layer().weight.dtype for layer in layers)
        in_float32 = self.causal_lm.dtype == torch.float32
        return merged(self.model) if plain and in_float32 else cast_once(self.model)

    def state(self) -> dict[str, Tensor]:
        """With the names that peft writes to disk."""
        # Left to itself, peft asks the hub whether the vocabulary of the base model has grown.
        return get_peft_model_state_dict(self.model, save_embedding_layers=False)

    def load(self, state: Mapping[str, Tensor]) -> None:
        refuse_misfits(self.state(), state, "resume with the policy.lora it was trained with")
        set_peft_model_state_dict(self.model, dict(state))

    def save(self, folder: Path) -> None:
        # In memory first: a writer of safetensors would make an error of its own of a full disk.
        folder.mkdir()
        self.model.peft_config["default"].save_pretrained(str(folder))
        state = {name: tensor.contiguous() for name, tensor in self.state().items()}
        (folder / ADAPTER_FILE).write_bytes(safetensors_bytes(state, {"format": "pt"}))

    def save_merged(self, folder: Path) -> None:
        """Added in float32 and rounded once; a base in 4 bits is unpacked before."""
        base, dtype = self.causal_lm, self.causal_lm.dtype
        unpack(base)
        base.float()
        whole: Any = self.model.merge_and_unload()
        save_model(whole.to(dtype), folder)

    def read(self, folder: Path, name: str) -> None:
        """Models are told apart by the last part of their name or path; adapters by their scale,
        too."""
        path = folder.parent
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        trained_on = str(config.get("base_model_name_or_path"))
        if Path(trained_on).name != Path(name).name:
            raise RunError(
                f"{path}: its adapter was trained on {trained_on}, this policy is {name}; "
                f"{OF_ITS_RUN}"
            )
        has: Any = self.model.peft_config["default"]
        for key, theirs, ours in (
            ("alpha", config.get("lora_alpha"), has.lora_alpha),
            ("rank_stabilised", bool(config.get("use_rslora")), has.use_rslora),
        ):
            if theirs != ours:
                raise RunError(
                    f"{path}: its adapter has policy.lora.{key} {theirs}, this policy {ours}; "
                    f"{OF_ITS_RUN}"
                )
        self.load(load_file(folder / ADAPTER_FILE))


def lora_config(section: LoraSection, scores: bool = False) -> LoraConfig:
    """As peft writes it to disk. Dropout is 0: the sampler and the learner must see one and the
    same policy. Where it ``scores``, the row that does is trained and saved with the adapter."""
    return LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        use_rslora=section.rank_stabilised,
        target_modules=list(section.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
        modules_to_save=[SCALAR] if scores else None,
    )


def add_adapter(base: Any, section: PolicySection, seed: int) -> LoraTuning:
    """Put a fresh adapter on every target layer: its random half is drawn from ``seed``, its other
    half is zero. Raises ConfigError for layers that are not there."""
    lora = lora_config(section.lora, section.head == "score")
    lora._register_custom_module({nn.Linear: LoraLinear})  # as peft's guide has it
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks by a name that transformers has renamed; nothing that a user can mend.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        torch.manual_seed(seed)
        try:
            model = get_peft_model(base, lora)
        except ValueError as error:
            raise ConfigError(f"policy.lora.target_modules: {error}") from error
    assert isinstance(model, PeftModel)
    return LoraTuning(model)
