"""The judge against the gold checks, as metrics of a step (law 3). Nothing is judged here."""

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np

from flowright.grading import Gold
from flowright.judge.agreement import COUNTED, confusion
from flowright.judge.panel import disagreement
from flowright.judge.verdict import Source, Status, Verdict


def audit(verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]) -> dict[str, float]:
    """How the judge did on some samples; the two sequences run in parallel.

    None stands for a sample without a verdict (it failed before) or without a gold check. Metrics:

    - ``judge/agreement_with_gold``: share of equal findings where both sides have one;
    - ``judge/kappa``, ``judge/balanced_accuracy``: the same beyond chance, and with right and wrong
      answers counting alike (:mod:`flowright.judge.agreement`);
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
