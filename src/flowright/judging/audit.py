"""How far verdicts agree with the truth: formulas over counts, for the exam too; and a step's
metrics of the judge against the gold checks (law 3). Nothing is judged here.

Counts are arrays whose last axis is (true positives, false positives, true negatives, false
negatives), "positive" being called right; a formula gives one number for each, nan where there is
nothing to divide by.
"""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from flowright.core.statistics import Array, Statistic, ratio
from flowright.grading import Gold
from flowright.judging.panel import disagreement
from flowright.judging.verdict import Source, Status, Verdict


def confusion(said: bool, true: bool) -> tuple[bool, bool, bool, bool]:
    """The counts of one verdict."""
    return said and true, said and not true, not said and not true, not said and true


def agreement(c: Array) -> Array:
    """(TP + TN) / n."""
    return ratio(c[..., 0] + c[..., 2], c.sum(axis=-1))


def false_positive_rate(c: Array) -> Array:
    """FP / (FP + TN): what a policy learns to exploit."""
    return ratio(c[..., 1], c[..., 1] + c[..., 2])


def false_negative_rate(c: Array) -> Array:
    """FN / (FN + TP)."""
    return ratio(c[..., 3], c[..., 3] + c[..., 0])


def balanced_accuracy(c: Array) -> Array:
    """The mean of the true rates of both labels (Brodersen et al. 2010)."""
    return 1 - (false_positive_rate(c) + false_negative_rate(c)) / 2


def kappa(c: Array) -> Array:
    """(observed - expected) / (1 - expected) agreement (Cohen 1960); undefined where judge and
    labels can only agree."""
    n = c.sum(axis=-1)
    said = ratio(c[..., 0] + c[..., 1], n)
    true = ratio(c[..., 0] + c[..., 3], n)
    expected = said * true + (1 - said) * (1 - true)
    return ratio(agreement(c) - expected, 1 - expected)


COUNTED: Mapping[str, Statistic] = {
    "agreement": agreement,
    "kappa": kappa,
    "balanced_accuracy": balanced_accuracy,
    "false_positive_rate": false_positive_rate,
    "false_negative_rate": false_negative_rate,
}


def audit(verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]) -> dict[str, float]:
    """How the judge did on some samples; the two sequences run in parallel.

    None stands for a sample without a verdict (it failed before) or without a gold check. Metrics:

    - ``judge/agreement_with_gold``: share of equal findings where both sides have one;
    - ``judge/kappa``, ``judge/balanced_accuracy``: the same beyond chance, and with right and wrong
      answers counting alike (:data:`COUNTED`);
    - ``judge/false_positive_rate``: share called right among those that gold calls wrong;
    - ``judge/false_negative_rate``: share called wrong among those that gold calls right;
    - ``judge/no_verdict_rate_wrong``, ``judge/no_verdict_rate_right``: share that the judge gave no
      verdict on, among what gold calls wrong and right; a policy that is not scored where it is
      wrong gains by it;
    - ``judge/drift``: share called right less the share that gold calls right, on the samples
      where both sides have a finding; positive where the judge is generous;
    - ``judge/disagreement``: mean share of a panel's members that say otherwise than most;
    - ``judge/attempts_mean``: attempts per verdict for which a model was asked;
    - ``judge/status/<status>``, ``judge/source/<source>``: shares of all verdicts.

    A share of nothing is left out.
    """
    if len(verdicts) != len(golds):
        raise ValueError(f"{len(verdicts)} verdicts with {len(golds)} gold checks")
    pairs = [
        (verdict.correct, gold.correct)
        for verdict, gold in zip(verdicts, golds, strict=True)
        if verdict is not None and verdict.correct is not None
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
    metrics |= _mean("judge/drift", [said - true for said, true in pairs])
    for name, true in (("wrong", False), ("right", True)):
        mute = [
            verdict.correct is None
            for verdict, gold in zip(verdicts, golds, strict=True)
            if verdict is not None and gold is not None and gold.correct is true
        ]
        metrics |= _mean(f"judge/no_verdict_rate_{name}", mute)
    given = [verdict for verdict in verdicts if verdict is not None]
    split = [share for verdict in given if (share := disagreement(verdict)) is not None]
    metrics |= _mean("judge/disagreement", split)
    asked = [verdict.attempts for verdict in given if verdict.attempts > 0]
    metrics |= _mean("judge/attempts_mean", asked)
    for status in get_args(Status):
        metrics |= _mean(f"judge/status/{status}", [v.status == status for v in given])
    for source in get_args(Source):
        metrics |= _mean(f"judge/source/{source}", [v.source == source for v in given])
    return metrics


def agreement_with_gold(
    verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]
) -> float | None:
    """``judge/agreement_with_gold`` alone; None where nothing can be compared."""
    return audit(verdicts, golds).get("judge/agreement_with_gold")


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}
