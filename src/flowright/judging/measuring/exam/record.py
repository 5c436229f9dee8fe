"""The record of a judge's exam, read from ``exam.json``, and what it says in words. No drawing
here.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.formatting import (
    NOTHING,
    Form,
    Record,
    format_value,
    is_number,
    percent,
    points,
)
from flowright.core.untrusted import one_line

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


def read_exam(folder: Path) -> Record:
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


def plain(value: float) -> str:
    return f"{value:.2f}"


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


def biases(record: Record) -> list[tuple[str, Record | None, Record | None]]:
    """For each perturbation its effect on wrong and on right answers, None where it has none."""
    rows: dict[str, dict[bool, Record]] = {}
    for effect in record["effects"]:
        rows.setdefault(effect["bias"], {})[bool(effect["label"])] = effect
    return [(name, found.get(False), found.get(True)) for name, found in rows.items()]


def effects_rows(record: Record, label: bool) -> list[list[str]]:
    """For each perturbation of the answers of one label: its name, shares called right before and
    after, the effect, the difference to the plain answer, what was found, how many were compared
    of those asked about."""
    return [
        [
            NAMES.get(name, name),
            format_value(effect["before"]["value"], percent),
            format_value(effect["after"]["value"], percent),
            estimated(effect["own"], points),
            format_value(effect["total"]["value"], points),
            verdict_on(effect),
            f"{effect['compared']}/{effect['asked']}",
        ]
        for name, *both in biases(record)
        if (effect := both[label]) is not None
    ]


PAIR_COLUMNS = (
    *("pairs of", "compared", "first wins - second, points", "found"),
    *("same winner both ways", "the right one wins"),
)


def pair_rows(record: Record) -> list[list[str]]:
    """For each kind of pairs what :data:`PAIR_COLUMNS` names; none where none were asked about."""
    names = {
        "equal_pair": "one answer, worded twice",
        "unequal_pair": "right and wrong",
        "evalbiasbench": "EvalBiasBench",
    }
    return [
        [
            str(names.get(kind, kind)),
            f"{pair['compared']:,} of {pair['pairs']:,}",
            estimated(pair["position"], points),
            verdict_on(pair),
            estimated(pair["consistency"], percent),
            estimated(pair["prefers"], percent) if kind != "equal_pair" else NOTHING,
        ]
        for kind, pair in (record.get("pairs") or {}).items()
    ]


def service_facts(record: Record) -> list[tuple[str, str]]:
    """How the verdicts came about."""
    service = record["service"]
    seconds = service.get("seconds") or {}
    shares = dict(service["status"])
    facts = [
        ("in all", f"{service['verdicts']:,}"),
        ("with a finding", format_value(shares.pop("ok", None), percent)),
        ("without", _listed(shares) or "none"),
        ("decided by", _listed(service["source"])),
        ("attempts, mean", format_value(service["tries_mean"], plain)),
        ("tried again", format_value(service["retried"], percent)),
        ("prompt tokens, mean", format_value(service["prompt_tokens_mean"], "{:,.0f}".format)),
        (
            "completion tokens, mean",
            format_value(service["completion_tokens_mean"], "{:,.0f}".format),
        ),
        ("seconds, median", format_value(seconds.get("p50"), "{:.3g}".format)),
        ("seconds, 95 %", format_value(seconds.get("p95"), "{:.3g}".format)),
    ]
    if service["cost"] is not None:
        facts.append(("cost of the exam", f"{service['cost']:.4g}"))
        facts.append(("cost of 1000 verdicts", f"{service['cost_per_1000']:.4g}"))
    return facts


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share)


def verdict_on(effect: Mapping[str, Any] | None) -> str:
    """What an exam found of an effect, in a word or two."""
    if not effect or effect.get("adjusted") is None:
        return NOTHING
    return {"raises": "raises", "lowers": "lowers"}.get(str(effect.get("found")), "no")


def planted(record: Record) -> str:
    weights = record["about"].get("planted") or {}
    return ", ".join(f"{name} {weight:+g}" for name, weight in weights.items()) or "nothing"


def notes(record: Record) -> list[str]:
    """What the judge says has to be known of its verdicts."""
    return [one_line(note, 300) for note in record["about"].get("notes") or ()]


def title(record: Record) -> str:
    about = record["about"]
    size = f"{record['answers']:,} answers to {record['questions']:,} questions"
    return f"Exam of judge {about['judge']} on {size}"
