"""The judge against the gold checks, as metrics of a step (law 3). Nothing is judged here."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import numpy as np

from flowright.grading import Gold
from flowright.judge.agreement import COUNTED
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
    - ``judge/attempts_mean``: tries per verdict for which a model was asked;
    - ``judge/status/<status>``, ``judge/source/<source>``: shares of all verdicts.

    A share of nothing is left out.
    """
    pairs = _pairs(verdicts, golds)
    counts = Counter(pairs)
    cells = ((True, True), (True, False), (False, False), (False, True))
    confusion = np.asarray([counts[cell] for cell in cells], dtype=np.float64)
    metrics: dict[str, float] = {}
    for name, statistic in COUNTED.items():
        value = float(statistic(confusion))
        if math.isfinite(value):
            metrics[f"judge/{'agreement_with_gold' if name == 'agreement' else name}"] = value
    if pairs:
        metrics["judge/drift"] = sum(said - true for said, true in pairs) / len(pairs)

    for name, true in (("wrong", False), ("right", True)):
        mute = [
            verdict.correct is None
            for verdict, gold in zip(verdicts, golds, strict=True)
            if verdict is not None and gold is not None and gold.correct is true
        ]
        metrics |= _share(f"judge/no_verdict_rate_{name}", mute)

    given = [verdict for verdict in verdicts if verdict is not None]
    split = [share for verdict in given if (share := disagreement(verdict)) is not None]
    if split:
        metrics["judge/disagreement"] = sum(split) / len(split)
    asked = [verdict.attempts for verdict in given if verdict.attempts > 0]
    if asked:
        metrics["judge/attempts_mean"] = sum(asked) / len(asked)
    if given:
        statuses = Counter(verdict.status for verdict in given)
        sources = Counter(verdict.source for verdict in given)
        for status in get_args(Status):
            metrics[f"judge/status/{status}"] = statuses[status] / len(given)
        for source in get_args(Source):
            metrics[f"judge/source/{source}"] = sources[source] / len(given)
    return metrics


def agreement_with_gold(
    verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]
) -> float | None:
    """``judge/agreement_with_gold`` alone; None where nothing can be compared."""
    pairs = _pairs(verdicts, golds)
    return sum(said == true for said, true in pairs) / len(pairs) if pairs else None


def _pairs(
    verdicts: Sequence[Verdict | None], golds: Sequence[Gold | None]
) -> list[tuple[bool, bool]]:
    """What both sides found, where both did."""
    if len(verdicts) != len(golds):
        raise ValueError(f"{len(verdicts)} verdicts with {len(golds)} gold checks")
    return [
        (verdict.correct, gold.correct)
        for verdict, gold in zip(verdicts, golds, strict=True)
        if verdict is not None and verdict.correct is not None
        if gold is not None and gold.correct is not None
    ]


def _share(name: str, hits: Sequence[bool]) -> dict[str, float]:
    return {name: sum(hits) / len(hits)} if hits else {}
