"""What a judge says, and what it is asked. No prompts, no parsing, no transport here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flowright.data.task import Kind
from flowright.llm.chat import Usage

Source = Literal["llm", "rule", "rule_fallback", "cache"]
Status = Literal["ok", "abstain", "parse_error", "truncated", "timeout", "unavailable"]

AnswerType = Literal["number", "math_expression", "multiple_choice", "code", "span", "free_text"]
KIND_OF: Mapping[AnswerType, Kind] = {
    "number": "math",
    "math_expression": "math",
    "multiple_choice": "qa",
    "code": "code",
    "span": "qa",
    "free_text": "qa",
}
"""How those who ask from outside name what a reference is, and the kind that it is here."""


@dataclass(frozen=True, slots=True)
class JudgeQuery:
    """One answer to be judged. ``evidence`` is what the trusted process observed itself, such as
    the outcome of a test run; ``key`` names the sample, so that seeds can be derived from it."""

    question: str
    answer: str
    reference: str
    kind: Kind = "qa"
    alternatives: tuple[str, ...] = ()
    evidence: str | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict. ``score`` in [0, 1] and ``correct`` are None unless ``status == "ok"``:
    a judge that failed has said nothing, which is not the same as "wrong" (law 1). ``members`` are
    the verdicts that it was made of or stands in for."""

    score: float | None
    correct: bool | None
    source: Source
    status: Status
    reason: str = ""
    attempts: int = 0
    judge: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    members: tuple["Verdict", ...] = ()

    def __post_init__(self) -> None:
        said_something = self.score is not None and self.correct is not None
        if (self.status == "ok") != said_something:
            raise ValueError(f"status {self.status!r} with score {self.score}, {self.correct}")


class Judge(Protocol):
    """Anything that judges; wrappers (gate, cache, panel) are judges around judges.

    ``judge`` does not raise for a failing backend: that is a verdict whose status says so.
    """

    @property
    def name(self) -> str: ...

    async def judge(self, query: JudgeQuery) -> Verdict: ...
