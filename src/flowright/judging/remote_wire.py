"""What goes over the wire to a judge behind HTTP, and how its answers are read. No requests here.

Reads what the judge service says in full, and as much as a small server of somebody's own may say:
a ``score`` alone is a verdict.
"""

import hashlib
import json
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

from flowright.judging.answer_types import shown_answer_type
from flowright.judging.verdict import JudgeQuery, Source, Status, Verdict
from flowright.llm.chat import Usage
from flowright.llm.transport import RequestError

CLIENT_HEADER = "X-Client-Id"
"""Names whoever shares a service with others, so that each gets a fair share of it."""

_LONGEST_ID = 256
_MOST_NOTES, _NOTE_CHARS = 20, 300
_RIGHT_FROM = 0.5  # a score without a ``correct``; the judge service says both
_HEAD, _TAIL = b'{"requests": [', b"]}"
OVERHEAD = len(_HEAD + _TAIL)
SEPARATOR = b", "


def request_of(query: JudgeQuery) -> dict[str, Any]:
    """The request's keys. One without a name of its own is named by what it asks, so that answers
    in another order can be told apart and equal questions have equal names."""
    fields: dict[str, Any] = {
        "prompt": query.question,
        "completion": query.answer,
        "answer": query.reference,
        "answer_type": shown_answer_type(query.answer_type),
        "alternatives": query.alternatives or None,
        "evidence": query.evidence,
        "rival": query.rival,
        "criteria": [{"text": c.text, "points": c.points} for c in query.criteria] or None,
        "instruction": query.instruction or None,
    }
    said = {name: value for name, value in fields.items() if value is not None}
    made = hashlib.sha256(repr(said).encode("utf-8", "replace")).hexdigest()[:32]
    return {**said, "request_id": query.key[:_LONGEST_ID] or made}


def encoded(request: Mapping[str, Any]) -> bytes:
    """As JSON. Half a surrogate pair, which a policy may write and a server refuse, is a `?`."""
    text = json.dumps(request, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def body_of(requests: Sequence[bytes]) -> bytes:
    return _HEAD + SEPARATOR.join(requests) + _TAIL


@dataclass(frozen=True, slots=True)
class Limits:
    """What a service says that it takes; None where it says nothing."""

    in_flight: int | None = None
    """Verdicts that it makes at once."""
    queue: int | None = None
    """Verdicts that may wait there."""
    batch: int | None = None
    """Questions in one request."""
    body_bytes: int | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()
    """What one has to know of its verdicts."""


def read_limits(health: bytes) -> Limits:
    """What /health says; a page that is not the judge service's says nothing."""
    try:
        said = json.loads(health)
    except (ValueError, RecursionError):
        return Limits()
    if not isinstance(said, dict):
        return Limits()

    def number(key: str, least: int) -> int | None:
        value = said.get(key)
        return value if type(value) is int and value >= least else None

    return Limits(
        number("max_in_flight", 1),
        number("max_queue", 0),
        number("max_batch", 1),
        number("max_body_bytes", 1),
        said.get("simulated") is True,
        _notes(said.get("notes")),
    )


def _notes(given: object) -> tuple[str, ...]:
    """Some lines of somebody else's, cut to what a screen shows."""
    lines = given if isinstance(given, list) else []
    return tuple(line[:_NOTE_CHARS] for line in lines[:_MOST_NOTES] if isinstance(line, str))


@dataclass(frozen=True, slots=True)
class Read:
    """The verdicts of an answer in the order of the requests, None where there is none that can be
    used; ``problem`` says why of one of those."""

    verdicts: Sequence[Verdict | None]
    problem: str = ""


def read_responses(content: bytes, ids: Sequence[str], judge: str) -> Read:
    """The answer to a batch: each response belongs to the request whose ``request_id`` it has, or
    to the one in its place where the server has names of its own or none. Raises RequestError for
    what is no answer to a batch."""
    try:
        responses = json.loads(content)["responses"]
        if not isinstance(responses, list):
            raise TypeError("responses is not a list")
        ordered = _in_order(responses, ids)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RequestError("malformed", f"{judge}: not a judge service's answer ({what})") from None
    verdicts: list[Verdict | None] = []
    problem = ""
    for response in ordered:
        try:
            verdicts.append(read_verdict(response, judge))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            verdicts.append(None)
            what = f"{type(error).__name__}: {error}"
            problem = f"{judge}: not a judge service's answer ({what})"
    return Read(verdicts, problem)


def _in_order(responses: Sequence[Any], ids: Sequence[str]) -> list[Any]:
    """A response or None for each id."""
    names = [r.get("request_id") if isinstance(r, dict) else None for r in responses]
    named: defaultdict[str, deque[Any]] = defaultdict(deque)
    for name, response in zip(names, responses, strict=True):
        if isinstance(name, str):
            named[name].append(response)
    in_place = len(names) == len(ids) and all(
        name in (None, mine) for name, mine in zip(names, ids, strict=True)
    )
    if in_place or not named.keys() & set(ids):
        if len(responses) != len(ids):
            raise ValueError(f"{len(responses)} responses to {len(ids)} requests")
        return list(responses)
    return [named[name].popleft() if named[name] else None for name in ids]


def read_verdict(response: Any, judge: str) -> Verdict:
    """A response as a verdict. Raises ValueError or TypeError for one that is none."""
    if isinstance(response, int | float) and not isinstance(response, bool):
        response = {"score": response}
    if not isinstance(response, Mapping):
        raise ValueError("there is no response to it" if response is None else "no JSON object")
    score = response.get("score")
    status = response.get("status") or ("abstain" if score is None else "ok")
    metadata = response.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    said = str(response.get("explanation") or "")
    if status == "invalid":  # what we asked was no question
        return Verdict(None, None, "llm", "abstain", said, judge=judge)
    source = response.get("source")
    if status not in get_args(Status):
        raise ValueError(f"status {status!r}")
    if source not in (None, *get_args(Source)):
        raise ValueError(f"source {source!r}")
    correct = response.get("correct")
    if status == "ok":
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            raise ValueError(f"score {score!r}; from 0 to 1 is expected")
        is_tie = "correct" in response and correct is None and score == 0.5
        if correct is None and not is_tie:
            correct = score >= _RIGHT_FROM
        if not isinstance(correct, bool | None):
            raise ValueError(f"correct {correct!r}")
    attempts = int(_number(metadata.get("attempts")))
    return Verdict(
        score=float(score) if status == "ok" and score is not None else None,
        correct=correct if status == "ok" else None,
        source=source or "llm",
        status=status,
        reason=said,
        attempts=attempts,
        judge=str(metadata.get("judge") or judge),
        usage=Usage(
            int(attempts > 0),
            int(_number(metadata.get("prompt_tokens"))),
            int(_number(metadata.get("completion_tokens"))),
        ),
        seconds=_number(metadata.get("latency")),
        parts=_parts(response),
    )


def _parts(response: Mapping[str, Any]) -> dict[str, float]:
    """What the score was made of, under either name, and the judge's confidence in it."""
    told = (response.get(name) for name in ("detailed_scores", "parts"))
    given = {str(n): part for parts in told if isinstance(parts, dict) for n, part in parts.items()}
    if "confidence" in response:
        given["confidence"] = response["confidence"]
    return {name: float(part) for name, part in given.items() if _is_number(part)}


def _number(value: object) -> float:
    """What stands beside a verdict never spoils it."""
    return float(value) if _is_number(value) else 0.0


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def response_of(verdict: Verdict, request_id: str | None) -> dict[str, Any]:
    """A verdict as the service would say it: what :func:`read_verdict` reads."""
    return {
        "score": verdict.score,
        "correct": verdict.correct,
        "status": verdict.status,
        "source": verdict.source,
        "request_id": request_id,
        "explanation": verdict.reason,
        "parts": dict(verdict.parts),
        "detailed_scores": dict(verdict.parts),
        "metadata": {
            "latency": verdict.seconds,
            "attempts": verdict.attempts,
            "judge": verdict.judge,
            "prompt_tokens": verdict.usage.prompt_tokens,
            "completion_tokens": verdict.usage.completion_tokens,
        },
    }
