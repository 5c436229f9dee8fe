"""Kernels, host syncs, copies, FLOPs, bytes and peak memory of an update and of decoding on a GPU,
counted without one, and the seconds that they would take on an H100.

    python benchmarks/cuda_ledger.py [--sizes 0.5B 7B 14B] [--lines 12]
    python benchmarks/cuda_ledger.py --sizes 7B --sites      # by line of the source
    python benchmarks/cuda_ledger.py --kl 0.001 --checkpointing --chunk 4096

The project's own update (``Learner.update``) and decoding (``LocalSampler.draw``) run on a
pretended device (``pretended_cuda.py``) in bfloat16 at the shapes of Qwen2.5, with the settings of
config/training.yaml and what ``auto`` makes of them at 7B on 80 GB: no recomputed layers, chunks of
8,192 tokens. A step that measures the KL (``grpo.kl_every``) counts by its share of the steps.
Layers are alike: two runs, of 2 and of 3 layers, give the figures of all; the peak is that of all
layers at a smaller batch.

The seconds are a model, not a measurement. A kernel takes the longest of: its FLOPs at the share of
989 TFLOP/s that such kernels reach, its bytes at 80 % of 3.35 TB/s, and a least time. Starting it
takes the host LAUNCH seconds; work takes the longer of both sums. The model FLOPs utilisation is
that of ``gpu_step.py``.
"""

import argparse
import copy
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_step import QWEN_7B, Load, flops
from pretended_cuda import Event, Record, pretended
from transformers import AutoModelForCausalLM, Qwen2Config

from flowright.config.grpo import GrpoSection
from flowright.config.policy import PolicySection
from flowright.environments.registry import load_config
from flowright.grpo.learner import Learner
from flowright.policy.local import LocalSampler
from flowright.policy.memory import memory_plan, shape_of
from flowright.policy.model import Policy, policy_of
from flowright.policy.prefix import graphs
from flowright.policy.sampling import Sampling
from flowright.policy.tiny import train_tokenizer

SIZES: dict[str, dict[str, Any]] = {
    "0.5B": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "7B": {},
    "14B": {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
}
"""Differences from ``QWEN_7B``, by Qwen2.5's config.json."""

UPDATE = Load(prompts=32, prompt=1500, template=1380, size=16, length=300, ragged=True)
LARGEST = Load(prompts=2, prompt=4096, template=2048, size=16, length=768)
"""Fills packs and chunks to their limits, for the peak."""

TRAINING = load_config(Path(__file__).parents[1] / "config/training.yaml")
FILL = 150
"""Tokens that each row has when a decoded token is counted."""

PEAK, BANDWIDTH = 989e12, 3.35e12
PRODUCTS, FLASH, FLASH_BACKWARD, MEMORY = 0.68, 0.38, 0.30, 0.80
"""Shares of the two that kernels reach: cuBLAS in bfloat16 about 670 TFLOP/s, FlashAttention-2 on
Hopper 375 forward and 300 backward, copies 2.7 TB/s."""

LEAST, LAUNCH = 2e-6, 6e-6
"""Seconds of the smallest kernel, and of the host's work for an operator of PyTorch."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts by (kind, name, line): of a whole update or of one decoded token of all rows."""

    counts: Counter[Event]

    def plus(self, other: "Ledger", times: int) -> "Ledger":
        """Add a layer's part, ``times`` so many: the difference of two ledgers, which may have
        less than nothing of an event whose size depends on the layer."""
        found = Counter(self.counts)
        for event, count in other.counts.items():
            found[event] += times * count
        return Ledger(found)

    def number(self, kind: str) -> int:
        return sum(count for event, count in self.counts.items() if event.kind == kind)

    def sites(self, kind: str) -> list[tuple[str, int]]:
        """Return the events of a kind by operator and line, most frequent first."""
        found: Counter[str] = Counter()
        for event, count in self.counts.items():
            if event.kind == kind:
                found[f"{event.name} at {event.site}"] += count
        return found.most_common()

    def total(self, value: Callable[[Event], float]) -> float:
        kernels = ((e, count) for e, count in self.counts.items() if e.kind == "kernel")
        return sum(count * value(event) for event, count in kernels)

    @property
    def seconds(self) -> float:
        return max(self.total(roofline), LAUNCH * self.number("kernel"))


def roofline(event: Event) -> float:
    """Return the seconds of a kernel on an H100; see the module's docstring."""
    share, least = PRODUCTS, LEAST
    if "flash" in event.name:
        backward = event.name.endswith("backward")
        share, least = (FLASH_BACKWARD, 3 * LEAST) if backward else (FLASH, LEAST)
    return max(event.flops / (share * PEAK), event.bytes / (MEMORY * BANDWIDTH), least)


def purpose(event: Event) -> str:
    """Return the row of the table that a kernel belongs to."""
    site = event.site
    if event.flops:
        if "flash" in event.name:
            return "attention"
        return "products: head" if "head.py" in site else "products: layers"
    for part, name in (
        ("prefix/", "attention: copies, merging"),
        ("head.py", "head: softmax"),
        ("local.py", "drawing"),
        ("lora.py", "adapter: casts, sums, biases"),
        ("fused.py", "norms, rotation, SwiGLU, residuals"),
        ("decoder_layers.py", "norms, rotation, SwiGLU, residuals"),
        ("modeling_", "norms, rotation, SwiGLU, residuals"),
        ("activations", "norms, rotation, SwiGLU, residuals"),
        ("autograd", "gradients of these and sums"),
        ("optimizer", "optimizer"),
    ):
        if part in site:
            return name
    return "loss, input, clipping"


@dataclass(frozen=True, slots=True)
class Settings:
    """``chunk``: grpo.micro_batch_tokens; ``checkpointing``: all layers are recomputed, or none."""

    kl: float = TRAINING.grpo.kl_coefficient
    chunk: int = 8192
    checkpointing: bool = False

    def policy(self, load: Load) -> PolicySection:
        update = {
            "dtype": "bfloat16",
            "gradient_checkpointing": self.checkpointing,
            "max_prompt_tokens": load.prompt,
            "max_new_tokens": load.length,
            "decode_batch": load.prompts * load.size,
        }
        return TRAINING.policy.model_copy(update=update)

    def grpo(self, load: Load) -> GrpoSection:
        update = {
            "kl_coefficient": self.kl,
            "micro_batch_tokens": self.chunk,
            "prompts_per_step": load.prompts,
            "group_size": load.size,
        }
        return TRAINING.grpo.model_copy(update=update)


SHIPPED = Settings()


def make_policy(
    size: str, record: Record, layers: int | None, load: Load, settings: Settings
) -> Policy:
    """Make a policy on the pretended device, all or some ``layers`` of it."""
    config: Qwen2Config = copy.deepcopy(QWEN_7B)
    config.update(SIZES[size] | ({"num_hidden_layers": layers} if layers else {}))
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    # Two flags of attention masks, then the head's scale and its distance from the model's.
    record.answers.extend([1.0, 1.0, 1.0, 0.0])
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        policy = policy_of(base, train_tokenizer([], 512), settings.policy(load), 0, size)
    for tensor in (*policy.model.parameters(), *policy.model.buffers()):
        record.track(tensor)
    return policy


def update(
    size: str, layers: int | None, load: Load, settings: Settings = SHIPPED, step: int = 1
) -> tuple[Ledger, Record, Policy]:
    """Count one update, not the first one: the optimizer has its state."""
    with pretended() as record:
        policy = make_policy(size, record, layers, load, settings)
        learner = Learner(policy, settings.grpo(load), 1.0, 0)
        vocab_size = policy.causal_lm.config.vocab_size
        learner.update(Load(1, 4, 0, 2, 2).groups(vocab_size), 1, load.length)
        groups = load.groups(vocab_size)
        record.clear()
        learner.update(groups, step, load.length)
    return Ledger(Counter(record.events)), record, policy


class _After(threading.Event):
    """Set once it was looked at so many ``times``: before a call, then at each token."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def decoding(
    size: str, layers: int | None, load: Load, fill: int = FILL
) -> tuple[Ledger, Record, Policy]:
    """Count the work between one decoded token of all rows and the next, at ``fill`` tokens. On a
    GPU a CUDA graph starts the model's kernels at once."""
    with pretended() as record, patch.object(graphs, "recorded", lambda work: work):
        policy = make_policy(size, record, layers, load, SHIPPED)
        sampler = LocalSampler(policy, load.prompts * load.size)
        prompts = [group.prompt_ids for group in load.groups(policy.causal_lm.config.vocab_size)]
        record.clear()
        # Rows of which all places are read, as only the device knows how many have a token.
        sampling = Sampling(1.0, 1.0, fill + 2, 0)
        sampler.draw(prompts, load.size, sampling, None, _After(fill + 2))
    reads = [n for n, e in enumerate(record.events) if e.kind == "wait" and "local.py" in e.site]
    return Ledger(Counter(record.events[reads[-2] : reads[-1]])), record, policy


Work = Callable[[int | None], tuple[Ledger, Record, Policy]]


def whole(work: Work, size: str) -> tuple[Ledger, Ledger]:
    """Return the ledger of all layers, from runs of 2 and of 3, and a layer's part."""
    two, three = (work(layers)[0] for layers in (2, 3))
    layer = Ledger(Counter(three.counts))
    layer.counts.subtract(two.counts)
    depth = SIZES[size].get("num_hidden_layers", QWEN_7B.num_hidden_layers)
    return two.plus(layer, depth - 2), layer


def table(found: Ledger, unit: str) -> None:
    """Print kernels, FLOPs, bytes and seconds by purpose."""
    rows: dict[str, Ledger] = {}
    for event, count in found.counts.items():
        if event.kind == "kernel":
            rows.setdefault(purpose(event), Ledger(Counter())).counts[event] += count
    print(f"| {unit} | kernels | TFLOP | TB | GPU s |\n|---|---|---|---|---|")
    for name, row in sorted(rows.items(), key=lambda item: -item[1].total(roofline)):
        print(_row(name, row))
    print(_row("all", found))


def _row(name: str, found: Ledger) -> str:
    work = found.total(lambda e: e.flops) / 1e12
    moved = found.total(lambda e: e.bytes) / 1e12
    cells = [name, str(found.number("kernel")), f"{work:.4g}", f"{moved:.3g}"]
    return f"| {' | '.join([*cells, f'{found.total(roofline):.3g}'])} |"


def lists(found: Ledger, lines: int, kinds: Sequence[str] = ("wait", "pageable", "mixed")) -> None:
    for kind in kinds:
        print(f"{kind}: {found.number(kind)}")
        for site, count in found.sites(kind)[:lines]:
            print(f"    {count} {site}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--work", nargs="+", default=["update", "decoding", "peak"])
    parser.add_argument("--kl", type=float, default=SHIPPED.kl, help="grpo.kl_coefficient")
    parser.add_argument("--chunk", type=int, default=SHIPPED.chunk, help="tokens run at once")
    parser.add_argument("--checkpointing", action="store_true", help="recompute all layers")
    parser.add_argument("--prompts", type=int, default=UPDATE.prompts)
    parser.add_argument("--fill", type=int, default=FILL, help="tokens of a row")
    parser.add_argument("--lines", type=int, default=12, help="lines of the source for each list")
    parser.add_argument("--sites", action="store_true", help="list the kernels' lines, too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    load = replace(UPDATE, prompts=options.prompts)
    settings = Settings(options.kl, options.chunk, options.checkpointing)
    kinds = ["wait", "pageable", "mixed", *(["kernel"] if options.sites else [])]
    print(f"{load.prompts} prompts of {load.template} + {load.prompt - load.template} tokens, "
          f"{load.size} completions of about {load.length} each; {settings}")  # fmt: skip
    for size in options.sizes:
        if "update" in options.work:
            updates(size, load, settings, options.lines, kinds)
        if "decoding" in options.work:
            found, layer = whole(lambda n, s=size: decoding(s, n, load, options.fill), size)
            table(found, f"decoded token, {size}")
            print(f"modelled {1000 * found.seconds:.1f} ms for {load.prompts * load.size} rows")
            totals(found, layer)
            lists(found, options.lines, kinds)
        if "peak" in options.work:
            peaks(size, settings)


def updates(size: str, load: Load, settings: Settings, lines: int, kinds: Sequence[str]) -> None:
    """Print the ledger of an update, and of one that measures the KL where not all do."""
    found, layer = whole(lambda n: update(size, n, load, settings), size)
    table(found, f"update, {size}")
    seconds, share = found.seconds, float(settings.kl > 0)
    if every := 0 if share else TRAINING.grpo.kl_every:
        share = 1 / every
        measuring = whole(lambda n: update(size, n, load, settings, every), size)[0].seconds
        print(f"modelled {seconds:.2f} s, {measuring:.2f} s in each {every}th, which measures a KL")
        seconds += share * (measuring - seconds)
    with pretended() as record:
        causal_lm = make_policy(size, record, None, load, settings).causal_lm
    needed = flops(shape_of(causal_lm, settings.policy(load)), load, True, share)
    print(f"modelled {seconds:.2f} s, utilisation {needed / seconds / PEAK:.1%}")
    totals(found, layer)
    lists(found, lines, kinds)


def totals(found: Ledger, layer: Ledger) -> None:
    print(f"GPU {found.total(roofline):.4g} s, host {LAUNCH * found.number('kernel'):.4g} s, "
          f"kernels of a layer {layer.number('kernel')}")  # fmt: skip


def peaks(size: str, settings: Settings) -> None:
    """Print the most bytes that were alive at once beside the plan's."""
    section = settings.policy(LARGEST)
    for phase, work in (
        ("updating", lambda: update(size, None, LARGEST, settings)),
        ("sampling", lambda: decoding(size, None, LARGEST, 1)),
    ):
        _, record, policy = work()
        plan = memory_plan(shape_of(policy.causal_lm, section), section, settings.grpo(LARGEST))
        planned = plan.phases[phase]
        print(f"{phase}, {size}: peak {record.peak / 2**30:.2f} GiB at {record.peak_site}, "
              f"planned {planned / 2**30:.2f}, {planned / record.peak:.3f} of it")  # fmt: skip


if __name__ == "__main__":
    main()
