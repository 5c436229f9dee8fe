"""The trained part of a model: a LoRA adapter beside frozen weights, or the decoder's own weights.

Neither trains embeddings and head: the head's gradient is not computed
(:mod:`flowright.policy.head`). Layers with an adapter are in :mod:`flowright.policy.lora`.
"""

import filecmp
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize
from transformers import PreTrainedTokenizerBase

from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import ConfigError, RunError
from flowright.policy.head import SCALAR
from flowright.policy.lora import LoraLinear, cast_once, merged, unpack

ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"

_REMEDY = "evaluate or resume with the configuration of that run"


class Tuning(Protocol):
    """The trained part of ``model``, in float32, which small steps need. ``folder`` is its name in
    a checkpoint."""

    model: Any
    folder: str

    @property
    def causal_lm(self) -> Any:
        """The transformers model; calling it applies what was trained."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """Use the model as it was before training."""
        ...

    def decoding(self, trained: bool = True) -> AbstractContextManager[None]:
        """Use the weights of this moment, or those before training, in the form that decodes
        fastest; not while they train. Of split weights: those of the last :meth:`gather`."""
        ...

    def gather(self) -> None:
        """Gather split weights to decode with. Called by all processes."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights by name."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a whole state. Raises ConfigError for one of other layers or sizes."""
        ...

    def served(self) -> dict[str, Tensor]:
        """Return the trained weights, whole, in the model's precision, in which a server multiplies
        them. Of split ones: called by all processes."""
        ...

    def trial(self, size: float) -> AbstractContextManager[None]:
        """Use weights that are the further from the untrained ones the larger ``size`` is."""
        ...

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Make a folder with files that other programs load, too, of this whole ``state`` or the
        own one. Raises OSError (a full disk)."""
        ...

    def save_merged(self, folder: Path) -> None:
        """Save the whole trained model for transformers. Raises OSError. The policy cannot be used
        after this."""
        ...

    def read(self, folder: Path, name: str) -> dict[str, Tensor]:
        """Return what was saved of a policy called ``name``, for :meth:`load`. Raises RunError for
        another base model, with which it would load and mean nothing."""
        ...


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

    def decoding(self, trained: bool = True) -> AbstractContextManager[None]:
        """Merge in float32. In half precision the sum would lose a young adapter, and a quantised
        base has nothing to add to: there the adapter stays beside its layer."""
        if not trained:
            return self.reference()
        layers = [m for m in self.model.modules() if isinstance(m, LoraLinear)]
        plain = all(layer.base_dtype == layer.get_base_layer().weight.dtype for layer in layers)
        in_float32 = self.causal_lm.dtype == torch.float32
        return merged(self.model) if plain and in_float32 else cast_once(self.model)

    def gather(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """Return the adapter with the names that peft writes to disk."""
        # Left to itself, peft asks the hub whether the vocabulary of the base model has grown.
        return get_peft_model_state_dict(self.model, save_embedding_layers=False)

    def load(self, state: Mapping[str, Tensor]) -> None:
        _check_fits(self.state(), state, "resume with the policy.lora it was trained with")
        set_peft_model_state_dict(self.model, dict(state))

    def served(self) -> dict[str, Tensor]:
        return {name: tensor.to(self.causal_lm.dtype) for name, tensor in self.state().items()}

    @contextmanager
    def trial(self, size: float) -> Iterator[None]:
        """Draw B at random."""
        kept = {name: tensor.clone() for name, tensor in self.state().items()}
        draw = torch.Generator().manual_seed(0)
        drawn = {
            name: (size * torch.randn(tensor.shape, generator=draw)).to(tensor)
            for name, tensor in kept.items()
            if ".lora_B." in name
        }
        try:
            self.load(kept | drawn)
            yield
        finally:
            self.load(kept)

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        folder.mkdir()
        self.model.peft_config["default"].save_pretrained(str(folder))
        save_tensors(self.state() if state is None else state, folder / ADAPTER_FILE)

    def save_merged(self, folder: Path) -> None:
        """Add in float32 and round once; a base in 4 bits is unpacked before."""
        base, dtype = self.causal_lm, self.causal_lm.dtype
        unpack(base)
        base.float()
        for weight in base.parameters():  # parts of a larger tensor cannot be saved
            weight.data = weight.data.contiguous()
        whole: Any = self.model.merge_and_unload()
        _save_model(whole.to(dtype), folder)

    def read(self, folder: Path, name: str) -> dict[str, Tensor]:
        """Compare models by the last part of their name or path, or by their weights where both are
        folders; adapters by their scale, too."""
        path = folder.parent
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        trained_on = str(config.get("base_model_name_or_path"))
        if Path(trained_on).name != Path(name).name and not _same_weights(trained_on, name):
            raise RunError(
                f"{path}: its adapter was trained on {trained_on}, this policy is {name}; {_REMEDY}"
            )
        has: Any = self.model.peft_config["default"]
        for key, theirs, ours in (
            ("alpha", config.get("lora_alpha"), has.lora_alpha),
            ("rank_stabilised", bool(config.get("use_rslora")), has.use_rslora),
        ):
            if theirs != ours:
                raise RunError(
                    f"{path}: its adapter has policy.lora.{key} {theirs}, this policy {ours}; "
                    f"{_REMEDY}"
                )
        return load_file(folder / ADAPTER_FILE)


def _same_weights(one: str, other: str) -> bool:
    """Return whether two folders hold the same weights, such as an embedded policy that two
    versions of this package made."""
    files = [Path(folder, "model.safetensors") for folder in (one, other)]
    return all(file.is_file() for file in files) and filecmp.cmp(*files, shallow=False)


def lora_config(section: LoraSection, scores: bool = False) -> LoraConfig:
    """Return peft's configuration of an adapter. Dropout is 0: sampler and learner must see the
    same policy. If it ``scores``, the scoring row is trained and saved with the adapter."""
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
    """Put a fresh adapter on every target layer: its A is drawn from ``seed``, its B is zero.
    Raises ConfigError for layers that the model lacks."""
    lora = lora_config(section.lora, section.head == "score")
    lora._register_custom_module({nn.Linear: LoraLinear})  # as peft's guide has it
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft uses a name that transformers has renamed; nothing that a user can mend.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        torch.manual_seed(seed)
        try:
            model = get_peft_model(base, lora)
        except ValueError as error:
            raise ConfigError(f"policy.lora.target_modules: {error}") from error
    assert isinstance(model, PeftModel)
    return LoraTuning(model)


class CastWeight(nn.Module):
    """A trained weight as the model multiplies by it: the float32 original in the model's
    precision, or another tensor ``instead``, times ``scale``."""

    instead: Tensor | None = None
    scale = 1.0

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, original: Tensor) -> Tensor:
        weight = original if self.instead is None else self.instead
        return (weight if self.scale == 1 else weight * self.scale).to(self.dtype)


class FullTuning:
    """All weights of the decoder but its embeddings, norms included.

    They are float32 and multiply in the model's precision: steps of 1e-6 are lost on bfloat16
    weights (Micikevicius et al. 2017, arXiv 1710.03740, section 3.1). The reference is a copy of
    the model as it was loaded, in main memory, moved to the device while it is used. Saved as a
    Hugging Face folder with the tokenizer; trained weights in float32, so that a run can continue
    from it. If they will be ``split``, neither copy is made before.
    """

    folder = "model"

    def __init__(self, base: Any, tokenizer: PreTrainedTokenizerBase, split: bool = False) -> None:
        self.model = base
        self._tokenizer = tokenizer
        self._is_split = split
        self._weights: dict[str, Any] = {}  # of each, the list with its CastWeight and original
        self._before: dict[str, Tensor] = {}
        self._whole_weights: dict[bool, dict[str, Tensor]] = {}  # untrained and trained, to decode
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
                weight = CastWeight(parameter.dtype)
                if not split:
                    self._before[full] = parameter.detach().to("cpu", copy=True)
                    parameter.data = parameter.data.float()
                parametrize.register_parametrization(module, name, weight, unsafe=True)
                self._weights[full] = module.parametrizations[name]
                parameter.requires_grad_()

    def split(self, mesh: DeviceMesh, offload: bool) -> list[Any]:
        """Split the decoder's trained weights among all processes of ``mesh``, with their gradients
        and optimizer; return its parts in their order. Each part is gathered in the model's
        precision, and its gradients are summed in float32 behind each backward pass. ``offload``:
        this process' part is in main memory, and moved to the device to be gathered."""
        decoder = self.model.model
        others = [m for m in decoder.children() if m is not decoder.layers]
        trained = [m for m in others if any(p.requires_grad for p in m.parameters())]
        precision = MixedPrecisionPolicy(self.model.dtype, torch.float32, cast_forward_inputs=False)
        pinned = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
        held = pinned if offload else OffloadPolicy()
        parts: list[Any] = [*decoder.layers, *trained]
        for part in parts:
            part.float()
            fully_shard(
                part,
                mesh=mesh,
                mp_policy=precision,
                offload_policy=held,
                reshard_after_forward=True,
            )
            part.set_gradient_divide_factor(1.0)  # a sum, as the weights of tokens are of all
            part.set_force_sum_reduction_for_comms(True)
        for name, weight in self._weights.items():
            self._before[name] = local(weight.original).to("cpu", weight[0].dtype, copy=True)
        return parts

    @property
    def causal_lm(self) -> Any:
        return self.model

    @contextmanager
    def reference(self) -> Iterator[None]:
        trained: dict[str, Tensor] = {}
        try:
            if self._is_split:
                trained = {name: local(tensor).clone() for name, tensor in self.state().items()}
                self._fill(self._before)
            else:
                for name, weight in self._weights.items():
                    weight[0].instead = self._before[name].to(weight.original.device)
            yield
        finally:
            self._fill(trained)
            self._use_trained()

    @contextmanager
    def decoding(self, trained: bool = True) -> Iterator[None]:
        """Cast once instead of for each token. Gathered weights are moved to the device meanwhile,
        and FSDP's hooks are out of the way, as the other processes may decode less."""
        if not trained and not self._is_split:
            with self.reference():
                yield
            return
        parts: list[Any] = [m for m in self.model.modules() if isinstance(m, FSDPModule)]
        hooks = [(part._forward_pre_hooks, part._forward_hooks) for part in parts]
        try:
            for part in parts:
                part._forward_pre_hooks, part._forward_hooks = {}, {}
            with torch.no_grad():
                for name, weight in self._weights.items():
                    own = None if self._is_split else weight[0](weight.original).detach()
                    found = self._whole_weights[trained][name] if own is None else own
                    weight[0].instead = found.to(self.model.device)
            yield
        finally:
            for part, (before, behind) in zip(parts, hooks, strict=True):
                part._forward_pre_hooks, part._forward_hooks = before, behind
            self._use_trained()

    def _use_trained(self) -> None:
        for weight in self._weights.values():
            weight[0].instead = None

    def gather(self) -> None:
        if not self._is_split:
            return
        for trained in (True,) if self._whole_weights else (True, False):
            with nullcontext() if trained else self.reference():
                self._whole_weights[trained] = {
                    name: whole(tensor.to(self._weights[name][0].dtype))
                    for name, tensor in self.state().items()
                }

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        """Set trained weights, or this process' parts of them."""
        for name, value in values.items():
            local(self._weights[name].original).copy_(local(value))

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights, split or whole, with the names that transformers writes to
        disk."""
        return {name: weight.original.detach() for name, weight in self._weights.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        _check_fits(self.state(), state, "resume with the strategy_model it was trained from")
        self._fill(state)

    def served(self) -> dict[str, Tensor]:
        return {
            name: whole(weight[0](weight.original.detach())).cpu()
            for name, weight in self._weights.items()
        }

    @contextmanager
    def trial(self, size: float) -> Iterator[None]:
        """Stretch every untrained weight, so that one that a server leaves out shows."""
        with self.reference():
            try:
                for weight in self._weights.values():
                    weight[0].scale = 1 + size
                yield
            finally:
                for weight in self._weights.values():
                    weight[0].scale = 1.0

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        folder.mkdir()
        _save_model(self.model, folder, self._whole() | dict(state or {}))
        self._tokenizer.save_pretrained(folder)

    def save_merged(self, folder: Path) -> None:
        _save_model(self.model, folder, self._whole())

    def read(self, folder: Path, name: str) -> dict[str, Tensor]:
        """Compare bases by their untrained weights: embeddings and head."""
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
                    f"differs, which is never trained; {_REMEDY}"
                )
        return state

    def _whole(self) -> dict[str, Tensor]:
        """Return all weights by their plain names."""
        by_name = cast(dict[str, Tensor], self.model.state_dict())
        return {plain_name(name): tensor for name, tensor in by_name.items()}


def local(tensor: Tensor) -> Tensor:
    """Return this process' part of a tensor, the whole of one that is not split."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tree: Any, keep: bool = True) -> Any:
    """Return a tree of dicts with whole tensors, on the CPU, in the place of split ones. Called by
    all processes; None in these places where they are not to ``keep``."""
    if isinstance(tree, Mapping):
        return {name: whole(part, keep) for name, part in tree.items()}
    if isinstance(tree, DTensor):
        moved: Any = tree.to(tree.device_mesh.device_type)  # an offloaded one is in main memory
        gathered = moved.full_tensor()
        return gathered.cpu() if keep else None
    return tree


def plain_name(name: str) -> str:
    """Return a weight's name before it was parametrized."""
    return re.sub(r"parametrizations\.(\w+)\.original$", r"\1", name)


def _check_fits(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], remedy: str) -> None:
    """Raises ConfigError for a state with other names or sizes than ours."""
    wrong = [
        name
        for name in {**ours, **theirs}
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape
    ]
    if wrong:
        raise ConfigError(
            f"checkpoint: its weights do not fit this policy, for instance {wrong[0]}; {remedy}"
        )


def _save_model(model: Any, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Save a transformers model, or this ``state`` of it. Raises OSError."""
    with disk_errors_of_safetensors():
        model.save_pretrained(folder, state_dict=state)


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file. Raises OSError."""
    with disk_errors_of_safetensors():
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, file, {"format": "pt"})


@contextmanager
def disk_errors_of_safetensors() -> Iterator[None]:
    """Raises OSError for one that the writer of safetensors has turned into its own error."""
    try:
        yield
    except SafetensorError as error:
        if found := re.search(r"os error (\d+)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number)) from error
        raise
