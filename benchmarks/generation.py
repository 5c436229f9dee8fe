"""What it costs to answer a benchmark's prompts in process, against transformers' ``generate`` on
the same weights: tokens a CPU second, greedy, one thread, each in a process of its own.

Both get the same prompts, sorted by length, the same number of rows at once and the same limit:
``generate`` in batches that end with their longest answer, this house with rows that give their
place to the next prompt, of a model as ``scripts/generate_responses.py`` opens it. A token counts
up to the one that ends its answer: those that ``generate`` goes on to compute for rows that have
ended are work without use.

    python benchmarks/generation.py --model FOLDER --data IFEval's.jsonl [--limit 64]
        [--batch-size 32] [--max-tokens 256] [--dtype float32]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from meter import Meter, apart
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import logging

from flowright.config.policy import LoraSection, PolicySection
from flowright.evaluation.responses.generate import read_questions
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy, load_policy
from flowright.policy.packed import packed
from flowright.policy.sampling import Sampling, template_ids

PATHS = ("generate", "flowright")


def prompts_of(policy: Policy, data: Path, limit: int) -> list[list[int]]:
    _, questions = read_questions(data, "prompt", 0, limit)
    encoded = [template_ids(one.messages, policy.tokenizer, to_answer=True) for one in questions]
    return sorted(encoded, key=len)


def ours(policy: Policy, prompts: Sequence[Sequence[int]], size: int, most: int) -> list[int]:
    """The lengths of the answers; ``size`` rows at once."""
    sampler = LocalSampler(policy, size, trained=False)
    drawn = sampler.draw(prompts, 1, Sampling(0.0, 1.0, most, 0))
    return [len(group[0].token_ids) for group in drawn]


def theirs(policy: Policy, prompts: Sequence[Sequence[int]], size: int, most: int) -> list[int]:
    batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    return [length for batch in batches for length in _batch(policy, batch, most)]


def _batch(policy: Policy, prompts: Sequence[Sequence[int]], most: int) -> list[int]:
    texts = [torch.tensor(prompt) for prompt in prompts]
    ids = pad_sequence(texts, batch_first=True, padding_side="left")
    mask = pad_sequence([torch.ones_like(t) for t in texts], True, padding_side="left")
    ends = sorted(policy.end_ids)
    model: Any = policy.model.get_base_model()
    with torch.inference_mode(), policy.reference():
        made = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=most, do_sample=False,
            eos_token_id=ends, pad_token_id=ends[0],
        )  # fmt: skip
    rows = made[:, ids.shape[1] :].tolist()
    return [next((n + 1 for n, t in enumerate(row) if t in ends), len(row)) for row in rows]


def measure(options: argparse.Namespace, path: str) -> dict[str, float]:
    """All batches in this process, after a short one, so that nothing is first-time."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    section = PolicySection(device="cpu", dtype=options.dtype, lora=LoraSection(rank=1, alpha=1))
    policy, meter = load_policy(str(options.model), section, 0), Meter()
    prompts = prompts_of(policy, options.data, options.limit)
    work = theirs
    if path == "flowright":  # as flowright.evaluation.responses.local_model opens a model
        policy, work = meter.measure("packing", lambda: packed(policy)), ours
    work(policy, prompts[:2], 2, 2)
    size, most = options.batch_size, options.max_tokens
    lengths = meter.measure("all", lambda: work(policy, prompts, size, most))
    full = sum(length == options.max_tokens for length in lengths)
    return {**meter.found(), "tokens": sum(lengths), "prompts": len(lengths), "at the limit": full}


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers in process against generate")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="rows with a prompt")
    parser.add_argument("--limit", type=int, default=64, help="prompts (64)")
    parser.add_argument("--batch-size", type=int, default=32, help="prompts at once (32)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer (256)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--measure", choices=PATHS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options, options.measure)))
        return
    found: dict[str, dict[str, float]] = {}
    print("| | prompts | tokens | at the limit | CPU s | tokens / CPU s | GB |")
    print("|---|---|---|---|---|---|---|")
    for path in PATHS:
        its = apart([sys.executable, __file__, "--measure", path, *sys.argv[1:]], sys.path)
        found[path] = its
        counts = " | ".join(f"{its[name]:.0f}" for name in ("prompts", "tokens", "at the limit"))
        rate = its["tokens"] / its["all s"]
        print(f"| {path} | {counts} | {its['all s']:.1f} | {rate:.1f} | {its['all GB']:.2f} |",
              flush=True)  # fmt: skip
    rates = {path: its["tokens"] / its["all s"] for path, its in found.items()}
    print(f"flowright / generate: {rates['flowright'] / rates['generate']:.2f}")


if __name__ == "__main__":
    main()
