"""Calibration of a judge that scores answers: one temperature, fitted on labelled pairs.

Bradley-Terry scores give P(the first is preferred) = sigmoid(difference of the scores). A trained
judge is mostly overconfident; differences divided by a temperature T rank as before and match the
rate of being right (temperature scaling: Guo et al. 2017, arXiv 1706.04599, section 4.2). Scores
have no zero of their own, so a single score is compared with an average answer:
sigmoid((score - centre) / T), with the mean score of the fitted pairs' answers as centre.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flowright.core.errors import DataError
from flowright.core.files import write_json
from flowright.core.formatting import percent
from flowright.core.report import estimate_cell
from flowright.core.statistics import RESAMPLES, Array, Resampler, sigmoid
from flowright.data.task import Preferred
from flowright.judging.measuring.exam_statistics import (
    BINS,
    binned,
    calibration_measures,
    reliability_bins,
)

FILE = "calibration.json"
"""Name of the file beside the weights."""

COLDEST, HOTTEST = 1e-3, 1e3
LEAST_PAIRS = 10
"""Fewest pairs with a preference in each half."""

_HALVINGS = 60
_TARGET: Mapping[Preferred, float] = {"first": 1.0, "tie": 0.5, "second": 0.0}


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """The scores of two answers to one conversation, and the label. Pairs of one ``conversation``
    are never split."""

    first: float
    second: float
    label: Preferred
    conversation: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """``temperature`` and ``centre`` in the unit of the scores; ``record`` is the measurement as
    JSON, empty for scores without a calibration."""

    temperature: float = 1.0
    centre: float = 0.0
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_fitted(self) -> bool:
        return bool(self.record)

    def preferred(self, difference: float) -> float:
        """Return P(one answer is preferred to the other) from the difference of their scores."""
        return float(sigmoid(np.array(difference / self.temperature)))

    def of_answer(self, score: float) -> float:
        """Return P(an answer of this score is preferred to an average one)."""
        return self.preferred(score - self.centre)

    def lines(self) -> list[str]:
        """Return the result of a fit as lines for people."""
        record = self.record
        before, after = (
            estimate_cell(record[key]["error"], percent) for key in ("before", "after")
        )
        lines = [
            f"calibrated to temperature {self.temperature:.3g} on {record['fitted']['pairs']:,} of "
            f"{record['data']}; calibration error on the {record['measured']['pairs']:,} others, "
            f"in {record['bins']} bins, debiased: {before.text} ({before.note}) before, "
            f"{after.text} ({after.note}) after"
        ]
        if record["at_bound"]:
            lines.append(
                "  at the bound of the search: the scores separate these pairs wholly, or not at "
                "all, and determine no temperature"
            )
        return lines

    def __str__(self) -> str:
        if not self.is_fitted:
            return "not calibrated: temperature 1 and centre 0 are assumed"
        fitted = self.record["fitted"]["pairs"]
        return f"temperature {self.temperature:.3g}, fitted on {fitted:,} pairs"


def halves(pairs: Sequence[ScoredPair]) -> tuple[list[ScoredPair], list[ScoredPair]]:
    """Split pairs into a half that fits and a half that measures: conversations in the order of
    their keys alternate, so the same pairs are always split alike."""
    keys = sorted({pair.conversation for pair in pairs})
    fits = {*keys[::2]}
    return (
        [pair for pair in pairs if pair.conversation in fits],
        [pair for pair in pairs if pair.conversation not in fits],
    )


def fit_temperature(pairs: Sequence[ScoredPair]) -> float:
    """Return the temperature T of maximum likelihood, which minimises the sum over pairs of
    -y log sigmoid(d / T) - (1 - y) log sigmoid(-d / T), with the difference d and y 1, 0, or 1/2
    for a tie. Kept between :data:`COLDEST` and :data:`HOTTEST`.

    The loss is convex in 1 / T, so its derivative changes sign once, and halving finds where.
    """
    difference, target = _columns(pairs)

    def slope(log_inverse: float) -> float:
        return float(((sigmoid(difference * math.exp(log_inverse)) - target) * difference).sum())

    low, high = -math.log(HOTTEST), -math.log(COLDEST)
    if slope(low) >= 0:
        return HOTTEST
    if slope(high) <= 0:
        return COLDEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return math.exp(-(low + high) / 2)


def calibrate(pairs: Sequence[ScoredPair], data: str) -> Calibration:
    """Fit on one half of the pairs; measure on the other, before and after. ``data`` describes
    their origin. Raises DataError for a half with fewer than :data:`LEAST_PAIRS` with a
    preference."""
    fits, measures = halves(pairs)
    fewest = min(sum(pair.label != "tie" for pair in half) for half in (fits, measures))
    if fewest < LEAST_PAIRS:
        raise DataError(
            f"{data}: a half of its conversations has {fewest} pairs with a preference; a "
            f"calibration needs {LEAST_PAIRS}"
        )
    temperature = fit_temperature(fits)
    centre = float(np.mean([score for pair in fits for score in (pair.first, pair.second)]))
    record = {
        "data": data,
        "temperature": temperature,
        "centre": centre,
        "at_bound": temperature in (COLDEST, HOTTEST),
        "fitted": _counts(fits),
        "measured": _counts(measures),
        "bins": BINS,
        "before": reliability_of(measures, 1.0),
        "after": reliability_of(measures, temperature),
    }
    return Calibration(temperature, centre, record)


def reliability_of(pairs: Sequence[ScoredPair], temperature: float) -> dict[str, Any]:
    """Measure pairs with a preference at a temperature: the :class:`CalibrationMeasures` of
    P(preferred), with intervals at 95 % from whole conversations, the ``accuracy`` (equal scores
    are half right), and the bins of the ``reliability`` chart."""
    decided = [pair for pair in pairs if pair.label != "tie"]
    difference, target = _columns(decided)
    probability = sigmoid(difference / temperature)
    right = np.where(difference == 0, 0.5, (difference > 0) == (target == 1)).astype(float)
    rows = [
        binned(max(p, 1 - p), r) for p, r in zip(probability.tolist(), right.tolist(), strict=True)
    ]
    names = [pair.conversation for pair in decided]
    signed = np.where(target == 1, difference, -difference) / temperature
    brier = ((probability - target) ** 2).tolist()
    logs = np.logaddexp(0.0, -signed).tolist()
    found = calibration_measures(names, rows, brier, logs, Resampler(names, RESAMPLES, 0))
    return {
        **asdict(found),
        "accuracy": float(right.mean()),
        "reliability": reliability_bins(rows),
    }


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Write the calibration beside weights; return its path."""
    path = folder / FILE
    write_json(path, dict(calibration.record))
    return path


def read_calibration(folder: Path) -> Calibration:
    """Read the calibration in a folder; a default one if there is no file. Raises DataError."""
    path = folder / FILE
    if not path.is_file():
        return Calibration()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        temperature, centre = float(record["temperature"]), float(record["centre"])
        int(record["fitted"]["pairs"])
        if not (math.isfinite(centre) and COLDEST <= temperature <= HOTTEST):
            raise ValueError(f"temperature {temperature}, centre {centre}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a calibration ({error}); make it again") from None
    return Calibration(temperature, centre, record)


def _counts(pairs: Sequence[ScoredPair]) -> dict[str, int]:
    return {
        "pairs": len(pairs),
        "ties": sum(pair.label == "tie" for pair in pairs),
        "conversations": len({pair.conversation for pair in pairs}),
    }


def _columns(pairs: Sequence[ScoredPair]) -> tuple[Array, Array]:
    difference = np.array([pair.first - pair.second for pair in pairs], dtype=np.float64)
    return difference, np.array([_TARGET[pair.label] for pair in pairs], dtype=np.float64)
