"""Judge queries, verdicts, and the protocol of judges."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from flowright.data.task import Problem
from flowright.grading.numbers import lone_number
from flowright.llm.chat import Usage

Source = Literal["llm", "rule", "rule_fallback", "cache", "second_reading", "floor"]
"""The author of a verdict. ``second_reading`` is the judge, shown only the final answer; ``floor``
is no judge: the answer counts as wrong because it prevents every verdict."""
Status = Literal[
    "ok", "abstain", "declined", "parse_error", "refused", "truncated", "overloaded", "timeout",
    "unavailable",
]  # fmt: skip
"""Outcome of judging. ``abstain``: the judge could not decide; ``declined``: the model refused to
judge or a content filter stopped its reply; ``refused``: the server is up and rejects this query;
``overloaded``: the server had no room for it in time."""

DOWN: frozenset[Status] = frozenset({"timeout", "unavailable"})
"""Statuses of a backend that is down; unreadable replies and refused queries are not among them."""

AnswerType = Literal["number", "math_expression", "multiple_choice", "code", "span", "free_text"]
"""The kind of a reference. It selects the criteria in the prompt and the rule."""

_LONGEST_SPAN = 8  # words


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a rubric: a statement about the answer and the points that it earns where it
    holds. Negative points are penalties."""

    text: str
    points: float

    def __post_init__(self) -> None:
        if not self.text.strip() or self.points == 0 or not math.isfinite(self.points):
            given = f"{self.text!r} and {self.points:g}"
            raise ValueError(f"a criterion needs a text and a number of points but 0, not {given}")


@dataclass(frozen=True, slots=True)
class JudgeQuery:
    """One answer to be judged or, with a ``rival``, compared with another.

    ``reference`` may be empty if there are ``criteria`` or a rival. ``evidence`` was observed by
    the trusted process, such as the outcome of a test run; ``instruction`` replaces the wording's
    verbatim; ``key`` names the sample and seeds the requests. ``own_check`` is the finding of the
    task's own verifier, if it has one (``open``: undecided): only rules see it, no model does.
    With ``rival_evidence``, which may be empty, ``evidence`` is about the answer alone.
    ``fresh`` asks for the judge's own verdict, to measure it: no cache, no circuit breaker and no
    second reading answers in its place.
    """

    question: str
    answer: str
    reference: str
    answer_type: AnswerType = "free_text"
    alternatives: tuple[str, ...] = ()
    evidence: str | None = None
    rival: str | None = None
    criteria: tuple[Criterion, ...] = ()
    instruction: str = ""
    key: str = ""
    own_check: Literal["right", "wrong", "open"] | None = None
    fresh: bool = False
    rival_evidence: str | None = None


@dataclass(frozen=True, slots=True)
class RawReply:
    """A model's reply to one attempt; ``prompt`` is the request, cut if it is long, and ``read``
    the values that were parsed from the reply or the reason why none were."""

    text: str
    finish_reason: str
    reasoning: str | None = None
    prompt: str = field(default="", compare=False)
    read: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """Rank of an answer among the ``of`` ranked attempts of a ``group``, 1 for the best, shared by
    equal scores; and its comparisons by outcome, ``unjudged`` if they have no verdict."""

    group: str
    rank: int
    of: int
    wins: int = 0
    losses: int = 0
    ties: int = 0
    unjudged: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict. ``score`` in [0, 1] and ``correct`` are None unless ``status == "ok"``:
    a failed judge is not the same as "wrong" (law 1). Between two answers the score is 1 for the
    answer, 0 for its rival and 0.5 for a tie. ``correct`` is None beside a score only for a tie
    and for an answer with a ``standing``, whose score is relative to its group.

    ``parts`` are the components of the score by name, each in [0, 1]: criteria of a rubric,
    aspects. ``members`` are the verdicts that it was derived from or replaces. ``replies`` are
    those of the models, by attempt.
    """

    score: float | None
    correct: bool | None
    source: Source
    status: Status
    reason: str = ""
    attempts: int = 0
    judge: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    members: tuple["Verdict", ...] = ()
    replies: tuple[RawReply, ...] = ()
    standing: Standing | None = None

    def __post_init__(self) -> None:
        is_relative = self.score == 0.5 or self.standing is not None
        is_decided = self.score is not None and (self.correct is not None or is_relative)
        is_open = self.score is None and self.correct is None
        if not (is_decided if self.status == "ok" else is_open):
            raise ValueError(f"status {self.status!r} with score {self.score}, {self.correct}")

    @property
    def cause(self) -> str:
        """The status and the reason of a failure, for messages."""
        return f"{self.status}: {self.reason}"


@runtime_checkable
class Judge(Protocol):
    """A judge; wrappers (gate, cache, panel) are judges around judges.

    ``judge`` does not raise for a failing backend: it returns a verdict with a status.
    """

    @property
    def name(self) -> str: ...

    async def judge(self, query: JudgeQuery) -> Verdict: ...


@dataclass(eq=False)
class Wrapper:
    """Base of a judge around another; it has the inner judge's name."""

    inner: Judge

    @property
    def name(self) -> str:
        return self.inner.name


def task_query(
    task: Problem,
    answer: str,
    key: str,
    evidence: str | None = None,
    verified: bool | None = None,
) -> JudgeQuery:
    """Return the query about an answer to a task. ``evidence`` of a test run counts for code only;
    ``verified`` is the outcome of the gold check, used if the task has a verifier of its own."""
    return JudgeQuery(
        question=task.problem,
        answer=answer,
        reference=task.reference,
        answer_type=answer_type_of(task),
        alternatives=task.alternatives,
        evidence=evidence if task.kind == "code" else None,
        key=key,
        own_check=None if task.verifier is None else _OUTCOMES[verified],
    )


_OUTCOMES: Mapping[bool | None, Literal["right", "wrong", "open"]] = {
    True: "right",
    False: "wrong",
    None: "open",
}


def answer_type_of(task: Problem) -> AnswerType:
    """Return the kind of a task's reference."""
    if task.kind == "code":
        return "code"
    accepted = (task.reference, *task.alternatives)
    if task.kind == "math":
        is_number = all(lone_number(text) is not None for text in accepted)
        return "number" if is_number else "math_expression"
    if task.reference in dict(task.choices):
        return "multiple_choice"
    longest = max(len(text.split()) for text in accepted)
    return "span" if longest <= _LONGEST_SPAN else "free_text"
