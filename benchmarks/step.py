"""What an update costs on the shared path, against the plain one: CPU seconds and peak memory.

A random Qwen2 (4 layers, width 256, LoRA of rank 16 on every linear layer, float32) on one thread;
the same weights and tokens for both, each measured in a process of its own, so that one's memory is
not the other's. Memory is what the process holds above the loaded model.

    python benchmarks/step.py [--repeats 3] [--shape NAME]
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from flowright.config import GrpoSection, LoraSection, PolicySection
from flowright.grpo.batch import Group, Trained
from flowright.grpo.learner import Learner
from flowright.policy.model import load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer

WORDS = 8192


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


def groups_of(shape: Shape) -> list[Group]:
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(len(SPECIAL), WORDS) for _ in range(count)]

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
    config = Qwen2Config(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    train_tokenizer([], 512).save_pretrained(folder)


def measure(folder: Path, shape: Shape, sharing: bool, budget: int) -> dict[str, float]:
    """One update in this process; the second of two, so that nothing is first-time."""
    torch.set_num_threads(1)
    section = PolicySection(device="cpu", lora=LoraSection(rank=16, alpha=16))
    policy = load_policy(str(folder), section, seed=0)
    grpo = GrpoSection(
        kl_coefficient=0.0, prefix_sharing=sharing, micro_batch_tokens=budget, learning_rate=1e-6
    )
    learner = Learner(policy, grpo, 1.0, 0)
    groups = groups_of(shape)
    learner.update(groups_of(Shape(2, 0, 32, 2, 16)), 1, 512)
    loaded = peak()
    began = time.process_time()
    learner.update(groups, 2, 512)
    return {"seconds": time.process_time() - began, "gb": peak() - loaded}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def apart(folder: Path, name: str, sharing: bool, budget: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(folder), "--shape", name]
    command += ["--budget", str(budget), *(["--sharing"] if sharing else [])]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def best(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: min(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    parser.add_argument("--shape", choices=SHAPES, help="only this one")
    parser.add_argument("--budget", type=int, default=1024, help="grpo.micro_batch_tokens, shared")
    parser.add_argument("--sharing", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        shape = SHAPES[options.shape]
        print(json.dumps(measure(options.measure, shape, options.sharing, options.budget)))
        return
    print("one update, CPU seconds and GB above the loaded model (least of the repeats)")
    print("| shape | plain | shared | plain / shared | GB plain | GB shared | shared / plain |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint(folder)
        for shape in [options.shape] if options.shape else SHAPES:
            pairs = [
                (
                    apart(folder, shape, False, 16 * 2048),  # a padded batch of a whole group
                    apart(folder, shape, True, options.budget),
                )
                for _ in range(options.repeats)
            ]
            plain, shared = best([p for p, _ in pairs]), best([s for _, s in pairs])
            print(
                f"| {shape} | {plain['seconds']:.1f} | {shared['seconds']:.1f} | "
                f"{plain['seconds'] / shared['seconds']:.1f} | {plain['gb']:.2f} | "
                f"{shared['gb']:.2f} | {shared['gb'] / plain['gb']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
