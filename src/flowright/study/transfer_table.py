"""The transfer matrix as numbers: ``transfer.parquet``, a row for each policy and judge. Nobody is
asked here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flowright.core.files import disk_errors
from flowright.core.statistics import DIFFERENCE, RESAMPLES, SHARE, Estimate, Resampler, mean
from flowright.study.cells import Cell, Run
from flowright.study.transfer import Answer, Answers, Grader

FILE = "transfer.parquet"


@dataclass(frozen=True, slots=True)
class Entry:
    """The policies of one arm, graded by one judge. Of ``attempts`` (those that a failure of ours
    ``lost`` left out) the judge gave ``unscored`` no verdict, and ``waiting`` are not asked yet:
    then there is no value. ``right``: the share that it calls right; ``gold``: that is right;
    ``excess``: their difference over attempts with both. Intervals draw whole problems, with the
    answers of all seeds."""

    trained_under: str
    graded_by: str
    judges: str
    same_judge: bool
    runs: int
    problems: int
    attempts: int
    lost: int
    unscored: int
    waiting: int
    right: Estimate
    gold: Estimate
    excess: Estimate


def entries(
    cells: Sequence[Cell], runs: Sequence[Run], answers: Answers, graders: Sequence[Grader]
) -> list[Entry]:
    """The matrix, a policy's judges one after another; arms without answers are left out."""
    return [
        _entry(cell, own, answers, grader)
        for cell in cells
        if (own := [r for r in runs if r.cell == cell and r.name in answers.by_run])
        for grader in graders
    ]


def _entry(cell: Cell, runs: Sequence[Run], answers: Answers, grader: Grader) -> Entry:
    lost = unscored = waiting = attempts = 0
    right, gold, excess = Values(), Values(), Values()
    for run in runs:
        for answer in answers.by_run[run.name]:
            if answer.lost:
                lost += 1
                continue
            attempts += 1
            asked, value = _said(grader, run.seed, answer)
            waiting += not asked
            unscored += asked and value is None
            gold.add(answer.task, answer.gold)
            right.add(answer.task, value)
            above = None if value is None or answer.gold is None else value - answer.gold
            excess.add(answer.task, above)
    tasks = dict.fromkeys(a.task for run in runs for a in answers.by_run[run.name] if not a.lost)
    resampler = Resampler(tasks, RESAMPLES, 0)
    return Entry(
        trained_under=cell.name,
        graded_by=grader.name,
        judges=", ".join(grader.names),
        same_judge=cell.name in grader.cells,
        runs=len(runs),
        problems=len(tasks),
        attempts=attempts,
        lost=lost,
        unscored=unscored,
        waiting=waiting,
        right=Estimate(None) if waiting else right.estimate(resampler, SHARE),
        gold=gold.estimate(resampler, SHARE),
        excess=Estimate(None) if waiting else excess.estimate(resampler, DIFFERENCE),
    )


@dataclass(slots=True)
class Values:
    """Of attempts, with the problems that they are at; what is None is left out."""

    tasks: list[str] = field(default_factory=list)
    rows: list[tuple[float, float]] = field(default_factory=list)

    def add(self, task: str, value: float | None) -> None:
        if value is not None:
            self.tasks.append(task)
            self.rows.append((value, 1.0))

    def estimate(self, resampler: Resampler, within: tuple[float, float]) -> Estimate:
        """The mean over attempts; problems are drawn."""
        return resampler.estimate(self.tasks, self.rows, mean, within)


def _said(grader: Grader, seed: int, answer: Answer) -> tuple[bool, float | None]:
    """Whether the judge was asked, and what it called the answer."""
    if answer.query is None:
        return True, 0.0
    said = grader.said.get(seed, {}).get(answer.query)
    return said is not None, None if said is None else said.right


def write_matrix(found: Sequence[Entry], out: Path) -> None:
    """``transfer.parquet``, replaced at once. Raises RunError on a full disk."""
    path = out / FILE
    part = path.with_name(f"{path.name}.part")
    columns: dict[str, list[Any]] = {}
    for entry in found:
        for name, value in asdict(entry).items():
            parts: Mapping[str, Any] = {name: value}
            if isinstance(value, dict):
                parts = {f"{name}_{end}" if end != "value" else name: v for end, v in value.items()}
            for column, each in parts.items():
                columns.setdefault(column, []).append(each)
    arrays = {
        name: pa.array(values)
        if any(value is not None for value in values)
        else pa.nulls(len(values), pa.float64())
        for name, values in columns.items()
    }
    with disk_errors(path):
        pq.write_table(pa.table(arrays), part)
        part.replace(path)


def read_matrix(out: Path) -> list[Entry]:
    """What :func:`write_matrix` wrote; empty where there is none."""
    path = out / FILE
    if not path.exists():
        return []
    return [_read(row) for row in pq.read_table(path).to_pylist()]


def _read(row: dict[str, Any]) -> Entry:
    known: dict[str, Any] = {
        name: Estimate(*(row.pop(f"{name}{end}") for end in ("", "_low", "_high")))
        for name in ("right", "gold", "excess")
    }
    return Entry(**{**row, **known})
