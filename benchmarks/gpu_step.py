"""What sampling and an update cost on a GPU, for Qwen2.5-7B's shape: shared prefixes against plain.

Random weights are made on the GPU, in bfloat16, with LoRA on every linear layer. First the
attention kernels are compared with public operations in float32. Then, for each group size:
seconds of sampling and of an update, completions' tokens a second, model FLOPs utilisation, and
peak memory beside the plan's (``flowright.policy.memory``). ``--kernels`` counts the GPU's kernels,
and the seconds it worked; ``--trl`` has TRL's trainer do the same step (``step_trl.py``).

    python benchmarks/gpu_step.py [--prompts 2] [--template 0.0] [--sizes 8 16] [--kl 0.0]
    python benchmarks/gpu_step.py --device cpu --tiny    # the same code, on a tiny shape

The load that ``cuda_ledger.py`` models, with what a run would choose (``--auto``):

    --prompts 32 --template 0.92 --sizes 16 --ragged --auto --paths sampling shared

Utilisation is FLOPs / (seconds x peak of the GPU), where only those FLOPs count that a path must
compute (PaLM, arXiv 2204.02311, appendix B), with W weights of the linear layers, A of the adapter,
vocab_size V, hidden_size d, H heads of size D:

    4 W + 6 A        a token run forward and backward; frozen weights have no gradient of their own
    12 H D           a pair of query and key in each layer: two products forward, four backward
    4 d V            a completion's token in the head, its slope included

and with a KL, for the reference, which runs forward without the adapter:

    2 W, 4 H D and 2 d V

What gradient checkpointing computes again does not count. The shared path computes each token of a
prefix once, the plain one for every completion; so its utilisation may be higher and it still be
slower.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from meter import apart
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Qwen2Config

from flowright.app.device import MemoryDemand, free_memory, memory_summary, settings_text
from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection, PolicySection
from flowright.grpo.batch import Group, Trained
from flowright.grpo.learner import Learner
from flowright.policy.local import LocalSampler
from flowright.policy.memory import ModelShape, memory_plan, shape_of
from flowright.policy.model import Policy, policy_of
from flowright.policy.prefix.attention import Pass, PrefixBlock, attend
from flowright.policy.prefix.kernels import Kernel, PlainKernel, kernel_for, segments_of_rows
from flowright.policy.sampling import Sampling
from flowright.policy.tiny import SPECIAL, train_tokenizer

QWEN_7B = Qwen2Config(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=32768,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=False,
)
TINY = Qwen2Config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=False,
)
PATHS = ("sampling", "shared", "plain")
COLUMNS = ("prompts", "completions", "what", "s", "tokens/s", "utilisation", "GB", "planned GB")
PEAKS = {"B200": 2250, "H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "L40S": 362}
"""Dense bfloat16 TFLOP/s of a GPU whose name has this in it, by NVIDIA's data sheets; the first
that fits."""


@dataclass(frozen=True, slots=True)
class Load:
    """``prompts`` of ``prompt`` tokens, the first ``template`` of which are the same, with ``size``
    completions of ``length`` tokens each; if ``ragged``, of half to three halves of these."""

    prompts: int
    prompt: int
    template: int
    size: int
    length: int
    ragged: bool = False

    @property
    def lengths(self) -> list[list[int]]:
        """Tokens of each prompt's completions."""
        draw, half = random.Random(1), self.length // 2 if self.ragged else 0
        return [
            [draw.randint(self.length - half, self.length + half) for _ in range(self.size)]
            for _ in range(self.prompts)
        ]

    def groups(self, vocab_size: int) -> list[Group]:
        draw = random.Random(0)

        def ids(count: int) -> list[int]:
            return [draw.randrange(len(SPECIAL), vocab_size) for _ in range(count)]

        def sample(length: int) -> Trained:
            return Trained(ids(length), [-9.0] * length, draw.choice([-1.0, 1.0]))

        template = ids(self.template)
        own = self.prompt - self.template
        return [Group([*template, *ids(own)], list(map(sample, some))) for some in self.lengths]


@dataclass(frozen=True, slots=True)
class Measured:
    """``seconds`` is the median of the repeats; ``peak`` is in bytes, 0 where nobody counts."""

    seconds: float
    peak: int


def flops(shape: ModelShape, load: Load, sharing: bool, kl: float = 0) -> float:
    """What an update must compute, with a KL in this share of the steps; see the module's
    docstring."""
    lengths = [length for some in load.lengths for length in some]
    own = load.prompt - load.template
    if sharing:
        tokens = load.template + load.prompts * own + sum(lengths) - len(lengths)
        pairs = _triangle(load.template)
        pairs += load.prompts * (_triangle(own) + own * load.template)
        pairs += sum(_triangle(n - 1) + (n - 1) * load.prompt for n in lengths)
    else:
        tokens = sum(load.prompt + n for n in lengths)
        pairs = sum(_triangle(load.prompt + n) for n in lengths)
    pair = shape.layers * shape.heads * shape.head_size * pairs
    head = sum(lengths) * shape.hidden_size * shape.vocab_size
    found = tokens * (4 * shape.adapted + 6 * shape.adapter) + 12 * pair + 4 * head
    return found + kl * (tokens * 2 * shape.adapted + 4 * pair + 2 * head)


def _triangle(count: int) -> int:
    return count * (count + 1) // 2


def differences(config: Qwen2Config, device: torch.device, length: int) -> dict[str, float]:
    """Largest difference of attention and its gradients in bfloat16 from public operations in
    float32, over the largest entry: texts of three lengths behind a prefix."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    spans = [(0, length), (length, length + length // 2), (length + length // 2, 2 * length)]
    generator = torch.Generator(device).manual_seed(0)

    def draw(count: int, tokens: int) -> Tensor:
        made = torch.randn(count, tokens, size, generator=generator, device=device)
        return made.bfloat16()

    q, grad = draw(heads, 2 * length), draw(heads, 2 * length)
    keys = [draw(kv_heads, tokens) for tokens in (2 * length, 2 * length, 5 * length, 5 * length)]

    def run(dtype: torch.dtype, kernel: Kernel) -> list[Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (q, *keys)]
        at, k, v, prefix_k, prefix_v = leaves
        block = PrefixBlock(0, 2 * length, 0, 0, 5 * length)
        tree = Pass(spans, [block], [[(prefix_k, prefix_v)]])
        out = attend(at, (k, v), tree, 0, size**-0.5, kernel)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]

    kernel = kernel_for(q)
    found = run(torch.bfloat16, kernel)
    wanted = run(torch.float32, PlainKernel())
    names = ["out", "dq", "dk", "dv", "dk of the prefix", "dv of the prefix"]
    if kernel.packs:
        rows = [x.view(4, kv_heads, -1, size) for x in (draw(4 * heads, 1), *keys[:2])]
        places = rows[1].shape[2]
        seen = torch.tensor([1, places // 3, 7, places], device=device)
        unseen = torch.arange(places, device=device) >= seen[:, None]
        mask = torch.zeros(4, 1, 1, places, device=device)
        mask.masked_fill_(unseen[:, None, None], -torch.inf)
        q, k, v = rows
        segments = segments_of_rows(seen, kv_heads, q.shape[2], places)
        names.append("out of rows")
        found.append(kernel.rows((q, k, v), segments, size**-0.5)[0])
        exact = (q.float(), k.float(), v.float())
        wanted.append(PlainKernel().rows(exact, mask, size**-0.5)[0])
    return {
        name: float((one.float() - other).abs().max() / other.abs().max())
        for name, one, other in zip(names, found, wanted, strict=True)
    }


def random_policy(config: Qwen2Config, section: PolicySection, device: torch.device) -> Policy:
    """Never in the host's memory: drawn where it is used."""
    torch.manual_seed(0)
    with device:
        base = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return policy_of(base, train_tokenizer([], 512), section, 0, "random")


def measure(work: Callable[[], object], device: torch.device, repeats: int) -> Measured:
    """After one round that is not counted; the device is waited for at both ends."""
    work()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return Measured(statistics.median(seconds), peak)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def update_row(
    policy: Policy, section: PolicySection, load: Load, path: str, options: argparse.Namespace
) -> str:
    sharing = path == "shared"
    grpo = GrpoSection(
        kl_coefficient=options.kl,
        prefix_sharing=sharing,
        micro_batch_tokens=options.budget,
        learning_rate=1e-6,
        prompts_per_step=load.prompts,
        group_size=load.size,
    )
    shape = shape_of(policy.causal_lm, section)
    plan = memory_plan(shape, section, grpo, policy.device.type)
    learner = Learner(policy, grpo, 1.0, 0)
    groups = load.groups(shape.vocab_size)
    found = measure(lambda: learner.update(groups, 1, load.length), policy.device, options.repeats)
    tokens = load.prompts * load.size * load.length / found.seconds
    used = "-"
    if options.peak:
        needed = flops(shape, load, sharing, options.kl > 0)
        share = needed / found.seconds / (options.peak * 1e12)
        used = f"{share:.1%}"
    if options.kernels:
        list_kernels("an update", options.kernels, lambda: learner.update(groups, 1, load.length))
    return _row(load, f"update, {path}", found, tokens, used, plan.phases["updating"])


def sampling_row(
    policy: Policy, section: PolicySection, load: Load, path: str, options: argparse.Namespace
) -> str:
    grpo = GrpoSection(prompts_per_step=load.prompts, group_size=load.size)
    shape = shape_of(policy.causal_lm, section)
    plan = memory_plan(shape, section, grpo, policy.device.type)
    sampler = LocalSampler(policy, section.decode_batch)
    prompts = [group.prompt_ids for group in load.groups(shape.vocab_size)]
    drawn: list[int] = []

    def sample(length: int = load.length) -> None:
        sampling = Sampling(1.0, 1.0, length, 0)
        groups = asyncio.run(sampler.sample(prompts, load.size, sampling))
        drawn.append(sum(len(sample.token_ids) for group in groups for sample in group))

    found = measure(sample, policy.device, options.repeats)
    tokens = statistics.mean(drawn) / found.seconds
    if options.kernels:
        few, more = 4, 12
        kernels, busy = list_kernels(f"sampling {few}", 0, lambda: sample(few))
        others = list_kernels(f"sampling {more}", options.kernels, lambda: sample(more))
        count, busy = (others[0] - kernels) / (more - few), (others[1] - busy) / (more - few)
        print(f"a decoded token: {count:.0f} kernels, {1000 * busy:.2f} ms of work, "
              f"{1000 * found.seconds / load.length:.2f} ms with the prefill's share")  # fmt: skip
    return _row(load, path, found, tokens, "-", plan.phases["sampling"])


def list_kernels(name: str, lines: int, work: Callable[[], object]) -> tuple[int, float]:
    """Print the GPU's longest kernels, where there is a GPU; return how many ran and for how many
    seconds."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name] += 1
            seconds[event.name] += event.device_time / 1e6
    print(f"{name}: {counts.total()} kernels and copies, {seconds.total():.3f} s of work")
    for kernel, some in seconds.most_common(lines):
        print(f"    {some:.4f} s, {counts[kernel]} x {kernel[:100]}")
    return counts.total(), seconds.total()


def fitted(
    config: Qwen2Config, section: PolicySection, size: int, options: argparse.Namespace
) -> tuple[PolicySection, int]:
    """Return the settings that a run makes of ``auto`` on this GPU, and print them."""
    with torch.device("meta"):
        shape = shape_of(AutoModelForCausalLM.from_config(config), section)
    grpo = GrpoSection(prompts_per_step=options.prompts, group_size=size, micro_batch_tokens="auto")
    section = section.model_copy(update={"gradient_checkpointing": "auto"})
    torch.cuda.empty_cache()
    found = MemoryDemand(shape, section, grpo).fitted(free_memory(torch.device("cuda"))[0])
    print(f"auto: {settings_text(found.settings)}; {memory_summary(found.plan)}")
    return found.policy, found.grpo.chunk_tokens


def trl_rows(config: Qwen2Config, load: Load, options: argparse.Namespace) -> list[str]:
    """Measure TRL's generation and update in a process of its own."""
    groups = load.groups(config.vocab_size)
    case = {
        "config": config.to_dict(),
        "device": options.device,
        "rank": options.rank,
        "vocab_size": config.vocab_size,
        "prompts": [group.prompt_ids for group in groups],
        "lengths": [length for some in load.lengths for length in some],
        "turns": 1,
        "answer": [],
        "size": load.size,
        "length": max(map(max, load.lengths)),
        "rows_at_once": options.rows,
        "compact": False,
        "vllm": options.vllm,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.json")
        path.write_text(json.dumps(case))
        command = [options.trl, str(Path(__file__).with_name("step_trl.py")), str(path)]
        found = apart(command, os.environ.get("PYTHONPATH", "").split(":"))
    rows = []
    for phase in ("generate", "update"):
        seconds, peak = found[f"{phase} s"], int(found[f"{phase} GB"] * 1e9)
        tokens = sum(map(sum, load.lengths)) / seconds
        name = "TRL, vLLM" if options.vllm and phase == "generate" else f"TRL, {phase}"
        rows.append(_row(load, name, Measured(seconds, peak), tokens, "-", 0))
    return rows


def _row(load: Load, name: str, found: Measured, tokens: float, used: str, planned: float) -> str:
    peak = f"{found.peak / 1e9:.1f}" if found.peak else "-"
    prompts = f"{load.prompts} x ({load.template} + {load.prompt - load.template})"
    cells = [prompts, f"{load.size} x {load.length}", name, f"{found.seconds:.3f}"]
    cells += [f"{tokens:.0f}", used, peak, f"{planned / 1e9:.1f}" if planned else "-"]
    return f"| {' | '.join(cells)} |"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="where to run (cuda)")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape and short texts")
    parser.add_argument("--prompts", type=int, default=2, help="problems per step")
    parser.add_argument("--template", type=float, default=0.0, help="share of a prompt, 0 to 1")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16], help="attempts, G")
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many")
    parser.add_argument("--budget", type=int, default=4096, help="grpo.micro_batch_tokens")
    parser.add_argument("--kl", type=float, default=0.0, help="grpo.kl_coefficient")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the GPU, where it is not known")
    parser.add_argument("--keep-activations", action="store_true", help="no checkpointing")
    parser.add_argument("--auto", action="store_true", help="the memory plan's settings instead")
    parser.add_argument("--ragged", action="store_true", help="completions of 0.5 to 1.5 lengths")
    parser.add_argument("--rank", type=int, default=32, help="of LoRA (32, as training.yaml)")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS)
    parser.add_argument("--kernels", type=int, default=0, help="how many of the longest to list")
    parser.add_argument("--trl", metavar="PYTHON", help="of an environment that has TRL")
    parser.add_argument("--vllm", metavar="FOLDER", help="has TRL generate by vLLM; for the model")
    parser.add_argument("--rows", type=int, default=8, help="rows that TRL runs at once")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    device = torch.device(options.device)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    options.peak = options.peak or next((p for name, p in PEAKS.items() if name in gpu), None)
    config, prompt, length = (TINY, 48, 8) if options.tiny else (QWEN_7B, 1500, 300)
    print(f"{gpu}, torch {torch.__version__}, transformers {transformers.__version__}")
    print("attention in bfloat16 against float32, largest difference over largest entry:")
    for name, gap in differences(config, device, 4 * length).items():
        print(f"  {name}: {gap:.1e}")
    section = PolicySection(
        dtype="bfloat16",
        max_prompt_tokens=prompt,
        max_new_tokens=length,
        decode_batch=options.prompts * max(options.sizes),
        gradient_checkpointing=not options.keep_activations,
        lora=LoraSection(rank=options.rank, alpha=options.rank),
    )
    template = round(options.template * prompt)
    loads = [
        Load(options.prompts, prompt, template, size, length, options.ragged)
        for size in options.sizes
    ]
    if options.auto:
        section, options.budget = fitted(config, section, max(options.sizes), options)
    header = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    if options.trl:  # before there is a model here
        print(
            "\n".join([header, *(row for load in loads for row in trl_rows(config, load, options))])
        )
    policy = random_policy(config, section, device)
    print(header)
    for load in loads:
        for path in options.paths:
            row = sampling_row if path == "sampling" else update_row
            print(row(policy, section, load, path, options), flush=True)


if __name__ == "__main__":
    main()
