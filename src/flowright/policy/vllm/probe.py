"""The fixed texts of a server's proof, the learner's scores of them, and an adapter of zeros for
checks of a server.

The learner's scores are computed in float32 whatever the precision of its weights, one product at a
time: with a rounding error of their own, they would hide a small move of the log-probabilities.
"""

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

from flowright.config.policy import LoraSection
from flowright.core.errors import RunError
from flowright.core.files import disk_errors, nearest
from flowright.policy.head import VOCABULARY_AT_ONCE, Head
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy
from flowright.policy.tuning import ADAPTER_FILE, lora_config, save_tensors

LONGEST = 256  # tokens of a text
TRIAL_MOVE = (0.1, 1.5)
"""Nats a token, root mean square, that a trial adapter moves the log-probabilities by."""
_TRIAL_TRIES = 16

# Their first tokens differ, so that no position behind them is computed alike.
QUESTIONS = (
    "Natalia sold clips to 48 friends in April and half as many in May. How many altogether?",
    "Write a function first_gap(xs) that returns the smallest positive integer missing in xs.",
    "Which river flows through the capital of the country that borders both Spain and Italy?",
    "A train covers 318 km in 3 hours and then rests for 20 minutes. What is its mean speed?",
    "Return the words of a sentence that are longer than k letters, in the order they stand in.",
    "Who directed the film for which the composer of The Mission got his first nomination?",
    "The sides of a triangle are 13, 14 and 15. What is the radius of its inscribed circle?",
    "Merge overlapping intervals, given as pairs in any order, and return them sorted.",
)
_ANSWER = """\
async def workflow(problem):
    answers = await asyncio.gather(*[answer(problem) for _ in range(3)])
    code = await programmer(problem, instruction="Compute the result step by step.")
    best = await ensemble(problem, [*answers, code])
    review_text = await review(problem, best)
    if "wrong" in review_text.lower():
        best = await revise(problem, best, review_text)
    return await format(problem, best)"""


@dataclass(frozen=True, slots=True)
class Known:
    """The learner's log-probabilities [N] of the texts' tokens, one text behind the other, for one
    set of weights; float64 on the CPU. ``name`` is for people.

    ``kept`` is the share of the adapter's part in a layer's output that survives being added to an
    output already rounded to bfloat16, as in vLLM's kernels: 1 for a large adapter, 0.02 after a
    first update at a rate of 1e-5."""

    name: str
    scores: Tensor
    kept: float = 1.0


def probe_texts(policy: Policy) -> list[list[int]]:
    """Return the texts' tokens: like the training's, so that training moves them."""
    return [
        policy.tokenizer.encode(
            f"<|im_start|>user\n{question} Write a workflow that solves problems of this kind."
            f"<|im_end|>\n<|im_start|>assistant\n{_ANSWER}<|im_end|>\n",
            add_special_tokens=False,
        )[:LONGEST]
        for question in QUESTIONS
    ]


def learner_scores(policy: Policy, texts: Sequence[Sequence[int]], name: str = "") -> Known:
    """Return the log-probabilities at temperature 1 of every text's tokens but its first, by the
    weights as they are now. One pass of the decoder for all texts: with split weights, all
    processes run it together."""
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(list(text)) for text in texts], batch_first=True
    ).to(policy.device)
    with torch.no_grad(), _Float32(), _measuring(policy) as kept:
        # Padding is behind the text, where no token sees it.
        hidden = policy.causal_lm.model(input_ids=ids, use_cache=False).last_hidden_state.float()
        found = [
            _logprobs(policy.head, hidden[row, : len(text) - 1], ids[row, 1 : len(text)])
            for row, text in enumerate(texts)
        ]
    return Known(name, torch.cat(found).double().cpu(), kept.share)


def trial_scores(policy: Policy, texts: Sequence[Sequence[int]], base: Known, name: str) -> Known:
    """Score the texts with the adapter's B drawn at random, in a size that moves the
    log-probabilities of ``base`` by ``TRIAL_MOVE``. The caller restores the adapter."""
    fresh = policy.state()
    halves = [key for key in fresh if ".lora_B." in key]
    draw = torch.Generator().manual_seed(0)
    random = {key: torch.randn(fresh[key].shape, generator=draw) for key in halves}
    size, low, high, moved = 0.01, 0.0, float("inf"), 0.0
    for _ in range(_TRIAL_TRIES):
        drawn = {key: (size * value).to(fresh[key]) for key, value in random.items()}
        policy.load(fresh | drawn)
        known = learner_scores(policy, texts, name)
        moved = float((known.scores - base.scores).square().mean().sqrt())
        if TRIAL_MOVE[0] <= moved <= TRIAL_MOVE[1]:
            return known
        low, high = (size, high) if moved < TRIAL_MOVE[0] else (low, size)
        size = 4 * low if high == float("inf") else (low * high) ** 0.5 if low else high / 4
    raise RunError(
        f"policy.lora: no random adapter moves the probe's log-probabilities by {TRIAL_MOVE[0]:g} "
        f"to {TRIAL_MOVE[1]:g} nats a token (the last one: {moved:.2g}); name other target_modules"
    )


def _logprobs(head: Head, hidden_N: Tensor, target_N: Tensor) -> Tensor:
    """[N] by float32 logits, a part of the vocabulary at a time."""
    parts = [hidden_N @ rows.float().T for rows in head.weight.split(VOCABULARY_AT_ONCE)]
    logits = torch.cat(parts, dim=1).mul_(head.scale)
    return logits.gather(1, target_N[:, None])[:, 0] - logits.logsumexp(1)


class _Float32(TorchFunctionMode):
    """Computes every product of float32 with weights in half precision in float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            return func(*args, **kwargs).float()
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        in_place = getattr(func, "__name__", "").endswith("_")
        if not in_place and any(x.dtype == torch.float32 for x in tensors):
            args = tuple(map(_whole, args))
            kwargs = {name: _whole(x) for name, x in kwargs.items()}
        return func(*args, **kwargs)


def _whole(x: Any) -> Any:
    is_half = isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if is_half else x


@dataclass(slots=True)
class _Kept:
    above: float = 0.0
    below: float = 0.0

    @property
    def share(self) -> float:
        return self.above / self.below if self.below else 1.0


@contextmanager
def _measuring(policy: Policy) -> Iterator[_Kept]:
    """Compare, in each adapted layer, its adapter's part d with what bfloat16 keeps of it beside
    the base's output y: <round(round(y) + d) - round(y), d> / <d, d>, each layer by |d|^2 / |y|^2.
    """
    found = _Kept()

    def compare(layer: LoraLinear, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if layer.disable_adapters:
            return
        a, b = layer.adapter()
        part = layer.scaling[layer.active_adapters[0]] * (inputs[0].float() @ a.T) @ b.T
        base = (out - part).bfloat16().float()
        kept = (base + part).bfloat16().float() - base
        size = base.square().sum()
        found.above += float((kept * part).sum() / size)
        found.below += float(part.square().sum() / size)

    layers = [module for module in policy.model.modules() if isinstance(module, LoraLinear)]
    hooks = [layer.register_forward_hook(compare) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def zero_adapter(model: str, section: LoraSection, parent: Path) -> Iterator[Path | None]:
    """Yield a folder below ``parent`` with an adapter of zeros in bfloat16, of the model's shape;
    it is removed with every folder that was made for it. None if the model's config cannot be
    read."""
    try:
        with torch.device("meta"):
            empty: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    except (OSError, ValueError):
        yield None  # reported by the check of the policy
        return
    parent = parent.absolute()
    with disk_errors(parent):
        stays = nearest(parent)
    folder = parent / f"dry-run-{secrets.token_hex(4)}"
    try:
        with disk_errors(parent):
            folder.mkdir(parents=True)
            _write(folder, empty, section)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another process may use it by now
            while parent != stays:
                parent.rmdir()
                parent = parent.parent


def _write(folder: Path, model: nn.Module, section: LoraSection) -> None:
    """Raises OSError."""
    lora_config(section).save_pretrained(str(folder))
    state: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in section.target_modules:
            a = torch.zeros(section.rank, module.in_features, dtype=torch.bfloat16)
            b = torch.zeros(module.out_features, section.rank, dtype=torch.bfloat16)
            state[f"base_model.model.{name}.lora_A.weight"] = a
            state[f"base_model.model.{name}.lora_B.weight"] = b
    save_tensors(state, folder / ADAPTER_FILE)
