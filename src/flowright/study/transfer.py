"""The transfer matrix of a study: each trained policy's answers, graded by the judge of every arm.

Runs keep their answers (``answers.jsonl.zst``); a judge is called once for each different query,
and its verdicts are kept in ``transfer/JUDGE.jsonl``. Answers without a verdict are counted and are
in no mean. ``transfer.parquet`` has a row for each policy and judge.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq

from flowright.config.root import Config
from flowright.core.batch_calls import Outcome, call_all
from flowright.core.errors import RunError, UserError
from flowright.core.journal import Journal, read_journal
from flowright.core.statistics import DIFFERENCE, RESAMPLES, SHARE, Estimate, Resampler, mean
from flowright.environments.base import Environment, make_environment
from flowright.environments.registry import load_config
from flowright.judging.verdict import DOWN, JudgeQuery, Status, Verdict
from flowright.runs.run_files import read_answers
from flowright.study.collect import write_parquet
from flowright.study.runs import StudyCell, StudyRun, is_finished

FOLDER = "transfer"
MATRIX_FILE = "transfer.parquet"
CONCURRENCY = 256


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """An attempt of a trained policy. ``query`` is the hash of the judge's query; None without an
    answer, which is wrong under every judge. ``lost``: by a failure of ours."""

    task: str
    query: str | None
    gold: float | None
    lost: bool


@dataclass(slots=True)
class PolicyAnswers:
    """Kept answers of all finished runs, by run; ``queries`` by their hashes; ``without`` are
    finished runs that kept none."""

    by_run: dict[str, list[PolicyAnswer]] = field(default_factory=dict)
    queries: dict[str, JudgeQuery] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """A judge's verdict on a query; ``right`` is None without one."""

    status: Status
    right: float | None

    @property
    def down(self) -> bool:
        """True if the server did not answer; the query is sent again."""
        return self.status in DOWN or self.status == "overloaded"


@dataclass(slots=True)
class ArmJudge:
    """A judge of the study. ``cells`` are the arms that have it, ``configs`` those of its runs by
    seed, ``models`` its models; ``verdicts`` are by seed and query."""

    name: str
    cells: list[str]
    configs: dict[int, Config]
    models: tuple[str, ...]
    verdicts: dict[int, dict[str, KeptVerdict]] = field(default_factory=dict)


Progress = Callable[[str, int, int], None]
"""Called with a judge's name, the verdicts made and the queries in all."""


def answers_of(runs: Iterable[StudyRun]) -> PolicyAnswers:
    """Read the answers of the finished runs."""
    found = PolicyAnswers()
    for run in runs:
        if not is_finished(run.folder):
            continue
        kept = [_answer(row, found.queries) for row in read_answers(run.folder)]
        if kept:
            found.by_run[run.name] = kept
        else:
            found.without.append(run.name)
    return found


def _answer(row: Mapping[str, Any], queries: dict[str, JudgeQuery]) -> PolicyAnswer:
    query = row["query"]
    if query is None:
        return PolicyAnswer(row["task"], None, row["gold"], row["lost"])
    fields = {**query, "key": ""}
    name = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
    # One key per query, over all policies: the seeds of retries are derived from it.
    fields |= {"key": name, "alternatives": tuple(query["alternatives"]), "criteria": ()}
    queries.setdefault(name, JudgeQuery(**fields))
    return PolicyAnswer(row["task"], name, row["gold"], row["lost"])


def judges_of(base: Path, cells: Sequence[StudyCell], runs: Sequence[StudyRun]) -> list[ArmJudge]:
    """List the judges of the arms, each once. Raises RunError if an arm's environment has none."""
    found: dict[str, ArmJudge] = {}
    for cell in cells:
        configs = {r.seed: load_config(base, r.overrides) for r in runs if r.cell == cell}
        first = next(iter(configs.values()))
        key = judge_digest(make_environment(first))
        if key in found:
            found[key].cells.append(cell.name)
        else:
            found[key] = ArmJudge(cell.name, [cell.name], configs, first.judge_names)
    return [*found.values()]


def judge_digest(environment: Environment) -> str:
    """Hash everything that decides its judge's verdicts. Raises RunError without a judge."""
    settings = environment.judge_settings()
    if settings is None:
        name = environment.config.environment
        raise RunError(f"--transfer: environment {name} has no judge of single answers")
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def grade_all(
    judges: Sequence[ArmJudge],
    runs: Sequence[StudyRun],
    answers: PolicyAnswers,
    out: Path,
    progress: Progress,
) -> list[str]:
    """Call all judges, one after another; return a line for each that was down or could not be
    opened. Verdicts made before are kept."""
    missing: list[str] = []
    for judge in judges:
        try:
            asyncio.run(grade(judge, runs, answers, out, progress))
        except UserError as error:
            missing += [f"{judge.name}: {line}" for line in error.problems]
    return missing


async def grade(
    judge: ArmJudge, runs: Sequence[StudyRun], answers: PolicyAnswers, out: Path, progress: Progress
) -> None:
    """Call a judge about all answers that have no verdict of it in ``out``. Raises UserError if it
    cannot be opened, and ServerDown."""
    seeds_of: dict[str, list[int]] = {}  # some judges differ by seed
    environments = {seed: make_environment(config) for seed, config in judge.configs.items()}
    for seed, environment in environments.items():
        seeds_of.setdefault(judge_digest(environment), []).append(seed)
    for digest, seeds in seeds_of.items():
        names = {run.name for run in runs if run.seed in seeds}
        wanted = dict.fromkeys(
            answer.query
            for name, given in answers.by_run.items()
            if name in names
            for answer in given
            if answer.query is not None
        )
        path = out / FOLDER / f"{digest}.jsonl"
        verdicts = read_verdicts(path)
        judge.verdicts |= dict.fromkeys(seeds, verdicts)
        left = [name for name in wanted if name not in verdicts or verdicts[name].down]
        if left:
            queries = {name: answers.queries[name] for name in left}
            environment = environments[seeds[0]]
            await _call(judge.name, environment, queries, path, verdicts, progress)


async def _call(
    name: str,
    environment: Environment,
    queries: Mapping[str, JudgeQuery],
    path: Path,
    verdicts: dict[str, KeptVerdict],
    progress: Progress,
) -> None:
    done = 0

    def keep(query: str, verdict: Verdict) -> None:
        nonlocal done
        right = None if verdict.correct is None else float(verdict.correct)
        verdicts[query] = KeptVerdict(verdict.status, right)
        journal.append({"query": query, "status": verdict.status, "right": right})
        done += 1
        progress(name, done, len(queries))

    def outcome(verdict: Verdict) -> Outcome:
        if verdict.status in DOWN:
            return "down"
        return "reached" if verdict.attempts > 0 else "neutral"

    remedy = "move the file, and every answer is graded again"
    with Journal(path, sync=False, remedy=remedy) as journal:
        async with environment.open_judge() as judge:
            await call_all(
                queries.items(),
                judge.judge,
                concurrency=CONCURRENCY,
                outcome=outcome,
                why=lambda verdict: verdict.cause,
                keep=keep,
                name="its judge",
            )


def read_verdicts(path: Path) -> dict[str, KeptVerdict]:
    """Read the last verdict of each query; a torn last line is ignored. Raises RunError for other
    lines that are no verdict."""
    lines = read_journal(path)
    damaged = [*lines.damaged]
    found: dict[str, KeptVerdict] = {}
    for number, row in lines.records:
        is_query = isinstance(row.get("query"), str) and "right" in row
        if is_query and row.get("status") in get_args(Status):
            found[row["query"]] = KeptVerdict(row["status"], row["right"])
        else:
            damaged.append(number)
    if damaged:
        raise RunError(f"{path}:{min(damaged)}: damaged; take it out")
    return found


# The matrix.


@dataclass(frozen=True, slots=True)
class MatrixEntry:
    """The policies of one arm, graded by one judge. Of ``attempts`` (without those ``lost`` by a
    failure of ours) ``unscored`` got no verdict, and ``waiting`` were not sent yet: then there is
    no value. ``right`` is the share that the judge calls right, ``gold`` the share that is right,
    ``excess`` their difference over attempts with both. Intervals resample whole problems, with the
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


def matrix(
    cells: Sequence[StudyCell],
    runs: Sequence[StudyRun],
    answers: PolicyAnswers,
    judges: Sequence[ArmJudge],
) -> list[MatrixEntry]:
    """Build the matrix, a policy's judges one after another; arms without answers are left out."""
    return [
        _entry(cell, own, answers, judge)
        for cell in cells
        if (own := [r for r in runs if r.cell == cell and r.name in answers.by_run])
        for judge in judges
    ]


def _entry(
    cell: StudyCell, runs: Sequence[StudyRun], answers: PolicyAnswers, judge: ArmJudge
) -> MatrixEntry:
    given = [(run.seed, answer) for run in runs for answer in answers.by_run[run.name]]
    attempts = [(seed, answer) for seed, answer in given if not answer.lost]
    tasks = [answer.task for _, answer in attempts]
    verdicts = [_verdict(judge, seed, answer) for seed, answer in attempts]
    right = [verdict.right if verdict else None for verdict in verdicts]
    gold = [answer.gold for _, answer in attempts]
    excess = [None if r is None or g is None else r - g for r, g in zip(right, gold, strict=True)]
    waiting = verdicts.count(None)
    resampler = Resampler(tasks, RESAMPLES, 0)

    def estimate(values: Sequence[float | None], within: tuple[float, float]) -> Estimate:
        known = [(task, v) for task, v in zip(tasks, values, strict=True) if v is not None]
        rows = [(value, 1.0) for _, value in known]
        return resampler.estimate([task for task, _ in known], rows, mean, within)

    return MatrixEntry(
        trained_under=cell.name,
        graded_by=judge.name,
        judges=", ".join(judge.models),
        same_judge=cell.name in judge.cells,
        runs=len(runs),
        problems=len(set(tasks)),
        attempts=len(attempts),
        lost=len(given) - len(attempts),
        unscored=right.count(None) - waiting,
        waiting=waiting,
        right=Estimate(None) if waiting else estimate(right, SHARE),
        gold=estimate(gold, SHARE),
        excess=Estimate(None) if waiting else estimate(excess, DIFFERENCE),
    )


def _verdict(judge: ArmJudge, seed: int, answer: PolicyAnswer) -> KeptVerdict | None:
    """Return the judge's verdict; None if it was not called."""
    if answer.query is None:
        return KeptVerdict("ok", 0.0)
    return judge.verdicts.get(seed, {}).get(answer.query)


def write_matrix(found: Sequence[MatrixEntry], out: Path) -> None:
    """Write ``transfer.parquet``. Raises RunError on a full disk."""
    rows = []
    for entry in found:
        row: dict[str, Any] = {}
        for name, value in asdict(entry).items():
            if isinstance(value, dict):
                row |= {f"{name}_{end}" if end != "value" else name: v for end, v in value.items()}
            else:
                row[name] = value
        rows.append(row)
    write_parquet(out / MATRIX_FILE, rows)


def read_matrix(out: Path) -> list[MatrixEntry]:
    """Read the matrix; empty without one."""
    path = out / MATRIX_FILE
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    for row in rows:
        for name in ("right", "gold", "excess"):
            row[name] = Estimate(row[name], row.pop(f"{name}_low"), row.pop(f"{name}_high"))
    return [MatrixEntry(**row) for row in rows]
