"""Random policies of a few thousand weights, for tests of what trains and samples them.

Their logits are far from uniform, so that a wrong mask, position or weight shows. A token is a
byte. Importing this keeps torch to one thread: tests share the machine.
"""

import atexit
import shutil
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging

from flowright.config.policy import LoraSection, PolicySection
from flowright.grpo.batch import Group, Trained
from flowright.policy.model import Policy, load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer

torch.set_num_threads(1)
logging.disable_progress_bar()

VOCAB_SIZE = 256 + len(SPECIAL)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE | {"head_dim": 4, "tie_word_embeddings": False}),
    "llama": LlamaConfig(**SHAPE),
}
SLIDING = Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1)
"""The second layer sees 8 tokens back; nothing that shares prefixes knows it."""
OTHERS: dict[str, PreTrainedConfig] = {
    "sliding": SLIDING,
    "granite": GraniteConfig(**SHAPE, logits_scaling=8.0),
    "cohere": CohereConfig(**SHAPE, logit_scale=0.0625),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=4, final_logit_softcapping=30.0),
    "phi": PhiConfig(**SHAPE | {"tie_word_embeddings": False}),
}
"""What else a head may be: Granite's and Cohere's logits are multiplied, Gemma's capped, Phi's
have a bias."""


@cache
def checkpoint(architecture: str = "qwen2") -> Path:
    """The folder of a random model and its tokenizer; it goes with the test process."""
    folder = _folder() / architecture
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config((ARCHITECTURES | OTHERS)[architecture])
        if architecture == "phi":
            model.lm_head.bias.data.normal_()
    model.save_pretrained(folder)
    train_tokenizer([], VOCAB_SIZE).save_pretrained(folder)
    return folder


@cache
def _folder() -> Path:
    path = Path(mkdtemp(prefix="tiny-policy-"))
    atexit.register(shutil.rmtree, path)
    return path


def tiny_policy(
    architecture: str = "qwen2", trained: bool = True, split: bool = False, **section: Any
) -> Policy:
    """A policy on the CPU; ``trained`` gives its adapter weights that change every output."""
    is_plain = not (split or section)
    policy = deepcopy(_loaded(architecture)) if is_plain else _load(architecture, split, **section)
    if trained:
        shake(policy)
    return policy


def _load(architecture: str, split: bool = False, **section: Any) -> Policy:
    given = {"device": "cpu", "lora": LoraSection(rank=4, alpha=8), **section}
    return load_policy(str(checkpoint(architecture)), PolicySection(**given), seed=3, split=split)


@cache
def _loaded(architecture: str) -> Policy:
    """To be copied, in a fraction of the time of loading."""
    return _load(architecture)


def shake(policy: Policy, seed: int = 5, scale: float = 0.1) -> None:
    """Move every adapter weight at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable():
            noise = scale * torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                noise = distribute_tensor(noise, parameter.device_mesh, parameter.placements)
            parameter += noise


def weights(policy: Policy) -> dict[str, Tensor]:
    """A copy of the adapter."""
    return {name: tensor.clone() for name, tensor in policy.state().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two adapters are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def whole_logits(policy: Policy, ids: Sequence[int]) -> Tensor:
    """[T, V] logits of one sequence by the model's own forward pass, without padding or cache."""
    with torch.no_grad():
        return policy.causal_lm(input_ids=torch.tensor([list(ids)])).logits[0]


def random_groups(seed: int, shapes: Sequence[tuple[int, Sequence[int]]]) -> list[Group]:
    """Groups of random tokens: for each, the prompt's length and the lengths of its completions.
    Their old log-probabilities are about those of the random policies, so that some are clipped."""
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(len(SPECIAL), VOCAB_SIZE, (length,), generator=generator).tolist()

    def sample(length: int) -> Trained:
        old = -5.5 + 2 * torch.randn(length, generator=generator)
        return Trained(ids(length), old.tolist(), float(torch.randn((), generator=generator)))

    return [Group(ids(prompt), [sample(n) for n in lengths]) for prompt, lengths in shapes]
