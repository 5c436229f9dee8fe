"""What training changed beside what it was for: how well the policy predicts other text, and how
long its completions are. Both are compared on the same windows and problems; nothing is measured
here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowright.core.statistics import RESAMPLES, Resampler, mean, ratio
from flowright.evaluation.evaluator import Row
from flowright.evaluation.perplexity import TextScore

PERPLEXITY, LENGTH = "perplexity", "completion_tokens"


@dataclass(frozen=True, slots=True)
class Change:
    """A value ``before`` and ``after`` training and what one is to the other: of perplexities the
    quotient, of lengths the difference, with a paired 95 % interval; none where all that is drawn
    from says the same."""

    before: float
    after: float
    change: float
    low: float | None
    high: float | None


def drift(before: Row, after: Row) -> dict[str, Change]:
    """The changes from one policy's row to another's, of the same problems and text: ``perplexity``
    and ``completion_tokens``, each where both rows have it."""
    found: dict[str, Change] = {}
    if before.text is not None and after.text is not None:
        found[PERPLEXITY] = _perplexity(before.text, after.text)
    if before.lengths and len(before.lengths) == len(after.lengths):
        found[LENGTH] = _length(before.lengths, after.lengths)
    return found


def _perplexity(before: TextScore, after: TextScore) -> Change:
    """Whole documents are drawn; of a single one, its windows. The quotient is exp of the
    difference of mean negative log-likelihoods."""
    several = len(set(before.documents)) > 1
    units = before.documents if several else range(len(before.documents))
    rows = [
        (new - old, count)
        for old, new, count in zip(before.nats, after.nats, before.tokens, strict=True)
    ]
    names = [str(unit) for unit in units]
    found = Resampler(names, RESAMPLES, seed=0).estimate(
        names, rows, lambda sums: ratio(sums[..., 0], sums[..., 1])
    )
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    old, new = before.perplexity, after.perplexity
    return Change(old, new, new / old, low, high)


def _length(before: Sequence[float], after: Sequence[float]) -> Change:
    names = [str(number) for number in range(len(before))]
    rows = [(new - old, 1.0) for old, new in zip(before, after, strict=True)]
    found = Resampler(names, RESAMPLES, seed=0).estimate(names, rows, mean)
    old, new = (math.fsum(lengths) / len(lengths) for lengths in (before, after))
    return Change(old, new, new - old, found.low, found.high)


def words(changes: Mapping[str, Change]) -> list[str]:
    """A line for each change, for a terminal."""
    lines = []
    if (found := changes.get(PERPLEXITY)) is not None:
        ends = _ends(found, "{:.3f}")
        lines.append(
            f"perplexity of evaluation.text: {found.before:.2f} -> {found.after:.2f}, "
            f"times {found.change:.3f}{ends}"
        )
    if (found := changes.get(LENGTH)) is not None:
        ends = _ends(found, "{:+.1f}")
        lines.append(
            f"tokens of a completion: {found.before:.1f} -> {found.after:.1f}, "
            f"{found.change:+.1f}{ends}"
        )
    return lines


def _ends(found: Change, form: str) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" (95 %: {form.format(found.low)} to {form.format(found.high)})"
