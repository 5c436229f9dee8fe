"""Proof that a server samples from the adapter that was just trained, by the log-probabilities of
fixed texts: the server's beside the learner's own.

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
3. The first comparison is that of a trial adapter with a large move.

The standard error is the jackknife's over tokens (HC3: MacKinnon and White 1985, equation 13;
clusters: Liang and Zeger 1986): the token that moves most does not confirm itself, and the effect
of the server's arithmetic on one token in every version is counted once. P(Z > 6.25) is 2.1e-10,
so the 135,450 comparisons of 300 versions (each with the base model and all before it: by the
first text, by all, and added up) end a good run with a probability below 3e-5.

A server in half precision adds the adapter's part to an output that is rounded already, which
loses most of a young one (``Known.kept``). So x is what such a server can show: kept times L - B.
An exact server shows more. Moves below ``ROUNDING`` are float32's own error and decide nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from flowright.core.errors import RunError
from flowright.policy.vllm.probe import Known

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
    """Weights to sample from: an adapter under its name on the servers, or the base model, whose
    ``path`` is None. ``known``: the learner's scores of the texts with them."""

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
            f"it does not apply adapters as the learner does: of what {trial.name} changes, its "
            f"log-probabilities show {share.value:.0%} ± {share.error:.0%}; 0% is a server that "
            "ignores adapters: start another vLLM, without a cache of adapters by path"
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
