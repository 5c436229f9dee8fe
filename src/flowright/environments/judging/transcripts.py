"""Judgements to train on: the judge's own prompt for a labelled row, and a thought with a verdict
that agrees with the label (rejection sampling). ``flowright data transcripts`` is the command.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown, call_all
from flowright.core.errors import Blame, FailureError, Reason, UserError, boundary
from flowright.data.contamination import TrainedOn
from flowright.data.preference_files import write_training_file
from flowright.data.task import Pair
from flowright.environments.judging.config import JudgingSection
from flowright.environments.judging.frames import (
    FrameWording,
    Reading,
    frame,
    read,
    reply_text,
    wording_of,
)
from flowright.environments.judging.rows import TOP_LABEL, JudgedRow, SftRow
from flowright.environments.judging.tasks import load_rows, trained_on
from flowright.judging.build import build_judge, fingerprint
from flowright.judging.measuring.benchmark_rows import RowJournal, journal_path
from flowright.judging.payloads import prompt_text
from flowright.judging.verdict import Judge, JudgeQuery, Status
from flowright.llm.chat import ChatModel, ChatRequest, Message
from flowright.simulation.large_models import open_models

Complete = Callable[[Sequence[Message], int], Awaitable[str]]
"""From messages and a seed to a model's reply. Raises FailureError if its server fails."""

Judgement = Callable[[JudgedRow, int], Awaitable[str]]
"""From a row and a seed to a completion in the judge's form. Raises FailureError likewise."""

_NO_VERDICT: frozenset[Status] = frozenset({"abstain", "declined", "parse_error", "truncated"})
"""Failures of the judge itself; any other missing verdict is its server's."""

By = Literal["model", "judge", "label"]
"""Source of the thoughts: a model that is shown the trained judge's own prompt; a judge of this
package, in its own words; or none, a verdict without a thought, which is the row's label."""


@dataclass(frozen=True, slots=True)
class RowAttempts:
    """Attempts at a row: the thought that is kept, if any, how each attempt before it ended, and
    the last failure of a server."""

    thought: str | None
    ends: tuple[str, ...] = ()
    failure: str = ""

    @property
    def outcome(self) -> Literal["reached", "down"]:
        """``down`` if no attempt got a reply."""
        silent = self.thought is None and {*self.ends} == {"failed"}
        return "down" if silent else "reached"

    @property
    def is_final(self) -> bool:
        """False if a server's failure can be the reason that there is no thought."""
        return self.thought is not None or "failed" not in self.ends


@dataclass(frozen=True, slots=True)
class Transcripts:
    """Transcripts in the order of their rows; ``lost`` rows have none. The other fields count
    attempts: ``refused`` contradict the label, ``unreadable`` are not in the judge's form or have
    no thought, ``failed`` got no reply, which is no fact about the row."""

    rows: tuple[SftRow, ...]
    refused: int
    unreadable: int
    failed: int
    lost: int

    def __str__(self) -> str:
        return (
            f"{len(self.rows):,} transcripts kept, {self.lost:,} rows without one; attempts: "
            f"{self.refused:,} against the label, {self.unreadable:,} unreadable, {self.failed:,} "
            "without a reply"
        )


def transcript(
    row: JudgedRow, thought: str, words: FrameWording, confidence: float | None = None
) -> SftRow:
    """Return the judge's prompt for a row, and a reply with this thought and the row's label."""
    asked = frame(row, words, confidence is not None)
    reply = reply_text(thought, row.label, confidence)
    return SftRow((*asked, Message("assistant", reply)), row.source, row.id)


def by_model(complete: Complete, words: FrameWording) -> Judgement:
    """Return the judgements of a model that is shown the judge's own prompt."""

    async def judgement(row: JudgedRow, seed: int) -> str:
        return await complete(frame(row, words), seed)

    return judgement


def by_judge(judge: Judge) -> Judgement:
    """Return the judgements of a judge of this package, on a scale of 0 to 4 or between two. Its
    reason, or what its model thought before that, is the thought."""

    async def judgement(row: JudgedRow, seed: int) -> str:
        verdict = await judge.judge(_query(row, seed))
        if verdict.score is None:
            if verdict.status in _NO_VERDICT:
                return ""
            raise FailureError(Reason.JUDGE_FAILED, verdict.cause)
        thoughts = [reply.reasoning for reply in verdict.replies[-1:] if reply.reasoning]
        thought = (thoughts or [verdict.reason])[0].strip()
        if not isinstance(row, Pair):
            return reply_text(thought, int(TOP_LABEL * verdict.score + 0.5))
        better = "tie" if verdict.score == 0.5 else "first" if verdict.score > 0.5 else "second"
        return reply_text(thought, better)

    return judgement


def _query(row: JudgedRow, seed: int) -> JudgeQuery:
    question = prompt_text(
        [{"role": turn.role, "content": turn.content} for turn in row.conversation]
    )
    first, second = (row.first, row.second) if isinstance(row, Pair) else (row.answer, None)
    return JudgeQuery(question, first, "", rival=second, key=f"transcript/{seed}/{row.id}")


async def transcribe(
    rows: Sequence[JudgedRow],
    judgement: Judgement,
    words: FrameWording,
    tries: int,
    seed: int = 0,
    at_once: int = 64,
    done: Mapping[str, RowAttempts] | None = None,
    keep: Callable[[str, RowAttempts], None] = lambda id, made: None,
    progress: Callable[[], None] = lambda: None,
) -> Transcripts:
    """Return for each row the first of ``tries`` completions whose verdict is its label. The seed
    of a try is a function of ``seed``, the row's place and the try. Rows whose attempts are
    ``done``, by id, are not tried again; ``keep`` gets the attempts of others, and ``progress`` is
    called after each.

    Raises ServerDown after twenty rows in a row that get no reply at all.
    """

    async def attempts(placed: tuple[int, JudgedRow]) -> RowAttempts:
        place, row = placed
        first, ends, failure = (seed * len(rows) + place) * tries, list[str](), ""
        for number in range(first, first + tries):
            thought, end, why = await _try(row, judgement, number)
            if thought is not None:
                return RowAttempts(thought, tuple(ends), failure)
            ends.append(end)
            failure = why or failure
        return RowAttempts(None, tuple(ends), failure)

    found = await call_all(
        [(row.id, (place, row)) for place, row in enumerate(rows)],
        attempts,
        concurrency=at_once,
        outcome=lambda made: made.outcome,
        why=lambda made: made.failure,
        kept=done or {},
        keep=lambda id, made: keep(id, made) if made.is_final else None,
        progress=progress,
    )
    every = [found[row.id] for row in rows]
    ends = [end for made in every for end in made.ends]
    return Transcripts(
        tuple(
            transcript(row, made.thought, words)
            for row, made in zip(rows, every, strict=True)
            if made.thought is not None
        ),
        ends.count("refused"),
        ends.count("unreadable"),
        ends.count("failed"),
        sum(made.thought is None for made in every),
    )


async def _try(row: JudgedRow, judgement: Judgement, seed: int) -> tuple[str | None, str, str]:
    """Return the thought of a verdict that is the label, the reason if there is none, and the
    server's failure if that is the reason."""
    text = ""
    with boundary("transcript") as caught:
        text = await judgement(row, seed)
    if caught.failure is not None:
        # A reply that the model owes to itself, such as one that was cut, is no failed server.
        if caught.failure.blame is Blame.INFRASTRUCTURE:
            return None, "failed", caught.failure.message
        return None, "unreadable", ""
    reading = read(text, "pairwise" if isinstance(row, Pair) else "pointwise")
    if not isinstance(reading, Reading) or not reading.thought:
        return None, "unreadable", ""
    if reading.verdict != row.label:
        return None, "refused", ""
    return reading.thought, "", ""


# The command.


@dataclass(frozen=True, slots=True)
class TranscriptRequest:
    """Options of the command. ``judge`` is a name of ``llm.file``, None with ``by`` label;
    ``limit``: of the rows of each side."""

    rows: JudgingSection
    judge: str | None
    config: Path
    out: Path
    by: By = "model"
    kept_as: Literal["parquet", "jsonl"] = "parquet"
    tries: int = 4
    temperature: float = 0.7
    max_tokens: int = 2048
    seed: int = 0
    limit: int | None = None
    overwrite: bool = False
    overrides: Sequence[str] = ()

    @property
    def words(self) -> FrameWording:
        return wording_of(self.rows.wording)


@dataclass(frozen=True, slots=True)
class TranscriptFiles:
    """By side (``train``, ``val``) the file and its transcripts."""

    sides: Mapping[str, tuple[Path, Transcripts]]
    lines: Sequence[str]
    simulated: bool


Progress = Callable[[str, int], Callable[[], None]]
"""From a side and the number of its rows to the function that is called after each row."""


async def make_transcripts(request: TranscriptRequest, progress: Progress) -> TranscriptFiles:
    """Write ``sft_train``, ``sft_val`` and ``trained_on.json``; the same call resumes. Raises
    UserError, and ServerDown."""
    found = load_rows(request.rows, request.seed)
    limit = request.limit
    found = replace(found, train=found.train[:limit], held_out=found.held_out[:limit])
    sides = {"train": found.train, "val": found.held_out}
    if request.by == "label":
        made = {
            side: Transcripts(tuple(transcript(row, "", request.words) for row in rows), 0, 0, 0, 0)
            for side, rows in sides.items()
        }
    else:
        made = await _thought(request, sides, found.digest, progress)
    files: dict[str, tuple[Path, Transcripts]] = {}
    for side, done in made.items():
        path = request.out / f"sft_{side}.{request.kept_as}"
        write_training_file(path, "sft", [_written(row) for row in done.rows])
        files[side] = path, done
    own = trained_on(found, request.rows)
    (own | (TrainedOn.read(request.out) or TrainedOn())).write(request.out)
    return TranscriptFiles(files, found.lines, request.judge == SIMULATED)


def _written(row: SftRow) -> dict[str, Any]:
    messages = [{"role": turn.role, "content": turn.content} for turn in row.messages]
    return {"id": row.id, "source": row.source, "messages": messages}


async def _thought(
    request: TranscriptRequest,
    sides: Mapping[str, Sequence[JudgedRow]],
    digest: str,
    progress: Progress,
) -> dict[str, Transcripts]:
    """Transcribe both sides, with the attempts kept beside the transcripts."""
    if request.judge is None:
        raise UserError("--judge: name who is asked, or give --by label")
    named = [f'judge.model="{request.judge}"', "judge.panel=[]", *request.overrides]
    config = load_judge_server(request.config, named)
    settings = ("judge", "by", "tries", "temperature", "max_tokens", "seed", "limit")
    about = {name: getattr(request, name) for name in settings} | {
        "rows": digest,
        "wording": request.words.model_dump(),
        "house": fingerprint(config.judge) if request.by == "judge" else None,
    }
    made: dict[str, Transcripts] = {}
    async with _judgement(request, request.judge, config) as (judgement, at_once):
        path = journal_path(request.out / "transcripts.json")
        with RowJournal(path, about, request.overwrite) as journal:
            done = journal.decoded(
                lambda record: RowAttempts(record["thought"], tuple(record["ends"])), journal.kept
            )
            for side, rows in sides.items():
                advance = progress(side, len(rows))
                for _ in {row.id for row in rows} & done.keys():
                    advance()
                made[side] = await transcribe(
                    rows,
                    judgement,
                    request.words,
                    request.tries,
                    request.seed,
                    at_once,
                    done,
                    lambda id, attempts: journal.put(id, asdict(attempts)),
                    advance,
                )
    return made


@asynccontextmanager
async def _judgement(
    request: TranscriptRequest, judge: str, config: JudgeServerConfig
) -> AsyncIterator[tuple[Judgement, int]]:
    if request.by == "model" and judge == SIMULATED:
        raise UserError(
            "--judge simulated: the embedded server knows the prompts of this package's judges "
            "only; use --by judge"
        )
    async with open_models([judge], config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was written")
        model = models.clients[judge].as_role("judge")
        if request.by == "model":
            yield by_model(_completions(model, request), request.words), model.concurrency
            return
        alone = {"panel": (), "meta": None, "quorum": 1, "cache_size": 0, "breaker_threshold": 0}
        section = config.judge.model_copy(
            update={**alone, "second_reading": False, "both_orders": False}
        )
        judgements = {
            way: by_judge(build_judge(section.model_copy(update={"ask": way}), model))
            for way in ("pairwise", "pointwise")
        }

        async def judgement(row: JudgedRow, seed: int) -> str:
            return await judgements["pairwise" if isinstance(row, Pair) else "pointwise"](row, seed)

        yield judgement, model.concurrency


def _completions(model: ChatModel, request: TranscriptRequest) -> Complete:
    async def complete(messages: Sequence[Message], seed: int) -> str:
        reply = await model.chat(
            ChatRequest(
                messages,
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                seed=seed % 2**31,
            )
        )
        if reply.reasoning and not reply.text.lstrip().startswith("<think>"):
            return f"<think>{reply.reasoning}</think>{reply.text}"
        return reply.text

    return complete
