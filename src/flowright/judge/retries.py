"""The retry policy: how the next attempt differs from the one that failed. No calls here.

A retry that repeats the same request mostly repeats the same failure, so every attempt changes
something, and always the seed. What the change is depends on what went wrong:

==============  ================================================================================
what happened   what the next attempt changes
==============  ================================================================================
truncated       twice the tokens (at most 8 times the first budget), less reasoning effort if set;
                the second time in a row also a looser form: a grammar that allows white space
                without end can eat any budget
empty           the same; a server may answer a schema that it cannot apply with nothing
unparsed        a looser form: schema -> JSON -> text; and what was said is not asked again
refused         a looser form, remembered (:class:`Forms`)
declined        seed and temperature only; two in a row are the answer
unavailable     seed and temperature only
misconfigured   nothing: no attempt can mend a wrong key or model
timeout         seed and temperature only
==============  ================================================================================

A second reading (:mod:`flowright.judge.second_reading`) is ``strict``: the form stays but for a
refusal, and a model that declines is asked to the end.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from flowright.config import JudgeSection
from flowright.judge.parsing import Form
from flowright.judge.verdict import Status
from flowright.llm.chat import LESS_EFFORT, Effort

Ending = Literal[
    "truncated", "empty", "unparsed", "declined", "refused", "unavailable", "misconfigured",
    "timeout",
]  # fmt: skip
"""How an attempt failed."""

STATUS: dict[Ending | None, Status] = {
    None: "ok", "truncated": "truncated", "empty": "parse_error", "unparsed": "parse_error",
    "declined": "declined", "refused": "refused", "unavailable": "unavailable",
    "misconfigured": "unavailable", "timeout": "timeout",
}  # fmt: skip
"""The status of a verdict whose last attempt ended so; None: nothing was missing any more."""

FORMS: tuple[Form, ...] = ("json_schema", "json_object", "text")
MAX_GROWTH = 8
TEMPERATURE_STEP = 0.1
READING_ATTEMPTS = 3
"""Of a second reading, and of a third. With one attempt of the first reading that makes seven,
which a server that is empty at random 13 % of the time fails with a probability of 6e-7."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The parameters of one attempt; ``number`` counts from 1."""

    number: int
    form: Form
    max_tokens: int
    temperature: float
    effort: Effort | None

    def seed(self, key: str) -> int:
        """31 bits from the sample's key and the attempt's number: the same in every run."""
        digest = sha256(f"{key}\0{self.number}".encode("utf-8", "replace")).digest()
        return int.from_bytes(digest[:4], "big") >> 1


def first_attempt(section: JudgeSection, form: Form) -> Attempt:
    return Attempt(1, form, section.max_tokens, section.temperature, section.reasoning_effort)


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
) -> Attempt:
    """The one after ``attempt``, which ended in ``ending``; ``previous`` is how the one before it
    ended."""
    was_short = ending in ("truncated", "empty")
    is_looser = ending == "refused" or (
        not strict and (ending == "unparsed" or (was_short and ending == previous))
    )
    most = section.max_tokens * MAX_GROWTH
    return replace(
        attempt,
        number=attempt.number + 1,
        form=looser(attempt.form) if is_looser else attempt.form,
        max_tokens=min(attempt.max_tokens * 2, most) if was_short else attempt.max_tokens,
        temperature=round(section.temperature + TEMPERATURE_STEP * attempt.number, 6),
        effort=LESS_EFFORT[attempt.effort] if was_short and attempt.effort else attempt.effort,
    )


def is_last_word(
    attempt: Attempt, ending: Ending, previous: Ending | None, strict: bool = False
) -> bool:
    """Whether no other changes how ``attempt`` ended; ``previous`` as in :func:`next_attempt`."""
    return (
        ending == "misconfigured"
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

    def _skip_to(self, form: Form) -> None:
        if FORMS.index(form) > FORMS.index(self.start):
            self.start = form
