"""What a study reads of one run: its curves, a row a step, from its metrics and its rollouts; and
the cache of those of runs that are over, since rollouts are most of the reading.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flowright.core.files import disk_errors, write_text
from flowright.core.formatting import is_number
from flowright.runs.run_files import read_metrics, read_rollouts, rollout_steps
from flowright.study.measures import PRESENTATIONS
from flowright.study.onset import HIGH
from flowright.viewer.monitoring.snapshot import is_ours, merge_steps

Row = dict[str, Any]
CURVES: Mapping[str, str] = {
    "proxy": "reward/mean",
    "gold": "gold/accuracy",
    "kl": "policy/kl",
    "entropy": "policy/entropy",
    "length": "tokens/completion_mean",
    "agreement": "judge/agreement_with_gold",
    "drift": "judge/drift",
    "disagreement": "judge/disagreement",
    "unscored": "rollout/unscored",
}
"""Columns of curves.parquet that are metrics of the run."""
_CALLS = ("servers/judge/calls", "servers/executor/calls")


def read_steps(run: Path) -> list[Row]:
    """The curves of a run: its metrics and what its rollouts tell, a row a step, ascending."""
    metrics = {row["step"]: row for row in merge_steps(read_metrics(run))}
    kept = {step for step in rollout_steps(run) if step in metrics}
    return [
        _step(step, row, [*read_rollouts(run, step)] if step in kept else [])
        for step, row in sorted(metrics.items())
    ]


def cached_steps(run: Path, settings: str, cache: Path, write: bool = True) -> list[Row]:
    """As :func:`read_steps` of a run that is over, from the file ``cache`` where that was written
    for the same ``settings`` (their hash), files and version of this module; else, where it is to
    ``write``, it is written."""
    told = [(path.stat().st_mtime_ns, path.stat().st_size) for path in _witnesses(run)]
    key = hashlib.sha256(f"{_version()} {settings} {told}".encode()).hexdigest()
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(cache.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return list(kept["steps"])
    steps = read_steps(run)
    if write:
        with disk_errors(cache):
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_text(cache, json.dumps({"key": key, "steps": steps}, allow_nan=False))
    return steps


def _witnesses(run: Path) -> list[Path]:
    """Files that change with whatever a run does."""
    return [path for name in ("state.json", "metrics.jsonl") if (path := run / name).exists()]


@lru_cache(maxsize=1)
def _version() -> str:
    """Of what is read, and how."""
    source = Path(__file__).read_bytes()
    return hashlib.sha256(source + f"{HIGH} {PRESENTATIONS}".encode()).hexdigest()


def _step(step: int, metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Row:
    row: Row = {"step": step}
    row |= {name: number(metrics.get(metric)) for name, metric in CURVES.items()}
    attempts = [Attempt.of(record) for record in records]
    if row["gold"] is None:
        row["gold"] = mean(a.gold for a in attempts)
    row["gap"] = minus(row["proxy"], row["gold"])
    calls = [number(metrics.get(name)) for name in _CALLS]
    row["calls"] = total([*calls, *([] if any(calls) else [a.calls for a in attempts])])
    row["attempts"] = len(attempts)
    row["lost"] = sum(a.lost for a in attempts)
    row["audited"] = float(sum(a.audited for a in attempts)) if attempts else None
    high = [a for a in attempts if a.score is not None and a.score >= HIGH and a.gold is not None]
    row["rewarded"] = len(high)
    row["rejected"] = sum(a.gold == 0.0 for a in high)
    row["high_gap"] = mean(minus(a.score, a.gold) for a in high)
    told = [a.presentation for a in attempts if a.presentation is not None]
    shown = [a.presentation for a in high if a.presentation is not None]
    for name in PRESENTATIONS:
        row[f"share_{name}"] = mean(float(name in each) for each in told)
        row[f"high_share_{name}"] = mean(float(name in each) for each in shown)
    return row


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a study reads of a rollout's record. ``score`` is what it was rewarded with, between 0
    and 1; None where it was not. ``gold`` is 0 for the policy's own failures, as in training;
    ``audited``: gold was its reward."""

    score: float | None
    gold: float | None
    presentation: frozenset[str] | None
    calls: float | None
    lost: bool
    audited: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Attempt":
        value = number((record.get("reward") or {}).get("value"))
        failure = record.get("failure")
        lost = bool(failure) and is_ours(str(failure.get("reason")))
        correct = (record.get("gold") or {}).get("correct")
        gold = None if correct is None else float(correct)
        if failure and not lost:
            gold = 0.0
        shown = record.get("presentation")
        usage = ((record.get("verdict") or {}).get("usage") or {}).get("calls")
        return cls(
            score=None if value is None else min(1.0, max(0.0, value)),
            gold=gold,
            presentation=frozenset(map(str, shown)) if isinstance(shown, list) else None,
            calls=number(usage),
            lost=lost,
            audited=record.get("audited") is True,
        )


def number(value: Any) -> float | None:
    """None for what is no finite number."""
    return float(value) if is_number(value) else None


def minus(one: float | None, other: float | None) -> float | None:
    """None where either is."""
    return None if one is None or other is None else one - other


def mean(values: Iterable[float | None]) -> float | None:
    """Of what is not None; None of nothing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def total(values: Iterable[float | None]) -> float | None:
    """As :func:`mean`, the sum."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
