"""Points of a rubric, the mean over a benchmark, and rules that code can check.

``met`` has True, False, or None for an ungraded criterion, one for each item, in order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from flowright.core.errors import FailureError, Reason
from flowright.criteria.rubrics.rows import Item, Rule, WordCount
from flowright.data.task import Problem
from flowright.grading.gold import gold_check
from flowright.sandbox import Sandbox

RESAMPLES = 1000

Met = Sequence[bool | None]


_LEAST = Fraction(-(10**300))


def earned_share(graded: Iterable[tuple[float, float]]) -> float | None:
    """Return the points earned over all points above 0, from pairs of points and the share of them
    that is earned: at most 1, below 0 where penalties outweigh. None without points above 0. Sums
    are exact, for points of any size. (HealthBench, arXiv 2505.08775, section 3.)"""
    pairs = [(Fraction(points), Fraction(share)) for points, share in graded]
    possible = sum(points for points, _ in pairs if points > 0)
    if not possible:
        return None
    return float(max(_LEAST, sum(points * share for points, share in pairs) / possible))


def points_share(items: Sequence[Item], met: Met) -> float | None:
    """:func:`earned_share` of the graded criteria alone (RuscaRL, arXiv 2508.16949)."""
    pairs = zip(items, met, strict=True)
    return earned_share((item.points, yes) for item, yes in pairs if yes is not None)


def axis_shares(items: Sequence[Item], met: Met) -> dict[str, float]:
    """Return :func:`points_share` of the criteria of each axis (their tag ``axis``) that has points
    above 0."""
    axes = dict.fromkeys(axis for item in items if (axis := item.tags.get("axis")))
    both = [*zip(items, met, strict=True)]
    of_axis = {axis: [each for each in both if each[0].tags.get("axis") == axis] for axis in axes}
    shares = {axis: points_share(*zip(*some, strict=True)) for axis, some in of_axis.items()}
    return {axis: share for axis, share in shares.items() if share is not None}


def least_share(items: Sequence[Item]) -> float:
    """The share of an answer that meets every criterion below 0 and no other: 0 or below."""
    return points_share(items, [item.points < 0 for item in items]) or 0.0


def ungraded_share(items: Sequence[Item], met: Met) -> float:
    """Return the ungraded share of a rubric, by absolute points."""
    lost = zip((abs(item.points) for item in items), (yes is None for yes in met), strict=True)
    return earned_share(lost) or 0.0


@dataclass(frozen=True, slots=True)
class HealthBenchScore:
    """The figures that HealthBench reports. ``score`` and ``bootstrap_std`` are None where no
    sample was scored; ``unscored`` samples are in neither."""

    score: float | None
    bootstrap_std: float | None
    samples: int
    unscored: int = 0


def healthbench_score(
    shares: Sequence[float | None], resamples: int = RESAMPLES, seed: int = 0
) -> HealthBenchScore:
    """The score of a model, as openai/simple-evals computes it: the mean over samples of
    :func:`points_share`, each of which may be below 0, kept within 0 and 1; and the standard
    deviation of that figure over bootstrap resamples of the samples, here with a seed. None is a
    sample without a score."""
    known = np.asarray([share for share in shares if share is not None], dtype=np.float64)
    unscored = len(shares) - len(known)
    if not len(known):
        return HealthBenchScore(None, None, 0, unscored)
    picks = np.random.default_rng(seed).integers(0, len(known), (resamples, len(known)))
    means = np.clip(known[picks].mean(axis=1), 0, 1)
    score = float(np.clip(known.mean(), 0, 1))
    return HealthBenchScore(score, float(means.std()), len(known), unscored)


async def is_met(rule: Rule, answer: str, sandbox: Sandbox) -> bool:
    """Return whether the answer meets the rule. Words are split at white space, as by
    ``str.split``; values are compared as for any problem of mathematics, and expressions are
    evaluated by math-verify in the sandbox. Raises FailureError(SANDBOX_LOST) if that failed."""
    if isinstance(rule, WordCount):
        return rule.least <= len(answer.split()) <= rule.most
    problem = Problem(
        id="rule", kind="math", source="rubric", question="", reference=rule.reference
    )
    gold = await gold_check(problem, answer, sandbox)
    if gold.correct is None:
        raise FailureError(Reason.SANDBOX_LOST, f"math_verify: {gold.detail}")
    return gold.correct
