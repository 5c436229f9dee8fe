"""Payloads of judging: names of answer types, messages as text, and the HTTP requests and
responses of a judge service.

Responses are read leniently, so that any small server works: a ``score`` alone is a verdict.
"""

import hashlib
import json
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

from flowright.core.plugins import suggest
from flowright.judging.verdict import AnswerType, JudgeQuery, Source, Status, Verdict
from flowright.llm.chat import Usage
from flowright.llm.control_tokens import fence_for, fenced
from flowright.llm.transport import RequestError

TYPES: tuple[AnswerType, ...] = get_args(AnswerType)

_NAMES: Mapping[str, AnswerType] = {
    **{known: known for known in TYPES},
    "numeric": "number", "integer": "number", "int": "number", "float": "number",
    "math": "math_expression", "expression": "math_expression", "latex": "math_expression",
    "formula": "math_expression", "choice": "multiple_choice", "mcq": "multiple_choice",
    "text": "free_text", "string": "free_text", "free_form": "free_text", "any": "free_text",
    "boolean": "free_text", "bool": "free_text", "ocr_text": "free_text", "ocrtext": "free_text",
    "python": "code", "general_code": "code", "html_code": "code", "svg_code": "code",
}  # fmt: skip


def read_answer_type(value: object) -> AnswerType:
    """Return the type with a name in any case, in the plural (``MATH_EXPRESSIONS``), with ``-`` or
    a space for ``_``, or under another usual name. None and "" are ``free_text``. Raises ValueError
    that lists the types."""
    if value is None or value == "":
        return "free_text"
    name = str(value).strip().lower().replace("-", "_").replace(" ", "_")
    for word in (name, name.removesuffix("s")):
        if word in _NAMES:
            return _NAMES[word]
    shown = f"answer_type {repr(value)[:60]}{suggest(name[:60], TYPES)}"
    raise ValueError(f"{shown}; known are {', '.join(TYPES)}")


def shown_answer_type(known: AnswerType) -> str:
    """Return a type as HTTP services and users' judge models get it: ``MATH_EXPRESSIONS``."""
    return "MATH_EXPRESSIONS" if known == "math_expression" else known.upper()


# Messages.

_ROLE = re.compile(r"[\w -]{1,40}")


def prompt_text(prompt: object) -> str:
    """Return a prompt as text: the content of a single message; of several each after its role,
    between two lines of a fence that it cannot close, so that no turn can pass for another's.

    Raises ValueError for a value that is neither text nor messages.
    """
    if isinstance(prompt, str):
        return prompt
    turns = [(_role(message), _content(message)) for message in _messages(prompt)]
    if len(turns) == 1:
        return turns[0][1]
    fence = fence_for(text for _, text in turns)
    return "\n\n".join(fenced(text, f" {role}", fence) for role, text in turns)


def completion_text(completion: object) -> str:
    """Return the part of a completion to be judged: of messages the assistant's last one, or "".

    Raises ValueError as :func:`prompt_text`.
    """
    if isinstance(completion, str):
        return completion
    own = [m for m in _messages(completion) if _role(m) in ("assistant", "model")]
    return _content(own[-1]) if own else ""


def whole_characters(text: str) -> str:
    """Replace halves of surrogate pairs, which no request can carry, by ``?``."""
    return text.encode("utf-8", "replace").decode()


def _messages(value: object) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Iterable):
        raise ValueError(f"text or a list of messages is expected, not {type(value).__name__}")
    messages = list(value)
    if not messages:
        raise ValueError("the list of messages is empty")
    for message in messages:
        if not isinstance(message, Mapping) or "content" not in message:
            raise ValueError("a message is an object with role and content")
    return messages


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role", "assistant")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise ValueError("a message's role is a word, such as user or assistant")
    return role


def _content(message: Mapping[str, Any]) -> str:
    """Return the text; of a list of parts the texts, and the types of the others."""
    content = message["content"]
    if content is None:  # a message that only calls tools
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        raise ValueError("a message's content is text or a list of parts")
    return "\n".join(map(_part, content))


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ValueError("a part of a message's content is text or an object with a type")
    text = part.get("text")
    return text if isinstance(text, str) else f"[{str(part.get('type', 'part'))[:40]}]"


# Requests.

CLIENT_HEADER = "X-Client-Id"
"""Identifies a client of a shared service, for fair shares."""

_LONGEST_ID = 256
_HEAD, _TAIL = b'{"requests": [', b"]}"
OVERHEAD = len(_HEAD + _TAIL)
SEPARATOR = b", "


def request_of(query: JudgeQuery) -> dict[str, Any]:
    """Return the request's keys. A query without a key is named by a hash of its content, so that
    responses in another order can be assigned, and equal questions have equal names."""
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
        "fresh": query.fresh or None,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    digest = hashlib.sha256(repr(present).encode("utf-8", "replace")).hexdigest()[:32]
    return {**present, "request_id": query.key[:_LONGEST_ID] or digest}


def encoded(request: Mapping[str, Any]) -> bytes:
    """Return a request as JSON, halves of surrogate pairs as ``?``."""
    text = json.dumps(request, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def body_of(requests: Sequence[bytes]) -> bytes:
    return _HEAD + SEPARATOR.join(requests) + _TAIL


# Responses.

_MOST_NOTES, _NOTE_CHARS = 20, 300
_RIGHT_FROM = 0.5  # for a score without ``correct``; the judge service has both


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits announced by a service; None if it does not state one."""

    in_flight: int | None = None
    """Concurrent verdicts."""
    queue: int | None = None
    """Verdicts that may wait."""
    batch: int | None = None
    """Questions in one request."""
    body_bytes: int | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()


def read_limits(health: bytes) -> ServiceLimits:
    """Read the limits in /health; a page without any is no error."""
    try:
        fields = json.loads(health)
    except (ValueError, RecursionError):
        return ServiceLimits()
    if not isinstance(fields, dict):
        return ServiceLimits()

    def number(key: str, least: int) -> int | None:
        value = fields.get(key)
        return value if type(value) is int and value >= least else None

    notes = fields.get("notes")
    notes = notes[:_MOST_NOTES] if isinstance(notes, list) else []
    return ServiceLimits(
        number("max_in_flight", 1),
        number("max_queue", 0),
        number("max_batch", 1),
        number("max_body_bytes", 1),
        fields.get("simulated") is True,
        tuple(line[:_NOTE_CHARS] for line in notes if isinstance(line, str)),
    )


@dataclass(frozen=True, slots=True)
class BatchVerdicts:
    """Verdicts of a response in the order of the requests, None for unusable ones; ``problem`` is
    the reason of one of those."""

    verdicts: Sequence[Verdict | None]
    problem: str = ""


def read_responses(content: bytes, ids: Sequence[str], judge: str) -> BatchVerdicts:
    """Read the response to a batch. Each member belongs to the request with its ``request_id``, or
    to the one in its place if the server has ids of its own or none. Raises RequestError for a body
    that is no response to a batch."""
    try:
        responses = json.loads(content)["responses"]
        if not isinstance(responses, list):
            raise TypeError("responses is not a list")
        ordered = _in_order(responses, ids)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError("malformed", _malformed(judge, error)) from None
    verdicts: list[Verdict | None] = []
    problem = ""
    for response in ordered:
        try:
            verdicts.append(read_verdict(response, judge))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            verdicts.append(None)
            problem = _malformed(judge, error)
    return BatchVerdicts(verdicts, problem)


def _malformed(judge: str, error: Exception) -> str:
    return f"{judge}: not a judge service's answer ({type(error).__name__}: {error})"


def _in_order(responses: Sequence[Any], ids: Sequence[str]) -> list[Any]:
    """Return a response or None for each id."""
    names = [r.get("request_id") if isinstance(r, dict) else None for r in responses]
    named: defaultdict[str, deque[Any]] = defaultdict(deque)
    for name, response in zip(names, responses, strict=True):
        if isinstance(name, str):
            named[name].append(response)
    in_place = len(names) == len(ids) and all(
        name in (None, own) for name, own in zip(names, ids, strict=True)
    )
    if in_place or not named.keys() & set(ids):
        if len(responses) != len(ids):
            raise ValueError(f"{len(responses)} responses to {len(ids)} requests")
        return list(responses)
    return [named[name].popleft() if named[name] else None for name in ids]


def read_verdict(response: Any, judge: str) -> Verdict:
    """Return a response, or a number, as a verdict. Raises ValueError or TypeError."""
    if isinstance(response, int | float) and not isinstance(response, bool):
        response = {"score": response}
    if not isinstance(response, Mapping):
        raise ValueError("there is no response to it" if response is None else "no JSON object")
    score = response.get("score")
    status = response.get("status") or ("abstain" if score is None else "ok")
    metadata = response.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    reason = str(response.get("explanation") or "")
    if status == "invalid":  # our request was not a question
        return Verdict(None, None, "llm", "abstain", reason, judge=judge)
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
    parts = _mapping(response, "detailed_scores") | _mapping(response, "parts")
    if "confidence" in response:
        parts["confidence"] = response["confidence"]
    return Verdict(
        score=float(score) if status == "ok" and score is not None else None,
        correct=correct if status == "ok" else None,
        source=source or "llm",
        status=status,
        reason=reason,
        attempts=attempts,
        judge=str(metadata.get("judge") or judge),
        usage=Usage(
            int(attempts > 0),
            int(_number(metadata.get("prompt_tokens"))),
            int(_number(metadata.get("completion_tokens"))),
        ),
        seconds=_number(metadata.get("latency")),
        parts={name: float(part) for name, part in parts.items() if _is_number(part)},
    )


def _mapping(response: Mapping[str, Any], name: str) -> dict[str, Any]:
    parts = response.get(name)
    return {str(n): part for n, part in parts.items()} if isinstance(parts, dict) else {}


def _number(value: object) -> float:
    """Return a number beside a verdict; a bad one never spoils the verdict."""
    return float(value) if _is_number(value) else 0.0


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def response_of(verdict: Verdict, request_id: str | None) -> dict[str, Any]:
    """Return a verdict as the service's response; inverse of :func:`read_verdict`."""
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
