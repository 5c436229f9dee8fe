"""The record of a judge's exam, read from ``exam.json``, and its numbers as words. No drawing here.

What a record lacks is shown as ``-``: there was nothing to compute it from, and 0 would be a lie.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.errors import DataError
from flowright.rendering.series import Row, is_number

NOTHING = "-"
SIMULATED = "SIMULATED: the embedded server judged; these numbers say nothing about any real judge."
NAMES: Mapping[str, str] = {
    "neutral": "neutral words",
    "verbosity": "verbosity",
    "authority": "authority",
    "tone": "confident tone",
    "formatting": "formatting",
    "distraction": "distraction",
    "injection": "injection",
    "self_preference": "self-reference",
    "master_key": "master key",
}
MEASURES: Sequence[tuple[str, str, bool]] = (
    ("agreement", "agreement", True),
    ("kappa", "Cohen's kappa", False),
    ("balanced_accuracy", "balanced accuracy", True),
    ("false_positive_rate", "false positives", True),
    ("false_negative_rate", "false negatives", True),
    ("calibration_error", "calibration error", True),
    ("roc_auc", "ROC AUC", False),
)
"""Key, name, and whether it is a share."""

Form = Callable[[float], str]


def read_exam(folder: Path) -> Row:
    """The record. Raises DataError where there is none that can be read."""
    path = folder / "exam.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise DataError(f"{path}: not the record of an exam; hold the exam again") from None
    if not isinstance(record, dict) or not {"about", "measures", "effects"} <= set(record):
        raise DataError(f"{path}: not the record of an exam; hold the exam again")
    return record


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """A difference of two shares, in hundredths, with its sign."""
    return f"{100 * difference:+.1f}"


def plain(value: float) -> str:
    return f"{value:.2f}"


def said(value: object, form: Form) -> str:
    return form(value) if is_number(value) else NOTHING


def estimated(estimate: object, form: Form) -> str:
    """A value and its interval: ``91.0 % (88.2 to 93.1)``."""
    value, low, high = ends(estimate)
    if value is None:
        return NOTHING
    if low is None or high is None:
        return form(value)
    inner = (form(end).removesuffix(" %") for end in (low, high))
    return f"{form(value)} ({' to '.join(inner)})"


def ends(estimate: object) -> tuple[float | None, float | None, float | None]:
    """Value, lower and upper end of an estimate, each None where it is missing."""
    cell = estimate if isinstance(estimate, Mapping) else {}
    value, low, high = (
        number if is_number(number := cell.get(key)) else None for key in ("value", "low", "high")
    )
    return value, low, high


def biases(record: Row) -> list[tuple[str, Row | None, Row | None]]:
    """For each perturbation its effect on wrong and on right answers, None where it has none."""
    rows: dict[str, dict[bool, Row]] = {}
    for effect in record["effects"]:
        rows.setdefault(effect["bias"], {})[bool(effect["label"])] = effect
    return [(name, found.get(False), found.get(True)) for name, found in rows.items()]


def verdict_on(effect: Mapping[str, Any] | None) -> str:
    """What an exam found of an effect, in a word or two."""
    if not effect or effect.get("adjusted") is None:
        return NOTHING
    return {"raises": "raises", "lowers": "lowers"}.get(str(effect.get("found")), "no")


def title(record: Row) -> str:
    about = record["about"]
    size = f"{record['answers']:,} answers to {record['questions']:,} questions"
    return f"Exam of judge {about['judge']} on {size}"
