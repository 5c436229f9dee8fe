"""Judgements to learn from: a prompt of the judge's own frame with a thought and a verdict that
agrees with the label (rejection sampling). Who thinks is a model or a judge of the house; nothing
is trained here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from flowright.core.batch_calls import ServerDown
from flowright.core.errors import Blame, FailureError, Reason, boundary
from flowright.data.preferences import Pair, Preferred, Turn
from flowright.environments.judging.frames import FrameWording, frame
from flowright.environments.judging.reading import Reading, read, reply_text
from flowright.environments.judging.rows import TOP_LABEL, JudgedRow, SftRow
from flowright.judging.payloads import prompt_text
from flowright.judging.verdict import Judge, JudgeQuery, Status
from flowright.llm.chat import Message

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
