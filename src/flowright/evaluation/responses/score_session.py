"""From a file with responses to its scores. ``scripts/score_responses.py`` is its command line."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_judge_server
from flowright.core.errors import UserError
from flowright.core.files import check_writable, write_json
from flowright.evaluation.responses.asking import ModelDown, Progress
from flowright.evaluation.responses.grading import Grade, Graders, Reward, graders
from flowright.evaluation.responses.scoring import (
    Keys,
    ResponseRow,
    grade_all,
    read_responses,
    record_of,
)
from flowright.judging.build import fingerprint
from flowright.judging.measuring.benchmark_rows import RowJournal
from flowright.judging.rubrics.criteria_judge import BracketJudge, CriteriaCalls, criteria_judge
from flowright.judging.rubrics.rewards import Rules
from flowright.runs.checkpoints import sha256_of
from flowright.sandbox import Sandbox
from flowright.simulation.opening import open_models

Calls = CriteriaCalls | Literal["brackets"]
_CHECKS = 4  # at once, where no judge is asked


@dataclass(frozen=True, slots=True)
class Judged:
    """Who grades: ``judge`` is a model of the LLM file, or ``simulated``; ``config`` is a judge
    service's file, of which the sections judge, llm and simulated are read. ``calls``: all criteria
    in one, each in its own, or ``[[1]]`` as VerIF's own models say it."""

    reward: Reward
    judge: str | None
    config: Path
    overrides: Sequence[str] = ()
    calls: Calls = "together"
    rules: Rules = "run"


@dataclass(frozen=True, slots=True)
class Scoring:
    """What the command line asks for."""

    judged: Judged
    data: Path
    out: Path
    keys: Keys = field(default_factory=Keys)
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class OpenGraders:
    """``about`` is what the grades depend on beside the responses."""

    made: Graders
    concurrency: int
    about: dict[str, Any]


@asynccontextmanager
async def open_graders(judged: Judged) -> AsyncIterator[OpenGraders]:
    """Raises UserError where a judge is needed and none named, ModelDown where it is silent."""
    about: dict[str, Any] = {"reward": judged.reward}
    if judged.reward == "constraints":
        if judged.judge is not None:
            raise UserError(
                f"--judge {judged.judge}: constraints are checked by code; leave it out"
            )
        yield OpenGraders(graders("constraints", None, None), _CHECKS, about)
        return
    if judged.judge is None:
        raise UserError(f"--reward {judged.reward}: --judge NAME says who grades")
    if judged.calls == "brackets" and judged.reward != "verif":
        raise UserError("--calls brackets: one verdict is for --reward verif")
    seat = f'judge.model="{judged.judge}"'
    config = load_judge_server(judged.config, [seat, *judged.overrides])
    about |= {
        "judge": judged.judge,
        "calls": judged.calls,
        "rules": judged.rules,
        "asked": fingerprint(config.judge.model_copy(update={"ask": "rubric"})),
    }
    async with (
        open_models([judged.judge], config.llm, config.simulated, None, ()) as models,
        Sandbox() as sandbox,
    ):
        if problems := await models.check():
            raise ModelDown(*problems, "nothing was graded")
        client = models.clients[judged.judge].as_role("judge")
        if judged.calls == "brackets":  # of VerIF: a single question
            made = graders("verif", BracketJudge(client, config.judge), sandbox, judged.rules)
        else:
            judge = criteria_judge(client, config.judge, judged.calls)
            made = graders(judged.reward, judge, sandbox, judged.rules, judged.calls)
        yield OpenGraders(made, config.llm.max_concurrency, about)


def grades_file(out: Path) -> Path:
    """Where grades are kept as they come, beside the record."""
    return out.with_name(f"{out.stem}.grades.jsonl")


async def score_file(asked: Scoring, progress: Progress) -> dict[str, Any]:
    """Grade what is not graded yet, and write and return the record. Raises UserError."""
    check_writable(asked.out.parent)
    async with open_graders(asked.judged) as opened:
        rows = read_responses(asked.data, asked.keys, opened.made)
        about = {**opened.about, "data": sha256_of(asked.data), "keys": asdict(asked.keys)}
        record, _ = await graded(rows, opened, about, asked.out, asked.overwrite, progress)
    return write_record(asked.judged, asked.data, opened, record, asked.out)


def write_record(
    judged: Judged, data: Path, opened: OpenGraders, found: dict[str, Any], out: Path
) -> dict[str, Any]:
    """The record as it is written, with who graded what."""
    simulated = judged.judge == SIMULATED
    record = {"data": str(data), **opened.about, "simulated": simulated, **found}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    return record


async def graded(
    rows: Sequence[ResponseRow],
    opened: OpenGraders,
    about: dict[str, Any],
    out: Path,
    overwrite: bool,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, Grade]]:
    """The figures of the rows, and their grades, which are kept beside ``out``."""
    choice = "give another --json, or --overwrite to start again"
    with closing(RowJournal(grades_file(out), about, overwrite, choice)) as ledger:
        there = sum(text is not None for row in rows for text in row.responses)
        tell = progress(min(len(ledger.kept), there), there)
        grades, whys = await grade_all(rows, ledger, opened.concurrency, tell)
    return record_of(rows, grades, whys), grades
