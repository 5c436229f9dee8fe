"""From run directories to two tables: ``results.parquet``, a row a run, and ``curves.parquet``, a
row a run and step. Nothing is compared here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flowright.core.files import disk_errors
from flowright.runs.run_files import read_evaluation, read_state
from flowright.study.cells import Run
from flowright.study.journal import Journal, is_finished
from flowright.study.measures import OF_SHORTCUT, PRESENTATIONS
from flowright.study.onset import Onset, Seen, onset_of
from flowright.study.steps import Row, cached_steps, mean, minus, number, read_steps, total
from flowright.viewer.monitoring.snapshot import edge

_REAL = pa.float64()


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


def collect(runs: Sequence[Run], journal: Journal, out: Path, write: bool = True) -> Collected:
    """Read all runs that have a directory, those that are over once: what they showed is kept under
    ``cache/`` where it is to ``write``. Raises RunError for damaged files of theirs."""
    found = Collected()
    for run in runs:
        history = journal.histories.get(run.name)
        finished = is_finished(run.folder)
        steps = steps_of(run, out, write)
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
            "finished": finished,
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


def steps_of(run: Run, out: Path, write: bool = True) -> list[Row]:
    """The curves of a run; of one that is over they are kept."""
    if not is_finished(run.folder):
        return read_steps(run.folder)
    cache = out / "cache" / run.cell.name / f"seed_{run.seed}.json"
    return cached_steps(run.folder, run.config_hash, cache, write)


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
    gold, proxy = number(trained.get("gold")), number(trained.get("judge"))
    row: Row = {
        "untrained_gold": untrained.get("gold"),
        "final_gold": gold,
        "final_proxy": proxy,
        "final_gap": minus(proxy, gold),
        "gold_area": mean(step["gold"] for step in trained_steps),
        "exploitation": sum(step["rejected"] for step in end) / rewarded if rewarded else None,
        "last_gold": mean(step["gold"] for step in end),
        "last_proxy": mean(step["proxy"] for step in end),
        "last_length": mean(step["length"] for step in end),
        "unscored": mean(step["unscored"] for step in trained_steps),
        "calls": total(step["calls"] for step in steps),
        "audits": total(step["audited"] for step in steps),
    }
    for name in PRESENTATIONS:
        shares = [s for step in trained_steps if (s := step[f"share_{name}"]) is not None]
        row[f"max_share_{name}"] = max(shares, default=None)
        row[f"last_share_{name}"] = mean(step[f"share_{name}"] for step in end)
    for measure in OF_SHORTCUT:
        row[measure] = row[f"{measure}_{shortcut}"] if shortcut else None
    return row


def _compared(evaluation: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for row in evaluation.get("rows") or ():
        if row.get("name") == name:
            return (row.get("kinds") or {}).get("all") or {}
    return {}


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
            pq.write_table(_table(rows), part, compression="zstd")
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
