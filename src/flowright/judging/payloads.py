"""The names of answer types as callers write them. What a type means is not known here."""

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
from flowright.llm.fences import fence_for, fenced
from flowright.llm.transport import RequestError

TYPES: tuple[AnswerType, ...] = get_args(AnswerType)

_ALIASES: Mapping[str, AnswerType] = {
    "numeric": "number", "integer": "number", "int": "number", "float": "number",
    "math": "math_expression", "expression": "math_expression", "latex": "math_expression",
    "formula": "math_expression", "choice": "multiple_choice", "mcq": "multiple_choice",
    "text": "free_text", "string": "free_text", "free_form": "free_text", "any": "free_text",
    "boolean": "free_text", "bool": "free_text", "ocr_text": "free_text", "ocrtext": "free_text",
    "python": "code", "general_code": "code", "html_code": "code", "svg_code": "code",
}  # fmt: skip


def read_answer_type(given: object) -> AnswerType:
    """The type that a caller means: in any case, in the plural (``MATH_EXPRESSIONS``), with ``-``
    or a space for ``_``, by another usual name. None and "" are ``free_text``. Raises ValueError
    that lists the known ones."""
    if given is None or given == "":
        return "free_text"
    name = str(given).strip().lower().replace("-", "_").replace(" ", "_")
    for word in (name, name.removesuffix("s")):
        for known in TYPES:
            if word == known:
                return known
        if word in _ALIASES:
            return _ALIASES[word]
    shown = f"answer_type {repr(given)[:60]}{suggest(name[:60], TYPES)}"
    raise ValueError(f"{shown}; known are {', '.join(TYPES)}")


def shown_answer_type(known: AnswerType) -> str:
    """As judges behind HTTP and judge models of one's own get it, such as ``MATH_EXPRESSIONS``."""
    return "MATH_EXPRESSIONS" if known == "math_expression" else known.upper()


_ROLE = re.compile(r"[\w -]{1,40}")


def prompt_text(prompt: object) -> str:
    """A prompt as text. The content of a single message; of several each between two lines of a
    fence that it cannot close, behind its role, so that no turn can pass for another's.

    Raises ValueError for what is neither text nor messages.
    """
    if isinstance(prompt, str):
        return prompt
    turns = [(_role(message), _content(message)) for message in _messages(prompt)]
    if len(turns) == 1:
        return turns[0][1]
    fence = fence_for(text for _, text in turns)
    return "\n\n".join(fenced(text, f" {role}", fence) for role, text in turns)


def completion_text(completion: object) -> str:
    """What is to be judged of a completion: of messages the last one of the assistant, whatever
    tools and others said in between; nothing where there is none.

    Raises ValueError as :func:`prompt_text`.
    """
    if isinstance(completion, str):
        return completion
    said = [m for m in _messages(completion) if _role(m) in ("assistant", "model")]
    return _content(said[-1]) if said else ""


def whole_characters(text: str) -> str:
    """Half of a surrogate pair, which no request can carry, as ``?``: a policy that wrote one wrote
    something else than was asked, and is no less to be judged."""
    return text.encode("utf-8", "replace").decode()


def _messages(given: object) -> list[Mapping[str, Any]]:
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, Iterable):
        raise ValueError(f"text or a list of messages is expected, not {type(given).__name__}")
    messages = list(given)
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
    """Text as it is; of a list of parts the texts, and the kinds of the others."""
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
