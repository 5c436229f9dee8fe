"""The retry policy: how the next attempt differs from the one that failed. No calls here.

A retry that repeats the same request mostly repeats the same failure, so every attempt changes
something, and always the seed. What the change is depends on what went wrong:

==============  ================================================================================
what happened   what the next attempt changes
==============  ================================================================================
truncated       twice the tokens (at most 8 times the first budget, and no more than the server's
                context leaves beside the prompt), less reasoning effort if set; the second time in
                a row also a looser form: a grammar that allows white space without end can eat any
                budget. Where the context leaves no more than before and the effort is no less, it
                was the last attempt
empty           the same; a server may answer a schema that it cannot apply with nothing
unparsed        a looser form: schema -> JSON -> text; and what was said is not asked again
refused         a looser form, remembered (:class:`Forms`)
bounds          a refusal that names ``maxLength``: the schema without it, remembered
overlong        a refusal that names the server's context: the tokens that are left beside the
                prompt; where there are none it was the last attempt
declined        seed and temperature only; two in a row are the answer
unavailable     seed and temperature only
misconfigured   nothing: no attempt can mend a wrong key or model
timeout         seed and temperature only
==============  ================================================================================

A second reading (:mod:`flowright.judging.second_reading`) is ``strict``: the form stays but for a
refusal, and a model that declines, or is cut where its context ends, is asked to the end: its
attempts are what tells an answer that keeps every judge from judging from a judge that fails at
random.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from flowright.config.judge import JudgeSection
from flowright.judging.parsing import Form
from flowright.judging.verdict import Status
from flowright.llm.chat import LESS_EFFORT, Effort

Ending = Literal[
    "truncated", "empty", "unparsed", "declined", "refused", "bounds", "overlong", "unavailable",
    "misconfigured", "timeout",
]  # fmt: skip
"""How an attempt failed."""

STATUS: dict[Ending | None, Status] = {
    None: "ok", "truncated": "truncated", "empty": "parse_error", "unparsed": "parse_error",
    "declined": "declined", "refused": "refused", "bounds": "refused", "overlong": "refused",
    "unavailable": "unavailable", "misconfigured": "unavailable", "timeout": "timeout",
}  # fmt: skip
"""The status of a verdict whose last attempt ended so; None: nothing was missing any more."""

FORMS: tuple[Form, ...] = ("json_schema", "json_object", "text")
MAX_GROWTH = 8
TEMPERATURE_STEP = 0.1
READING_ATTEMPTS = 3
"""Of a second reading, and of a third. With one attempt of the first reading that makes seven,
which a server that is empty at random 13 % of the time fails with a probability of 6e-7."""

NO_ATTEMPTS: frozenset[Ending] = frozenset({"overlong", "bounds"})
"""Refusals of how it was asked, which say nothing of the answer: the first of each leaves as many
attempts as there were."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The parameters of one attempt; ``number`` counts from 1, ``bounded`` says whether the schema
    limits the reason."""

    number: int
    form: Form
    max_tokens: int
    temperature: float
    effort: Effort | None
    bounded: bool = True

    def seed(self, key: str) -> int:
        """31 bits from the sample's key and the attempt's number: the same in every run."""
        digest = sha256(f"{key}\0{self.number}".encode("utf-8", "replace")).digest()
        return int.from_bytes(digest[:4], "big") >> 1


def first_attempt(section: JudgeSection, form: Form, bounded: bool = True) -> Attempt:
    effort, temperature = section.reasoning_effort, section.temperature
    return Attempt(1, form, section.max_tokens, temperature, effort, bounded)


def reading_section(section: JudgeSection) -> JudgeSection:
    """The section of a second reading: more room from the start, and the time for it."""
    changed = {
        "max_attempts": READING_ATTEMPTS,
        "max_tokens": 2 * section.max_tokens,
        "deadline_seconds": 2 * section.deadline_seconds,
    }
    return section.model_copy(update=changed)


def next_attempt(
    attempt: Attempt,
    ending: Ending,
    previous: Ending | None,
    section: JudgeSection,
    strict: bool = False,
    room: float = math.inf,
) -> Attempt:
    """The one after ``attempt``, which ended in ``ending``; ``previous`` is how the one before it
    ended. ``room``: the tokens that the server has for a reply to this prompt."""
    was_short = ending in ("truncated", "empty")
    is_looser = ending == "refused" or (
        not strict and (ending == "unparsed" or (was_short and ending == previous))
    )
    wanted = attempt.max_tokens
    if was_short:
        wanted = max(wanted, int(min(2 * wanted, section.max_tokens * MAX_GROWTH, room)))
    elif ending == "overlong":  # nothing else makes it less: a list of models may be wrong
        wanted = int(min(wanted, room))
    return replace(
        attempt,
        number=attempt.number + 1,
        form=looser(attempt.form) if is_looser else attempt.form,
        max_tokens=wanted,
        temperature=round(section.temperature + TEMPERATURE_STEP * attempt.number, 6),
        effort=LESS_EFFORT[attempt.effort] if was_short and attempt.effort else attempt.effort,
        bounded=attempt.bounded and ending != "bounds",
    )


def is_last_word(
    attempt: Attempt,
    ending: Ending,
    previous: Ending | None,
    strict: bool = False,
    room: float = math.inf,
) -> bool:
    """Whether no other changes how ``attempt`` ended; the others as in :func:`next_attempt`."""
    can_shrink = 1 <= room < attempt.max_tokens
    has_less_effort = attempt.effort is not None and LESS_EFFORT[attempt.effort] != attempt.effort
    can_grow = room > attempt.max_tokens or has_less_effort
    return (
        ending == "misconfigured"
        or (ending == "overlong" and not can_shrink)
        or (ending == "truncated" and not can_grow and not strict)
        or (ending == "refused" and attempt.form == "text")  # there is nothing less to ask for
        # A model or a filter that means it.
        or (ending == previous == "declined" and not strict)
    )


def looser(form: Form) -> Form:
    return FORMS[min(FORMS.index(form) + 1, len(FORMS) - 1)]


@dataclass(slots=True)
class Forms:
    """What one server has shown of the request forms that it serves.

    A form that was refused is skipped from then on, once a looser one was served to the same
    query, unless it has worked before: a refusal of both was not about the form, and that of one
    query alone was about the query. A form is also skipped after
    ``ignored_limit`` replies in a row without the object that it asks for; a single reply that
    holds one keeps it.
    """

    ignored_limit: int = 3
    start: Form = FORMS[0]
    bounded: bool = True  # whether schemas limit the length of strings
    _proven: set[Form] = field(default_factory=set)
    _ignored: Counter[Form] = field(default_factory=Counter)

    def parsed(self, form: Form) -> None:
        self._proven.add(form)
        self._ignored[form] = 0

    def ignored(self, form: Form) -> None:
        self._ignored[form] += 1
        if self._ignored[form] >= self.ignored_limit and form not in self._proven:
            self._skip_to(looser(form))

    def refused(self, served: Form) -> None:
        """A query met a refusal and was then served in the looser form ``served``."""
        if self.start not in self._proven:
            self._skip_to(served)

    def bounds_refused(self) -> None:
        """A query met a refusal that named the bounds, and was then served without them."""
        self.bounded = self.bounded and "json_schema" in self._proven

    def _skip_to(self, form: Form) -> None:
        if FORMS.index(form) > FORMS.index(self.start):
            self.start = form
