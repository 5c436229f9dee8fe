"""The OpenAI chat protocol, server side: requests read and checked, replies written.

Plain ASGI messages; what the replies say is decided elsewhere.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.simulation.requested_format import schema_properties

MODEL = "simulated"
FINGERPRINT = "simulated"
CHARS_PER_TOKEN = 4
MAX_CHOICES = 128

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class BadRequest(Exception):
    """A request outside the protocol, answered with ``status`` and the message."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


@dataclass(frozen=True, slots=True)
class ChatQuery:
    messages: tuple[tuple[str, str], ...]
    sampled: bool  # temperature > 0
    seed: int | None
    choices: int
    max_tokens: int | None
    response_format: Mapping[str, Any] | None
    stream: bool
    stream_usage: bool


@dataclass(frozen=True, slots=True)
class Choice:
    content: str | None
    finish_reason: str
    reasoning: str | None = None


def tokens(text: str) -> int:
    """An estimate: four characters to a token, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def parse(body: bytes) -> ChatQuery:
    """Read a request. Raises BadRequest with what is wrong."""
    try:
        data = json.loads(body)
    except ValueError:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(data, dict):
        raise BadRequest("the body is not a JSON object")
    model = data.get("model")
    if model != MODEL:
        raise BadRequest(f"the model {model!r} does not exist; this server has {MODEL!r}", 404)
    form = data.get("response_format")
    options = data.get("stream_options")
    temperature = _number(data, "temperature", 1.0)
    limit = "max_completion_tokens" if data.get("max_completion_tokens") else "max_tokens"
    return ChatQuery(
        messages=_messages(data.get("messages")),
        sampled=temperature is not None and temperature > 0,
        seed=_whole(data, "seed", None, None),
        choices=_whole(data, "n", 1, MAX_CHOICES) or 1,
        max_tokens=_whole(data, limit, 1, None),
        response_format=form if isinstance(form, dict) else None,
        stream=data.get("stream") is True,
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _messages(given: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, list) or not given:
        raise BadRequest("messages: must be a non-empty list")
    messages = []
    for number, message in enumerate(given):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise BadRequest(f"messages[{number}]: must be an object with a role")
        content = message.get("content")
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(text for text in texts if isinstance(text, str))
        if content is not None and not isinstance(content, str):
            raise BadRequest(f"messages[{number}].content: must be text")
        messages.append((role, content or ""))
    return tuple(messages)


def _number(data: Mapping[str, Any], key: str, default: float | None) -> float | None:
    value = data.get(key, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise BadRequest(f"{key}: must be a number")
    return default if value is None else value


def _whole(data: Mapping[str, Any], key: str, least: int | None, most: int | None) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{key}: must be an integer")
    if (least is not None and value < least) or (most is not None and value > most):
        raise BadRequest(f"{key}: must be between {least} and {most or 'any number'}")
    return value


def formed(text: str, form: Mapping[str, Any] | None) -> str:
    """The text, or a JSON object where one is asked for: in every string property of the schema."""
    kind = form.get("type") if form else None
    if form is None or kind not in ("json_object", "json_schema"):
        return text
    properties = schema_properties(form)
    names = ["answer"] if properties is None else list(properties)
    return json.dumps(dict.fromkeys(names, text), ensure_ascii=False)


# Replies.

MODEL_CARD = {
    "id": MODEL,
    "object": "model",
    "created": 0,
    "owned_by": "flowright (simulated)",
}
_JSON_TYPE = (b"content-type", b"application/json")
_STREAM_TYPE = (b"content-type", b"text/event-stream")


async def send_reply(
    send: Send, request: ChatQuery, choices: list[Choice], name: str, malformed: bool
) -> None:
    usage = _usage(request, choices)
    if request.stream:
        await _start(send, 200, [_STREAM_TYPE])
        for event in _events(request, choices, name, usage):
            chunk = f"data: {event}\n\n".encode()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if malformed:
                break
        await send({"type": "http.response.body", "body": b""})
        return
    payload = {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "system_fingerprint": FINGERPRINT,
        "choices": [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage,
    }
    data = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    await _body_of(send, 200, data[: len(data) // 2] if malformed else data)


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if choice.reasoning is not None:
        message["reasoning"] = choice.reasoning
    return message


def _usage(request: ChatQuery, choices: list[Choice]) -> dict[str, int]:
    prompt = sum(tokens(content) for _, content in request.messages)
    completion = sum(tokens((c.content or "") + (c.reasoning or "")) for c in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _events(
    request: ChatQuery, choices: list[Choice], name: str, usage: dict[str, int]
) -> Iterator[str]:
    """Server-sent events: per choice the role, the text in pieces, the finish reason."""

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        payload = {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": MODEL,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
            **more,
        }
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))

    def delta(index: int, value: dict[str, Any], finish: str | None = None) -> str:
        return event([{"index": index, "delta": value, "finish_reason": finish}])

    for index, choice in enumerate(choices):
        first = {"role": "assistant", "content": ""}
        if choice.reasoning is not None:
            first["reasoning"] = choice.reasoning
        yield delta(index, first)
        text = choice.content or ""
        for start in range(0, len(text), 64):
            yield delta(index, {"content": text[start : start + 64]})
        yield delta(index, {}, choice.finish_reason)
    if request.stream_usage:
        yield event([], usage=usage)
    yield "[DONE]"


async def send_error(
    send: Send, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": status}
    await _body_of(send, status, json.dumps({"error": error}), headers)


async def send_json(send: Send, status: int, payload: Any) -> None:
    await _body_of(send, status, json.dumps(payload))


async def _body_of(
    send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    data = text.encode("utf-8", "replace")
    length = (b"content-length", str(len(data)).encode())
    await _start(send, status, [_JSON_TYPE, length, *headers])
    await send({"type": "http.response.body", "body": data})


async def _start(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})


async def read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
