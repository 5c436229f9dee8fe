"""Proof that a server samples from the weights that were just trained, an adapter or all of them,
by the log-probabilities of fixed texts: the server's beside the learner's own.

Three comparisons, over N tokens of the texts. Let L be the learner's with the adapter, B its base
model's, S and S_B the server's for both.

1. mean |S_B - B| and mean |S - L| must be within the tolerance: the same base model, the same
   adapter, the same positions.
2. A young adapter moves less than that. But where the arithmetic of server and learner differs, it
   does so with and without an adapter, so y = S - S_B is compared with x = L - B. The share of the
   move that the server shows, c = <y, x> / <x, x> (least squares), is 1 for the right adapter and 0
   for none. With an earlier version's E in B's place, it is 0 if the server still has that one.
   Nearer to the other (c < 1/2) is fatal if c's standard error puts 1/2 ``ERRORS`` from either
   answer; else further texts are scored, and then the evidence of versions is added up.
3. The first comparison is that of trial weights with a large move.

The standard error is the jackknife's over tokens (HC3: MacKinnon and White 1985, equation 13;
clusters: Liang and Zeger 1986): the token that moves most does not confirm itself, and the effect
of the server's arithmetic on one token in every version is counted once. P(Z > 6.25) is 2.1e-10,
so the 135,450 comparisons of 300 versions (each with the base model and all before it: by the
first text, by all, and added up) end a good run with a probability below 3e-5.

A server in half precision adds the adapter's part to an output that is rounded already, which
loses most of a young one (``Known.kept``). So x is what such a server can show: kept times L - B.
An exact server shows more. Moves below ``ROUNDING`` are float32's own error and decide nothing.

The learner's scores of the texts are computed in float32 whatever the precision of its weights, one
product at a time: with a rounding error of their own, they would hide a small move of the
log-probabilities. All weights are compared as an adapter is, and lose nothing (``kept`` 1). An
adapter of zeros is for checks of a server.
"""

import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from flowright.config.policy import LoraSection
from flowright.core.errors import RunError, UserError
from flowright.core.files import disk_errors, nearest
from flowright.policy.head import VOCABULARY_AT_ONCE, Head
from flowright.policy.lora import LoraLinear
from flowright.policy.model import Policy
from flowright.policy.model_folders import load_config
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


def trial_scores(
    policy: Policy, texts: Sequence[Sequence[int]], base: Known, name: str
) -> tuple[float, Known]:
    """Score the texts with the policy's trial weights of a size that moves the log-probabilities
    of ``base`` by ``TRIAL_MOVE``; return the size, too."""
    size, low, high, moved = 0.01, 0.0, float("inf"), 0.0
    for _ in range(_TRIAL_TRIES):
        with policy.tuning.trial(size):
            known = learner_scores(policy, texts, name)
        moved = float((known.scores - base.scores).square().mean().sqrt())
        if TRIAL_MOVE[0] <= moved <= TRIAL_MOVE[1]:
            return size, known
        low, high = (size, high) if moved < TRIAL_MOVE[0] else (low, size)
        size = 4 * low if high == float("inf") else (low * high) ** 0.5 if low else high / 4
    raise RunError(
        f"policy: no {name} move the probe's log-probabilities by {TRIAL_MOVE[0]:g} to "
        f"{TRIAL_MOVE[1]:g} nats a token (the last ones: {moved:.2g}); with an adapter, name other "
        "policy.lora.target_modules"
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
            empty: Any = AutoModelForCausalLM.from_config(load_config(model))
    except (OSError, ValueError, UserError):
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


ERRORS = 6.25
"""Standard errors between 1/2 and either answer."""
LARGEST_ERROR = 0.5 / ERRORS

ROUNDING = 3e-4
"""Nats a token, root mean square; float32 on both sides was 5e-7 to 1e-5 apart."""

TRIAL_MISS = 0.2
"""Largest distance of a trial adapter's share from 1, beyond its error; never nearer to 0 than
1."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights to sample from: an adapter under its name on the servers, all weights in the base
    model's place, or the base model, whose ``path`` is None. ``known``: the learner's scores of the
    texts with them."""

    name: str
    version: int
    known: Known
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """The texts of a proof, and the weights that a server's scores are compared with: the base
    model and all earlier versions. ``trial`` comes before the first of them."""

    texts: tuple[tuple[int, ...], ...]
    base: Known
    earlier: Sequence[Known]
    end_ids: Collection[int]
    trial: Weights | None = None

    def tokens(self, texts: int) -> int:
        """Return the tokens with a log-probability in the first ``texts`` texts."""
        return sum(len(text) - 1 for text in self.texts[:texts])


@dataclass(frozen=True, slots=True)
class Share:
    """The share c with its standard error, inf if nothing bounds it."""

    value: float
    error: float

    @property
    def decides(self) -> bool:
        return self.error <= LARGEST_ERROR


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of a proof over ``tokens``: ``gap`` is mean |S - L| and ``noise`` mean |S_B - B| in
    nats a token, ``share`` c against the base model (None if nothing moved), of which half
    precision leaves ``kept``; ``excluded`` counts the other weights that it is certainly not, and
    ``decided`` is true if the base model is one of them."""

    gap: float
    noise: float
    share: Share | None
    kept: float
    decided: bool
    excluded: int
    tokens: int

    @property
    def lacking(self) -> float:
        """The factor of tokens that it takes to decide; 0 if it is decided, or nothing moved."""
        if self.decided or self.share is None:
            return 0.0
        return (self.share.error / self.kept / LARGEST_ERROR) ** 2

    def metrics(self) -> dict[str, float]:
        """Return the metrics under ``policy/``; the share only if there is one."""
        found = {"gap": self.gap, "noise": self.noise, "decided": float(self.decided)}
        if self.share is not None and self.share.error < float("inf"):
            found |= {"share": self.share.value, "error": self.share.error, "kept": self.kept}
        return {f"policy/proof_{name}": value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Sums:
    """Evidence of one version or of several, [5, N]: by token the versions, and over these the sums
    of x, y, x y and x x.

    S_B is in every version's y, so that their errors have the covariance I + 1 1'. Its inverse is
    I - 1 1' / (n + 1) with n versions: generalised least squares (Aitken 1936) with the weights
    a = sum(x y) - sum(x) sum(y) / (n + 1) and b = sum(x x) - sum(x)^2 / (n + 1)."""

    values: Tensor

    @staticmethod
    def of(shown: Tensor, move: Tensor) -> "Sums":
        return Sums(torch.stack([torch.ones_like(move), move, shown, move * shown, move * move]))

    def __add__(self, other: "Sums") -> "Sums":
        longest = max(self.values.shape[1], other.values.shape[1])
        values = torch.zeros(5, longest, dtype=torch.float64)
        for sums in (self, other):
            values[:, : sums.values.shape[1]] += sums.values
        return Sums(values)

    @property
    def share(self) -> Share:
        """sum(a) / sum(b), and the jackknife's error over tokens: with h = b / sum(b), the root of
        sum(((a - c b) / (1 - h))^2) / sum(b)."""
        n, x, y, xy, xx = self.values
        a, b = xy - x * y / (n + 1), xx - x * x / (n + 1)
        total = float(b.sum())
        value = float(a.sum()) / total
        rest = 1 - b / total
        if float(rest.min()) < 1e-9:
            return Share(value, float("inf"))
        return Share(value, float(((a - value * b) / rest).square().sum().sqrt()) / total)


@dataclass(slots=True)
class Evidence:
    """A server's undecided evidence of several versions, by the weights they were compared with."""

    undecided: dict[str, Sums] = field(default_factory=dict)

    def weigh(self, other: str, sums: Sums) -> Share | None:
        """Return the share that decides, of this version alone or with those before; None if
        neither does."""
        total = self.undecided[other] + sums if other in self.undecided else sums
        for share in (sums.share, total.share):
            if share.decides:
                self.undecided.pop(other, None)
                return share
        self.undecided[other] = total
        return None


def prove_base(served: Tensor, base: Known, tolerance: float) -> None:
    """Raises RunError unless the server has the learner's base model."""
    gap = _mean(served - base.scores[: len(served)])
    if not gap <= tolerance:
        raise RunError(
            f"its base model is not the learner's: log-probabilities differ by {gap:.3g} nats a "
            f"token (policy.vllm.tolerance {tolerance:g}); serve strategy_model, unquantised"
        )


def prove_trial(served: Tensor, served_base: Tensor, trial: Known, base: Known) -> None:
    """Raises RunError if the server shows another move than the trial adapter's."""
    size = len(served)
    share = Sums.of(served - served_base, (trial.scores - base.scores)[:size]).share
    if not abs(share.value - 1) <= min(TRIAL_MISS + ERRORS * share.error, 0.5):
        raise RunError(
            f"it does not apply {trial.name} as the learner does: of what they change, its "
            f"log-probabilities show {share.value:.0%} ± {share.error:.0%}; 0% is a server that "
            "ignores them: start another vLLM, without a cache of weights by path"
        )


def prove_adapter(
    served: Tensor,
    served_base: Tensor,
    wanted: Known,
    base: Known,
    earlier: Sequence[Known],
    tolerance: float,
    evidence: Evidence,
) -> Proof:
    """Raises RunError unless ``served`` [N] are the wanted weights' scores, by the comparisons of
    this module. Undecided evidence is added to ``evidence``."""
    size = len(served)
    noise = _mean(served_base - base.scores[:size])
    gap = _mean(served - wanted.scores[:size])
    clean = served - (served_base - base.scores[:size])
    others = [base, *earlier]
    if not gap <= tolerance:
        nearest = min([wanted, *others], key=lambda known: _mean(clean - known.scores[:size]))
        raise RunError(
            f"it does not serve {wanted.name}: log-probabilities differ by {gap:.3g} nats a token "
            f"(policy.vllm.tolerance {tolerance:g}); {_guess(clean, nearest, wanted, tolerance)}"
        )
    decisions: list[tuple[float, str, Share]] = []
    for other in others:
        move = (wanted.scores - other.scores)[:size]
        if not float(move.square().mean()) ** 0.5 > ROUNDING:
            continue
        shown = clean - other.scores[:size]
        share = evidence.weigh(other.name, Sums.of(shown, wanted.kept * move))
        if share is not None:
            decisions.append((_mean(shown), other.name, share))
    nearer = [one for one in decisions if one[2].value < 0.5]
    if nearer:
        _, name, share = min(nearer, key=lambda found: found[0])
        raise RunError(
            f"it does not serve {wanted.name} but what {name} was: of the difference between the "
            f"two its log-probabilities show {share.value:.0%} ± {share.error:.0%}"
        )
    move = (wanted.scores - base.scores)[:size]
    moved = float(move.square().mean()) ** 0.5 > ROUNDING
    share = Sums.of(clean - base.scores[:size], move).share if moved else None
    decided = any(name == base.name for _, name, _ in decisions)
    return Proof(gap, noise, share, wanted.kept, decided, len(decisions), size)


def _guess(clean: Tensor, nearest: Known, wanted: Known, tolerance: float) -> str:
    if nearest is wanted or _mean(clean - nearest.scores[: len(clean)]) > tolerance:
        return "they are no weights of this run either"
    return f"they are those of {nearest.name}"


def _mean(difference: Tensor) -> float:
    return float(difference.abs().mean())


def consistent(drawn: Sequence[float], scored: Sequence[float], tolerance: float) -> None:
    """Raises RunError if tokens were drawn with other log-probabilities than the same server scores
    them with afterwards, such as an adapter that is applied to prompts but not in decoding."""
    apart = _mean(torch.tensor(drawn) - torch.tensor(scored))
    if not apart <= tolerance:
        raise RunError(
            f"it draws tokens with other weights than it scores them with: {apart:.3g} nats a "
            f"token apart (policy.vllm.tolerance {tolerance:g})"
        )


def scales(plain: Sequence[float], halved: Sequence[float]) -> bool:
    """Return whether log-probabilities have the temperature applied, from those of the likeliest
    tokens at temperature 1 and at 1/2, both descending: their spread doubles, or it stays."""
    count = min(len(plain), len(halved), 5)
    spread = plain[0] - plain[count - 1]
    return halved[0] - halved[count - 1] > 1.5 * spread
