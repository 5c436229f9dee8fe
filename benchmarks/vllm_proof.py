"""How well a sampler's log-probabilities tell its weights apart: before and now.

Two parts. The first computes: random models with hidden_size 64 and 2 layers, the learner in
float32, stand-ins for the server in bfloat16 that add the adapter's part to a rounded output, as
vLLM does, and random adapters of growing size; what of their move is shown, beside what
``Known.kept`` expects. The second draws: a server's noise is drawn as large as it was measured
between a real vLLM in bfloat16 and a learner in float32 (0.033 to 0.042 nats a token, 0.29 at most:
a Laplace distribution), for moves and lengths of the probe; how often an ignored adapter is found,
by the rule of old (a move above three times the noise, a standard error of 0.1 at most) and by this
one; after how many updates of a run; and how often a good server is refused. No vLLM runs here.

    python benchmarks/vllm_proof.py [--adapters 40] [--runs 200]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.utils import logging

from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import RunError
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy, load_policy
from flowright.policy.tiny import SPECIAL, train_tokenizer
from flowright.policy.vllm.proof import (
    QUESTIONS,
    Evidence,
    Known,
    Sums,
    learner_scores,
    probe_texts,
    prove_adapter,
)

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
SMALLEST, DECADES = 1e-4, 2.0  # of the adapters' second half
NOISE = 0.042  # nats a token, mean; of the base's log-probabilities and of each version's
TEXT = 255  # tokens of one text
MOVES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)  # nats a token, mean
STEPS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # mean move of one update


def checkpoint(kind: str, folder: Path) -> Path:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(KINDS[kind](**SHAPE)).save_pretrained(folder)
    train_tokenizer([], SHAPE["vocab_size"]).save_pretrained(folder)
    return folder


def load(folder: Path, dtype: Literal["float32", "bfloat16"]) -> Policy:
    section = PolicySection(device="cpu", dtype=dtype, lora=LoraSection(rank=8, alpha=8))
    return load_policy(str(folder), section, seed=0)


@contextmanager
def rounded_sums(policy: Policy) -> Iterator[None]:
    """Each adapter's part is added to an output that is rounded already."""

    def add(layer: LoraLinear, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        a, b = layer.adapter()
        (scale,) = layer.scaling.values()
        part = scale * (given[0].float() @ a.bfloat16().float().T) @ b.bfloat16().float().T
        return (layer.get_base_layer()(given[0]).float() + part).bfloat16()

    layers = [module for module in policy.model.modules() if isinstance(module, LoraLinear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    yield
    for hook in hooks:
        hook.remove()


def served(policy: Policy, texts: list[list[int]]) -> Tensor:
    found = []
    with torch.no_grad():
        for text in texts:
            rows = (
                policy.causal_lm(input_ids=torch.tensor([text])).logits[0].float().log_softmax(-1)
            )
            found.append(rows[:-1].gather(1, torch.tensor(text[1:])[:, None])[:, 0])
    return torch.cat(found).double()


def computed(kind: str, adapters: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint(kind, Path(folder))
        learner, server = load(path, "float32"), load(path, "bfloat16")
    texts = probe_texts(learner)
    with learner.reference(), server.reference():
        base, served_base = learner_scores(learner, texts), served(server, texts)
    fresh = {name: tensor.clone() for name, tensor in learner.state().items()}
    off = served_base - base.scores
    print(f"{kind}: noise {float(off.abs().mean()):.4f} nats a token, {float(off.abs().max()):.2f} "
          f"at most, {len(off)} tokens")  # fmt: skip
    for number in range(0, adapters, 4):
        size = SMALLEST * 10 ** (DECADES * number / adapters)
        sums: list[tuple[float, float, Sums]] = []
        for seed in range(number, number + 4):
            draw = torch.Generator().manual_seed(seed)
            state = {n: t + size * torch.randn(t.shape, generator=draw) for n, t in fresh.items()}
            for policy in (learner, server):
                policy.load(state)
            wanted = learner_scores(learner, texts)
            with rounded_sums(server):
                shown = served(server, texts) - served_base
            move = wanted.scores - base.scores
            sums.append((float(move.abs().mean()), wanted.kept, Sums.of(shown, move)))
        whole = Sums(torch.cat([one.values for *_, one in sums], dim=1)).share
        moved, kept = (sum(column) / len(sums) for column in list(zip(*sums, strict=True))[:2])
        print(f"  moved {moved:.4f}: shows {whole.value:.2f} ± {whole.error:.2f}, "
              f"expected of bfloat16 {kept:.2f}")  # fmt: skip


def laplace(size: int, draw: torch.Generator) -> Tensor:
    """Of which the mean absolute value is NOISE."""
    uniform = torch.rand(size, generator=draw, dtype=torch.float64) - 0.5
    return -NOISE * uniform.sign() * torch.log1p(-2 * uniform.abs())


def before(served: Tensor, served_base: Tensor, wanted: Known, base: Known, _: Evidence) -> bool:
    """The rule of old; whether it refuses."""
    way, clean = wanted.scores - base.scores, served - (served_base - base.scores)
    floor = max(3 * float((served_base - base.scores).abs().mean()), 0.05 * 0.1)
    if not float(way.abs().mean()) > floor:
        return False
    share = float((clean - base.scores) @ way / (way @ way))
    rest = clean - base.scores - share * way
    error = float((rest @ rest) / (len(way) - 1) / (way @ way)) ** 0.5
    return error <= 0.1 and share < 0.5


def now(
    served: Tensor, served_base: Tensor, wanted: Known, base: Known, evidence: Evidence
) -> bool:
    try:
        prove_adapter(served, served_base, wanted, base, [], 9.0, evidence)
    except RunError:
        return True
    return False


Rule = Callable[[Tensor, Tensor, Known, Known, Evidence], bool]


def refused_after(
    rule: Rule, step: float, size: int, share: float, versions: int, seed: int, grows: bool = True
) -> int | None:
    draw = torch.Generator().manual_seed(seed)
    way = torch.randn(size, generator=draw, dtype=torch.float64) * 1.2533  # mean |way| is 1
    base, evidence = Known("the base model", torch.zeros(size, dtype=torch.float64)), Evidence()
    served_base = laplace(size, draw)
    for version in range(1, versions + 1):
        move = step * (version if grows else 1) * way
        wanted = Known(f"version {version}", move)
        if rule(share * move + laplace(size, draw), served_base, wanted, base, evidence):
            return version
    return None


def drawn(runs: int) -> None:
    rules: dict[str, tuple[Rule, int]] = {
        "before, 1 text": (before, TEXT),
        "now, 1 text": (now, TEXT),
        f"now, {len(QUESTIONS)} texts": (now, TEXT * len(QUESTIONS)),
    }
    print("ignored adapters found in one version, by mean move in nats a token")
    print(f"  {'':16}" + "".join(f"{move:>7g}" for move in MOVES))
    for name, (rule, size) in rules.items():
        found = [
            sum(refused_after(rule, m, size, 0.0, 1, seed) is not None for seed in range(runs))
            for m in MOVES
        ]
        print(f"  {name:16}" + "".join(f"{n / runs:7.0%}" for n in found))
    print("updates until a server that ignores adapters is refused (median; most), by mean move an "
          "update")  # fmt: skip
    for name, (rule, size) in rules.items():
        cells = []
        for step in STEPS:
            after = [refused_after(rule, step, size, 0.0, 300, seed) for seed in range(10)]
            known = sorted(version or 999 for version in after)
            cells.append(f"{step:g}: {known[len(known) // 2]}; {known[-1]}")
        print(f"  {name:16}" + ", ".join(cells).replace("999", "none in 300"))
    good = sum(
        refused_after(now, step, TEXT, 1.0, 300, seed) is not None
        for step in STEPS
        for seed in range(runs // 5)
    )
    print(f"good servers refused: {good} of {runs // 5 * len(STEPS)} runs of 300 versions")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--adapters", type=int, default=40, help="of each kind of model")
    parser.add_argument("--runs", type=int, default=200, help="of each drawn case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for kind in KINDS if arguments.adapters else ():
        computed(kind, arguments.adapters)
    drawn(arguments.runs)


if __name__ == "__main__":
    main()
