"""Agreement of verdicts with the gold checks: formulas over counts, and a step's metrics (law 3).

The last axis of counts is (true positives, false positives, true negatives, false negatives), where
positive means called right. Each formula returns one number per row of counts, nan for an empty
denominator.
"""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from flowright.core.statistics import Array, Statistic, ratio
from flowright.grading import Gold
from flowright.judging.panel import META_FAILED, disagreement
from flowright.judging.verdict import Source, Status, Verdict


def confusion(called: bool, true: bool) -> tuple[bool, bool, bool, bool]:
    """Return the counts of one verdict."""
    return called and true, called and not true, not called and not true, not called and true


def agreement(c: Array) -> Array:
    """Return (TP + TN) / n."""
    return ratio(c[..., 0] + c[..., 2], c.sum(axis=-1))


def false_positive_rate(c: Array) -> Array:
    """Return FP / (FP + TN): the errors that a policy learns to exploit."""
    return ratio(c[..., 1], c[..., 1] + c[..., 2])


def false_negative_rate(c: Array) -> Array:
    """Return FN / (FN + TP)."""
    return ratio(c[..., 3], c[..., 3] + c[..., 0])


def balanced_accuracy(c: Array) -> Array:
    """Return the mean of the true rates of both labels (Brodersen et al. 2010)."""
    return 1 - (false_positive_rate(c) + false_negative_rate(c)) / 2


def kappa(c: Array) -> Array:
    """Return the kappa of right and wrong."""
    return kappa_of_table(c[..., [0, 3, 1, 2]].reshape(*c.shape[:-1], 2, 2))


def kappa_of_table(table: Array) -> Array:
    """Return (observed - expected) / (1 - expected) agreement (Cohen 1960) of counts, shape (...,
    labels, findings); nan where both sides have a single class. Further findings, behind those that
    are labels too, never agree."""
    count = table.sum(axis=(-1, -2))
    observed = ratio(np.trace(table, axis1=-2, axis2=-1), count)
    labelled = table.sum(axis=-1)
    found = table.sum(axis=-2)[..., : table.shape[-2]]
    expected = ratio((labelled * found).sum(axis=-1), count**2)
    return ratio(observed - expected, 1 - expected)


COUNTED: Mapping[str, Statistic] = {
    "agreement": agreement,
    "kappa": kappa,
    "balanced_accuracy": balanced_accuracy,
    "false_positive_rate": false_positive_rate,
    "false_negative_rate": false_negative_rate,
}


def audit(verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]) -> dict[str, float]:
    """Return metrics of the judge on parallel verdicts and gold checks.

    None stands for a sample without a verdict (it failed before) or without a gold check. Metrics,
    left out if they are shares of nothing:

    - ``judge/agreement_with_gold``: share of equal findings, of samples with both; for a judge that
      ranks, :func:`ordered_pairs`, without the measures of right and wrong below;
    - ``judge/kappa``, ``judge/balanced_accuracy``: the same beyond chance, and with equal weight of
      right and wrong answers (:data:`COUNTED`);
    - ``judge/false_positive_rate``: share called right, of samples that gold calls wrong;
    - ``judge/false_negative_rate``: share called wrong, of samples that gold calls right;
    - ``judge/no_verdict_rate_wrong``, ``judge/no_verdict_rate_right``: share without a verdict, of
      samples that gold calls wrong and right; a policy gains by wrong answers that are not scored;
    - ``judge/drift``: share called right minus the share that gold calls right, of samples with
      both; positive for a generous judge;
    - ``judge/disagreement``: mean share of a panel's members in the minority;
    - ``judge/meta_failed``: share of verdicts for which ``judge.meta`` failed, so that all samples
      voted; left out at 0;
    - ``judge/unjudged_pairs``: mean share of a ranked answer's comparisons without a verdict;
    - ``judge/attempts_mean``: attempts per verdict for which a model was asked;
    - ``judge/status/<status>``, ``judge/source/<source>``: shares of all verdicts.
    """
    if len(verdicts) != len(golds):
        raise ValueError(f"{len(verdicts)} verdicts with {len(golds)} gold checks")
    pairs = [
        (verdict.correct, gold.correct)
        for verdict, gold in zip(verdicts, golds, strict=True)
        if verdict is not None and verdict.correct is not None and verdict.standing is None
        if gold is not None and gold.correct is not None
    ]
    counts = (
        np.asarray([confusion(*pair) for pair in pairs])
        .reshape(-1, 4)
        .sum(axis=0, dtype=np.float64)
    )
    metrics: dict[str, float] = {}
    for name, statistic in COUNTED.items():
        value = float(statistic(counts))
        if math.isfinite(value):
            metrics[f"judge/{'agreement_with_gold' if name == 'agreement' else name}"] = value
    metrics |= _mean("judge/drift", [called - true for called, true in pairs])
    metrics |= _mean("judge/agreement_with_gold", ordered_pairs(verdicts, golds))
    for name, true in (("wrong", False), ("right", True)):
        missing = [
            verdict.score is None
            for verdict, gold in zip(verdicts, golds, strict=True)
            if verdict is not None and gold is not None and gold.correct is true
        ]
        metrics |= _mean(f"judge/no_verdict_rate_{name}", missing)
    present = [verdict for verdict in verdicts if verdict is not None]
    standings = [verdict.standing for verdict in present if verdict.standing is not None]
    metrics |= _mean(
        "judge/unjudged_pairs",
        [s.unjudged / n for s in standings if (n := s.wins + s.losses + s.ties + s.unjudged)],
    )
    single = [verdict for verdict in present if verdict.standing is None]
    split = [share for verdict in single if (share := disagreement(verdict)) is not None]
    metrics |= _mean("judge/disagreement", split)
    if any(lost := [META_FAILED in verdict.parts for verdict in present]):
        metrics |= _mean("judge/meta_failed", lost)
    asked = [verdict.attempts for verdict in present if verdict.attempts > 0]
    metrics |= _mean("judge/attempts_mean", asked)
    for status in get_args(Status):
        metrics |= _mean(f"judge/status/{status}", [v.status == status for v in present])
    for source in get_args(Source):
        metrics |= _mean(f"judge/source/{source}", [v.source == source for v in present])
    return metrics


def ordered_pairs(verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]) -> list[float]:
    """Return for each pair of a right and a wrong answer of one ranked group, by gold, 1 if the
    right one has the higher score, 0.5 for equal scores, else 0."""
    groups: dict[str, list[tuple[float, bool]]] = {}
    for verdict, gold in zip(verdicts, golds, strict=True):
        if verdict is None or verdict.standing is None or gold is None or gold.correct is None:
            continue
        assert verdict.score is not None
        scores = groups.setdefault(verdict.standing.group, [])
        scores.append((verdict.score, gold.correct))
    return [
        (1.0 if right > wrong else 0.0) if abs(right - wrong) > 1e-9 else 0.5
        for scores in groups.values()
        for right, is_right in scores
        for wrong, is_also in scores
        if is_right and not is_also
    ]


def agreement_with_gold(
    verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]
) -> float | None:
    """Return ``judge/agreement_with_gold``; None if nothing can be compared."""
    return audit(verdicts, golds).get("judge/agreement_with_gold")


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}
