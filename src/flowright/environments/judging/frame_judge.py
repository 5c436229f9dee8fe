"""A judge that was trained to write verdicts, asked as it was trained: its own frames, its own
strict reading. Who writes is handed in: a model in this process, or a server.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from flowright.config.judge import JudgeSection, TrainedJudgeSection
from flowright.config.section import Section
from flowright.core.errors import DataError, FailureError
from flowright.core.off_loop import off_loop
from flowright.data.task import Pair
from flowright.environments.judging.config import JudgingSection
from flowright.environments.judging.frames import (
    LETTERS,
    FrameWording,
    Reading,
    frame,
    read,
    wording_of,
)
from flowright.environments.judging.rows import TOP_LABEL, JudgedRow, PointwiseRow
from flowright.judging.llm_judge import PAIRWISE, orders, shown_answer
from flowright.judging.verdict import DOWN, JudgeQuery, RawReply, Status, Verdict
from flowright.llm.chat import (
    LENGTH_STOPS,
    ChatModel,
    ChatRequest,
    Message,
    RequestRefused,
    Usage,
)

FORM_FILE = "judge.json"
"""Beside exported weights: how the judge in them is asked."""

Judges = Literal["one", "two", "both"]
_OF_METHOD: Mapping[str, Judges] = {"pointwise": "one", "pairwise": "two", "joint": "both"}


class JudgeForm(Section):
    """The prompts and the reply form with which a judge that writes was trained."""

    judges: Judges = "both"
    wording: FrameWording
    states_confidence: bool = False
    opened_thought: bool = False


def form_of_run(run: Mapping[str, Any]) -> JudgeForm | None:
    """Return the form of a run's configuration as JSON; None if it trained no judge that writes."""
    if run.get("environment") != "judging" or run["judging"]["method"] == "bradley_terry":
        return None
    section = JudgingSection.model_validate(run["judging"])
    judges = _OF_METHOD.get(section.method, "both")
    if section.method == "sft" and section.data == "known_rule":
        judges = "two"  # the rule's judgements compare
    return JudgeForm(
        judges=judges,
        wording=wording_of(section.wording),
        states_confidence=section.states_confidence,
        opened_thought=section.opened_thought,
    )


def read_form(path: Path) -> JudgeForm | None:
    """Return the form in a file beside exported weights; None without a file. Raises DataError."""
    if not path.is_file():
        return None
    try:
        return JudgeForm.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        first = str(error).strip().splitlines()[0]
        raise DataError(f"{path}: does not say how a judge is asked ({first})") from None


def chosen_form(found: JudgeForm | None, section: TrainedJudgeSection) -> JudgeForm:
    """Return the form that was found, with the configuration's values in its place."""
    form = found or JudgeForm(wording=wording_of("standard"))
    keys = ("judges", "states_confidence", "opened_thought")
    given = {key: value for key in keys if (value := getattr(section, key)) is not None}
    if section.wording is not None:
        given["wording"] = wording_of(section.wording)
    return form.model_copy(update=given)


@dataclass(frozen=True, slots=True)
class Written:
    """A reply as it came, before it is read."""

    text: str
    finish_reason: str
    usage: Usage


class Writer(Protocol):
    """A model that writes judgements. ``write`` raises :class:`flowright.core.errors.FailureError`
    if it cannot, and its subclass RequestRefused if the prompt is at fault."""

    async def write(self, messages: Sequence[Message]) -> Written: ...


@dataclass(frozen=True, slots=True)
class ServerWriter:
    """A model behind an OpenAI-compatible server."""

    model: ChatModel
    section: JudgeSection

    async def write(self, messages: Sequence[Message]) -> Written:
        reply = await self.model.chat(
            ChatRequest(
                messages,
                temperature=self.section.temperature,
                max_tokens=self.section.max_tokens,
                seed=0,
            ),
            deadline=self.section.deadline_seconds,
        )
        text = reply.text
        if reply.reasoning:  # a server's reasoning parser took the thought out of the reply
            text = f"<think>{reply.reasoning}</think>{text}"
        return Written(text, reply.finish_reason, reply.usage)


class FrameJudge:
    """Judges by the frames of training: one answer by a score of 0 to 4, whose share of 4 is the
    verdict's; two answers in both orders, or by the score of each where it judges one alone.

    ``section``: ``right_from``, ``both_orders``, ``on_disagreement`` and ``max_answer_chars`` are
    as for other judges. What cannot be read is ``parse_error`` or ``truncated``, and no score; what
    it was not trained for is ``refused``.
    """

    def __init__(self, name: str, writer: Writer, form: JudgeForm, section: JudgeSection) -> None:
        self.name = name
        self._writer = writer
        self._form = form
        self._section = section

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on its verdicts, a sentence each."""
        found = ["it is shown question and answer, and neither reference nor evidence"]
        if self._form.judges == "two":
            found.append("it compares two answers and judges none by itself: it has no verdict "
                         "on a single one")  # fmt: skip
        if self._form.judges == "one":
            found.append("it compares two answers by a score of each: their order cannot matter")
        return (*found, "it reads no criteria and takes no instruction")

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        if query.criteria or query.instruction:
            return self._refused("it was trained for neither criteria nor an instruction")
        if query.rival is None:
            if self._form.judges == "two":
                return self._refused("it compares two answers and judges none by itself")
            verdict = await self._rated(query, query.answer)
        elif self._form.judges == "one":
            verdict = await self._by_scores(query, query.rival)
        else:
            verdict = await self._compared(query, query.rival)
        return replace(verdict, seconds=time.monotonic() - began)

    def _refused(self, why: str) -> Verdict:
        return Verdict(None, None, "llm", "refused", why, judge=self.name)

    async def _rated(self, query: JudgeQuery, answer: str) -> Verdict:
        row = PointwiseRow(self._conversation(query), await self._shown(answer), 0)
        reply = await self._reply(row)
        if reply.reading is None:
            return self._failed([reply])
        score = int(reply.reading.verdict) / TOP_LABEL
        return self._verdict(score, score >= self._section.right_from, [reply])

    async def _by_scores(self, query: JudgeQuery, rival: str) -> Verdict:
        rated = await asyncio.gather(*(self._rated(query, a) for a in (query.answer, rival)))
        lost = [one for one in rated if one.score is None]
        both = {
            "attempts": sum(one.attempts for one in rated),
            "usage": rated[0].usage + rated[1].usage,
            "replies": (*rated[0].replies, *rated[1].replies),
        }
        if lost:
            return replace(lost[0], **both)
        first, second = (one.score or 0.0 for one in rated)
        score = 0.5 if first == second else float(first > second)
        correct = None if score == 0.5 else score == 1.0
        reason = f"scores {first:g} and {second:g}"
        order = dict.fromkeys(("answer first", "rival first"), score)
        return replace(rated[0], score=score, correct=correct, reason=reason, parts=order, **both)

    async def _compared(self, query: JudgeQuery, rival: str) -> Verdict:
        """Judge two answers by the rules of :data:`flowright.judging.llm_judge.PAIRWISE`; both
        orders are the verdict's ``parts`` and its ``members``."""
        in_orders, turns = orders(query, self._section), self._conversation(query)
        mine, other = await self._shown(query.answer), await self._shown(rival)
        first = Pair("", "", turns, mine, other, "tie")
        pairs = [first if order == "answer first" else first.swapped() for order in in_orders]
        replies = await asyncio.gather(*map(self._reply, pairs))
        letters = [
            {"better": LETTERS[one.reading.verdict]} if one.reading else {} for one in replies
        ]
        scored = PAIRWISE.score(query, self._section, letters)
        if None in scored.each:
            return self._failed(replies)
        members = [
            self._verdict(share, None if share == 0.5 else share == 1.0, [one])
            for share, one in zip(scored.each, replies, strict=True)
            if share is not None
        ]
        if scored.score is None:
            lost = self._failed(replies)
            return replace(lost, status="abstain", reason=scored.note, members=tuple(members))
        correct = None if scored.score == 0.5 else scored.score > 0.5
        whole = self._verdict(scored.score, correct, replies)
        parts = {name: one.score or 0.0 for name, one in zip(in_orders, members, strict=True)}
        reason = f"{scored.note}{whole.reason}"
        return replace(whole, reason=reason, parts=parts, members=tuple(members))

    def _conversation(self, query: JudgeQuery) -> tuple[Message, ...]:
        return (Message("user", query.question),)

    async def _shown(self, answer: str) -> str:
        return await off_loop(lambda: shown_answer(answer, self._section), answer)

    async def _reply(self, row: JudgedRow) -> "_Reply":
        form = self._form
        kind = "pairwise" if isinstance(row, Pair) else "pointwise"
        texts = (row.first, row.second) if isinstance(row, Pair) else (row.answer,)
        messages = await off_loop(lambda: frame(row, form.wording, form.states_confidence), *texts)
        try:
            written = await self._writer.write(messages)
        except RequestRefused as error:
            return _Reply(None, "refused", error.failure.message)
        except FailureError as error:
            return _Reply(None, "unavailable", error.failure.message)
        if written.finish_reason in LENGTH_STOPS:
            return _Reply(None, "truncated", "the reply was cut before its end", written)
        reading = await off_loop(
            lambda: read(written.text, kind, form.states_confidence, form.opened_thought),
            written.text,
        )
        if not isinstance(reading, Reading):
            reason = f"unreadable ({reading}): {written.text.strip()[:80]!r}"
            return _Reply(None, "parse_error", reason, written)
        return _Reply(reading, "ok", reading.thought, written)

    def _failed(self, replies: Sequence["_Reply"]) -> Verdict:
        failed = sorted(
            (s for s in replies if s.reading is None), key=lambda s: s.status not in DOWN
        )
        first = failed[0] if failed else replies[0]
        lost = Verdict(None, None, "llm", first.status if failed else "abstain", judge=self.name)
        return replace(lost, reason=first.reason, **self._spent(replies))

    def _verdict(self, score: float, correct: bool | None, replies: Sequence["_Reply"]) -> Verdict:
        sure = [
            s.reading.confidence for s in replies if s.reading and s.reading.confidence is not None
        ]
        parts = {"confidence": min(sure)} if sure else {}
        reason = "\n".join(one.reason for one in replies if one.reason)
        verdict = Verdict(score, correct, "llm", "ok", reason, judge=self.name, parts=parts)
        return replace(verdict, **self._spent(replies))

    def _spent(self, replies: Sequence["_Reply"]) -> dict[str, Any]:
        written = [one.written for one in replies if one.written is not None]
        return {
            "attempts": len(replies),
            "usage": sum((one.usage for one in written), Usage()),
            "replies": tuple(RawReply(one.text, one.finish_reason) for one in written),
        }


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply to one frame: ``reading`` is None unless ``status`` is ok."""

    reading: Reading | None
    status: Status
    reason: str
    written: Written | None = None
