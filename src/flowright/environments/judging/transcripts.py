"""Judgements to learn from: a prompt of the judge's own frame with a thought and a verdict that
agrees with the label (rejection sampling). Who thinks is a model or a judge of the house; nothing
is trained here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import Blame, FailureError, Reason, RunError, UserError, boundary
from flowright.data.contamination import TrainedOn
from flowright.data.preference_files import write_training_file
from flowright.data.preferences import Pair, Preferred, Turn
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
from flowright.environments.row_tasks import RowSets
from flowright.judging.build import build_judge, fingerprint
from flowright.judging.measuring.benchmark_rows import RowJournal, journal_path
from flowright.judging.payloads import prompt_text
from flowright.judging.verdict import Judge, JudgeQuery, Status
from flowright.llm.chat import ChatModel, ChatRequest, Message
from flowright.simulation.large_models import open_models

Ask = Callable[[Sequence[Message], int], Awaitable[str]]
"""A model that is asked: messages and a seed in, its reply out. Raises FailureError where its
server fails."""

Thinker = Callable[[JudgedRow, int], Awaitable[str]]
"""A row and a seed in, a completion in the judge's form out."""

_PATIENCE = 20  # rows without any reply from the start after which a judge counts as down
_NO_VERDICT: frozenset[Status] = frozenset({"abstain", "declined", "parse_error", "truncated"})
"""What a judge itself did not manage; all else without a verdict is its server's."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a row: the thought that is kept, and why each try before it was not."""

    thought: str | None
    ends: tuple[str, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Whether no try got a reply."""
        return self.thought is None and {*self.ends} == {"failed"}

    @property
    def is_unknown(self) -> bool:
        """Whether a server's failure may be why there is no transcript."""
        return self.thought is None and "failed" in self.ends


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that were tried before, by id, and where others are kept as they come."""

    done: Mapping[str, Tried]
    keep: Callable[[str, Tried], None] = lambda id, tried: None


@dataclass(frozen=True, slots=True)
class Transcripts:
    """``rows`` in the order of those that they are of. The others count attempts: ``refused`` said
    something else than the label, ``unreadable`` nothing in the judge's form, or gave no thought;
    ``failed`` got no reply, which says nothing of the row. ``lost`` rows have no transcript."""

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


def label_of(row: JudgedRow) -> int | Preferred:
    """What a judge should say."""
    return row.label


def transcript(
    row: JudgedRow, thought: str, words: FrameWording, confidence: float | None = None
) -> SftRow:
    """The judge's prompt for a row, and a reply with this thought that says its label."""
    asked = frame(row, words, confidence is not None)
    turns = [Turn(message.role, message.content) for message in asked]
    reply = reply_text(thought, label_of(row), confidence)
    return SftRow((*turns, Turn("assistant", reply)), row.source, row.id)


def labelled(rows: Sequence[JudgedRow], words: FrameWording) -> Transcripts:
    """Verdicts without a thought: each row's label, and nobody is asked."""
    return Transcripts(tuple(transcript(row, "", words) for row in rows), 0, 0, 0, 0)


def by_model(ask: Ask, words: FrameWording) -> Thinker:
    """A model that is shown the judge's own prompt."""

    async def think(row: JudgedRow, seed: int) -> str:
        return await ask(frame(row, words), seed)

    return think


def by_judge(judge: Judge) -> Thinker:
    """A judge of the house: its verdict on a scale of 0 to 4, or between two; its reason, or what
    its model thought before that, is the thought."""

    async def think(row: JudgedRow, seed: int) -> str:
        verdict = await judge.judge(_query(row, seed))
        if verdict.score is None:
            if verdict.status in _NO_VERDICT:
                return ""
            raise FailureError(Reason.JUDGE_FAILED, f"{verdict.status}: {verdict.reason}")
        thoughts = [reply.reasoning for reply in verdict.replies[-1:] if reply.reasoning]
        thought = (thoughts or [verdict.reason])[0].strip()
        if not isinstance(row, Pair):
            return reply_text(thought, int(TOP_LABEL * verdict.score + 0.5))
        said = "tie" if verdict.score == 0.5 else "first" if verdict.score > 0.5 else "second"
        return reply_text(thought, said)

    return think


async def transcribe(
    rows: Sequence[JudgedRow],
    think: Thinker,
    words: FrameWording,
    tries: int,
    seed: int = 0,
    at_once: int = 64,
    kept: Kept | None = None,
    tell: Callable[[], None] = lambda: None,
) -> Transcripts:
    """For each row the first of ``tries`` completions whose verdict is its label. Each try has a
    seed of its own, a function of ``seed``, the row's place and the try. What is ``kept`` by a
    row's id is not tried again; ``tell`` is called as each row is done.

    Raises ServerDown where the first twenty rows get no reply at all, one and all.
    """
    kept = Kept({}) if kept is None else kept
    waiting = iter([(place, row) for place, row in enumerate(rows) if row.id not in kept.done])
    left = sum(row.id not in kept.done for row in rows)
    done = dict(kept.done)
    unreached, was_reached = 0, left < len(rows)

    async def work() -> None:
        nonlocal unreached, was_reached
        for place, row in waiting:
            first = (seed * len(rows) + place) * tries
            tried = await _tries(row, think, range(first, first + tries))
            done[row.id] = tried
            tell()
            if not tried.is_unknown:
                kept.keep(row.id, tried)
            was_reached = was_reached or not tried.is_silent
            unreached += not was_reached
            if unreached >= _PATIENCE:
                raise ServerDown(f"no reply to the first {unreached} rows; is its server up?")

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, left)):
                group.create_task(work())
    except* ServerDown as several:
        raise several.exceptions[0] from None
    every = [done[row.id] for row in rows]
    ends = [end for tried in every for end in tried.ends]
    return Transcripts(
        tuple(
            transcript(row, tried.thought, words)
            for row, tried in zip(rows, every, strict=True)
            if tried.thought is not None
        ),
        ends.count("refused"),
        ends.count("unreadable"),
        ends.count("failed"),
        sum(tried.thought is None for tried in every),
    )


async def _tries(row: JudgedRow, think: Thinker, seeds: Sequence[int]) -> Tried:
    ends: list[str] = []
    for seed in seeds:
        thought, end = await _try(row, think, seed)
        if thought is not None:
            return Tried(thought, tuple(ends))
        ends.append(end)
    return Tried(None, tuple(ends))


async def _try(row: JudgedRow, think: Thinker, seed: int) -> tuple[str | None, str]:
    """The thought of a verdict that is the label, or why there is none."""
    text = ""
    with boundary("transcript") as caught:
        text = await think(row, seed)
    if caught.failure is not None:
        # A reply that the model owes to itself, such as one that was cut, is no failed server.
        return None, "failed" if caught.failure.blame is Blame.INFRASTRUCTURE else "unreadable"
    reading = read(text, "pairwise" if isinstance(row, Pair) else "pointwise")
    if not isinstance(reading, Reading) or not reading.thought:
        return None, "unreadable"
    if reading.verdict != label_of(row):
        return None, "refused"
    return reading.thought, ""


def _query(row: JudgedRow, seed: int) -> JudgeQuery:
    question = prompt_text(
        [{"role": turn.role, "content": turn.content} for turn in row.conversation]
    )
    first, second = (row.first, row.second) if isinstance(row, Pair) else (row.answer, None)
    return JudgeQuery(question, first, "", rival=second, key=f"transcript/{seed}/{row.id}")


By = Literal["model", "judge", "label"]
"""Who thinks: a model that is shown the trained judge's own prompt; a judge of the house, in its
own words; or nobody: a verdict without a thought, which is the row's label."""


@dataclass(frozen=True, slots=True)
class Making:
    """What the command line asks for. ``judge`` is a name of ``llm.file``, or None where nobody
    is asked; ``limit``: of the rows of each side."""

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


@dataclass(frozen=True, slots=True)
class Made:
    """By side (``train``, ``val``) the file and what became of its rows."""

    sides: Mapping[str, tuple[Path, Transcripts]]
    lines: Sequence[str]
    simulated: bool


async def make_transcripts(
    making: Making, progress: Callable[[str, int], Callable[[], None]]
) -> Made:
    """Write ``sft_train``, ``sft_val`` and ``trained_on.json``; a call that was cut off goes on.
    Raises UserError, ServerDown where nobody replies."""
    found = load_rows(making.rows, making.seed)
    limit = making.limit
    found = replace(found, train=found.train[:limit], held_out=found.held_out[:limit])
    if making.by == "label":
        sides = {side: labelled(rows, _words(making)) for side, rows in _sides(found).items()}
    else:
        sides = await _thought(making, found, progress)
    made: dict[str, tuple[Path, Transcripts]] = {}
    for side, done in sides.items():
        path = making.out / f"sft_{side}.{making.kept_as}"
        write_training_file(path, "sft", [_written(row) for row in done.rows])
        made[side] = path, done
    said = trained_on(found, making.rows)
    (said | (TrainedOn.read(making.out) or TrainedOn())).write(making.out)
    return Made(made, found.lines, making.judge == SIMULATED)


def _sides(found: RowSets[JudgedRow]) -> dict[str, Sequence[JudgedRow]]:
    return {"train": found.train, "val": found.held_out}


def _words(making: Making) -> FrameWording:
    return wording_of(making.rows.wording)


async def _thought(
    making: Making,
    found: RowSets[JudgedRow],
    progress: Callable[[str, int], Callable[[], None]],
) -> dict[str, Transcripts]:
    """By side, with what was tried kept beside the transcripts."""
    if making.judge is None:
        raise UserError("--judge: name who is asked, or give --by label")
    config = _configured(making)
    made: dict[str, Transcripts] = {}
    async with _thinker(making, making.judge, config) as think:
        ledger = RowJournal(
            journal_path(making.out / "transcripts.json"),
            _about(making, found, config),
            making.overwrite,
        )
        try:
            kept = Kept(_done(ledger), lambda id, tried: ledger.put(id, asdict(tried)))
            for side, rows in _sides(found).items():
                tell = progress(side, len(rows))
                for _ in {row.id for row in rows} & kept.done.keys():
                    tell()
                made[side] = await transcribe(
                    rows,
                    think,
                    _words(making),
                    making.tries,
                    making.seed,
                    config.llm.max_concurrency,
                    kept,
                    tell,
                )
        finally:
            ledger.close()
    return made


def _configured(making: Making) -> JudgeServerConfig:
    named = [f'judge.model="{making.judge}"', "judge.panel=[]"]
    return load_judge_server(making.config, [*named, *making.overrides])


def _about(making: Making, found: RowSets[JudgedRow], config: JudgeServerConfig) -> dict[str, Any]:
    """What decides on the transcripts."""
    asked = {name: getattr(making, name) for name in ("judge", "by", "tries", "temperature")}
    asked |= {name: getattr(making, name) for name in ("max_tokens", "seed", "limit")}
    words = _words(making).model_dump()
    house = fingerprint(config.judge) if making.by == "judge" else None
    return {**asked, "rows": found.digest, "wording": words, "house": house}


def _done(ledger: RowJournal) -> dict[str, Tried]:
    try:
        return {id: Tried(said["thought"], tuple(said["ends"])) for id, said in ledger.kept.items()}
    except (KeyError, TypeError) as error:
        raise RunError(f"{ledger.path}: cannot be read ({error}); --overwrite") from None


def _written(row: SftRow) -> dict[str, Any]:
    messages = [{"role": turn.role, "content": turn.content} for turn in row.messages]
    return {"id": row.id, "source": row.source, "messages": messages}


@asynccontextmanager
async def _thinker(making: Making, judge: str, config: JudgeServerConfig) -> AsyncIterator[Thinker]:
    if making.by == "model" and judge == SIMULATED:
        raise UserError(
            "--judge simulated: the embedded server knows the prompts of the house's judges only; "
            "use --by judge"
        )
    async with open_models([judge], config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was written")
        model = models.clients[judge].as_role("judge")
        if making.by == "model":
            yield by_model(_ask(model, making), _words(making))
            return
        alone = {"panel": (), "quorum": 1, "cache_size": 0, "breaker_threshold": 0}
        section = config.judge.model_copy(
            update={**alone, "second_reading": False, "both_orders": False}
        )
        thinkers = {
            way: by_judge(build_judge(section.model_copy(update={"ask": way}), model))
            for way in ("pairwise", "pointwise")
        }

        async def think(row: JudgedRow, seed: int) -> str:
            return await thinkers["pairwise" if isinstance(row, Pair) else "pointwise"](row, seed)

        yield think


def _ask(model: ChatModel, making: Making) -> Ask:
    async def ask(messages: Sequence[Message], seed: int) -> str:
        reply = await model.chat(
            ChatRequest(
                messages,
                temperature=making.temperature,
                max_tokens=making.max_tokens,
                seed=seed % 2**31,
            )
        )
        if reply.reasoning and not reply.text.lstrip().startswith("<think>"):
            return f"<think>{reply.reasoning}</think>{reply.text}"
        return reply.text

    return ask
