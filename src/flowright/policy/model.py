"""The policy: a model, its tokenizer, and what of it is trained; loading it.

What is trained, and what the policy was before, is :mod:`flowright.policy.tuning`'s. No sampling
and no loss here.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from flowright.config.policy import PolicySection
from flowright.core.errors import ConfigError
from flowright.policy.head import SCALAR as SCALAR, Head, ScalarHead, head_of, prepare_scalar
from flowright.policy.lora import quantise
from flowright.policy.tuning import FullTuning, Tuning, add_adapter


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
    """A causal language model of which something is trained, and its tokenizer. Where the weights
    of its layers are split among several ``gpus`` (:mod:`flowright.policy.model`), all ``peers``
    run the same passes. Who trains or samples it need not know what of it is trained."""

    tuning: Tuning
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    name: str
    output: Head | ScalarHead
    gpus: int = 1
    peers: Peers = field(default_factory=Peers)
    quantised: str | None = None
    """How the frozen base is quantised, where it is."""

    @property
    def model(self) -> Any:
        """All modules, those of an adapter included."""
        return self.tuning.model

    @property
    def causal_lm(self) -> Any:
        """The transformers model inside (``.model`` the decoder, behind it the head); calling it
        applies what was trained."""
        return self.tuning.causal_lm

    @property
    def head(self) -> Head:
        """Of a policy that writes. Raises ConfigError where it scores."""
        if not isinstance(self.output, Head):
            raise ConfigError(f"policy.head: score: {self.name} scores texts and writes none")
        return self.output

    @property
    def scalar(self) -> ScalarHead:
        """Of a policy that scores. Raises ConfigError where it writes."""
        if not isinstance(self.output, ScalarHead):
            raise ConfigError(f"policy.head: {self.name} writes texts; set it to score")
        return self.output

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        configured = self.causal_lm.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return frozenset(i for i in (*ids, self.tokenizer.eos_token_id) if isinstance(i, int))

    def trainable(self) -> list[torch.nn.Parameter]:
        """What the optimizer moves, in float32."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def reference(self) -> AbstractContextManager[None]:
        """The policy as it was before training: what a KL is to."""
        return self.tuning.reference()

    def decoding(self) -> AbstractContextManager[None]:
        """The weights of this moment as decoding is fastest with them; not while they train."""
        return self.tuning.decoding()

    def state(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        return self.tuning.state()

    def save_merged(self, folder: Path) -> None:
        """Put the whole model as it was trained, an adapter merged, and the tokenizer into a folder
        that transformers loads. Raises OSError. The policy is of no use after this."""
        self.tuning.save_merged(folder)
        self.tokenizer.save_pretrained(folder)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back a whole state. Raises ConfigError where it has other layers or sizes."""
        self.tuning.load(state)

    def save(self, folder: Path) -> None:
        """Make a folder with what is trained: an adapter's as peft has it, which vLLM and
        transformers load, or a whole model's. Raises OSError (a full disk, say)."""
        self.tuning.save(folder)


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
    """The model of ``path`` (a folder or a Hugging Face id), ready to be trained, on ``device`` or
    else on the configured one.

    An adapter is fresh and changes nothing yet: the policy starts as the base model exactly. Raises
    ConfigError where the model cannot be loaded.
    """
    device = device or choose_device(section)
    section = section.on(device.type)
    assert section.dtype is not None
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        base = _load(path, section, tokenizer)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"strategy_model: cannot load {path!r}: {first}; give a folder with config.json and "
            "safetensors, or a Hugging Face id that this machine can reach"
        ) from error
    if section.quantised:
        quantise(base)
    moved: Any = base.to(device)  # pyright: ignore[reportArgumentType]  # a decorated method
    return policy_of(moved, tokenizer, section, seed, path)


def _load(path: str, section: PolicySection, tokenizer: PreTrainedTokenizerBase) -> Any:
    assert section.dtype is not None
    how = {"dtype": getattr(torch, section.dtype), "attn_implementation": "sdpa"}
    if section.head == "language_model":
        return AutoModelForCausalLM.from_pretrained(path, **how)
    base, told = AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=1, output_loading_info=True, **how
    )
    prepare_scalar(base, tokenizer, fresh=f"{SCALAR}.weight" in told["missing_keys"])
    return base


def policy_of(
    base: Any, tokenizer: PreTrainedTokenizerBase, section: PolicySection, seed: int, name: str
) -> Policy:
    """A policy of a base model that is where it belongs; see :func:`load_policy`."""
    # Some images switch TF32 on, which rounds the factors of a product to eleven bits. transformers
    # finds the angles of positions by a product: at position 3,000 one could be off by a radian.
    torch.set_float32_matmul_precision("highest")
    section = section.on(base.device.type)
    base.eval()  # what recomputes says so itself: see recomputing()
    if section.gradient_checkpointing:
        # Renamed during transformers 5.
        new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
        getattr(base, new if hasattr(base, new) else old)({"use_reentrant": False})
    scores = section.head == "score"
    output = None if scores else head_of(base, section.head_dtype == "float32")
    full = section.train == "full"
    tuning = FullTuning(base, tokenizer) if full else add_adapter(base, section, seed)
    output = output or ScalarHead(getattr(tuning.causal_lm, SCALAR))
    return Policy(tuning, tokenizer, base.device, name, output, quantised=section.quantised)


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


def shard(policy: Policy, device: torch.device, gpus: int, processes: int, peers: Peers) -> Policy:
    """The same policy with its layers' weights split among ``gpus`` processes of each node, on
    their devices. Called by all ``processes`` of the run, with a policy that is on the CPU: one
    layer at a time is whole on a GPU."""
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    mesh = init_device_mesh(device.type, (processes // gpus, gpus), mesh_dim_names=("node", "gpu"))
    decoder: Any = policy.causal_lm.model
    whole = set(policy.trainable())
    for layer in decoder.layers:
        fully_shard(layer, mesh=mesh["gpu"], ignored_params=whole)
    # The root has no weights of its own: it is what the layers' gathering has in common.
    fully_shard(decoder, mesh=mesh["gpu"], ignored_params=set(decoder.parameters()))
    # Left to itself, FSDP takes what is gathered next from the order of the forward passes, and
    # there are several before one backward. Nothing comes after the first layer, which is there.
    for following, layer in pairwise([decoder.layers[0], *decoder.layers]):
        layer.set_modules_to_backward_prefetch([following])
    for tensor in chain(policy.model.parameters(), policy.model.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device)
    return replace(policy, device=device, gpus=gpus, peers=peers)
