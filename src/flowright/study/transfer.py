"""The transfer matrix of a study: what each trained policy answered, graded by the judge of every
arm, and by gold.

Runs keep their answers (``answers.jsonl.zst``); a judge is asked about each different query once,
and what it said stands in ``transfer/JUDGE.jsonl`` from then on. What no judge said of an answer is
counted, and is in no mean.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from flowright.config import load_config
from flowright.config.root import Config
from flowright.core.errors import RunError, UserError
from flowright.core.files import disk_errors
from flowright.environments.environment import Environment, make_environment
from flowright.judging.verdict import DOWN, JudgeQuery, Status, Verdict
from flowright.runs.run_files import read_answers
from flowright.study.cells import Cell, Run
from flowright.study.journal import is_finished

FOLDER = "transfer"
AT_ONCE = 256
"""Queries that are put to a judge before what it said is written."""
FEWEST = 32
"""So many queries in one go without any verdict, as nobody answers: the judge is down."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An attempt of a trained policy. ``query`` is the hash of what a judge is asked; None where
    the policy gave no answer, which is wrong whoever judges. ``lost``: by a failure of ours."""

    task: str
    query: str | None
    gold: float | None
    lost: bool


@dataclass(slots=True)
class Answers:
    """All answers that finished runs kept, by run; ``queries`` by their hashes."""

    by_run: dict[str, list[Answer]] = field(default_factory=dict)
    queries: dict[str, JudgeQuery] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    """Finished runs that kept none."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a judge said of a query; ``right`` is None where it said nothing."""

    status: Status
    right: float | None

    @property
    def down(self) -> bool:
        """Whether it is asked again: nobody was there to answer."""
        return self.status in DOWN or self.status == "overloaded"


@dataclass(slots=True)
class Grader:
    """A judge of the study. ``cells`` are the arms that have it; ``configs`` those of its runs, by
    seed; ``said`` is by seed and query, ``names`` who it is, for people."""

    name: str
    cells: list[str]
    configs: dict[int, Config]
    names: tuple[str, ...]
    said: dict[int, dict[str, Said]] = field(default_factory=dict)


Progress = Callable[[str, int, int], None]
"""Called with a judge's name, and how many of how many queries it has been asked."""


def answers_of(runs: Iterable[Run]) -> Answers:
    """Those of the finished runs."""
    found = Answers()
    for run in runs:
        if not is_finished(run.folder):
            continue
        kept = [_answer(row, found.queries) for row in read_answers(run.folder)]
        if kept:
            found.by_run[run.name] = kept
        else:
            found.without.append(run.name)
    return found


def _answer(row: Mapping[str, Any], queries: dict[str, JudgeQuery]) -> Answer:
    given = row["query"]
    if given is None:
        return Answer(row["task"], None, row["gold"], row["lost"])
    asked = {**given, "key": ""}
    name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
    # Of one query there is one key, whoever wrote the answer: seeds of retries are derived from it.
    asked |= {"key": name, "alternatives": tuple(given["alternatives"]), "criteria": ()}
    queries.setdefault(name, JudgeQuery(**asked))
    return Answer(row["task"], name, row["gold"], row["lost"])


def graders_of(base: Path, cells: Sequence[Cell], runs: Sequence[Run]) -> list[Grader]:
    """The judges of the arms, each once. Raises RunError where an arm's environment has none."""
    found: dict[str, Grader] = {}
    for cell in cells:
        configs = {r.seed: load_config(base, r.overrides) for r in runs if r.cell == cell}
        first = next(iter(configs.values()))
        key = digest_of(make_environment(first))
        if key in found:
            found[key].cells.append(cell.name)
        else:
            found[key] = Grader(cell.name, [cell.name], configs, first.judge_names)
    return [*found.values()]


def digest_of(environment: Environment) -> str:
    """A hash of all that decides its judge's verdicts. Raises RunError where it has no judge."""
    settings = environment.judge_settings()
    if settings is None:
        name = environment.config.environment
        raise RunError(f"--transfer: environment {name} has no judge of single answers")
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def grade(
    grader: Grader, runs: Sequence[Run], answers: Answers, out: Path, tell: Progress
) -> None:
    """Ask a judge about all answers that it has not been asked about. What it said before is read
    from ``out``. Raises UserError where it cannot be asked, or no more."""
    queries: dict[str, list[int]] = {}  # by judge, the seeds whose judge it is
    environments = {seed: make_environment(config) for seed, config in grader.configs.items()}
    for seed, environment in environments.items():
        queries.setdefault(digest_of(environment), []).append(seed)
    for digest, seeds in queries.items():
        of_seeds = {run.name for run in runs if run.seed in seeds}
        asked = dict.fromkeys(
            answer.query
            for name, given in answers.by_run.items()
            if name in of_seeds
            for answer in given
            if answer.query is not None
        )
        path = out / FOLDER / f"{digest}.jsonl"
        said = read_said(path)
        for seed in seeds:
            grader.said[seed] = said
        left = [name for name in asked if name not in said or said[name].down]
        if left:
            environment = environments[seeds[0]]
            await _ask(grader.name, environment, left, answers.queries, path, said, tell)


async def _ask(
    name: str,
    environment: Environment,
    left: Sequence[str],
    queries: Mapping[str, JudgeQuery],
    path: Path,
    said: dict[str, Said],
    tell: Progress,
) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    async with environment.open_judge() as judge:
        done = 0
        for start in range(0, len(left), AT_ONCE):
            some = left[start : start + AT_ONCE]
            verdicts = await asyncio.gather(*(judge.judge(queries[query]) for query in some))
            fresh = {q: said_of(verdict) for q, verdict in zip(some, verdicts, strict=True)}
            said |= fresh
            _append(path, fresh)
            done += len(some)
            tell(name, done, len(left))
            if len(some) >= FEWEST and all(one.down for one in fresh.values()):
                raise RunError(
                    f"{name}: its judge gave no verdict on {len(some)} answers in a row "
                    f"({verdicts[0].status}: {verdicts[0].reason}); what it said before is kept"
                )


def said_of(verdict: Verdict) -> Said:
    """What counts of a verdict."""
    right = None if verdict.correct is None else float(verdict.correct)
    return Said(verdict.status, right)


def _append(path: Path, fresh: Mapping[str, Said]) -> None:
    lines = (
        json.dumps({"query": query, "status": said.status, "right": said.right}) + "\n"
        for query, said in fresh.items()
    )
    with disk_errors(path), path.open("a", encoding="utf-8") as out:
        out.write("".join(lines))


def read_said(path: Path) -> dict[str, Said]:
    """What a judge said, by query, the last word of several; a torn last line is not there. Raises
    RunError for other lines that cannot be read."""
    if not path.exists():
        return {}
    found: dict[str, Said] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line else None
            if row is not None:
                if row["status"] not in get_args(Status):
                    raise ValueError(row["status"])
                found[row["query"]] = Said(row["status"], row["right"])
        except (ValueError, KeyError, TypeError):
            if number < len(lines):
                raise RunError(f"{path}:{number}: damaged; take it out") from None
            with disk_errors(path):  # what is appended must not continue it
                path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    return found


def grade_all(
    graders: Sequence[Grader], runs: Sequence[Run], answers: Answers, out: Path, tell: Progress
) -> list[str]:
    """Ask all judges, one after another; a line for each that could not be asked, or not about
    everything. What the others said stands."""
    missing: list[str] = []
    for grader in graders:
        try:
            asyncio.run(grade(grader, runs, answers, out, tell))
        except UserError as error:
            missing += [f"{grader.name}: {line}" for line in error.problems]
    return missing
