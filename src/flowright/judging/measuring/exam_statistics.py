"""Statistics of an exam: agreement, calibration and ROC AUC of verdicts, effects of perturbations
and of the order of two answers. Failed verdicts are left out and counted by the caller (law 1).

Intervals are at 95 %, each by itself. Significance is decided by a randomization test adjusted for
all effects of an exam, so that at most one exam in twenty reports any bias of an unbiased judge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from flowright.core.statistics import (
    DIFFERENCE,
    SHARE,
    TAIL,
    Array,
    Estimate,
    Resampler,
    mean,
    ratio,
    unanimous,
)
from flowright.judging.audit import COUNTED, confusion
from flowright.judging.llm_judge import ORDERS
from flowright.judging.measuring.exam_probes import CONTROL, PLAIN, ProbeResult, control_of

BINS = 10
"""Bins of confidence, between 0.5 and 1: confidence in one of two findings is at least a half."""


@dataclass(frozen=True, slots=True)
class CalibrationMeasures:
    """``error`` is the debiased calibration error, ``error_plain`` the usual biased one, to compare
    with figures of others; ``brier`` and ``log_loss`` are means over verdicts."""

    error: Estimate
    error_plain: Estimate
    brier: Estimate
    log_loss: Estimate


LEAST_PROBABILITY = 1e-3
"""Scores of 0 and 1 count as this and as 1 minus this in an exam's log loss."""


def calibration_measures(
    questions: Sequence[str],
    rows: Sequence[Sequence[float]],
    brier: Sequence[float],
    log_loss: Sequence[float],
    resampler: Resampler,
) -> CalibrationMeasures:
    """Measure probabilities against what came true. ``rows`` are those of :func:`binned`; the
    losses are per verdict, ``log_loss`` empty where it is undefined."""
    error, plain = calibration_error(questions, rows, resampler)
    return CalibrationMeasures(
        error,
        plain,
        _average(resampler, questions, brier, SHARE),
        resampler.estimate(questions, [(loss, 1.0) for loss in log_loss], mean),
    )


def calibration_error(
    questions: Sequence[str], rows: Sequence[Sequence[float]], resampler: Resampler
) -> tuple[Estimate, Estimate]:
    """Return the expected calibration error, debiased, with its interval at 95 %, and the plain one
    (Guo et al. 2017, equation 3), from rows of :func:`binned`.

    The estimand is the sum over bins of |d|, with d = E[right - confidence; in the bin]. That is at
    most E|P(right | confidence) - confidence|, and as much unless over- and underconfidence cancel
    within a bin. The plain figure has the observed d in place of d; noise does not cancel in it, so
    that of a perfectly calibrated judge is 0.06 at 300 verdicts. The debiased figure is twice the
    plain one minus its mean over resamples (Kumar, Liang and Ma 2019, arXiv 1909.10155, their
    estimator for this norm; here resamples draw whole questions). It removes most of the bias, near
    an error of 0 about half.

    With e the noise of d (resamples minus observed), the plain figure exceeds the truth by the sum
    of |e| over bins with d = 0 and of e in the direction of d over the others, and never by less
    than the latter over all bins. The interval takes the 97.5th percentile of the former, where d
    counts as 0 within sqrt(log n) standard errors, and of the latter the 2.5th or 97.5th, whichever
    is further from 0, since shares near 1 are skewed. (Fang and Santos 2019, "Inference on
    directionally differentiable functions", Review of Economic Studies 86; the percentile bootstrap
    is invalid here.) Its lower end is 0 where perfect calibration is possible.
    """
    if not rows:
        return Estimate(None), Estimate(None)
    sums, resampled = resampler.sums(questions, rows)
    every = sums.sum(axis=0)
    gaps, total = _gaps(every)
    plain = float(np.abs(gaps).sum())
    if len(sums) < 2:
        return Estimate(None), Estimate(plain)
    if plain in SHARE:  # sure of all, and always right or always wrong
        return Estimate(plain, *unanimous(plain, len(sums), SHARE)), Estimate(plain)
    drawn, _ = _gaps(resampled[resampled[:, ::3].sum(axis=1) > 0])
    noise = drawn - gaps
    # A bin of few verdicts, all right or all wrong, resamples to no noise: at least that of a share
    # by Laplace's rule.
    verdicts, right, _ = every.reshape(BINS, 3).T
    share = (right + 1) / (verdicts + 2)
    missing = np.maximum(0, share * (1 - share) * verdicts / total**2 - noise.var(axis=0))
    noise += np.random.default_rng(0).standard_normal(noise.shape) * np.sqrt(missing)
    along = np.sign(gaps) * noise
    known = np.abs(gaps) > np.sqrt(np.log(len(sums))) * noise.std(axis=0)
    excess = np.where(known, along, np.abs(noise)).sum(axis=1)
    low = max(0.0, plain - float(np.quantile(excess, 1 - TAIL)))
    ends = np.quantile(along.sum(axis=1), (TAIL, 1 - TAIL))
    high = min(1.0, plain + float(np.abs(ends).max()))
    debiased = 2 * plain - float(np.abs(gaps + noise).sum(axis=1).mean())
    return Estimate(min(max(debiased, low), high), low, high), Estimate(plain)


def _gaps(sums: Array) -> tuple[Array, Array]:
    """Right verdicts minus confidence of each bin, per verdict of all, and the number of those."""
    bins = sums.reshape(*sums.shape[:-1], BINS, 3)
    total = bins[..., 0].sum(axis=-1)
    return (bins[..., 1] - bins[..., 2]) / total[..., None], total


def roc_auc(sums: Array) -> Array:
    """P(a right answer scores above a wrong one), ties by half: the area under the ROC curve
    (Hanley and McNeil 1982). Columns: right answers at each score, ascending, then wrong ones."""
    levels = sums.shape[-1] // 2
    right, wrong = sums[..., :levels], sums[..., levels:]
    below = np.cumsum(wrong, axis=-1) - wrong
    wins = (right * (below + wrong / 2)).sum(axis=-1)
    return ratio(wins, right.sum(axis=-1) * wrong.sum(axis=-1))


def measures(answers: Sequence[ProbeResult], resampler: Resampler) -> dict[str, Any]:
    """Return all measures of some verdicts, as numbers and :class:`Estimate`."""
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
    calibration = _calibration(scored, questions, resampler)
    found["calibration_error"], found["calibration_error_plain"] = (
        calibration.error,
        calibration.error_plain,
    )
    found["brier"], found["log_loss"] = calibration.brier, calibration.log_loss
    found["roc_auc"] = Estimate(None)
    if is_graded(scored):
        found["roc_auc"] = resampler.estimate(questions, _by_score(scored), roc_auc)
    return found


def counted(scored: Sequence[ProbeResult]) -> list[tuple[bool, bool, bool, bool]]:
    """Return scored verdicts as rows of :data:`COUNTED`."""
    return [confusion(bool(answer.verdict.correct), answer.probe.item.label) for answer in scored]


def is_graded(scored: Sequence[ProbeResult]) -> bool:
    """Return True if any score lies between 0 and 1: a plain yes or no has no confidence."""
    return any(answer.verdict.score not in (0.0, 1.0) for answer in scored)


def reliability(scored: Sequence[ProbeResult]) -> list[dict[str, float]]:
    """Return the :func:`reliability_bins` of scored verdicts."""
    return reliability_bins([_binned(answer) for answer in scored])


def reliability_bins(rows: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """Return, for each bin with verdicts, its ends, their number, mean confidence and accuracy.
    ``rows`` are those of :func:`binned`."""
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
    """Return a verdict of a ``confidence`` from 0.5 to 1 as a row of :func:`calibration_error`:
    for each bin, verdicts, right ones among them, sum of confidences;
    ``right`` is 1, 0, or a half for a tie."""
    place = min(BINS - 1, int((confidence - 0.5) * 2 * BINS))
    row = [0.0] * (3 * BINS)
    row[3 * place : 3 * place + 3] = [1.0, right, confidence]
    return row


def _calibration(
    scored: Sequence[ProbeResult], questions: Sequence[str], resampler: Resampler
) -> CalibrationMeasures:
    """The calibration of scores as P(the answer is right). A plain yes or no has no log loss: one
    mistake makes it infinite."""
    scores = np.array([answer.verdict.score or 0.0 for answer in scored])
    labels = np.array([answer.probe.item.label for answer in scored], dtype=bool)
    rows = [_binned(answer) for answer in scored]
    kept = np.clip(scores, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    logs = -np.log(np.where(labels, kept, 1 - kept)) if is_graded(scored) else np.array([])
    brier = ((scores - labels) ** 2).tolist()
    return calibration_measures(questions, rows, brier, logs.tolist(), resampler)


def _binned(answer: ProbeResult) -> list[float]:
    score = answer.verdict.score or 0.0
    is_right = float(answer.verdict.correct == answer.probe.item.label)
    return binned(max(score, 1 - score), is_right)


def _by_score(scored: Sequence[ProbeResult]) -> list[list[float]]:
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


FOUND_AT = 0.05


@dataclass(frozen=True, slots=True)
class Effect:
    """A perturbation's effect on the answers of one label.

    ``before`` and ``after`` are shares called right. ``own`` is the difference to the same answer
    behind as many neutral words, where the perturbation adds a cue; else to the answer as it was.
    ``total`` is the difference to the answer as it was. ``p_value`` is of ``own``.
    """

    bias: str
    label: bool
    asked: int
    compared: int
    before: Estimate
    after: Estimate
    own: Estimate
    total: Estimate
    p_value: float | None


def effects(answers: Mapping[str, Sequence[ProbeResult]], resampler: Resampler) -> list[Effect]:
    """Return an effect for every variant but the plain one, by label. ``answers`` are the first
    verdicts by variant."""
    found: list[Effect] = []
    plain = _by_item(answers[PLAIN])
    control = _by_item(answers.get(CONTROL, ()))
    for name, asked in answers.items():
        if name == PLAIN:
            continue
        against = plain if control_of(name) is None else control
        for label in (False, True):
            mine = [answer for answer in asked if answer.probe.item.label == label]
            if mine:
                found.append(_effect(name, mine, plain, against, resampler))
    return found


def _effect(
    name: str,
    asked: Sequence[ProbeResult],
    plain: Mapping[str, ProbeResult],
    control: Mapping[str, ProbeResult],
    resampler: Resampler,
) -> Effect:
    to_plain, to_control = _pairs(asked, plain), _pairs(asked, control)
    questions = [answer.probe.item.question for answer, _ in to_plain]
    own_questions = [answer.probe.item.question for answer, _ in to_control]
    own = _differences(to_control)
    average = partial(_average, resampler, questions)
    return Effect(
        bias=name,
        label=asked[0].probe.item.label,
        asked=len(asked),
        compared=len(own),
        before=average([_is_right(answer) for _, answer in to_plain], SHARE),
        after=average([_is_right(answer) for answer, _ in to_plain], SHARE),
        own=_average(resampler, own_questions, own, DIFFERENCE),
        total=average(_differences(to_plain), DIFFERENCE),
        p_value=resampler.p_value(own_questions, own),
    )


def direction(value: float | None, adjusted: float | None) -> Literal["raises", "lowers"] | None:
    """Return the direction of an effect, None unless significant; ``adjusted`` is its p-value after
    adjustment for all effects."""
    if value is None or adjusted is None or adjusted > FOUND_AT:
        return None
    return "raises" if value > 0 else "lowers"


def _by_item(answers: Sequence[ProbeResult]) -> dict[str, ProbeResult]:
    return {answer.probe.item.id: answer for answer in answers}


def _pairs(
    asked: Sequence[ProbeResult], control: Mapping[str, ProbeResult]
) -> list[tuple[ProbeResult, ProbeResult]]:
    """Pairs of perturbed and unperturbed results where both have a verdict."""
    found = [(answer, control.get(answer.probe.item.id)) for answer in asked]
    return [
        (answer, other)
        for answer, other in found
        if other is not None and None not in (answer.verdict.correct, other.verdict.correct)
    ]


def _is_right(answer: ProbeResult) -> float:
    return float(bool(answer.verdict.correct))


def _differences(pairs: Sequence[tuple[ProbeResult, ProbeResult]]) -> list[float]:
    return [_is_right(answer) - _is_right(other) for answer, other in pairs]


@dataclass(frozen=True, slots=True)
class Orders:
    """Pairs of answers, each judged in both orders.

    With ``s1`` the answer's score where it is shown first and ``s2`` where it is shown second, in
    1 (it wins), 0.5 (tie), 0: the first shown wins ``s1`` of the one order and ``1 - s2`` of the
    other, so ``position``, P(first wins) - P(second wins) over both orders, is the mean of
    ``s1 - s2``. How much better one answer is cancels out. ``consistency`` is the share of pairs
    with ``s1 == s2``; ``prefers`` the mean of ``(s1 + s2) / 2``, where one answer is the better.
    """

    pairs: int
    compared: int
    position: Estimate
    consistency: Estimate
    prefers: Estimate
    p_value: float | None


def orders(answers: Sequence[ProbeResult], resampler: Resampler) -> Orders:
    """Compute the effect of order from the verdicts of a judge that asks in both orders: two
    ``members`` (the answer first, the answer second), or ``parts`` of these names."""
    both = [(answer, scores) for answer in answers if (scores := _scores(answer)) is not None]
    questions = [answer.probe.item.question for answer, _ in both]
    shifts = [one - two for _, (one, two) in both]
    average = partial(_average, resampler, questions)
    return Orders(
        pairs=len(answers),
        compared=len(both),
        position=average(shifts, DIFFERENCE),
        consistency=average([float(one == two) for _, (one, two) in both], SHARE),
        prefers=average([(one + two) / 2 for _, (one, two) in both], SHARE),
        p_value=resampler.p_value(questions, shifts),
    )


def _scores(answer: ProbeResult) -> tuple[float, float] | None:
    members, parts = answer.verdict.members, answer.verdict.parts
    if parts.keys() >= {*ORDERS}:  # of a judge behind HTTP
        return parts[ORDERS[0]], parts[ORDERS[1]]
    if len(members) != 2 or members[0].score is None or members[1].score is None:
        return None
    return members[0].score, members[1].score


def stability(answers: Sequence[ProbeResult], repeats: int, resampler: Resampler) -> Estimate:
    """Return the share of items whose ``repeats`` verdicts agree, among those with as many
    verdicts; None if a service answered from its cache, whose verdicts agree by construction."""
    if any(answer.verdict.source == "cache" for answer in answers):
        return Estimate(None)
    by_item: dict[str, list[ProbeResult]] = {}
    for answer in answers:
        if answer.verdict.correct is not None:
            by_item.setdefault(answer.probe.item.id, []).append(answer)
    whole = [several for several in by_item.values() if len(several) == repeats]
    questions = [several[0].probe.item.question for several in whole]
    same = [float(len({answer.verdict.correct for answer in several}) == 1) for several in whole]
    return _average(resampler, questions, same, SHARE)


def _average(
    resampler: Resampler,
    questions: Sequence[str],
    values: Sequence[float],
    within: tuple[float, float],
) -> Estimate:
    return resampler.estimate(questions, [(value, 1.0) for value in values], mean, within)
