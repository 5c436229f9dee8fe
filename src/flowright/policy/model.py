"""Loading the policy: base weights, tokenizer, LoRA adapter; saving and restoring the adapter.

The reference policy is this same model with its adapter switched off. No sampling and no loss here.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils.save_and_load import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save as safetensors_bytes
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from flowright.config import PolicySection
from flowright.errors import ConfigError
from flowright.policy.head import Head, head_of
from flowright.policy.lora import LoraLinear, cast_once

ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


class Peers:
    """The processes that run the model together, where each holds a part of its weights. What one
    of them runs all have to run: the weights are gathered from all. Here: one that holds them all.
    """

    def longest(self, counts: Sequence[int]) -> list[int]:
        """Place by place the largest of all processes' counts; a list that ends early goes on with
        zeros. Called by all."""
        return list(counts)


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model with a LoRA adapter, and its tokenizer. Where the weights of its
    layers are split among several ``gpus`` (:mod:`flowright.policy.sharding`), all ``peers`` run
    the same passes."""

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    name: str
    head: Head
    gpus: int = 1
    peers: Peers = field(default_factory=Peers)

    @property
    def causal_lm(self) -> Any:
        """The transformers model inside (``.model`` the decoder, ``.lm_head`` the head); its
        adapted layers are in place, so calling it applies the adapter."""
        return self.model.get_base_model()

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        configured = self.causal_lm.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return frozenset(i for i in (*ids, self.tokenizer.eos_token_id) if isinstance(i, int))

    def trainable(self) -> list[torch.nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def adapter_state(self) -> dict[str, Tensor]:
        """The adapter's weights by name; the same names that peft writes to disk."""
        # Left to itself, peft asks the hub whether the vocabulary of the base model has grown.
        return get_peft_model_state_dict(self.model, save_embedding_layers=False)

    def save_adapter(self, folder: Path) -> None:
        """Make a folder with the files of a peft adapter, which vLLM and transformers load.

        Raises OSError (a full disk, say): the files are made in memory first, as a writer of
        safetensors would turn it into an error of its own.
        """
        folder.mkdir()
        self.model.peft_config["default"].save_pretrained(str(folder))
        state = {name: tensor.contiguous() for name, tensor in self.adapter_state().items()}
        (folder / ADAPTER_FILE).write_bytes(safetensors_bytes(state, {"format": "pt"}))

    def save_merged(self, folder: Path) -> None:
        """Put the model with its adapter merged, and the tokenizer, into a folder that transformers
        loads. The sum is rounded once; the policy is of no use after this."""
        base, dtype = self.causal_lm, self.causal_lm.dtype
        base.float()
        merged: Any = self.model.merge_and_unload()
        merged.to(dtype).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back all of an adapter. Raises ConfigError where it has other layers or sizes."""
        sizes = {name: tensor.shape for name, tensor in self.adapter_state().items()}
        given = {name: tensor.shape for name, tensor in state.items()}
        wrong = [n for n in {**sizes, **given} if sizes.get(n) != given.get(n)]
        if wrong:
            raise ConfigError(
                f"checkpoint: its adapter does not fit this policy, for instance {wrong[0]}; "
                "resume with the policy.lora it was trained with"
            )
        set_peft_model_state_dict(self.model, dict(state))


def choose_device(section: PolicySection) -> torch.device:
    """The device named by the config; "auto" is the GPU where there is one."""
    if section.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "policy.device: cuda, but torch sees no GPU; check nvidia-smi and physical_gpus"
        )
    if section.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(section.device)


def load_policy(
    path: str, section: PolicySection, seed: int, device: torch.device | None = None
) -> Policy:
    """The model of ``path`` (a folder or a Hugging Face id) with a fresh adapter, on ``device`` or
    else on the configured one.

    The adapter's random half is drawn from ``seed``; its other half is zero, so that the policy
    starts as the base model exactly. Raises ConfigError where the model cannot be loaded.
    """
    device = device or choose_device(section)
    section = section.on(device.type)
    assert section.dtype is not None
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        base = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, section.dtype), attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"strategy_model: cannot load {path!r}: {first}; give a folder with config.json and "
            "safetensors, or a Hugging Face id that this machine can reach"
        ) from error
    moved: Any = base.to(device)  # pyright: ignore[reportArgumentType]  # a decorated method
    return policy_of(moved, tokenizer, section, seed, path)


def policy_of(
    base: Any, tokenizer: PreTrainedTokenizerBase, section: PolicySection, seed: int, name: str
) -> Policy:
    """A policy of a base model that is where it belongs, with a fresh adapter."""
    # Some images switch TF32 on, which rounds the factors of a product to eleven bits. transformers
    # finds the angles of positions by a product: at position 3,000 one could be off by a radian.
    torch.set_float32_matmul_precision("highest")
    section = section.on(base.device.type)
    base.eval()  # what recomputes says so itself: see recomputing()
    if section.gradient_checkpointing:
        # Renamed during transformers 5.
        new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
        getattr(base, new if hasattr(base, new) else old)({"use_reentrant": False})
    head = head_of(base, section.head_dtype == "float32")
    return Policy(add_adapter(base, section, seed), tokenizer, base.device, name, head)


def add_adapter(base: Any, section: PolicySection, seed: int) -> PeftModel:
    """Put a fresh LoRA adapter on every target layer. Dropout is 0: the sampler and the learner
    must see one and the same policy."""
    lora = LoraConfig(
        r=section.lora.rank,
        lora_alpha=section.lora.alpha,
        target_modules=list(section.lora.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    lora._register_custom_module({torch.nn.Linear: LoraLinear})  # as peft's guide has it
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks by a name that transformers has renamed; nothing that a user can mend.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        torch.manual_seed(seed)
        try:
            model = get_peft_model(base, lora)
        except ValueError as error:
            raise ConfigError(f"policy.lora.target_modules: {error}") from error
    assert isinstance(model, PeftModel)
    return model


@contextmanager
def adapter_off(policy: Policy) -> Iterator[None]:
    """The reference policy: the same model without its adapter."""
    with policy.model.disable_adapter():
        yield


@contextmanager
def recomputing(policy: Policy) -> Iterator[None]:
    """Let gradient checkpointing work, where it is configured.

    transformers recomputes only layers in training mode, which takes their cache away and switches
    dropout on. So the mode is set on the layers alone, not on what is in them, and only here.
    """
    layers = [m for m in policy.model.modules() if isinstance(m, GradientCheckpointingLayer)]
    try:
        for layer in layers:
            layer.training = layer.gradient_checkpointing
        yield
    finally:
        for layer in layers:
            layer.training = False


@contextmanager
def decoding_weights(policy: Policy) -> Iterator[None]:
    """The weights with their adapter, as decoding is fastest with them: merged in float32. In half
    precision the sum would lose a young adapter, so there it stays beside its layer."""
    with merged(policy) if policy.causal_lm.dtype == torch.float32 else cast_once(policy.model):
        yield


@contextmanager
def merged(policy: Policy) -> Iterator[None]:
    """Decode with the adapter merged into copies of the weights: W + (alpha/r) B A.

    One matrix product per layer instead of three, which is what a decoding step spends its time on.
    The original tensors are put back by reference, so nothing drifts. For float32: in bfloat16,
    W + d is W wherever d is below half the distance to W's neighbours.
    """
    layers = [m for m in policy.model.modules() if isinstance(m, LoraLayer)]
    originals = []
    try:
        for layer in layers:
            weight = layer.get_base_layer().weight
            originals.append((weight, weight.data))
            for adapter in layer.active_adapters:
                delta: Any = layer.get_delta_weight(adapter)  # pyright: ignore[reportCallIssue]
                weight.data = weight.data + delta.to(weight.dtype)
        with adapter_off(policy):
            yield
    finally:
        for weight, data in originals:
            weight.data = data
