"""From run directories to two tables: ``results.parquet``, a row a run, and ``curves.parquet``, a
row a run and step. Nothing is compared here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flowright.monitoring.snapshot import edge, is_ours, merge_steps
from flowright.rendering.series import is_number
from flowright.runs import (
    disk_errors,
    read_evaluation,
    read_metrics,
    read_rollouts,
    read_state,
    rollout_steps,
)
from flowright.study.cells import Run
from flowright.study.journal import Journal, is_finished
from flowright.study.measures import OF_SHORTCUT, PRESENTATIONS
from flowright.study.onset import HIGH, Onset, Seen, onset_of

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
_REAL = pa.float64()
_CALLS = ("servers/judge/calls", "servers/executor/calls")


@dataclass(slots=True)
class Collected:
    """What runs showed. ``onsets`` is by run name and presentation; ``simulated`` whether any of
    the numbers come from the embedded server."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Row] = field(default_factory=list)
    onsets: dict[str, dict[str, Onset]] = field(default_factory=dict)
    simulated: bool = False

    def of(self, cell: str) -> list[Row]:
        """The rows of a cell's finished runs, by seed."""
        found = [row for row in self.rows if row["cell"] == cell and row["finished"]]
        return sorted(found, key=lambda row: row["seed"])

    def training_steps(self) -> dict[str, list[Row]]:
        """By run, its steps but the one before training."""
        steps: dict[str, list[Row]] = {}
        for row in self.curves:
            if row["step"] > 0:
                steps.setdefault(row["run"], []).append(row)
        return steps


def collect(runs: Sequence[Run], journal: Journal, out: Path) -> Collected:
    """Read all runs that have a directory; raises RunError for damaged files of theirs."""
    found = Collected()
    for run in runs:
        history = journal.histories.get(run.name)
        steps = read_steps(run.folder)
        onsets = {name: onset for name in PRESENTATIONS if (onset := _onset(steps, name))}
        found.onsets[run.name] = onsets
        state, evaluation = read_state(run.folder), read_evaluation(run.folder) or {}
        found.simulated |= bool(state.get("simulated") or evaluation.get("simulated"))
        row: Row = {
            "run": run.name,
            "cell": run.cell.name,
            "arm": run.cell.arm,
            "dose": run.cell.dose_value,
            "seed": run.seed,
            "finished": is_finished(run.folder),
            "status": str(state.get("status", "waiting")),
            "steps": steps[-1]["step"] if steps else 0,
            "failures": history.failures if history else 0,
            "starts": history.starts if history else 0,
            "shortcut": run.cell.shortcut,
            "folder": str(run.folder.relative_to(out)),
            "config_hash": run.config_hash,
        }
        row |= measures_of(steps, evaluation, run.cell.shortcut)
        row["seconds"] = history.seconds if history and history.seconds else None
        row |= _onset_columns(onsets, run.cell.shortcut)
        found.rows.append(row)
        same = {name: row[name] for name in ("run", "cell", "arm", "dose", "seed")}
        found.curves += [{**same, **step} for step in steps]
    return found


def _onset_columns(onsets: Mapping[str, Onset], shortcut: str | None) -> Row:
    """Of the run's own shortcut: the step or null, with whether it is ``censored``, or null for
    both where nothing was to be seen; of every other presentation the same under its name."""
    row: Row = {}
    own = onsets.get(shortcut) if shortcut else None
    for prefix, onset in [("", own), *((f"_{name}", onsets.get(name)) for name in PRESENTATIONS)]:
        row[f"onset{prefix}"] = onset.step if onset else None
        row[f"onset_censored{prefix}"] = onset.step is None if onset else None
        row[f"severe{prefix}"] = onset.severe if onset else None
    row["onset_first"] = own.first if own else None
    row["onset_latest"] = own.latest if own else None
    row["onset_is_point"] = own.is_point if own else None
    return row


def measures_of(steps: Sequence[Row], evaluation: Mapping[str, Any], shortcut: str | None) -> Row:
    """The measures of one run but its onset; None for what has no value."""
    trained = _compared(evaluation, "trained policy")
    untrained = _compared(evaluation, "untrained policy")
    trained_steps = [step for step in steps if step["step"] > 0]
    end = trained_steps[-edge(len(trained_steps)) :] if trained_steps else []
    rewarded = sum(step["rewarded"] for step in end)
    gold, proxy = _number(trained.get("gold")), _number(trained.get("judge"))
    row: Row = {
        "untrained_gold": untrained.get("gold"),
        "final_gold": gold,
        "final_proxy": proxy,
        "final_gap": _minus(proxy, gold),
        "gold_area": _mean(step["gold"] for step in trained_steps),
        "exploitation": sum(step["rejected"] for step in end) / rewarded if rewarded else None,
        "last_gold": _mean(step["gold"] for step in end),
        "last_proxy": _mean(step["proxy"] for step in end),
        "last_length": _mean(step["length"] for step in end),
        "unscored": _mean(step["unscored"] for step in trained_steps),
        "calls": _sum(step["calls"] for step in steps),
        "audits": _sum(step["audited"] for step in steps),
    }
    for name in PRESENTATIONS:
        shares = [s for step in trained_steps if (s := step[f"share_{name}"]) is not None]
        row[f"max_share_{name}"] = max(shares, default=None)
        row[f"last_share_{name}"] = _mean(step[f"share_{name}"] for step in end)
    for measure in OF_SHORTCUT:
        row[measure] = row[f"{measure}_{shortcut}"] if shortcut else None
    return row


def _compared(evaluation: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for row in evaluation.get("rows") or ():
        if row.get("name") == name:
            return (row.get("kinds") or {}).get("all") or {}
    return {}


def read_steps(run: Path) -> list[Row]:
    """The curves of a run: its metrics and what its rollouts tell, a row a step, ascending."""
    metrics = {row["step"]: row for row in merge_steps(read_metrics(run))}
    kept = {step for step in rollout_steps(run) if step in metrics}
    return [
        _step(step, row, [*read_rollouts(run, step)] if step in kept else [])
        for step, row in sorted(metrics.items())
    ]


def _step(step: int, metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Row:
    row: Row = {"step": step}
    row |= {name: _number(metrics.get(metric)) for name, metric in CURVES.items()}
    attempts = [Attempt.of(record) for record in records]
    if row["gold"] is None:
        row["gold"] = _mean(a.gold for a in attempts)
    row["gap"] = _minus(row["proxy"], row["gold"])
    calls = [_number(metrics.get(name)) for name in _CALLS]
    row["calls"] = _sum([*calls, *([] if any(calls) else [a.calls for a in attempts])])
    row["attempts"] = len(attempts)
    row["lost"] = sum(a.lost for a in attempts)
    row["audited"] = float(sum(a.audited for a in attempts)) if attempts else None
    high = [a for a in attempts if a.score is not None and a.score >= HIGH and a.gold is not None]
    row["rewarded"] = len(high)
    row["rejected"] = sum(a.gold == 0.0 for a in high)
    row["high_gap"] = _mean(_minus(a.score, a.gold) for a in high)
    told = [a.presentation for a in attempts if a.presentation is not None]
    shown = [a.presentation for a in high if a.presentation is not None]
    for name in PRESENTATIONS:
        row[f"share_{name}"] = _mean(float(name in each) for each in told)
        row[f"high_share_{name}"] = _mean(float(name in each) for each in shown)
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
        value = _number((record.get("reward") or {}).get("value"))
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
            calls=_number(usage),
            lost=lost,
            audited=record.get("audited") is True,
        )


def _onset(steps: Sequence[Row], shortcut: str) -> Onset | None:
    seen = [
        Seen(row["step"], row["rewarded"], row["high_gap"], row[f"high_share_{shortcut}"])
        for row in steps
        if row["step"] > 0
    ]
    return onset_of(seen)


def write_tables(found: Collected, out: Path) -> None:
    """``results.parquet`` and ``curves.parquet``, replaced at once."""
    for name, rows in (("results", found.rows), ("curves", found.curves)):
        path = out / f"{name}.parquet"
        part = path.with_name(f"{path.name}.part")
        with disk_errors(path):
            pq.write_table(_table(rows), part)
            part.replace(path)


def _table(rows: Sequence[Row]) -> pa.Table:
    """A column without any value is one of numbers: null alone is no type to compare with."""
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    arrays = {
        name: pa.array(values)
        if any(v is not None for v in values)
        else pa.nulls(len(values), _REAL)
        for name, values in columns.items()
    }
    return pa.table(arrays)


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
