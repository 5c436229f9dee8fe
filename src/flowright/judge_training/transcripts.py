"""Judgements to learn from: a prompt of the judge's own frame with a thought and a verdict that
agrees with the label (rejection sampling). Who thinks is a model or a judge of the house; nothing
is trained here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from flowright.data.preferences import Pair, Preferred, Turn
from flowright.errors import Blame, FailureError, Reason, boundary
from flowright.judge.messages import prompt_text
from flowright.judge.verdict import Judge, JudgeQuery, Status
from flowright.judge_training.frames import FrameWording, frame
from flowright.judge_training.reading import Reading, read, reply_text
from flowright.judge_training.rows import TOP_LABEL, JudgedRow, SftRow
from flowright.llm.chat import Message

Ask = Callable[[Sequence[Message], int], Awaitable[str]]
"""A model that is asked: messages and a seed in, its reply out. Raises FailureError where its
server fails."""

Thinker = Callable[[JudgedRow, int], Awaitable[str]]
"""A row and a seed in, a completion in the judge's form out."""

_NO_VERDICT: frozenset[Status] = frozenset({"abstain", "declined", "parse_error", "truncated"})
"""What a judge itself did not manage; all else without a verdict is its server's."""


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
) -> Transcripts:
    """For each row the first of ``tries`` completions whose verdict is its label. Each try has a
    seed of its own, a function of ``seed``, the row's place and the try."""
    places = asyncio.Semaphore(at_once)

    async def one(place: int, row: JudgedRow) -> tuple[SftRow | None, list[str]]:
        ends: list[str] = []
        for number in range(tries):
            async with places:
                kept, end = await _try(
                    row, think, words, (seed * len(rows) + place) * tries + number
                )
            if kept is not None:
                return kept, ends
            ends.append(end)
        return None, ends

    done = await asyncio.gather(*(one(place, row) for place, row in enumerate(rows)))
    ends = [end for _, each in done for end in each]
    return Transcripts(
        tuple(row for row, _ in done if row is not None),
        ends.count("refused"),
        ends.count("unreadable"),
        ends.count("failed"),
        sum(row is None for row, _ in done),
    )


async def _try(
    row: JudgedRow, think: Thinker, words: FrameWording, seed: int
) -> tuple[SftRow | None, str]:
    """The transcript, or why there is none."""
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
    return transcript(row, reading.thought, words), "kept"


def _query(row: JudgedRow, seed: int) -> JudgeQuery:
    question = prompt_text(
        [{"role": turn.role, "content": turn.content} for turn in row.conversation]
    )
    first, second = (row.first, row.second) if isinstance(row, Pair) else (row.answer, None)
    return JudgeQuery(question, first, "", rival=second, key=f"transcript/{seed}/{row.id}")
