"""A large model as judge: asks for True or False until it says so clearly, or until time is up.

This module owns every retry that is about what the judge said. Retries that are about transport are
the chat model's, inside one call. A failing backend is a verdict with a status, never an exception.
"""

import time
from dataclasses import dataclass, field

from flowright.config import JudgeSection
from flowright.errors import FailureError
from flowright.judge.ladder import STATUS, Forms, Outcome, Rung, first_rung, next_rung
from flowright.judge.parsing import Reading, parse_verdict
from flowright.judge.prompts import judge_messages, response_format
from flowright.judge.verdict import JudgeQuery, Status, Verdict
from flowright.llm.chat import ChatModel, ChatReply, ChatRequest, RequestRefused, Usage

LENGTH_STOPS = frozenset({"length", "max_tokens", "model_length"})
FILTER_STOPS = frozenset({"content_filter", "refusal"})


@dataclass(slots=True)
class _Climb:
    """One query's way up the ladder. ``left``: seconds of the deadline that are not spent."""

    left: float
    usage: Usage = field(default_factory=Usage)
    notes: list[str] = field(default_factory=list)
    last: Outcome | None = None
    reading: Reading | None = None

    def failed(self, rung: Rung, outcome: Outcome, note: str) -> Outcome:
        self.last = outcome
        self.notes.append(f"try {rung.number} ({rung.form}): {outcome}: {note}")
        return outcome


class LlmJudge:
    """Judges by asking a chat model, at most ``section.max_attempts`` times per query.

    All tries share ``section.deadline_seconds``, counted as the model counts it (a
    :class:`~flowright.llm.client.ChatClient` leaves out the wait for one of its own slots). A try
    may spend half of what is left, the last try all of it, so that one hanging request does not
    take the others' time. :mod:`flowright.judge.ladder` says what each try changes.
    """

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self._model = model
        self._section = section
        self._forms = Forms()

    @property
    def name(self) -> str:
        return self._model.name

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        climb = _Climb(left=self._section.deadline_seconds)
        rung = first_rung(self._section, self._forms.start)
        while True:
            previous = climb.last
            outcome = await self._try(query, rung, climb)
            if outcome is None or rung.number >= self._section.max_attempts or climb.left <= 0:
                break
            if outcome == "refused" and rung.form == "text":
                break  # there is nothing left to ask less of
            rung = next_rung(rung, outcome, previous, self._section)
        return self._verdict(climb, rung.number, time.monotonic() - began)

    async def _try(self, query: JudgeQuery, rung: Rung, climb: _Climb) -> Outcome | None:
        """Ask once; None when the reply was read, else what went wrong. ``climb`` keeps both."""
        is_last = rung.number >= self._section.max_attempts
        allowed = climb.left if is_last else climb.left / 2
        request = ChatRequest(
            messages=judge_messages(query, rung.form),
            temperature=rung.temperature,
            max_tokens=rung.max_tokens,
            seed=rung.seed(query.key),
            response_format=response_format(rung.form),
            reasoning_effort=rung.effort,
        )
        began = time.monotonic()
        try:
            reply = await self._model.chat(request, deadline=allowed)
        except FailureError as error:
            elapsed = time.monotonic() - began
            climb.left -= min(elapsed, allowed)
            outcome: Outcome = "timeout" if elapsed >= 0.99 * allowed else "unavailable"
            if isinstance(error, RequestRefused):
                outcome = "refused"
            return climb.failed(rung, outcome, error.failure.message)
        climb.left -= min(reply.seconds, allowed)
        climb.usage += reply.usage
        if climb.last == "refused":
            self._forms.refused(served=rung.form)
        return self._read(reply, rung, climb)

    def _read(self, reply: ChatReply, rung: Rung, climb: _Climb) -> Outcome | None:
        stopped = reply.finish_reason
        if stopped in LENGTH_STOPS:
            shown = "in the middle" if reply.text.strip() else "before any content"
            return climb.failed(rung, "truncated", f"{rung.max_tokens} tokens ended {shown}")
        if stopped in FILTER_STOPS:
            return climb.failed(rung, "filtered", f"the server stopped the reply ({stopped})")
        reading = parse_verdict(reply.text, rung.form)
        if reading.correct is not None:
            self._forms.parsed(rung.form)
            climb.reading = reading
            return None
        if reading.fault == "no_verdict" and rung.form != "text":
            self._forms.ignored(rung.form)
        outcome: Outcome = "empty" if reading.fault == "empty" else "unparsed"
        return climb.failed(rung, outcome, reading.reason)

    def _verdict(self, climb: _Climb, attempts: int, seconds: float) -> Verdict:
        reading = climb.reading
        correct = reading.correct if reading is not None else None
        status: Status = "ok"
        if correct is None and climb.last is not None:
            status = STATUS[climb.last]
        return Verdict(
            score=None if correct is None else float(correct),
            correct=correct,
            source="llm",
            status=status,
            reason=reading.reason if reading is not None else "; ".join(climb.notes),
            attempts=attempts,
            judge=self.name,
            usage=climb.usage,
            seconds=seconds,
        )
