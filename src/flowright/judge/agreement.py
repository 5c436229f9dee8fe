"""How far verdicts agree with the truth: formulas over counts, for the exam and the audit of a run.

Counts are arrays whose last axis is (true positives, false positives, true negatives, false
negatives), "positive" being called right; a formula gives one number for each, nan where there is
nothing to divide by.
"""

from collections.abc import Mapping

from flowright.statistics import Array, Statistic, ratio


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
