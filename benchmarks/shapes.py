"""The steps that the learner's benchmarks measure, and the random model that they train.

A Qwen2 of 4 layers, hidden_size 256 and vocab_size 8,192, with LoRA of rank 16 on every linear
layer, float32. It has no end token: every completion is as long as it may be.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from flowright.config import GrpoSection, LoraSection, PolicySection
from flowright.grpo.batch import Group, Trained
from flowright.grpo.learner import Learner
from flowright.policy.model import Policy, load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer

MODEL = Qwen2Config(
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
RANK = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """``template`` tokens shared by all prompts, ``problem`` more of each prompt's own, ``groups``
    of them with ``size`` completions of ``length`` tokens; ``ragged`` ones have half to all."""

    groups: int
    template: int
    problem: int
    size: int
    length: int
    ragged: bool = False


SHAPES = {
    "P=1024 C=128": Shape(2, 0, 1024, 8, 128),
    "P=1500 C=300": Shape(2, 0, 1500, 8, 300),
    "P=1500 C=300 ragged": Shape(2, 0, 1500, 8, 300, ragged=True),
    "workload: 8 x (1300 + 200) C=300": Shape(8, 1300, 200, 8, 300),
}
ROWS = 16
"""Of a plain batch of 2,048 tokens each, ours and TRL's; longer rows make a smaller one."""

WARM = Shape(2, 0, 32, 2, 16)
"""What runs first and is not measured."""


def groups_of(shape: Shape) -> list[Group]:
    """Random tokens of that shape."""
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(len(SPECIAL), MODEL.vocab_size) for _ in range(count)]

    def sample() -> Trained:
        low = shape.length // 2 if shape.ragged else shape.length
        tokens = ids(draw.randint(low, shape.length))
        return Trained(tokens, [-9.0] * len(tokens), draw.choice([-1.0, 1.0]))

    template = ids(shape.template)
    return [
        Group([*template, *ids(shape.problem)], [sample() for _ in range(shape.size)])
        for _ in range(shape.groups)
    ]


def checkpoint(folder: Path) -> None:
    """Write the model, without an end token, and its adapter to ``adapter``."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(MODEL).save_pretrained(folder)
    tokenizer = train_tokenizer([], 512)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    policy(folder).save(folder / "adapter")


def policy(folder: Path) -> Policy:
    section = PolicySection(device="cpu", lora=LoraSection(rank=RANK, alpha=RANK))
    return load_policy(str(folder), section, seed=0)


def learner(model: Policy, sharing: bool, budget: int) -> Learner:
    """``budget``: tokens in a chunk of the shared path. After an update that is not measured, so
    that nothing is first-time."""
    section = GrpoSection(
        kl_coefficient=0.0,
        prefix_sharing=sharing,
        micro_batch_tokens=budget if sharing else ROWS * 2048,
        learning_rate=1e-6,
    )
    made = Learner(model, section, 1.0, 0)
    made.update(groups_of(WARM), 1, 512)
    return made
