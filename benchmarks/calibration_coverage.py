"""How often the interval of a judge's calibration error contains the true one.

    python benchmarks/calibration_coverage.py

Judges with a known calibration are drawn: verdicts with a confidence c from 0.5 to 1, right with
probability p(c). The true error is that of the ten bins, from two million verdicts. Beside the
interval of flowright.judging.measuring.exam_statistics is the percentile bootstrap of the plain
error, which was reported before. Two minutes on one core.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from flowright.core.statistics import Array, Resampler
from flowright.judging.measuring.exam_statistics import BINS, binned, calibration_error

Judge = Callable[[int, float, np.random.Generator], tuple[Array, Array]]
"""Confidences and probabilities of being right, of so many verdicts at a setting."""


def constant(count: int, gap: float, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return a judge too sure by the same everywhere."""
    sure = draw.uniform(0.5, 1, count)
    return sure, np.clip(sure - gap, 0, 1)


def temperature(count: int, slope: float, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return a judge whose log odds are 1 / slope times too large, as raw scores are."""
    odds = np.abs(draw.normal(0, 1.5, count))
    return 1 / (1 + np.exp(-odds)), 1 / (1 + np.exp(-odds * slope))


def one_bin(count: int, gap: float, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return a judge that is calibrated but for 15 % of its verdicts, where it is sure."""
    is_sure = draw.random(count) < 0.15
    sure = np.where(is_sure, 0.97, draw.uniform(0.5, 1, count))
    return sure, np.where(is_sure, 0.97 - gap / 0.15, sure)


def yes_or_no(count: int, errors: float, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return a judge that is sure of every verdict."""
    return np.ones(count), np.full(count, 1 - errors)


JUDGES: Mapping[str, tuple[Judge, tuple[float, ...]]] = {
    "constant": (constant, (0.0, 0.03, 0.06, 0.13)),
    "temperature": (temperature, (1.0, 0.75, 0.5, 0.36)),
    "one_bin": (one_bin, (0.05, 0.13)),
    "yes_or_no": (yes_or_no, (0.05, 0.13)),
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Means over trials, for a judge with a ``true`` error."""

    true: float
    plain: float
    debiased: float
    covered: float
    width: float
    covered_by_percentiles: float


def true_error(judge: Judge, setting: float) -> float:
    """Return the error of the bins in two million verdicts."""
    sure, right = judge(2_000_000, setting, np.random.default_rng(1))
    places = np.minimum(BINS - 1, ((sure - 0.5) * 2 * BINS).astype(int))
    return float(np.abs(np.bincount(places, right - sure)).sum() / len(sure))


def coverage(name: str, setting: float, count: int, trials: int, resamples: int) -> Coverage:
    """Measure intervals on ``trials`` draws of ``count`` verdicts, a question each."""
    judge, _ = JUDGES[name]
    truth = true_error(judge, setting)
    draw = np.random.default_rng(0)
    questions = [str(number) for number in range(count)]
    resampler = Resampler(questions, resamples, 0)
    found = []
    for _ in range(trials):
        sure, chance = judge(count, setting, draw)
        right = draw.random(count) < chance
        rows = [binned(s, r) for s, r in zip(sure.tolist(), right.tolist(), strict=True)]
        error, plain = calibration_error(questions, rows, resampler)
        assert error.value is not None and error.low is not None and error.high is not None
        low, high = np.quantile(_plain(resampler.sums(questions, rows)[1]), [0.025, 0.975])
        found.append(
            (
                plain.value,
                error.value,
                error.low <= truth <= error.high,
                error.high - error.low,
                low <= truth <= high,
            )
        )
    return Coverage(truth, *np.mean(found, axis=0).tolist())


def _plain(sums: Array) -> Array:
    bins = sums.reshape(-1, BINS, 3)
    return np.abs(bins[..., 1] - bins[..., 2]).sum(axis=-1) / bins[..., 0].sum(axis=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=400)
    options = parser.parse_args()
    print("judge        verdicts   true  plain  debiased  covered  width  by percentiles")
    for name, (_, settings) in JUDGES.items():
        for setting in settings:
            for count in (100, 300, 1000):
                c = coverage(name, setting, count, options.trials, 1000)
                print(
                    f"{name:12} {count:8} {c.true:6.3f} {c.plain:6.3f} {c.debiased:9.3f}"
                    f" {c.covered:8.1%} {c.width:6.3f} {c.covered_by_percentiles:15.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
