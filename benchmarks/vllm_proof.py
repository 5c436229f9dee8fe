"""How well a sampler's log-probabilities tell its weights apart in half precision.

The learner computes in float32, a stand-in for the server in bfloat16 with the same code: random
models with hidden_size 64 and 2 layers, and random adapters of growing size. The right server has
the adapter, the wrong one the base model. See flowright.policy.vllm.proof for the words. No vLLM
runs here, and no GPU: another arithmetic is further apart than this.

    python benchmarks/vllm_proof.py [--adapters 120]
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.utils import logging

from flowright.config import LoraSection, PolicySection
from flowright.policy.model import Policy, load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer
from flowright.policy.vllm.proof import LARGEST_ERROR, learner_scores, probe_ids, share_of

SHAPE = {
    "vocab_size": 256 + len(SPECIAL),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
SMALLEST, DECADES = 1e-4, 2.5  # of the adapters' second half
BINS = (0.3, 1.0, 3.0, 10.0)


def checkpoint(kind: str, folder: Path) -> Path:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(KINDS[kind](**SHAPE)).save_pretrained(folder)
    train_tokenizer([], SHAPE["vocab_size"]).save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str) -> Policy:
    section = PolicySection(device="cpu", dtype=dtype, lora=LoraSection(rank=8, alpha=8))
    return load_policy(str(folder), section, seed=0)


def measure(kind: str, adapters: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint(kind, Path(folder))
        learner, server = load(path, "float32"), load(path, "bfloat16")
    ids = probe_ids(learner)
    with learner.reference(), server.reference():
        base, served_base = learner_scores(learner, ids), learner_scores(server, ids)
    noise = float((served_base - base).abs().mean())
    fresh = {name: tensor.clone() for name, tensor in learner.state().items()}
    found = []
    for number in range(adapters):
        size = SMALLEST * 10 ** (DECADES * number / adapters)
        draw = torch.Generator().manual_seed(number)
        state = {n: t + size * torch.randn(t.shape, generator=draw) for n, t in fresh.items()}
        for policy in (learner, server):
            policy.load(state)
        wanted, served = learner_scores(learner, ids), learner_scores(server, ids)
        share = share_of(served - (served_base - base), wanted, base, 0.0)
        moved = float((wanted - base).abs().mean())
        found.append((moved / noise, share, float((served - wanted).abs().mean())))
    print(f"{kind}: noise {noise:.4f} nats a token, largest gap {max(g for *_, g in found):.4f}")
    for low, high in pairwise(BINS):
        some = [share for moved, share, _ in found if low <= moved < high]
        told = [share for share in some if share is not None]
        spread = f"share {min(told):.2f} to {max(told):.2f}" if told else "-"
        print(f"  moved {low:g} to {high:g} x noise: {len(some)} adapters, ", end="")
        print(f"standard error <= {LARGEST_ERROR:g} for {len(told)}: {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapters", type=int, default=120, help="of each kind of model")
    adapters = parser.parse_args().adapters
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for kind in KINDS:
        measure(kind, adapters)


if __name__ == "__main__":
    main()
