"""The policy: a model, its tokenizer and its trained part.

The trained part, and the policy before training, are in :mod:`flowright.policy.tuning`.
"""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from flowright.config.policy import PolicySection
from flowright.core.errors import ConfigError
from flowright.policy.base_models import model_id
from flowright.policy.decoder_layers import fuse
from flowright.policy.head import SCALAR, Head, ScalarHead, head_of, prepare_scalar
from flowright.policy.lora import quantise
from flowright.policy.model_folders import load_config, load_model, load_tokenizer
from flowright.policy.tuning import FullTuning, Tuning, add_adapter

T = TypeVar("T")


class Peers:
    """The processes of a run. Where each has a part of the weights, all must run the same passes,
    as the weights are gathered from all. This one is alone."""

    @property
    def is_first(self) -> bool:
        """True for the process that writes what is written once."""
        return True

    def longest(self, counts: Sequence[int]) -> list[int]:
        """Return, place by place, the largest of all processes' counts; a shorter list continues
        with zeros. Called by all."""
        return list(counts)

    async def gather_results(self, work: Awaitable[T]) -> list[T]:
        """Return the result of each process' ``work``; a RunError of one is raised on all. Called
        by all."""
        return [await work]


@dataclass(frozen=True, slots=True)
class Policy:
    """A language model with a trained part, and its tokenizer. If its layers' weights are split
    among several ``gpus`` (:mod:`flowright.policy.sharding`), all ``peers`` run the same passes.
    ``quantised``: the format of a frozen base in 4 bits. ``template``: the configured chat
    template, which ``tokenizer`` has, too. ``base_id``: a hash of the base's weights, if they are
    files here. ``offload``: ``policy.offload``. ``recomputed``: layers that recompute completions
    with gradient checkpointing; None for all."""

    tuning: Tuning
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    name: str
    output: Head | ScalarHead
    gpus: int = 1
    peers: Peers = field(default_factory=Peers)
    quantised: str | None = None
    template: str | None = None
    base_id: str | None = None
    offload: str = "none"
    recomputed: int | None = None

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
        """The head of a policy that writes. Raises ConfigError if it scores."""
        if not isinstance(self.output, Head):
            raise ConfigError(f"policy.head: score: {self.name} scores texts and writes none")
        return self.output

    @property
    def scalar(self) -> ScalarHead:
        """The head of a policy that scores. Raises ConfigError if it writes."""
        if not isinstance(self.output, ScalarHead):
            raise ConfigError(f"policy.head: {self.name} writes texts; set it to score")
        return self.output

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        configured = self.causal_lm.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return frozenset(i for i in (*ids, self.tokenizer.eos_token_id) if isinstance(i, int))

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return a completion's text, without the tokens that end it."""
        ends = self.end_ids
        kept = [token for token in token_ids if token not in ends]
        text = self.tokenizer.decode(kept, skip_special_tokens=False)
        assert isinstance(text, str)
        return text

    def trainable(self) -> list[torch.nn.Parameter]:
        """Return the weights that the optimizer moves, in float32."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def reference(self) -> AbstractContextManager[None]:
        """Use the policy as it was before training, which a KL is to."""
        return self.tuning.reference()

    def decoding(self, trained: bool = True) -> AbstractContextManager[None]:
        """Use the weights of this moment, or those before training, in the form that decodes
        fastest; not while they train. Of split weights: those of the last :meth:`gather`."""
        return self.tuning.decoding(trained)

    def gather(self) -> None:
        """Gather split weights to decode with. Called by all processes."""
        self.tuning.gather()

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights by name."""
        return self.tuning.state()

    def save_merged(self, folder: Path) -> None:
        """Save the whole trained model, an adapter merged, and the tokenizer for transformers.
        Raises OSError. The policy cannot be used after this."""
        self.tuning.save_merged(folder)
        self.tokenizer.save_pretrained(folder)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a whole state. Raises ConfigError for one of other layers or sizes."""
        self.tuning.load(state)

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Make a folder with the trained part, of this whole ``state`` or the own one: an adapter
        as peft has it, which vLLM and transformers load, or a whole model. Raises OSError (a full
        disk)."""
        self.tuning.save(folder, state)


def choose_device(section: PolicySection) -> torch.device:
    """Return the configured device; "auto" is the GPU if there is one."""
    if section.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "policy.device: cuda, but torch sees no GPU; check nvidia-smi and physical_gpus"
        )
    if section.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(section.device)


def load_policy(
    path: str,
    section: PolicySection,
    seed: int,
    device: torch.device | None = None,
    key: str = "strategy_model",
    split: bool = False,
) -> Policy:
    """Load the model of ``path`` (a folder or a Hugging Face id) for training, on ``device`` or
    else the configured one. ``key``: the configuration's, for messages. ``split``: the weights
    will be split among several processes.

    A fresh adapter changes nothing: the policy starts as the base model exactly. Raises ConfigError
    if the model cannot be loaded.
    """
    device = device or choose_device(section)
    section = section.on(device.type)
    assert section.dtype is not None
    try:
        load_config(path)  # refuses what could not be loaded as data
        tokenizer = load_tokenizer(path, section.chat_template)
        base = _load(path, section, tokenizer)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{key}: cannot load {path!r}: {first}; give a folder with config.json and "
            "safetensors, or a Hugging Face id that this machine can reach"
        ) from error
    if section.quantised:
        quantise(base)
    moved: Any = base.to(device)  # pyright: ignore[reportArgumentType]  # a decorated method
    policy = policy_of(moved, tokenizer, section, seed, path, split)
    return replace(policy, base_id=model_id(path, settings=False))


def _load(path: str, section: PolicySection, tokenizer: PreTrainedTokenizerBase) -> Any:
    assert section.dtype is not None
    how = {"dtype": getattr(torch, section.dtype), "attn_implementation": "sdpa"}
    if section.head == "language_model":
        return load_model(AutoModelForCausalLM, path, **how)
    base, info = load_model(
        AutoModelForSequenceClassification, path, num_labels=1, output_loading_info=True, **how
    )
    prepare_scalar(base, tokenizer, fresh=f"{SCALAR}.weight" in info["missing_keys"])
    return base


def policy_of(
    base: Any,
    tokenizer: PreTrainedTokenizerBase,
    section: PolicySection,
    seed: int,
    name: str,
    split: bool = False,
) -> Policy:
    """Make a policy of a base model on its device; see :func:`load_policy`."""
    # Some images switch TF32 on, which rounds the factors of a product to eleven bits. transformers
    # computes the angles of positions by a product: at position 3,000 one is off by up to a radian.
    torch.set_float32_matmul_precision("highest")
    section = section.on(base.device.type)
    base.eval()  # but see recomputing()
    recomputed = section.recomputed(base.config.num_hidden_layers)
    if section.gradient_checkpointing is not False:
        # Renamed during transformers 5.
        new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
        getattr(base, new if hasattr(base, new) else old)({"use_reentrant": False})
    scores = section.head == "score"
    output = None if scores else head_of(base, section.head_dtype == "float32")
    full = section.train == "full"
    tuning = FullTuning(base, tokenizer, split) if full else add_adapter(base, section, seed)
    output = output or ScalarHead(getattr(tuning.causal_lm, SCALAR))
    if base.device.type == "cuda" and not full:
        fuse(tuning.causal_lm.model, split)
    template = tokenizer.chat_template if section.chat_template is not None else None
    assert template is None or isinstance(template, str)
    return Policy(
        tuning,
        tokenizer,
        base.device,
        name,
        output,
        quantised=section.quantised,
        template=template,
        offload=section.offload,
        recomputed=recomputed,
    )


@contextmanager
def recomputing(policy: Policy) -> Iterator[None]:
    """Let gradient checkpointing work, if it is configured.

    transformers recomputes only layers in training mode, which removes their cache and switches
    dropout on. So the mode is set on the layers alone, not on their modules, and only here.
    """
    layers = _checkpointed(policy)
    try:
        for layer in layers:
            layer.training = layer.gradient_checkpointing
        yield
    finally:
        for layer in layers:
            layer.training = False


@contextmanager
def keeping_activations(policy: Policy) -> Iterator[None]:
    """Let :func:`recomputing` stop at the configured layer, in passes of completions, which are
    most tokens; backward the kept layers come first and are freed when the others recompute."""
    layers = _checkpointed(policy)
    first = len(layers) if policy.recomputed is None else policy.recomputed
    kept = [layer for layer in layers[first:] if layer.training]
    try:
        for layer in kept:
            layer.training = False
        yield
    finally:
        for layer in kept:
            layer.training = True


def _checkpointed(policy: Policy) -> list[GradientCheckpointingLayer]:
    return [m for m in policy.model.modules() if isinstance(m, GradientCheckpointingLayer)]
