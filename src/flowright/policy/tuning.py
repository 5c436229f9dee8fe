"""What of a model is trained, and what it was before: an adapter beside frozen weights
(:mod:`flowright.policy.tuning`), or the decoder's own weights (:mod:`flowright.policy.tuning`).
Neither trains embeddings and head: the head's gradient is not computed
(:mod:`flowright.policy.head`). Here is what the two have in common.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save as safetensors_bytes
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedTokenizerBase

from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import ConfigError, RunError
from flowright.policy.head import SCALAR as SCALAR
from flowright.policy.lora import LoraLinear, cast_once, merged, unpack

OF_ITS_RUN = "evaluate or resume with the configuration of that run"


class Tuning(Protocol):
    """What is trained of ``model``, in float32, which small steps need. ``folder`` is the name
    under which a checkpoint keeps it."""

    model: Any
    folder: str

    @property
    def causal_lm(self) -> Any:
        """The transformers model; calling it applies what was trained."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """The model as it was before training."""
        ...

    def decoding(self) -> AbstractContextManager[None]:
        """The weights of this moment as decoding is fastest with them, while nobody trains."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back a whole state. Raises ConfigError where it has other layers or sizes."""
        ...

    def save(self, folder: Path) -> None:
        """Make a folder with files that others load, too. Raises OSError (a full disk, say)."""
        ...

    def save_merged(self, folder: Path) -> None:
        """Put the whole model as it was trained into a folder that transformers loads. Raises
        OSError. The policy is of no use after this."""
        ...

    def read(self, folder: Path, name: str) -> None:
        """Load what was saved of a policy called ``name``. Raises RunError where it is of another
        base model, which would load and mean nothing; ConfigError as :meth:`load`."""
        ...


def refuse_misfits(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], mend: str) -> None:
    """Raises ConfigError where a state has other names or sizes than ours."""
    sizes = {name: tensor.shape for name, tensor in ours.items()}
    given = {name: tensor.shape for name, tensor in theirs.items()}
    wrong = [name for name in {**sizes, **given} if sizes.get(name) != given.get(name)]
    if wrong:
        raise ConfigError(
            f"checkpoint: its weights do not fit this policy, for instance {wrong[0]}; {mend}"
        )


def save_model(model: Any, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Put a transformers model, or this ``state`` of it, into a folder. Raises OSError, which its
    writer turns into an error of its own."""
    with disk_errors_of_safetensors():
        model.save_pretrained(folder, state_dict=state)


@contextmanager
def disk_errors_of_safetensors() -> Iterator[None]:
    """Raises OSError where the writer of safetensors found one and made an error of its own."""
    try:
        yield
    except SafetensorError as error:
        if found := re.search(r"os error (\d+)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number)) from error
        raise


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


class _Weight(nn.Module):
    """A trained weight as the model multiplies by it: the float32 original in the model's
    precision, or another tensor ``instead``."""

    instead: Tensor | None = None

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def forward(self, original: Tensor) -> Tensor:
        return original.to(self._dtype) if self.instead is None else self.instead


class FullTuning:
    """All weights of the decoder but its embeddings, norms included.

    They are float32 and multiply in the model's precision: steps of 1e-6 are lost on bfloat16
    weights (Micikevicius et al. 2017, arXiv 1710.03740, section 3.1). The reference is a copy as
    the model was loaded, in main memory; it is brought to the device for as long as it is asked.
    Saved as a Hugging Face folder, the tokenizer included: trained weights in float32, so that a
    run can go on from it.
    """

    folder = "model"

    def __init__(self, base: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = base
        self._tokenizer = tokenizer
        self._weights: dict[str, tuple[_Weight, nn.Parameter]] = {}
        self._before: dict[str, Tensor] = {}
        base.requires_grad_(False)
        head = base.get_output_embeddings()
        modules = [
            (name, module)
            for name, module in base.named_modules()
            if module is not head and not isinstance(module, nn.Embedding)
        ]
        for path, module in modules:
            for name, parameter in [*module.named_parameters(recurse=False)]:
                full = f"{path}.{name}" if path else name
                self._before[full] = parameter.detach().to("cpu", copy=True)
                weight = _Weight(parameter.dtype)
                parameter.data = parameter.data.float()
                parametrize.register_parametrization(module, name, weight, unsafe=True)
                self._weights[full] = (weight, parameter.requires_grad_())

    @property
    def causal_lm(self) -> Any:
        return self.model

    @contextmanager
    def reference(self) -> Iterator[None]:
        try:
            for name, (weight, original) in self._weights.items():
                weight.instead = self._before[name].to(original.device)
            yield
        finally:
            self._as_trained()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Cast once, and not for each token."""
        try:
            with torch.no_grad():
                for weight, original in self._weights.values():
                    weight.instead = weight(original).detach()
            yield
        finally:
            self._as_trained()

    def _as_trained(self) -> None:
        for weight, _ in self._weights.values():
            weight.instead = None

    def state(self) -> dict[str, Tensor]:
        """With the names that transformers writes to disk."""
        return {name: original.detach() for name, (_, original) in self._weights.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        refuse_misfits(self.state(), state, "resume with the strategy_model it was trained from")
        with torch.no_grad():
            for name, (_, original) in self._weights.items():
                original.copy_(state[name])

    def save(self, folder: Path) -> None:
        folder.mkdir()
        self.save_merged(folder)
        self._tokenizer.save_pretrained(folder)

    def save_merged(self, folder: Path) -> None:
        save_model(self.model, folder, self._whole())

    def read(self, folder: Path, name: str) -> None:
        """Bases are told apart by what is not trained: embeddings and head."""
        state: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            state |= load_file(file)
        frozen = {key: tensor for key, tensor in self._whole().items() if key not in self._weights}
        for key, tensor in frozen.items():
            theirs = state.pop(key, None)  # a tied head is not there
            if theirs is not None and not (
                theirs.shape == tensor.shape and torch.equal(theirs, tensor.cpu())
            ):
                raise RunError(
                    f"{folder.parent}: it was trained from another model than {name}: {key} "
                    f"differs, which is never trained; {OF_ITS_RUN}"
                )
        self.load(state)

    def _whole(self) -> dict[str, Tensor]:
        """Everything, by its plain name."""
        by_name = cast(dict[str, Tensor], self.model.state_dict())
        return {plain_name(name): tensor for name, tensor in by_name.items()}


def plain_name(name: str) -> str:
    """Of a weight, as it was called before it was trained itself."""
    return re.sub(r"parametrizations\.(\w+)\.original$", r"\1", name)
