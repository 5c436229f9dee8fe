"""What a caller's program hands in, as a query: numbers, missing values, lists of messages; and
what datasets call it.

Refused is one request alone, with a line that says what to do. Nothing is judged here.
"""

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from flowright.core.errors import UserError
from flowright.core.plugins import suggest
from flowright.judging.payloads import completion_text, prompt_text, read_answer_type
from flowright.judging.verdict import Criterion, JudgeQuery, Verdict


class More(TypedDict, total=False):
    """What else may be said of an answer: other references that count; what was observed of it,
    such as ``passed 2 of 3 tests``; another answer to compare it with; a rubric, as pairs of text
    and points; a name for the request."""

    alternatives: Sequence[object]
    evidence: str | None
    rival: object
    criteria: Sequence[tuple[str, float]]
    request_id: str | None


PROMPTS = ("prompt", "question", "problem", "query", "input")
COMPLETIONS = ("completion", "response", "output", "prediction", "generation")
ANSWERS = ("answer", "solution", "ground_truth", "reference", "label", "target", "gold")
"""Names that prompts, completions and references have in datasets, the likeliest first."""

KNOWN = ("prompt", "completion", "answer", "answer_type", *More.__annotations__)


def request_of(
    prompt: object, completion: object, reference: object, more: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of one question to a reward system. A reference that is a mapping is shown as
    its JSON; of what ``more`` is said, what is missing is left out."""
    if isinstance(reference, Mapping):
        reference = json.dumps(reference, ensure_ascii=False, default=str)
    given = {name: value for name, value in more.items() if value is not None}
    return {"prompt": prompt, "completion": completion, "answer": reference, **given}


def query_of(request: object) -> JudgeQuery:
    """The query of a request's arguments. ``prompt`` and ``completion`` are texts, numbers or lists
    of messages; ``answer`` is a text, a number, a list of all that counts as right, or None.

    Raises ValueError, in one line, for what cannot be understood.
    """
    if not isinstance(request, Mapping):
        raise ValueError(f"a mapping with prompt and completion is expected, not {_kind(request)}")
    for name in request:
        if name not in KNOWN:
            raise ValueError(f"unknown key {str(name)[:60]!r}{suggest(str(name)[:60], KNOWN)}")
    rival = request.get("rival")
    accepted = _references("answer", request.get("answer"))
    accepted += _references("alternatives", request.get("alternatives"))
    evidence, answer_type = request.get("evidence"), request.get("answer_type")
    return JudgeQuery(
        question=_spoken("prompt", request.get("prompt")),
        answer=_spoken("completion", request.get("completion")),
        reference=accepted[0] if accepted else "",
        answer_type=read_answer_type(None if _is_missing(answer_type) else answer_type),
        alternatives=tuple(accepted[1:]),
        evidence=None if evidence is None else str(evidence),
        rival=None if rival is None else _spoken("rival", rival),
        criteria=tuple(map(_criterion, request.get("criteria") or ())),
        key="" if request.get("request_id") is None else str(request["request_id"]),
    )


def request_id_of(request: object) -> str | None:
    given = request.get("request_id") if isinstance(request, Mapping) else None
    return given if isinstance(given, str) else None


def _is_missing(given: object) -> bool:
    """None, and NaN: what a table has where a cell is empty."""
    return given is None or (isinstance(given, float) and math.isnan(given))


def _spoken(name: str, given: object) -> str:
    if hasattr(given, "tolist"):  # an array's, or one of its values
        given = given.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    if _is_missing(given):
        raise ValueError(f"{name}: there is none; give a text or a list of messages")
    if isinstance(given, numbers.Number):
        return str(given)
    if isinstance(given, bytes | bytearray):
        raise ValueError(f"{name}: bytes; decode them")
    try:
        return prompt_text(given) if name == "prompt" else completion_text(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _references(name: str, given: object) -> list[str]:
    """Everything that counts as right, the first one first; what is missing is left out."""
    if _is_missing(given):
        return []
    if isinstance(given, str):
        return [given]
    if isinstance(given, numbers.Number):
        return [str(given)]
    if hasattr(given, "tolist"):  # an array's, or one of its values
        return _references(name, given.tolist())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(given, Mapping | bytes | bytearray) or not isinstance(given, Iterable):
        raise ValueError(
            f"{name}: a text, a number or a list of these is expected, not {_kind(given)}"
        )
    return [text for each in given for text in _references(name, each)]


def _criterion(given: Any) -> Criterion:
    try:
        if isinstance(given, Mapping):
            return Criterion(str(given["text"]), float(given["points"]))
        text, points = given
        return Criterion(str(text), float(points))
    except (KeyError, TypeError, ValueError) as error:
        said = error if "criterion" in str(error) else "pairs of text and points are expected"
        raise ValueError(f"criteria: {said}") from None


def _kind(given: object) -> str:
    return type(given).__name__


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A reward with where it comes from. ``score`` is in [0, 1], or None where the judge failed and
    nothing else decided (law 1).

    Can be added, averaged (``numpy.mean``) and formatted like the number that it holds; one without
    a score cannot: that raises UserError, since any number would be an invention.
    """

    score: float | None
    source: str | None
    status: str
    explanation: str
    detailed_scores: Mapping[str, float]
    request_id: str | None
    judge: str
    latency: float

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "RewardResult":
        """Of what :meth:`JudgeRewardSystem.reward` returns."""
        names = cls.__slots__
        return cls(told["reward"], **{name: told[name] for name in names if name != "score"})

    @property
    def reward(self) -> float | None:
        """The score under the name that :meth:`JudgeRewardSystem.reward` gives it."""
        return self.score

    def __float__(self) -> float:
        if self.score is None:
            raise UserError(
                f"no score ({self.status}: {self.explanation}); leave out results whose score is "
                "None"
            )
        return self.score

    def __add__(self, other: object) -> float:
        if isinstance(other, RewardResult | int | float):
            return float(self) + float(other)
        return NotImplemented

    __radd__ = __add__

    def __truediv__(self, other: object) -> float:
        if isinstance(other, RewardResult | int | float):
            return float(self) / float(other)
        return NotImplemented

    def __format__(self, form: str) -> str:
        return format(float(self), form) if form else str(self)


def told_of(verdict: Verdict, request_id: str | None, seconds: float) -> dict[str, Any]:
    """A verdict as :meth:`JudgeRewardSystem.reward` tells it, which took so long."""
    parts = dict(verdict.parts)
    return {
        "reward": verdict.score,
        "source": verdict.source,
        "status": verdict.status,
        "explanation": verdict.reason,
        "parts": parts,
        "detailed_scores": dict(parts),
        "request_id": request_id,
        "judge": verdict.judge,
        "latency": seconds,
    }


def lost(why: str, status: str = "unavailable", request_id: str | None = None) -> dict[str, Any]:
    """What is told of a request that never got to a judge, or back."""
    nobody = Verdict(None, None, "llm", "unavailable", why)
    return {**told_of(nobody, request_id, 0.0), "source": None, "status": status}
