"""Ask one model one question, attempt by attempt, until each of its fields has been read.

Retries because of a reply are here; retries of transport belong to the chat model, inside one call.
A retry that repeats the same request mostly repeats the same failure, so every attempt changes the
seed and temperature, and more, depending on how the previous one ended:

==============  ================================================================================
truncated       twice the tokens (at most 8 times the first budget, and no more than the server's
                context leaves beside the prompt), less reasoning effort if set; the second time in
                a row also a looser form, since a grammar that allows endless white space can use up
                any budget. Final if neither more tokens nor less effort are possible
empty           as truncated; a server may answer a schema that it cannot apply with nothing
unparsed        another form: schema -> JSON -> text -> the first again; fields already read are not
                asked for again
refused         a looser form: another seed, if there is none (:class:`Forms`)
bounds          a refusal that names ``maxLength``: the schema without it
overlong        a refusal that names the server's context: the tokens left beside the prompt; final
                if there are none
declined        seed and temperature only; final after two in a row
unavailable     seed and temperature only
misconfigured   final: no attempt can repair a wrong key or model
timeout         seed and temperature only
==============  ================================================================================

A server that is up and answers with something else than a completion (HTTP 403, 404, 451, an error
or a page with status 200) refuses the query if it serves a five-word prompt in the same form, right
then; else it is misconfigured, or unavailable.

A second reading (:class:`flowright.judging.wrappers.SecondReading`) is ``strict``: no form is given
up for short replies, and models that decline, or reach the end of their context, are asked until
the attempts are used up. Those attempts distinguish an answer that prevents every verdict from a
judge that fails at random.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from flowright.config.judge import JudgeSection
from flowright.core import untrusted
from flowright.core.errors import FailureError
from flowright.core.off_loop import off_loop
from flowright.judging.parsing import Form, parse_reply
from flowright.judging.prompts import Question
from flowright.judging.schemas import REASON_CHARS, Field, ReadReply, Value
from flowright.judging.verdict import RawReply, Status
from flowright.llm.chat import (
    LENGTH_STOPS,
    LESS_EFFORT,
    REFUSAL,
    ChatModel,
    ChatReply,
    ChatRequest,
    Effort,
    RequestRefused,
    ServerMisconfigured,
    Usage,
)
from flowright.llm.context import WithControl, too_long

Ending = Literal[
    "truncated", "empty", "unparsed", "declined", "refused", "bounds", "overlong", "unavailable",
    "misconfigured", "timeout",
]  # fmt: skip
"""Failures of an attempt."""

STATUS: dict[Ending | None, Status] = {
    None: "ok", "truncated": "truncated", "empty": "parse_error", "unparsed": "parse_error",
    "declined": "declined", "refused": "refused", "bounds": "refused", "overlong": "refused",
    "unavailable": "unavailable", "misconfigured": "unavailable", "timeout": "timeout",
}  # fmt: skip
"""Status of a verdict by how its last attempt ended; None: no field is missing."""

FORMS: tuple[Form, ...] = ("json_schema", "json_object", "text")
MAX_GROWTH = 8
TEMPERATURE_STEP = 0.1
READING_ATTEMPTS = 3
"""Attempts of a second reading, and of a third. With one attempt of the first reading that makes
seven; a server that is empty at random 13 % of the time fails all with a probability of 6e-7."""

UNCOUNTED: frozenset[Ending] = frozenset({"overlong", "bounds"})
"""Refusals of the request's form, not of the answer: the first of each does not use up an
attempt."""


@dataclass(frozen=True, slots=True)
class JudgeAttempt:
    """Parameters of one attempt; ``number`` counts from 1, and the schema limits the length of the
    reason if ``bounded``."""

    number: int
    form: Form
    max_tokens: int
    temperature: float
    effort: Effort | None
    bounded: bool = True

    def seed(self, key: str) -> int:
        """Return 31 bits from the sample's key and the attempt's number, the same in every run."""
        digest = sha256(f"{key}\0{self.number}".encode("utf-8", "replace")).digest()
        return int.from_bytes(digest[:4], "big") >> 1


def first_attempt(section: JudgeSection, form: Form, bounded: bool = True) -> JudgeAttempt:
    effort, temperature = section.reasoning_effort, section.temperature
    return JudgeAttempt(1, form, section.max_tokens, temperature, effort, bounded)


def reading_section(section: JudgeSection) -> JudgeSection:
    """Return the section of a second reading, with twice the tokens and time."""
    changed = {
        "max_attempts": READING_ATTEMPTS,
        "max_tokens": 2 * section.max_tokens,
        "deadline_seconds": 2 * section.deadline_seconds,
    }
    return section.model_copy(update=changed)


def next_attempt(
    attempt: JudgeAttempt,
    ending: Ending,
    previous: Ending | None,
    section: JudgeSection,
    strict: bool = False,
    room: float = math.inf,
    first: Form = FORMS[0],
) -> JudgeAttempt:
    """Return the attempt after one that ended in ``ending``; ``previous`` is the ending before.
    ``room``: the tokens that the server has for a reply to this prompt. ``first``: the strictest
    form that it is known to serve."""
    was_short = ending in ("truncated", "empty")
    is_other = ending in ("refused", "unparsed") or (
        not strict and was_short and ending == previous
    )
    other = first if ending == "unparsed" and attempt.form == "text" else looser(attempt.form)
    wanted = attempt.max_tokens
    if was_short:
        wanted = max(wanted, int(min(2 * wanted, section.max_tokens * MAX_GROWTH, room)))
    elif ending == "overlong":  # nothing else shrinks it: a list of models may be wrong
        wanted = int(min(wanted, room))
    return replace(
        attempt,
        number=attempt.number + 1,
        form=other if is_other else attempt.form,
        max_tokens=wanted,
        temperature=round(section.temperature + TEMPERATURE_STEP * attempt.number, 6),
        effort=LESS_EFFORT[attempt.effort] if was_short and attempt.effort else attempt.effort,
        bounded=attempt.bounded and ending != "bounds",
    )


def is_final(
    attempt: JudgeAttempt, ending: Ending, previous: Ending | None, strict: bool, room: float
) -> bool:
    """Return whether no further attempt can end otherwise; arguments as in :func:`next_attempt`."""
    can_shrink = 1 <= room < attempt.max_tokens
    has_less_effort = attempt.effort is not None and LESS_EFFORT[attempt.effort] != attempt.effort
    can_grow = room > attempt.max_tokens or has_less_effort
    return (
        ending == "misconfigured"
        or (ending == "overlong" and not can_shrink)
        or (ending == "truncated" and not can_grow and not strict)
        or (ending == previous == "declined" and not strict)  # a model or filter that insists
    )


def looser(form: Form) -> Form:
    return FORMS[min(FORMS.index(form) + 1, len(FORMS) - 1)]


Variant = Form | Literal["bounds"]


@dataclass(slots=True)
class Forms:
    """Request forms that one server is known to serve.

    A form is given up after ``patience`` queries without a verdict in it, refused or answered in
    prose, that then got one in a looser form, unless it has worked before: one refusal may be about
    the reply, and a query that fails in every form is not about the form. Bounds on strings are
    given up likewise.
    """

    patience: int = 5
    start: Form = FORMS[0]
    bounded: bool = True  # whether schemas limit the length of strings
    _proven: set[Variant] = field(default_factory=set)
    _failed: Counter[Variant] = field(default_factory=Counter)

    def served(self, attempt: "JudgeAttempt", failed: Collection[Variant]) -> None:
        """Note a verdict in the attempt's form, after the same query failed in others."""
        self._proven.add(attempt.form)
        if attempt.form == FORMS[0] and attempt.bounded:
            self._proven.add("bounds")
        self._failed.update(failed)
        while self.start not in self._proven and self._failed[self.start] >= self.patience:
            self.start = looser(self.start)
        if "bounds" not in self._proven and self._failed["bounds"] >= self.patience:
            self.bounded = False


FILTER_STOPS = frozenset({"content_filter", REFUSAL})

ReplyReader = Callable[[str, Form, Sequence[Field]], ReadReply]
"""Parser of the fields in a reply to a request of a form."""

_OPEN_REASON = re.compile(
    rf'\s*\{{\s*"reason"\s*:\s*"(?:[^"\\]|\\(?:u[0-9a-fA-F]{{4}}|[^u])){{{REASON_CHARS + 1}}}'
)
_REFUSAL = re.compile(
    r"\W*(?:(?:i'?m|i am)?\s*(?:very |so |truly )?sorry\b|i apologi[sz]e\b|unfortunately\b)?"
    r"[^.!?]{0,60}?"
    r"\bi(?:'m| am)? (?:can(?:no|')t|won't|will not|unable to|not able to|not comfortable)\b"
    r"|\W*(?:抱歉|对不起|很抱歉|我无法|我不能|申し訳)",
    re.IGNORECASE,
)
PROMPT_CHARS = 4000
"""Characters of a question that are kept beside the reply to it."""
_LONGEST_REFUSAL = 600  # characters; a longer explanation is more than a refusal
_SURE_PACE = 0.8  # of the fastest pace that a server has shown


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """Outcome of a question. ``values`` of the fields that were read; ``status`` is "ok" if none is
    missing. ``reason`` is the judge's own, or the failure of each attempt."""

    values: Mapping[str, Value]
    status: Status
    reason: str
    attempts: int
    usage: Usage
    replies: tuple[RawReply, ...] = ()


@dataclass(slots=True)
class _State:
    """Progress of one question; ``left`` seconds remain of the deadline."""

    question: Question
    left: float
    most: int  # attempts
    values: dict[str, Value] = field(default_factory=dict)
    reason: str = ""  # the judge's own
    notes: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    last: Ending | None = None
    forms: set[Variant] = field(default_factory=set)  # refused, or ignored
    cut_at: int = 0  # tokens of the latest truncated reply
    pace: float = 0.0  # tokens a second of the fastest reply; 0 before there is one
    prompt_tokens: int = 0  # of the latest reply
    room: float = math.inf  # tokens that the server has for a reply, as far as it is known
    replies: list[RawReply] = field(default_factory=list)

    def failed(self, attempt: JudgeAttempt, ending: Ending, note: str) -> Ending:
        self.last = ending
        if ending == "refused":
            self.forms.add(attempt.form)
        elif ending == "bounds":
            self.forms.add(ending)
        self.notes.append(f"attempt {attempt.number} ({attempt.form}): {ending}: {note}")
        return ending


class RetryingAsker:
    """Asks one model, at most ``section.max_attempts`` times a question.

    All attempts at a question share ``section.deadline_seconds``, counted as the model counts it (a
    :class:`~flowright.llm.client.ChatClient` leaves out the wait for one of its own slots). An
    attempt may use half of the remaining time, the last one all of it, so that one hanging request
    leaves time for the others. A retry gets no more tokens than the server can write in its time,
    by the pace of its replies to this question: endless thinking is truncated and does not become
    a timeout. Fields that have been read are not asked for again. ``forms`` are shared with another
    asker of this model; ``read`` replaces the parser, for questions with a reply format of their
    own.
    """

    def __init__(
        self,
        model: ChatModel,
        section: JudgeSection,
        forms: Forms | None = None,
        strict: bool = False,
        read: ReplyReader = parse_reply,
    ) -> None:
        self._model = WithControl(model)
        self._section = section
        self._strict = strict
        self._parse = read
        self.forms = forms or Forms()

    async def ask(self, question: Question, key: str) -> QuestionResult:
        """Ask a question; seeds are derived from ``key``."""
        state = _State(question, self._section.deadline_seconds, self._section.max_attempts)
        uncounted = UNCOUNTED
        attempt = first_attempt(self._section, self.forms.start, self.forms.bounded)
        while True:
            previous = state.last
            ending = await self._attempt(state, attempt, key)
            if ending in uncounted:
                state.most += 1
                uncounted -= {ending}
            if ending is None or attempt.number >= state.most or state.left <= 0:
                break
            if is_final(attempt, ending, previous, self._strict, state.room):
                break
            attempt = next_attempt(
                attempt,
                ending,
                previous,
                self._section,
                self._strict,
                state.room,
                self.forms.start,
            )
            _, room = self._allowed(state, attempt)
            if ending == "truncated" and room < attempt.max_tokens and room <= state.cut_at:
                break  # no time for more tokens
            if ending == "overlong" and room <= state.cut_at and not self._strict:
                break  # no room for more tokens
        reason = state.reason if ending is None else "; ".join(state.notes)
        replies = tuple(state.replies)
        # A truncated reply without room for more counts as truncated, not as refused.
        status = STATUS["truncated" if ending == "overlong" and state.cut_at else ending]
        return QuestionResult(state.values, status, reason, attempt.number, state.usage, replies)

    async def _attempt(self, state: _State, attempt: JudgeAttempt, key: str) -> Ending | None:
        """Ask once; None if no field is missing any more."""
        allowed, room = self._allowed(state, attempt)
        attempt = replace(attempt, max_tokens=room)
        question = state.question
        shown = [block.text for block in question.blocks]
        request = ChatRequest(
            messages=await off_loop(lambda: question.messages(attempt.form), *shown),
            temperature=attempt.temperature,
            max_tokens=attempt.max_tokens,
            seed=attempt.seed(key),
            response_format=state.question.response_format(attempt.form, attempt.bounded),
            reasoning_effort=attempt.effort,
        )
        began = time.monotonic()
        try:
            reply = await self._model.chat(request, deadline=allowed)
        except FailureError as error:
            elapsed = time.monotonic() - began
            state.left -= min(elapsed, allowed)
            ending: Ending = "timeout" if elapsed >= 0.99 * allowed else "unavailable"
            message = error.failure.message
            if isinstance(error, RequestRefused):
                has_bounds = attempt.form == "json_schema" and attempt.bounded
                ending = "bounds" if has_bounds and "maxlength" in message.casefold() else "refused"
                if (limit := too_long(message)) is not None:
                    state.room = limit.room(request.messages, state.prompt_tokens)
                    ending = "overlong"
            elif isinstance(error, ServerMisconfigured):
                ending = "misconfigured"
            return state.failed(attempt, ending, message)
        state.left -= min(reply.seconds, allowed)
        state.usage += reply.usage
        if reply.seconds > 0:
            # The usage may leave out thinking; a truncated reply used its whole budget.
            cut = attempt.max_tokens if reply.finish_reason in LENGTH_STOPS else 0
            written = max(cut, reply.usage.completion_tokens)
            state.pace = max(state.pace, written / reply.seconds)
        state.prompt_tokens = reply.usage.prompt_tokens
        state.room = min(state.room, reply.room)
        outcome = await self._read(state, reply, attempt)
        prompt = untrusted.cut("\n\n".join(each.content for each in request.messages), PROMPT_CHARS)
        values = ", ".join(f"{name}: {value}" for name, value in state.values.items())
        read = values if outcome is None else state.notes[-1]
        state.replies.append(
            RawReply(reply.text, reply.finish_reason, reply.reasoning, prompt, read)
        )
        return outcome

    def _allowed(self, state: _State, attempt: JudgeAttempt) -> tuple[float, int]:
        """Return the seconds and tokens of an attempt: half of the remaining time, or all of it for
        the last attempt and if half is too little for a grown budget. The tokens are never fewer
        than configured: a server too slow for these times out, which is our fault, instead of
        truncating, which may be the answer's."""
        is_last = attempt.number >= state.most
        pace = _SURE_PACE * (state.pace or math.inf)
        room, least = attempt.max_tokens, self._section.max_tokens
        if not is_last and (room <= least or pace * state.left / 2 >= room):
            return state.left / 2, room
        fits = max(least, int(min(room, pace * state.left)))
        return state.left, min(room, fits)

    async def _read(self, state: _State, reply: ChatReply, attempt: JudgeAttempt) -> Ending | None:
        stopped = reply.finish_reason
        if stopped in LENGTH_STOPS:
            state.cut_at = int(min(attempt.max_tokens, state.room))
            place = "in the middle" if reply.text.strip() else "before any content"
            if attempt.form == "json_schema" and attempt.bounded and _OPEN_REASON.match(reply.text):
                place = f"in a reason that the server does not hold to {REASON_CHARS} characters"
            return state.failed(attempt, "truncated", f"{state.cut_at} tokens ended {place}")
        if stopped in FILTER_STOPS:
            return state.failed(attempt, "declined", f"the server stopped the reply ({stopped})")
        fields = state.question.fields
        reading = await off_loop(lambda: self._parse(reply.text, attempt.form, fields), reply.text)
        state.values.update(reading.values)
        if reading.values:
            self.forms.served(attempt, state.forms)
            state.forms.clear()
        if reading.fault is None:
            state.reason = reading.reason
            return None
        if reading.values:
            missing = {f.key for f in state.question.fields} - reading.values.keys()
            state.question = state.question.narrowed(missing)
        elif reading.fault == "no_verdict":
            if len(reply.text) <= _LONGEST_REFUSAL and _REFUSAL.match(reply.text):
                return state.failed(
                    attempt, "declined", f"the reply is {reply.text.strip()[:80]!r}"
                )
            if attempt.form != "text":
                state.forms.add(attempt.form)
        ending: Ending = "empty" if reading.fault == "empty" else "unparsed"
        return state.failed(attempt, ending, reading.reason)
