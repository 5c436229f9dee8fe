"""Does a server really sample from the adapter that was just trained? The evidence is the
log-probabilities of a fixed text, the server's beside the learner's own. No requests here.

Two comparisons, over the N tokens of the probe. Let L be the learner's with the adapter, B its base
model's, S and S_B the server's for both.

1. mean |S_B - B| and mean |S - L| must be within the tolerance: the same base model, the same
   adapter, the same positions.
2. A young adapter moves less than that. But where the arithmetic of server and learner differs, it
   does so with and without an adapter, so S - S_B is compared with L - B. Its share along that
   direction, c = <S - S_B, L - B> / <L - B, L - B> (least squares), is 1 for the right adapter and
   0 for none. With an earlier version's log-probabilities E in B's place, c is 0 where the server
   still has that one. Nearer to the other (c < 1/2) is fatal, wherever the two can be told apart at
   all: c's standard error is at most a tenth, and mean |L - E| exceeds three times mean |S_B - B|
   and a share of the tolerance. Below that, half precision may swallow an adapter honestly
   (benchmarks/vllm_proof.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flowright.errors import RunError
from flowright.policy.model import Policy

LARGEST_ERROR = 0.1
"""Of the share: five standard errors between 1/2 and either answer."""

NOISES, FLOOR = 3.0, 0.05
"""Times the noise, times the tolerance: a smaller mean difference is not judged by the share."""

LONGEST = 256  # tokens of the probe

TEXT = """\
<|im_start|>user
Natalia sold clips to 48 of her friends in April, and then half as many in May. How many did she \
sell altogether? Write a workflow that solves problems of this kind.<|im_end|>
<|im_start|>assistant
async def workflow(problem):
    answers = await asyncio.gather(*[answer(problem) for _ in range(3)])
    code = await programmer(problem, instruction="Compute the result step by step.")
    best = await ensemble(problem, [*answers, code])
    review_text = await review(problem, best)
    if "wrong" in review_text.lower():
        best = await revise(problem, best, review_text)
    return await format(problem, best)<|im_end|>
"""


@dataclass(frozen=True, slots=True)
class Known:
    """The learner's log-probabilities [N] of the probe for one set of weights, float64 on the CPU;
    ``name`` is for people."""

    name: str
    scores: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """What is to be sampled from: an adapter under its name on the servers, or the base model,
    whose ``path`` is None. ``known`` is what the learner says of the probe with them."""

    name: str
    version: int
    known: Known
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What every server is asked for a proof, and the weights that its reply is held to: the base
    model and all earlier versions."""

    token_ids: tuple[int, ...]
    base: Known
    earlier: Sequence[Known]
    end_ids: Collection[int]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found: ``gap`` is mean |S - L| and ``noise`` mean |S_B - B| in nats a token,
    ``share`` is c against the base model (None where the two can't be told apart), ``told_apart``
    the number of other weights that it is certainly not."""

    gap: float
    noise: float
    share: float | None
    told_apart: int


def probe_ids(policy: Policy) -> list[int]:
    """The probe's tokens: like what is trained on, so that training moves them."""
    return policy.tokenizer.encode(TEXT, add_special_tokens=False)[:LONGEST]


def learner_scores(policy: Policy, token_ids: Sequence[int]) -> Tensor:
    """Log-probabilities [N - 1] at temperature 1 of all tokens but the first, by the weights as
    they are now."""
    model = policy.causal_lm
    ids = torch.tensor([list(token_ids)], device=policy.device)
    with torch.no_grad():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
        found, _ = policy.head.logprobs(hidden, ids[0, 1:], 1.0)
    return found.double().cpu()


def prove_base(served: Tensor, base: Known, tolerance: float) -> None:
    """Raises RunError unless the server has the learner's base model."""
    gap = _mean(served - base.scores)
    if not gap <= tolerance:
        raise RunError(
            f"its base model is not the learner's: log-probabilities differ by {gap:.3g} nats a "
            f"token (policy.vllm.tolerance {tolerance:g}); serve strategy_model, unquantised"
        )


def prove_adapter(
    served: Tensor,
    served_base: Tensor,
    wanted: Known,
    base: Known,
    earlier: Sequence[Known],
    tolerance: float,
) -> Proof:
    """Raises RunError unless ``served`` [N] are the wanted weights', as the module says."""
    noise = _mean(served_base - base.scores)
    gap = _mean(served - wanted.scores)
    clean = served - (served_base - base.scores)
    others = [base, *earlier]
    if not gap <= tolerance:
        nearest = min([wanted, *others], key=lambda known: _mean(clean - known.scores))
        raise RunError(
            f"it does not serve {wanted.name}: log-probabilities differ by {gap:.3g} nats a token "
            f"(policy.vllm.tolerance {tolerance:g}); {_guess(clean, nearest, wanted, tolerance)}"
        )
    floor = max(NOISES * noise, FLOOR * tolerance)
    shares = [share_of(clean, wanted.scores, other.scores, floor) for other in others]
    nearer = [
        (_mean(clean - other.scores), share, other.name)
        for other, share in zip(others, shares, strict=True)
        if share is not None and share < 0.5
    ]
    if nearer:
        _, share, name = min(nearer)
        raise RunError(
            f"it does not serve {wanted.name} but what {name} was: of the difference between the "
            f"two its log-probabilities show {share:.0%}"
        )
    return Proof(gap, noise, shares[0], sum(share is not None for share in shares))


def share_of(clean: Tensor, wanted: Tensor, other: Tensor, floor: float) -> float | None:
    """c of the module's text, or None where the two weights can't be told apart. ``clean``: the
    server's log-probabilities without what its arithmetic does to the base model's."""
    way = wanted - other
    length = float(way @ way)
    if not _mean(way) > floor:
        return None
    share = float((clean - other) @ way) / length
    rest = clean - other - share * way
    error = (float(rest @ rest) / (len(way) - 1) / length) ** 0.5
    return share if error <= LARGEST_ERROR else None


def _guess(clean: Tensor, nearest: Known, wanted: Known, tolerance: float) -> str:
    if nearest is wanted or _mean(clean - nearest.scores) > tolerance:
        return "they are no weights of this run either"
    return f"they are those of {nearest.name}"


def _mean(difference: Tensor) -> float:
    return float(difference.abs().mean())


def consistent(drawn: Sequence[float], scored: Sequence[float], tolerance: float) -> None:
    """Raises RunError where tokens were drawn with other log-probabilities than the same server
    gives them afterwards: the adapter is applied to prompts, say, but not while decoding."""
    apart = _mean(torch.tensor(drawn) - torch.tensor(scored))
    if not apart <= tolerance:
        raise RunError(
            f"it draws tokens with other weights than it scores them with: {apart:.3g} nats a "
            f"token apart (policy.vllm.tolerance {tolerance:g})"
        )


def scales(plain: Sequence[float], halved: Sequence[float]) -> bool:
    """Whether log-probabilities have the temperature applied: from those of the likeliest tokens
    at temperature 1 and at 1/2, both descending. Their spread doubles, or it stays."""
    count = min(len(plain), len(halved), 5)
    spread = plain[0] - plain[count - 1]
    return halved[0] - halved[count - 1] > 1.5 * spread
