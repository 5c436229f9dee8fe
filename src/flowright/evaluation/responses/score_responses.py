"""Score the responses of a file: grade each by its row's rubric, checkers or instructions, keep
grades as they come, and average them. Missing and ungraded responses are counted apart and in no
mean.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flowright.config.loading import load_judge_server
from flowright.core.batch_calls import ServerDown, call_all
from flowright.core.errors import DataError, Failure, UserError
from flowright.core.files import check_writable, write_json
from flowright.core.off_loop import off_loop
from flowright.core.statistics import bootstrap
from flowright.core.tables import raise_problems, read_rows
from flowright.criteria.constraints.checkers import prompt_of, score
from flowright.criteria.constraints.language import NoTagger
from flowright.criteria.rubrics.points import axis_shares
from flowright.criteria.rubrics.rows import rubric_row, verif_row
from flowright.data.row_files import Fault, UnusableRow
from flowright.data.sources.dataset import UpstreamRow
from flowright.evaluation.responses.generate import AnswerProgress
from flowright.judging.build import fingerprint
from flowright.judging.measuring.benchmark_rows import RowJournal
from flowright.judging.rubrics.criteria_judge import BracketJudge, CriteriaCalls, criteria_judge
from flowright.judging.rubrics.rewards import RubricReward, Rules, VerifReward
from flowright.judging.verdict import DOWN, Judge, Verdict
from flowright.llm.replies import spoken_answer
from flowright.runs.run_files import sha256_of
from flowright.sandbox import Sandbox
from flowright.simulation.large_models import open_models

Reward = Literal["rubric", "verif", "constraints"]
Calls = CriteriaCalls | Literal["brackets"]
_CHECKS = 4  # at once, without a judge


@dataclass(frozen=True, slots=True)
class GraderSettings:
    """``judge`` is a model of the LLM file, or ``simulated``; ``config`` is a judge service's file,
    of which the sections judge, llm and simulated are read. ``calls``: all criteria in one, each in
    its own, or ``[[1]]`` as VerIF's own models answer. ``grades_empty``: a rubric's judge is asked
    about empty responses, too, which are 0 otherwise."""

    reward: Reward
    judge: str | None
    config: Path
    overrides: Sequence[str] = ()
    calls: Calls = "together"
    rules: Rules = "run"
    grades_empty: bool = False


@dataclass(frozen=True, slots=True)
class ResponseColumns:
    """Names of the columns that are read. ``source`` is the group of a row."""

    prompt: str = "prompt"
    responses: str = "responses"
    source: str = "data_source"
    reward_model: str = "reward_model"


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Settings of the command line."""

    graders: GraderSettings
    data: Path
    out: Path
    columns: ResponseColumns = field(default_factory=ResponseColumns)
    overwrite: bool = False


async def score_file(request: ScoreRequest, progress: AnswerProgress) -> dict[str, Any]:
    """Grade what is not graded yet; write and return the record. Raises UserError."""
    check_writable(request.out.parent)
    async with open_graders(request.graders) as opened:
        rows = read_responses(request.data, request.columns, opened.grader_of)
        about = {
            **opened.about,
            "data": sha256_of(request.data),
            "keys": asdict(request.columns),
        }
        record, _ = await grade_rows(rows, opened, about, request.out, request.overwrite, progress)
    return write_scores(request.data, opened, record, request.out)


def write_scores(
    data: Path,
    opened: "OpenGraders",
    figures: Mapping[str, Any],
    out: Path,
) -> dict[str, Any]:
    """Write and return the record: the figures, with the settings of the graders."""
    record = {"data": str(data), **opened.about, "simulated": opened.simulated, **figures}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    return record


# Graders.


@dataclass(frozen=True, slots=True)
class Grade:
    """``value`` in [0, 1]; ``share`` is a rubric's before it is clipped at 0, else the value. Both
    are None for an ungraded response, and ``why`` is the reason; ``is_down``: the judge did not
    reply. ``axes`` are the shares of the criteria of each axis with points above 0."""

    value: float | None
    share: float | None
    why: str = ""
    is_down: bool = False
    axes: Mapping[str, float] = field(default_factory=dict)


Grader = Callable[[str, str], Awaitable[Grade]]
"""Grades the text of a response; the sample's key seeds the judge."""
GraderOfRow = Callable[[Mapping[str, Any], str, Path], Grader]
"""Returns the grader of a row's columns, its place (file:row) and its file. Raises UnusableRow or
DataError for a row without anything to be graded by."""


@dataclass(frozen=True, slots=True)
class OpenGraders:
    """``about`` is what the grades depend on beside the responses."""

    grader_of: GraderOfRow
    concurrency: int
    about: dict[str, Any]
    simulated: bool = False


@asynccontextmanager
async def open_graders(settings: GraderSettings) -> AsyncIterator[OpenGraders]:
    """Open the graders. Raises UserError for a missing judge, ServerDown."""
    about: dict[str, Any] = {"reward": settings.reward}
    if settings.reward == "constraints":
        if settings.judge is not None:
            raise UserError(
                f"--judge {settings.judge}: constraints are checked by code; leave it out"
            )
        yield OpenGraders(row_graders("constraints", None, None), _CHECKS, about)
        return
    if settings.judge is None:
        raise UserError(
            f"--reward {settings.reward}: --judge NAME is required, a model of the LLM file, or "
            "VLLM_BASE_URL and VLLM_MODEL, which name its servers"
        )
    if settings.calls == "brackets" and settings.reward != "verif":
        raise UserError("--calls brackets: one verdict is for --reward verif")
    model = f'judge.model="{settings.judge}"'
    config = load_judge_server(settings.config, [model, *settings.overrides])
    about |= {
        "judge": settings.judge,
        "calls": settings.calls,
        "rules": settings.rules,
        "asked": fingerprint(config.judge.model_copy(update={"ask": "rubric"})),
    }
    async with (
        open_models([settings.judge], config.llm, config.simulated, None, ()) as models,
        Sandbox() as sandbox,
    ):
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was graded")
        client = models.clients[settings.judge].as_role("judge")
        if settings.calls == "brackets":  # of VerIF: a single question
            judge: Judge = BracketJudge(client, config.judge)
            grader_of = row_graders("verif", judge, sandbox, settings.rules)
        else:
            judge = criteria_judge(client, config.judge, settings.calls)
            empty = settings.grades_empty
            about |= {"empty": "graded"} if empty else {}
            grader_of = row_graders(
                settings.reward, judge, sandbox, settings.rules, settings.calls, empty
            )
        yield OpenGraders(grader_of, client.concurrency, about, models.simulated)


def row_graders(
    reward: Reward,
    judge: Judge | None,
    sandbox: Sandbox | None,
    rules: Rules = "run",
    calls: CriteriaCalls = "together",
    grades_empty: bool = False,
) -> GraderOfRow:
    """Return the graders of a reward; constraints need neither ``judge`` nor ``sandbox``. ``calls``
    is the way in which the judge puts a rubric's criteria into questions, ``grades_empty`` as in
    :class:`GraderSettings`."""
    if reward == "constraints":
        return _constraints_grader
    assert judge is not None
    assert sandbox is not None
    if reward == "verif":
        verif = VerifReward(judge, sandbox, rules)

        def verif_grader(values: Mapping[str, Any], where: str, path: Path) -> Grader:
            row = verif_row(values, where, path)

            async def grade(text: str, key: str) -> Grade:
                found = await verif.grade(row, text, key)
                return _grade(found.value, found.value, found.failure, found.verdicts)

            return grade

        return verif_grader
    rubric = RubricReward(judge, sandbox, calls=calls, grades_empty=grades_empty)

    def rubric_grader(values: Mapping[str, Any], where: str, path: Path) -> Grader:
        row = rubric_row(values, where, path)

        async def grade(text: str, key: str) -> Grade:
            found = await rubric.grade(row, text, key)
            grade = _grade(found.value, found.share, found.failure, found.verdicts)
            return replace(grade, axes=axis_shares(row.items, found.met))

        return grade

    return rubric_grader


def _grade(
    value: float | None,
    share: float | None,
    failure: Failure | None,
    verdicts: Sequence[Verdict],
) -> Grade:
    if failure is None:
        return Grade(value, share)
    is_down = any(verdict.status in DOWN for verdict in verdicts)
    return Grade(value, share, str(failure), is_down)


def _constraints_grader(values: Mapping[str, Any], where: str, path: Path) -> Grader:
    prompt = prompt_of(UpstreamRow(values, where, where.rpartition(":")[2]))

    async def grade(text: str, key: str) -> Grade:
        try:
            scored = await off_loop(lambda: score(prompt, text), text)
        except NoTagger as error:
            return Grade(None, None, str(error))
        value = float(all(scored.followed["canonical"].strict))
        return Grade(value, value)

    return grade


# Rows, and their grades.


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A row: its source, its grader, and the responses; None is missing. ``theme`` is the row's own
    label."""

    place: int
    source: str
    grader: Grader
    responses: tuple[str | None, ...]
    theme: str = ""


def read_responses(
    path: Path, columns: ResponseColumns, grader_of: GraderOfRow
) -> list[ResponseRow]:
    """Read all rows of a file. Raises DataError for rows that cannot be scored."""
    rows: list[ResponseRow] = []
    problems: list[str] = []
    has_column = False
    for number, (place, row) in enumerate(read_rows(path)):
        has_column |= columns.responses in row
        try:
            texts = texts_of(row.get(columns.responses), columns.responses)
            own = {"prompt": columns.prompt, "reward_model": columns.reward_model}
            renamed = {name: row.get(key) for name, key in own.items()}
            values = {**row, **renamed, "data_source": row.get(columns.source)}
            grader = grader_of(values, str(place), path)
            source = str(values["data_source"] or path.stem)
            rows.append(ResponseRow(number, source, grader, texts))
        except UnusableRow as error:
            problems.append(f"{place}: {error.why}")
        except DataError as error:
            problems += error.problems
    raise_problems(problems)
    if not rows:
        raise DataError(f"{path}: no rows in it")
    if not has_column:
        raise DataError(f"{path}: no column {columns.responses!r}")
    return rows


def texts_of(value: object, key: str) -> tuple[str | None, ...]:
    """Return the responses of a row; None for a missing one. Raises UnusableRow."""
    texts = [value] if isinstance(value, str | None) else value
    if not isinstance(texts, list) or not all(isinstance(one, str | None) for one in texts):
        why = f"{key} is neither a text nor a list of texts and nulls"
        raise UnusableRow(Fault.FORM, why)
    return tuple(texts)


def thinking_in(texts: Iterable[str | None]) -> int:
    """Return the number of responses that open with thinking, which no command scores."""
    return sum(text is not None and spoken_answer(text) != text for text in texts)


def key_of(row: ResponseRow, number: int) -> str:
    return f"{row.place}/{number}"


async def grade_rows(
    rows: Sequence[ResponseRow],
    opened: OpenGraders,
    about: dict[str, Any],
    out: Path,
    overwrite: bool,
    progress: AnswerProgress,
) -> tuple[dict[str, Any], dict[str, Grade]]:
    """Return the figures of the rows, and their grades, which a journal beside ``out`` keeps."""
    remedy = "give another --json, or --overwrite to start again"
    path = out.with_name(f"{out.stem}.grades.jsonl")
    with closing(RowJournal(path, about, overwrite, remedy)) as journal:
        total = sum(text is not None for row in rows for text in row.responses)
        done = progress(min(len(journal.kept), total), total)
        grades, whys = await grade_all(rows, journal, opened.concurrency, done)
    return record_of_scores(rows, grades, whys), grades


async def grade_all(
    rows: Sequence[ResponseRow],
    journal: RowJournal,
    concurrency: int,
    progress: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Grade], dict[str, int]]:
    """Return the grades by :func:`key_of`, and the counts of ungraded responses by reason. Grades
    in the journal are kept; ungraded responses are not, and a later call grades them. Raises
    ServerDown."""
    samples = {
        key_of(row, number): (row, text)
        for row in rows
        for number, text in enumerate(row.responses)
        if text is not None
    }
    kept = journal.decoded(
        lambda kept: Grade(kept["value"], kept["share"], axes=kept.get("axes", {})), samples
    )

    async def grade(key: str) -> Grade:
        row, text = samples[key]
        return await row.grader(text, key)

    def keep(key: str, grade: Grade) -> None:
        if grade.value is not None:
            journal.put(key, {"value": grade.value, "share": grade.share, "axes": grade.axes})

    results = await call_all(
        ((key, key) for key in samples),
        grade,
        concurrency=concurrency,
        outcome=lambda one: "reached" if not one.why else "down" if one.is_down else "neutral",
        why=lambda one: one.why,
        kept=kept,
        keep=keep,
        progress=progress,
        name="the judge",
        remedy="start its server, or check its address; the same command continues",
    )
    whys = Counter(one.why[:200] for one in results.values() if one.value is None)
    return {key: one for key, one in results.items() if one.value is not None}, dict(whys)


# Figures.


@dataclass(frozen=True, slots=True)
class SourceScore:
    """The mean score of a source's rows in [0, 1] with its interval at 95 % (a bootstrap over
    rows), None without a grade. ``missing`` and ``ungraded`` responses, and ``unscored_rows``
    without any graded one, are in no mean."""

    score: float | None
    low: float | None
    high: float | None
    rows: int
    responses: int
    missing: int
    ungraded: int
    unscored_rows: int


def scores(rows: Sequence[ResponseRow], grades: Mapping[str, Grade]) -> dict[str, SourceScore]:
    """Return the score of each source: the mean over rows of the mean over their responses."""
    sources: dict[str, list[ResponseRow]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append(row)
    return {source: _score(some, grades) for source, some in sources.items()}


def _score(rows: Sequence[ResponseRow], grades: Mapping[str, Grade]) -> SourceScore:
    groups = [_values(row, grades) for row in rows]
    mean, low, high = bootstrap(groups)
    responses = sum(map(len, groups))
    missing = sum(text is None for row in rows for text in row.responses)
    graded = sum(value is not None for group in groups for value in group)
    return SourceScore(
        score=mean,
        low=low,
        high=high,
        rows=len(rows),
        responses=responses,
        missing=missing,
        ungraded=responses - missing - graded,
        unscored_rows=sum(all(value is None for value in group) for group in groups),
    )


def _values(row: ResponseRow, grades: Mapping[str, Grade]) -> list[float | None]:
    keys = (key_of(row, number) for number in range(len(row.responses)))
    return [grade.value if (grade := grades.get(key)) else None for key in keys]


def record_of_scores(
    rows: Sequence[ResponseRow], grades: Mapping[str, Grade], whys: Mapping[str, int]
) -> dict[str, Any]:
    """Return the figures as JSON, with the values of each row: null for a missing or ungraded
    response."""
    found = scores(rows, grades)
    missing = [row.place + 1 for row in rows if None in row.responses]
    return {
        "missing": missing,
        "thinking": thinking_in(text for row in rows for text in row.responses),
        "scores": {f"test_score/{source}": one.score for source, one in found.items()},
        "sources": {source: asdict(one) for source, one in found.items()},
        "ungraded": dict(whys),
        "rows": [
            {"row": row.place, "source": row.source, "values": _values(row, grades)} for row in rows
        ],
    }
