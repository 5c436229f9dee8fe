"""What a judge says, and what it is asked. No prompts, no parsing, no transport here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from flowright.data.task import Problem
from flowright.grading.numbers import lone_number
from flowright.llm.chat import Usage

Source = Literal["llm", "rule", "rule_fallback", "cache", "second_reading", "floor"]
"""Who decided. ``second_reading`` is the judge when it was shown the final answer alone, ``floor``
nobody: the answer is called wrong because it keeps every judge from judging it."""
Status = Literal[
    "ok", "abstain", "declined", "parse_error", "refused", "truncated", "overloaded", "timeout",
    "unavailable",
]  # fmt: skip
"""Why there is a score, or why there is none: ``abstain`` is a judge that could not decide,
``declined`` a model that refused to judge or whose reply a content filter stopped, ``refused`` a
server that is up and does not take this query, ``overloaded`` one that had no room for it in time.
"""

DOWN: frozenset[Status] = frozenset({"timeout", "unavailable"})
"""What says that the backend is down; a reply that cannot be read does not, nor does a query that
is refused or finds no room."""

AnswerType = Literal["number", "math_expression", "multiple_choice", "code", "span", "free_text"]
"""What a reference is; it chooses the criteria in the prompt and the rule."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a rubric: a statement about the answer, and what it is worth where it is true.
    ``points`` below 0 are for what an answer must not do."""

    text: str
    points: float

    def __post_init__(self) -> None:
        if not self.text.strip() or self.points == 0:
            raise ValueError(f"a criterion needs a text and points, not {self.text!r}: 0 is none")


@dataclass(frozen=True, slots=True)
class JudgeQuery:
    """One answer to be judged; or, with a ``rival``, whether it is the better of two.

    ``reference`` may be empty where ``criteria`` or a rival stand for it. ``evidence`` is what the
    trusted process observed itself, such as the outcome of a test run; ``instruction`` stands in
    the place of the wording's, word for word; ``key`` names the sample, so that seeds can be
    derived from it. ``own_check`` is what the task's own verifier said of the answer, where the
    task has one (``open``: it could not say): rules go by it, and no model is shown it.
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


@dataclass(frozen=True, slots=True)
class RawReply:
    """What a model said to one attempt: ``prompt`` is what it was asked, cut where it is long, and
    ``read`` how its words were read, or why they could not be."""

    text: str
    finish_reason: str
    reasoning: str | None = None
    prompt: str = field(default="", compare=False)
    read: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict. ``score`` in [0, 1] and ``correct`` are None unless ``status == "ok"``:
    a judge that failed has said nothing, which is not the same as "wrong" (law 1). Between two
    answers the score is 1 for the answer, 0 for its rival and 0.5 for a tie, which is neither:
    there alone ``correct`` is None beside a score.

    ``parts`` are what the score was made of, by name, each in [0, 1]: a rubric's criteria, the
    aspects. ``members`` are the verdicts that it was made of or stands in for. ``replies`` are the
    models' own, attempt by attempt.
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

    def __post_init__(self) -> None:
        is_tie = self.score == 0.5 and self.correct is None
        said_something = self.score is not None and (self.correct is not None or is_tie)
        said_nothing = self.score is None and self.correct is None
        if not (said_something if self.status == "ok" else said_nothing):
            raise ValueError(f"status {self.status!r} with score {self.score}, {self.correct}")


@runtime_checkable
class Judge(Protocol):
    """Anything that judges; wrappers (gate, cache, panel) are judges around judges.

    ``judge`` does not raise for a failing backend: that is a verdict whose status says so.
    """

    @property
    def name(self) -> str: ...

    async def judge(self, query: JudgeQuery) -> Verdict: ...


@dataclass(eq=False)
class Wrapper:
    """The base of a judge around another, whose name it bears."""

    inner: Judge

    @property
    def name(self) -> str:
        return self.inner.name


_LONGEST_SPAN = 8  # words


def task_query(
    task: Problem,
    answer: str,
    key: str,
    evidence: str | None = None,
    verified: bool | None = None,
) -> JudgeQuery:
    """``evidence`` is for code, which is judged by what was seen of its test run; other answers
    are judged by what they say. ``verified`` is the outcome of the gold check, of use where the
    task has a verifier of its own."""
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
    """What a task's reference is."""
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
