"""The OpenAI chat protocol as a policy at work speaks it: requests to questions, answers to replies
and to server-sent events, failures to errors.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from flowright.app.serving.author import Outcome
from flowright.app.serving.opening import question_of
from flowright.app.serving.settings import PolicyServer
from flowright.app.serving.words import fault_of, spent
from flowright.core.errors import Failure, Reason
from flowright.data.task import KINDS, Problem
from flowright.simulation.protocol import parse, request_of

STATUS: Mapping[Reason, int] = {
    Reason.LLM_UNAVAILABLE: 503,
    Reason.WORKER_LOST: 503,
    Reason.SANDBOX_LOST: 503,
    Reason.INTERNAL: 500,
}
"""HTTP's words for failures of ours."""

POLICY_FAILED = 422
"""For the policy's: a client that repeats requests after 5xx does not repeat these."""

REFUSED = ("tools", "functions", "logprobs", "top_logprobs", "audio")
"""Parameters that ask for what a workflow's answer cannot be."""

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A request, read. ``temperature`` and ``top_p`` are the policy's, None for the default ones;
    ``seed`` decides all draws."""

    problem: Problem
    model: str
    seed: int
    temperature: float | None
    top_p: float | None
    stream: bool
    stream_usage: bool


def models_of(name: str) -> list[str]:
    """The models that are listed: the policy, and the policy for each kind of question."""
    return [name, *(f"{name}:{kind}" for kind in KINDS)]


def read(body: bytes, settings: PolicyServer) -> Question:
    """A chat request as a question: the last message, with those before it as its context.

    Raises HTTPException with what is wrong.
    """
    data, name = request_of(body), settings.name
    query = parse(data, models_of(name))
    _only_text(data["messages"])
    for key in REFUSED:
        if data.get(key):
            raise HTTPException(400, f"{key}: an answer is a workflow's; leave it out")
    if query.choices != 1:
        raise HTTPException(400, "n: one answer a request; send several requests")
    if query.stop:
        raise HTTPException(400, "stop: an answer is a workflow's; leave it out")
    if data.get("response_format") not in (None, {"type": "text"}):
        raise HTTPException(400, "response_format: an answer is plain text; leave it out")
    if data.get("stream") not in (None, True, False):
        raise HTTPException(400, "stream: must be true or false")
    temperature, top_p = _within(data, "temperature", 0, 2), _within(data, "top_p", 1e-6, 1)
    *before, (role, text) = query.messages
    if role != "user" or not text.strip():
        raise HTTPException(400, "messages: the last one must be the user's, with text")
    context = "\n\n".join(f"{said}: {content}" for said, content in before if content)
    model = str(data["model"])
    chosen = model.removeprefix(name).lstrip(":") or settings.kind
    _check_size(text, context, settings.max_question_bytes)
    problem = question_of(text, next(k for k in KINDS if k == chosen), context or None)
    seed = secrets.randbits(31) if query.seed is None else _place(query.seed)
    return Question(problem, model, seed, temperature, top_p, query.stream, query.stream_usage)


def _only_text(messages: Sequence[Mapping[str, Any]]) -> None:
    for place, message in enumerate(messages):
        parts = message.get("content")
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            if not isinstance(part, dict) or part.get("type", "text") != "text":
                where = f"messages[{place}].content[{number}]"
                raise HTTPException(400, f"{where}: a workflow reads text alone")


def _check_size(text: str, context: str, most: int) -> None:
    try:
        size = len(f"{context}\n\n{text}".encode())
    except UnicodeEncodeError:
        raise HTTPException(400, "messages: half of a surrogate pair is no text") from None
    if size > most:
        raise HTTPException(413, f"messages: {size:,} bytes of text, a workflow takes {most:,}")


def _within(data: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise HTTPException(400, f"{key}: must be a number from {least:g} to {most:g}")
    return float(value)


def _place(seed: int) -> int:
    """Any integer as one of 31 bits, which every sampler takes."""
    digest = blake2b(str(seed).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


class Reply:
    """What one request is answered with; all its parts have one id."""

    def __init__(self, question: Question, simulated: bool) -> None:
        self._question = question
        self._simulated = simulated
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, outcome: Outcome, reasoning: str, about: Mapping[str, Any]) -> dict[str, Any]:
        """The reply in one piece. ``about`` is what the protocol has no field for."""
        message = {
            "role": "assistant",
            "content": outcome.answer,
            "refusal": None,
            "reasoning_content": reasoning,
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return self._body(
            "chat.completion", [choice], usage=usage_of(outcome), flowright=dict(about)
        )

    def chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        """An event with a piece of the reply."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(self._body("chat.completion.chunk", [choice]))

    def usage_chunk(self, outcome: Outcome, about: Mapping[str, Any]) -> bytes:
        body = self._body("chat.completion.chunk", [], usage=usage_of(outcome))
        return event(body | {"flowright": dict(about)})

    def _body(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._question.model,
            "system_fingerprint": "simulated" if self._simulated else None,
            "choices": choices,
            **more,
        }


def event(body: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def usage_of(outcome: Outcome) -> dict[str, Any]:
    """The policy's tokens and the executor's together; each apart under ``details``."""
    both = outcome.policy + outcome.executor
    return {
        "prompt_tokens": both.prompt_tokens,
        "completion_tokens": both.completion_tokens,
        "total_tokens": both.tokens,
        "completion_tokens_details": {"reasoning_tokens": outcome.policy.completion_tokens},
        "details": {
            "policy": spent(outcome.policy),
            "executor": spent(outcome.executor),
        },
    }


def failure_body(failure: Failure) -> tuple[int, dict[str, Any]]:
    """HTTP status and body of a question that got no answer; ``code`` is the reason."""
    status = STATUS.get(failure.reason, POLICY_FAILED)
    return status, error_body(status, fault_of(failure), failure.reason.value)


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    usual = "server_error" if status >= 500 else "invalid_request_error"
    kind = "workflow_error" if status == POLICY_FAILED else TYPES.get(status, usual)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refusal(error: HTTPException) -> Response:
    """An error of the service itself."""
    return JSONResponse(error_body(error.status_code, error.detail), error.status_code,
                        error.headers)  # fmt: skip
