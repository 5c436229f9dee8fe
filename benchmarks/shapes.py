"""The steps that the learner's benchmarks measure, and the model that they train: a random one, or
a real one with real prompts. Both with LoRA of rank 16 on every linear layer, float32, and without
an end token: every completion that is sampled is as long as it may be.

The random one is a Qwen2 of 4 layers, hidden_size 256 and vocab_size 8,192. A real one is given as
a folder; its prompts are the environment's, in their full form, for problems of the offline data,
and the completions that are trained on are programs of the grammar, as long as they are.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection, PolicySection
from flowright.data.mixture import Mixture
from flowright.data.task import Problem
from flowright.environments.base import make_environment, prompt_encoder
from flowright.environments.registry import make_config
from flowright.grpo.batch import Group, Trained, TurnCredit
from flowright.grpo.learner import Learner
from flowright.policy.model import Policy, load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer
from flowright.workflows.grammar import draw_program

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
    of them with ``size`` completions of ``length`` tokens; ``ragged`` ones have half to all.
    Attempts of several ``turns`` have a completion for each, with ``answer`` tokens between two."""

    groups: int
    template: int
    problem: int
    size: int
    length: int
    ragged: bool = False
    turns: int = 1
    answer: int = 64


SHAPES = {
    "P=1024 C=128": Shape(2, 0, 1024, 8, 128),
    "P=1500 C=300": Shape(2, 0, 1500, 8, 300),
    "P=1500 C=300 ragged": Shape(2, 0, 1500, 8, 300, ragged=True),
    "workload: 8 x (1300 + 200) C=300": Shape(8, 1300, 200, 8, 300),
    **{f"turns: {n} x 200": Shape(2, 1300, 200, 8, 200, turns=n) for n in (1, 2, 4)},
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
        counts, learned = [len(tokens)], [True] * len(tokens)
        for _ in range(1, shape.turns):
            written = ids(draw.randint(low, shape.length))
            counts.append(len(written))
            tokens += [*ids(shape.answer), *written]
            learned += [False] * shape.answer + [True] * len(written)
        logprobs, advantage = [-9.0] * sum(counts), draw.choice([-1.0, 1.0])
        if shape.turns == 1:
            return Trained(tokens, logprobs, advantage)
        credits = [TurnCredit(turn, count, advantage) for turn, count in enumerate(counts)]
        return Trained(tokens, logprobs, advantage, learned, credits=credits)

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


REAL = "real prompts"
"""The name of a shape of a real model."""


def real_checkpoint(model: Path, folder: Path, shape: Shape) -> None:
    """As :func:`checkpoint`, of the model in a folder, and beside it the groups of ``shape`` with
    real prompts; the shape's lengths are those of sampling alone."""
    config = AutoConfig.from_pretrained(model)
    config.eos_token_id = None
    config.save_pretrained(folder)
    for weights in model.glob("*.safetensors*"):
        (folder / weights.name).symlink_to(weights.resolve())
    tokenizer = AutoTokenizer.from_pretrained(model)
    environment = make_environment(make_config())
    encode = prompt_encoder(environment, tokenizer, make_config().policy.max_prompt_tokens)
    rng = random.Random(0)
    groups: list[dict[str, object]] = []
    for task in Mixture(environment.tasks().train, 0).batch(0, shape.groups):
        assert isinstance(task, Problem)
        programs = [draw_program(task.kind, rng) for _ in range(shape.size)]
        tokens = [tokenizer.encode(text, add_special_tokens=False) for text in programs]
        groups.append(
            {"prompt": encode(task).token_ids, "completions": [t[: shape.length] for t in tokens]}
        )
    (folder / "groups.json").write_text(json.dumps(groups))
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    policy(folder).save(folder / "adapter")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Of a real model and its shape, for :func:`prepared`."""
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a real one, real prompts")
    for name, count in (("groups", 2), ("size", 8), ("length", 300)):
        parser.add_argument(f"--{name}", type=int, default=count, help="of a real model's shape")


def prepared(
    options: argparse.Namespace, folder: Path, shapes: Mapping[str, Shape]
) -> Mapping[str, Shape]:
    """Write the model that the options name, and give the shapes to measure: its own, or the
    random model's."""
    if options.model:
        shape = Shape(options.groups, 0, 0, options.size, options.length)
        real_checkpoint(options.model, folder, shape)
        return {REAL: shape}
    checkpoint(folder)
    return {options.shape: shapes[options.shape]} if options.shape else shapes


def say(path: str, costs: Mapping[str, float]) -> None:
    """What one process found, at once: a table waits for the slowest of its rows."""
    found = ", ".join(f"{name} {value:.2f}" for name, value in costs.items())
    print(f"{path}: {found}", file=sys.stderr, flush=True)


def groups_in(folder: Path, shape: Shape) -> list[Group]:
    """The groups of a shape: those beside a real model, else random ones."""
    path = folder / "groups.json"
    if not path.exists():
        return groups_of(shape)
    draw = random.Random(0)
    return [
        Group(
            group["prompt"],
            [
                Trained(tokens, [-1.0] * len(tokens), draw.choice([-1.0, 1.0]))
                for tokens in group["completions"]
            ],
        )
        for group in json.loads(path.read_text())
    ]


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
