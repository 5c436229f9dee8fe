"""Generate responses to the prompts of a file: ask for missing ones, keep them as they come, and
write them with the file's columns. A missing response is null, and never an empty text.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowright.core.errors import DataError, UserError
from flowright.core.files import check_writable, disk_errors, replacing
from flowright.core.tables import parquet_batches, raise_problems, read_rows
from flowright.data.row_files import UnusableRow, turns_of
from flowright.data.sources.registry import no_prompts
from flowright.evaluation.responses.response_models import (
    Answer,
    AnsweringModel,
    DrawSettings,
    MissingAnswer,
    ModelName,
    ResponseQuestion,
    open_model,
)
from flowright.judging.measuring.benchmark_rows import RowJournal
from flowright.llm.chat import LENGTH_STOPS, Message
from flowright.runs.run_files import sha256_of

if TYPE_CHECKING:
    import pyarrow as pa

AnswerProgress = Callable[[int, int], Callable[[], None]]
"""Called with the number done and the total; returns a function to call after each sample."""
Rows = Sequence[tuple[Answer | None, ...]]
"""The answers to each question, None for a missing sample."""

_REMEDY = "give another file to write, or --overwrite to start again"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Settings of the command line."""

    named: ModelName
    settings: DrawSettings
    data: Path
    out: Path
    prompt_key: str = "prompt"
    response_key: str = "responses"
    start: int = 0
    limit: int | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Generated:
    """``answers`` by question; ``missing`` counts samples by reason; ``earlier`` answers are from
    earlier calls, ``tokens`` those of the others, which took ``seconds``."""

    answers: Rows
    missing: Mapping[str, int]
    earlier: int
    tokens: int
    seconds: float

    @property
    def flat(self) -> Iterator[Answer]:
        return (one for row in self.answers for one in row if one is not None)

    def lines(self) -> list[str]:
        """Return a summary as lines for people."""
        answers = [*self.flat]
        samples = sum(map(len, self.answers))
        truncated = sum(answer.finish in LENGTH_STOPS for answer in answers)
        lines = [
            f"{len(answers):,} of {samples:,} responses to {len(self.answers):,} prompts; "
            f"{truncated:,} of them truncated at --max-tokens"
        ]
        if new := len(answers) - self.earlier:
            rate = self.tokens / self.seconds
            lines.append(
                f"{new:,} are new: {self.tokens:,} tokens in {self.seconds:.0f} s, "
                f"{rate:.0f} a second"
            )
        if absent := samples - len(answers):
            reasons = ", ".join(f"{count:,} {why}" for why, count in self.missing.items())
            lines.append(f"{absent:,} are missing (null): {reasons}; the same command asks again")
        return lines


async def generate(request: GenerationRequest, progress: AnswerProgress) -> Generated:
    """Ask for missing responses and write the file with all rows, also after an interruption.
    Raises UserError."""
    if request.out.suffix != ".parquet":
        raise UserError(f"--output-path {request.out}: a .parquet file is written; name it so")
    table, questions = read_questions(
        request.data, request.prompt_key, request.start, request.limit
    )
    if request.response_key in table.column_names:
        raise DataError(
            f"--response-key {request.response_key}: the data has this column; choose another"
        )

    def write(rows: Rows) -> None:
        texts = [[None if one is None else one.text for one in row] for row in rows]
        _write_responses(table, request.response_key, texts, request.out)

    about = {"data": sha256_of(request.data), "prompt_key": request.prompt_key}
    return await generate_answers(
        request.named, request.settings, questions, about, request.out, request.overwrite, write,
        progress,
    )  # fmt: skip


async def generate_answers(
    named: ModelName,
    settings: DrawSettings,
    questions: Sequence[ResponseQuestion],
    about: Mapping[str, Any],
    out: Path,
    overwrite: bool,
    write: Callable[[Rows], None],
    progress: AnswerProgress,
) -> Generated:
    """Ask for the missing samples. ``about`` is what answers depend on beside the model and its
    settings: a journal beside ``out`` keeps the answers and is never mixed with others. ``write``
    gets all answers, also after an interruption. Raises UserError."""
    check_writable(out.parent)
    drawing = asdict(settings)
    del drawing["samples"]  # a later call may ask for more
    async with open_model(named, settings) as model:
        journal_about = {**about, **model.about, "drawing": drawing}
        path = out.with_name(f"{out.stem}.answers.jsonl")
        with closing(RowJournal(path, journal_about, overwrite, _REMEDY)) as journal:
            try:
                return await ask_missing(model, questions, settings.samples, journal, progress)
            finally:
                write(kept_answers(journal, questions, settings.samples))


def kept_answers(journal: RowJournal, questions: Sequence[ResponseQuestion], samples: int) -> Rows:
    """Return the answers in the journal. Raises RunError where it cannot be read."""
    kept = journal.decoded(lambda row: Answer(**row), journal.kept)
    return [tuple(kept.get(_key(question, i)) for i in range(samples)) for question in questions]


def _key(question: ResponseQuestion, sample: int) -> str:
    return f"{question.place}/{sample}"


async def ask_missing(
    model: AnsweringModel,
    questions: Sequence[ResponseQuestion],
    samples: int,
    journal: RowJournal,
    progress: AnswerProgress,
) -> Generated:
    """Return all answers: those of the journal, which are not asked again, and new ones. Failures
    are not kept. Raises ServerDown and RunError (a full disk)."""
    before = kept_answers(journal, questions, samples)
    wanted = {
        question: [i for i, answer in enumerate(row) if answer is None]
        for question, row in zip(questions, before, strict=True)
        if None in row
    }
    earlier = sum(answer is not None for row in before for answer in row)
    done = progress(earlier, len(questions) * samples)
    missing: dict[str, int] = {}
    tokens = 0

    def report(question: ResponseQuestion, sample: int, result: Answer | MissingAnswer) -> None:
        nonlocal tokens
        if isinstance(result, MissingAnswer):
            missing[result.why] = missing.get(result.why, 0) + 1
        else:
            journal.put(_key(question, sample), asdict(result))
            tokens += result.tokens
        done()

    began = time.monotonic()
    if wanted:
        await model.ask(wanted, report)
    seconds = time.monotonic() - began
    answers = kept_answers(journal, questions, samples)
    return Generated(answers, missing, earlier, tokens, seconds)


# Files.


def read_questions(
    path: Path, prompt_key: str, start: int = 0, limit: int | None = None
) -> "tuple[pa.Table, list[ResponseQuestion]]":
    """Return ``limit`` rows from ``start`` on with all their columns, and the question of each. A
    prompt is a text, or a conversation that ends with the user. Raises DataError for rows without
    one."""
    import pyarrow as pa  # half a second that --help does without

    if not path.exists():
        raise DataError(f"{path}: {no_prompts(path)}")
    if path.suffix == ".parquet":
        table = pa.Table.from_batches([*parquet_batches(path)] or _no_rows(path))
    else:
        rows = [row for _, row in read_rows(path)]
        try:
            table = pa.table(_columns(rows or _no_rows(path)))
        except pa.ArrowException as error:
            why = str(error).splitlines()[0]
            raise DataError(
                f"{path}: a column has values of several types, which parquet cannot hold: {why}"
            ) from None
    if prompt_key not in table.column_names:
        names = ", ".join(table.column_names)
        raise DataError(f"{path}: no column {prompt_key!r}; --prompt-key is one of {names}")
    chosen = table.slice(start, limit)
    if not chosen.num_rows:
        raise DataError(f"{path}: {table.num_rows} rows, and none from --start {start} on")
    questions: list[ResponseQuestion] = []
    problems: list[str] = []
    for place, prompt in enumerate(chosen[prompt_key].to_pylist(), start=start):
        try:
            questions.append(ResponseQuestion(place, _messages(prompt, prompt_key)))
        except UnusableRow as error:
            problems.append(f"{path}: row {place}: {error.why}")
    raise_problems(problems)
    return chosen, questions


def _messages(prompt: object, key: str) -> tuple[Message, ...]:
    if isinstance(prompt, str) and prompt.strip():
        return (Message("user", prompt),)
    return turns_of(prompt, key, "user")


def _columns(rows: list[dict[str, Any]]) -> "dict[str, pa.Array]":
    """Columns of all rows. Objects without a name in any row, which parquet cannot hold, are
    null."""
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        column = pa.array(values)
        if "struct<>" in str(column.type):
            column = pa.array([_without_empty(value) for value in values])
        columns[name] = column
    return columns


def _without_empty(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_empty(inner) for key, inner in value.items()} or None
    if isinstance(value, list):
        return [_without_empty(inner) for inner in value]
    return value


def _no_rows(path: Path) -> Any:
    raise DataError(f"{path}: no rows in it")


def _write_responses(
    table: "pa.Table", key: str, responses: Sequence[Sequence[str | None]], path: Path
) -> None:
    """Replace ``path`` by the table with its responses, at once. Raises RunError (a full disk)."""
    import pyarrow as pa
    from pyarrow import parquet

    column = pa.array([list(row) for row in responses], pa.list_(pa.string()))
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            parquet.write_table(table.append_column(key, column), part)
