"""Scores of files with responses: for each source of rows, the mean over rows of the mean over
their responses. What nobody could grade, and what is missing, is counted apart and in no mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError, RunError
from flowright.core.statistics import bootstrap
from flowright.data.row_files import Fault, UnusableRow
from flowright.data.sources.rows import read_table
from flowright.evaluation.responses.asking import ModelDown, in_turn
from flowright.evaluation.responses.grading import Grade, Grader, Graders
from flowright.judging.measuring.benchmark_rows import RowJournal

_PATIENCE = 20  # samples in a row that a judge did not grade, after which it counts as down
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of the columns that are read. ``source`` names the group of a row."""

    prompt: str = "prompt"
    responses: str = "responses"
    source: str = "data_source"
    reward_model: str = "reward_model"


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A row: its source, how a response to it is graded, and the responses; None is missing."""

    place: int
    source: str
    grader: Grader
    responses: tuple[str | None, ...]


def read_responses(path: Path, keys: Keys, made: Graders) -> list[ResponseRow]:
    """The rows of a file, all of them. Raises DataError that names those which cannot be scored."""
    rows: list[ResponseRow] = []
    problems: list[str] = []
    for place, row in enumerate(read_table(path)):
        where = f"{path}:{row.name}"
        try:
            texts = texts_of(row.get(keys.responses), keys.responses)
            own = {"prompt": keys.prompt, "reward_model": keys.reward_model}
            renamed = {name: row.values.get(key) for name, key in own.items()}
            values = {**row.values, **renamed, "data_source": row.values.get(keys.source)}
            grader = made(values, where, path)
            rows.append(ResponseRow(place, str(values["data_source"] or path.stem), grader, texts))
        except UnusableRow as error:
            problems.append(f"{where}: {error.why}")
        except DataError as error:
            problems += error.problems
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] * (len(problems) > _SHOWN)
        raise DataError(*problems[:_SHOWN], *more)
    if not rows:
        raise DataError(f"{path}: no rows in it")
    return rows


def texts_of(given: object, key: str) -> tuple[str | None, ...]:
    """A response or several; None for one that is missing. Raises UnusableRow."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(one, str | None) for one in texts):
        why = f"{key} is neither a text nor a list of texts and nulls"
        raise UnusableRow(Fault.FORM, why)
    return tuple(texts)


def key_of(row: ResponseRow, number: int) -> str:
    return f"{row.place}/{number}"


def kept_grades(ledger: RowJournal) -> dict[str, Grade]:
    """What the ledger has. Raises RunError where it cannot be read."""
    try:
        return {key: Grade(said["value"], said["share"]) for key, said in ledger.kept.items()}
    except KeyError as error:
        raise RunError(
            f"{ledger.path}: what was said cannot be read ({error}); --overwrite starts again"
        ) from None


async def grade_all(
    rows: Sequence[ResponseRow],
    ledger: RowJournal,
    concurrency: int,
    progress: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Grade], dict[str, int]]:
    """Grades by :func:`key_of`, and why others are missing, by reason how many. What the ledger has
    is not graded again; what could not be graded is not kept in it. Raises ModelDown where nothing
    is graded any more."""
    grades = kept_grades(ledger)
    left = [
        (row, number, text)
        for row in rows
        for number, text in enumerate(row.responses)
        if text is not None and key_of(row, number) not in grades
    ]
    whys: dict[str, int] = {}
    failures = 0

    async def work(sample: tuple[ResponseRow, int, str]) -> None:
        nonlocal failures
        row, number, text = sample
        key = key_of(row, number)
        grade = await row.grader(text, key)
        progress()
        if grade.value is not None:
            failures, grades[key] = 0, grade
            ledger.put(key, {"value": grade.value, "share": grade.share})
            return
        failures += 1
        why = grade.why[:200]
        whys[why] = whys.get(why, 0) + 1
        if failures >= _PATIENCE:
            raise ModelDown(
                f"{failures} responses in a row could not be graded: {why}",
                "mend that, and the same command goes on; what was graded is kept",
            )

    await in_turn(left, concurrency, work)
    return grades, whys


@dataclass(frozen=True, slots=True)
class SourceScore:
    """The score of a source's rows in [0, 1] with its interval at 95 % (a bootstrap over rows),
    None where nothing was graded. ``missing`` responses are not there, ``ungraded`` ones nobody
    could grade, ``unscored_rows`` have no response that was graded: none of them is in the mean."""

    score: float | None
    low: float | None
    high: float | None
    rows: int
    responses: int
    missing: int
    ungraded: int
    unscored_rows: int


def scores(rows: Sequence[ResponseRow], grades: Mapping[str, Grade]) -> dict[str, SourceScore]:
    """Of each source, in the order in which they come."""
    sources: dict[str, list[ResponseRow]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append(row)
    return {source: _score(some, grades) for source, some in sources.items()}


def _score(rows: Sequence[ResponseRow], grades: Mapping[str, Grade]) -> SourceScore:
    groups = [
        [
            grade.value if (grade := grades.get(key_of(row, number))) else None
            for number in range(len(row.responses))
        ]
        for row in rows
    ]
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


def record_of(
    rows: Sequence[ResponseRow], grades: Mapping[str, Grade], whys: Mapping[str, int]
) -> dict[str, Any]:
    """Plain JSON: the figures, and of each row its values, null for what is missing or ungraded."""
    found = scores(rows, grades)
    values = [
        [
            grade.value if (grade := grades.get(key_of(row, number))) else None
            for number in range(len(row.responses))
        ]
        for row in rows
    ]
    return {
        "scores": {f"test_score/{source}": one.score for source, one in found.items()},
        "sources": {source: asdict(one) for source, one in found.items()},
        "ungraded": dict(whys),
        "rows": [
            {"row": row.place, "source": row.source, "values": some}
            for row, some in zip(rows, values, strict=True)
        ],
    }
