"""The measures of a set of verdicts on labelled answers: agreement, calibration, ROC AUC.

Pure functions; a verdict that failed is left out and counted by whoever calls.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowright.core.statistics import SHARE, Array, Estimate, Resampler, ratio
from flowright.judging.audit import COUNTED, confusion
from flowright.judging.measuring.exam.asking import AskedAnswer

BINS = 10
"""Bins of confidence. Confidence in one of two findings is at least a half, so they share the
stretch from there to 1."""


def calibration_error(sums: Array) -> Array:
    """Expected calibration error (Guo et al. 2017, equation 3): the mean distance of accuracy and
    confidence over bins, weighted by their verdicts. Columns: for each bin, verdicts, right ones
    among them, sum of confidences. A bootstrap of it leans upward, as the measure itself does."""
    bins = sums.reshape(*sums.shape[:-1], BINS, 3)
    gaps = np.abs(bins[..., 1] - bins[..., 2]).sum(axis=-1)
    return ratio(gaps, bins[..., 0].sum(axis=-1))


def roc_auc(sums: Array) -> Array:
    """P(a right answer scores above a wrong one), ties by half: the area under the ROC curve
    (Hanley and McNeil 1982). Columns: right answers at each score, ascending, then wrong ones."""
    levels = sums.shape[-1] // 2
    right, wrong = sums[..., :levels], sums[..., levels:]
    below = np.cumsum(wrong, axis=-1) - wrong
    wins = (right * (below + wrong / 2)).sum(axis=-1)
    return ratio(wins, right.sum(axis=-1) * wrong.sum(axis=-1))


def measures(answers: Sequence[AskedAnswer], resampler: Resampler) -> dict[str, Any]:
    """All measures of some verdicts, as numbers and :class:`Estimate`."""
    scored = [answer for answer in answers if answer.verdict.correct is not None]
    questions = [answer.probe.item.question for answer in scored]
    rows = counted(scored)
    found: dict[str, Any] = {
        "answers": len(answers),
        "scored": len(scored),
        "right": sum(answer.probe.item.label for answer in answers),
        "wrong": sum(not answer.probe.item.label for answer in answers),
    }
    for name, statistic in COUNTED.items():
        within = None if name in ("kappa", "balanced_accuracy") else SHARE
        found[name] = resampler.estimate(questions, rows, statistic, within)
    binned = [_binned(answer) for answer in scored]
    found["calibration_error"] = resampler.estimate(questions, binned, calibration_error, SHARE)
    found["roc_auc"] = Estimate(None)
    if is_graded(scored):
        found["roc_auc"] = resampler.estimate(questions, _by_score(scored), roc_auc)
    return found


def counted(scored: Sequence[AskedAnswer]) -> list[tuple[bool, bool, bool, bool]]:
    """Scored verdicts as rows of :data:`COUNTED`."""
    return [confusion(bool(answer.verdict.correct), answer.probe.item.label) for answer in scored]


def is_graded(scored: Sequence[AskedAnswer]) -> bool:
    """Whether some score lies between 0 and 1: a yes or no alone has no confidence."""
    return any(answer.verdict.score not in (0.0, 1.0) for answer in scored)


def reliability(scored: Sequence[AskedAnswer]) -> list[dict[str, float]]:
    """:func:`reliability_bins` of scored verdicts."""
    return reliability_bins([_binned(answer) for answer in scored])


def reliability_bins(rows: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """For each bin that has verdicts: its ends, their number, mean confidence and accuracy. Of rows
    of :func:`binned`."""
    sums = np.asarray(rows).reshape(-1, BINS, 3).sum(axis=0)
    width = 0.5 / BINS
    return [
        {
            "low": 0.5 + width * place,
            "high": 0.5 + width * (place + 1),
            "verdicts": int(count),
            "confidence": float(confidence / count),
            "accuracy": float(right / count),
        }
        for place, (count, right, confidence) in enumerate(sums)
        if count
    ]


def binned(confidence: float, right: float) -> list[float]:
    """One verdict of a ``confidence`` from 0.5 to 1 as a row of :func:`calibration_error`;
    ``right`` is 1, 0, or a half where it chose nothing."""
    place = min(BINS - 1, int((confidence - 0.5) * 2 * BINS))
    row = [0.0] * (3 * BINS)
    row[3 * place : 3 * place + 3] = [1.0, right, confidence]
    return row


def _binned(answer: AskedAnswer) -> list[float]:
    score = answer.verdict.score or 0.0
    is_right = float(answer.verdict.correct == answer.probe.item.label)
    return binned(max(score, 1 - score), is_right)


def _by_score(scored: Sequence[AskedAnswer]) -> list[list[float]]:
    """Scored verdicts as rows of :func:`roc_auc`."""
    levels = sorted({answer.verdict.score or 0.0 for answer in scored})
    place = {score: index for index, score in enumerate(levels)}
    rows: list[list[float]] = []
    for answer in scored:
        row = [0.0] * (2 * len(levels))
        offset = 0 if answer.probe.item.label else len(levels)
        row[offset + place[answer.verdict.score or 0.0]] = 1.0
        rows.append(row)
    return rows
