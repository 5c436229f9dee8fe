"""Arguments of reward calls as trainers and datasets have them, and results as a dict or object.

A bad request is refused alone, with a line that gives the remedy.
"""

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from flowright.config.suggestions import meant
from flowright.core.errors import UserError
from flowright.judging.payloads import completion_text, prompt_text, read_answer_type
from flowright.judging.verdict import Criterion, JudgeQuery, Verdict


class More(TypedDict, total=False):
    """Optional arguments: the completion as a list of one; other accepted references; an
    observation, such as ``passed 2 of 3 tests``; another answer to compare with; a rubric, as pairs
    of text and points; a name for the request; whether the judge itself has to answer, and no
    cache."""

    completions: object
    alternatives: Sequence[object]
    evidence: str | None
    rival: object
    criteria: Sequence[tuple[str, float]]
    request_id: str | None
    fresh: bool


PROMPTS = ("prompt", "question", "problem", "query", "input")
COMPLETIONS = ("completion", "response", "output", "prediction", "generation")
ANSWERS = ("answer", "solution", "ground_truth", "reference", "label", "target", "gold")
"""Names of prompts, completions and references in datasets, the most likely first."""

KNOWN = ("prompt", "completion", "answer", "answer_type", *More.__annotations__)


def request_of(
    prompt: object, completion: object, reference: object, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of one reward call. A mapping as reference is rendered as JSON; missing
    values of ``more`` are left out."""
    if isinstance(reference, Mapping):
        reference = json.dumps(reference, ensure_ascii=False, default=str)
    present = {name: value for name, value in more.items() if value is not None}
    return {"prompt": prompt, "completion": completion, "answer": reference, **present}


def query_of(request: object) -> JudgeQuery:
    """Return the query of a request's arguments. ``prompt`` and ``completion`` are texts, numbers
    or lists of messages; ``answer`` is a text, a number, a list of all accepted ones, or None.

    Raises ValueError, in one line, for arguments that cannot be understood.
    """
    if not isinstance(request, Mapping):
        kind = type(request).__name__
        raise ValueError(f"a mapping with prompt and completion is expected, not {kind}")
    for name in request:
        if name not in KNOWN:
            raise ValueError(f"unknown key {str(name)[:60]!r}{meant([str(name)[:60]], KNOWN)}")
    rival = request.get("rival")
    accepted = _references("answer", request.get("answer"))
    accepted += _references("alternatives", request.get("alternatives"))
    evidence, answer_type = request.get("evidence"), request.get("answer_type")
    return JudgeQuery(
        question=_text("prompt", request.get("prompt")),
        answer=_text("completion", _completion(request)),
        reference=accepted[0] if accepted else "",
        answer_type=read_answer_type(None if _is_missing(answer_type) else answer_type),
        alternatives=tuple(accepted[1:]),
        evidence=None if evidence is None else str(evidence),
        rival=None if rival is None else _text("rival", rival),
        criteria=tuple(map(_criterion, request.get("criteria") or ())),
        key="" if request.get("request_id") is None else str(request["request_id"]),
        fresh=bool(request.get("fresh")),
    )


def _completion(request: Mapping[str, Any]) -> object:
    one, several = request.get("completion"), request.get("completions")
    if several is None:
        return one
    if one is not None:
        raise ValueError("completion and completions: give one of them")
    if isinstance(several, list | tuple) and not any(isinstance(each, Mapping) for each in several):
        if len(several) != 1:
            raise ValueError(
                f"completions: {len(several)} of them; reward_batch judges several, each with its "
                "prompt and completion"
            )
        return several[0]
    return several


def request_id_of(request: object) -> str | None:
    name = request.get("request_id") if isinstance(request, Mapping) else None
    return name if isinstance(name, str) else None


def _is_missing(value: object) -> bool:
    """Return whether a value is None or NaN, as in an empty cell of a table."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _text(name: str, value: object) -> str:
    if hasattr(value, "tolist"):  # an array, or one of its elements
        value = value.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    if _is_missing(value):
        raise ValueError(f"{name}: there is none; give a text or a list of messages")
    if isinstance(value, numbers.Number):
        return str(value)
    if isinstance(value, bytes | bytearray):
        raise ValueError(f"{name}: bytes; decode them")
    try:
        return prompt_text(value) if name == "prompt" else completion_text(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _references(name: str, value: object) -> list[str]:
    """Return all accepted references, the first one first, without missing ones."""
    if _is_missing(value):
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, numbers.Number):
        return [str(value)]
    if hasattr(value, "tolist"):  # an array, or one of its elements
        return _references(name, value.tolist())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, Mapping | bytes | bytearray) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise ValueError(f"{name}: a text, a number or a list of these is expected, not {kind}")
    return [text for each in value for text in _references(name, each)]


def _criterion(value: Any) -> Criterion:
    try:
        if isinstance(value, Mapping):
            return Criterion(str(value["text"]), float(value["points"]))
        text, points = value
        return Criterion(str(text), float(points))
    except (KeyError, TypeError, ValueError) as error:
        why = error if "criterion" in str(error) else "pairs of text and points are expected"
        raise ValueError(f"criteria: {why}") from None


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A reward and its origin. ``score`` is in [0, 1], or None if the judge failed and nothing else
    decided (law 1).

    Can be added, averaged (``numpy.mean``) and formatted like its number; without a score that
    raises UserError, since any number would be an invention.
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
    def of(cls, result: Mapping[str, Any]) -> "RewardResult":
        """Convert a dict of :meth:`JudgeRewardSystem.reward`."""
        names = cls.__slots__
        return cls(result["reward"], **{name: result[name] for name in names if name != "score"})

    @property
    def reward(self) -> float | None:
        """The score, under its name in :meth:`JudgeRewardSystem.reward`."""
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


def result_of(verdict: Verdict, request_id: str | None, seconds: float) -> dict[str, Any]:
    """Return a verdict as the dict of :meth:`JudgeRewardSystem.reward`."""
    return {
        "reward": verdict.score,
        "acc_reward": verdict.score,
        "source": verdict.source,
        "status": verdict.status,
        "explanation": verdict.reason,
        "parts": dict(verdict.parts),
        "detailed_scores": dict(verdict.parts),
        "request_id": request_id,
        "judge": verdict.judge,
        "latency": seconds,
    }


def lost(why: str, status: str = "unavailable", request_id: str | None = None) -> dict[str, Any]:
    """Return the result of a request that never reached a judge, or never came back."""
    verdict = Verdict(None, None, "llm", "unavailable", why)
    return {**result_of(verdict, request_id, 0.0), "source": None, "status": status}
