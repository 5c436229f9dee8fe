"""The server side of the OpenAI chat protocol: requests are checked, replies written."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from flowright.simulation.requested_format import Rule, asks_for_json, filled, schema_of
from flowright.simulation.values import final_answer, number

MODEL = "simulated"
FINGERPRINT = "simulated"
CHARS_PER_TOKEN = 4
MAX_CHOICES = 128
_LARGE = 10**300  # near the end of floats


@dataclass(frozen=True, slots=True)
class ChatQuery:
    model: str
    messages: tuple[tuple[str, str], ...]
    temperature: float
    seed: int | None
    choices: int
    max_tokens: int | None
    response_format: Mapping[str, Any] | None
    stream: bool
    stream_usage: bool
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyChoice:
    content: str | None
    finish_reason: str
    reasoning: str | None = None


def tokens(text: str) -> int:
    """Estimate tokens: four characters each, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def request_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. Raises HTTPException."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return data


def parse(data: Mapping[str, Any], models: Sequence[str] = (MODEL,)) -> ChatQuery:
    """Check a request for one of ``models``. Raises HTTPException."""
    model = data.get("model")
    if not isinstance(model, str) or model not in models:
        has = ", ".join(map(repr, models))
        raise HTTPException(404, f"the model {model!r} does not exist; this server has {has}")
    for name in ("logprobs", "top_logprobs"):
        if data.get(name):
            raise HTTPException(400, f"{name}: this server has none; leave it out")
    response_format = data.get("response_format")
    options = data.get("stream_options")
    temperature = _number(data, "temperature", 1.0)
    limit = "max_completion_tokens" if data.get("max_completion_tokens") else "max_tokens"
    return ChatQuery(
        model=model,
        messages=_messages(data.get("messages")),
        temperature=temperature or 0.0,
        seed=_whole(data, "seed", None, None),
        choices=_whole(data, "n", 1, MAX_CHOICES) or 1,
        max_tokens=_whole(data, limit, 1, None),
        response_format=response_format if isinstance(response_format, dict) else None,
        stream=data.get("stream") is True,
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
        stop=_stops(data.get("stop")),
    )


def _messages(given: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, list) or not given:
        raise HTTPException(400, "messages: must be a non-empty list")
    messages = []
    for place, message in enumerate(given):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise HTTPException(400, f"messages[{place}]: must be an object with a role")
        content = message.get("content")
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(text for text in texts if isinstance(text, str))
        if content is not None and not isinstance(content, str):
            raise HTTPException(400, f"messages[{place}].content: must be text")
        messages.append((role, content or ""))
    return tuple(messages)


def _stops(given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise HTTPException(400, "stop: must be a text that is not empty, or a list of such")
    return tuple(texts)


def choice_of(text: str, limit: int, stops: Sequence[str]) -> ReplyChoice:
    """Cut a text before the stop text that is complete first, or at ``limit`` characters."""
    ends = ((at + len(stop), at) for stop in stops if (at := text.find(stop, 0, limit)) >= 0)
    if (first := min(ends, default=None)) is not None:
        return ReplyChoice(text[: first[1]], "stop")
    return ReplyChoice(text[:limit], "length" if limit < len(text) else "stop")


def _number(data: Mapping[str, Any], key: str, default: float | None) -> float | None:
    value = data.get(key, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise HTTPException(400, f"{key}: must be a number")
    return default if value is None else value


def _whole(data: Mapping[str, Any], key: str, least: int | None, most: int | None) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise HTTPException(400, f"{key}: must be an integer")
    if (least is not None and value < least) or (most is not None and value > most):
        raise HTTPException(400, f"{key}: must be between {least} and {most or 'any number'}")
    return value


def formed(text: str, response_format: Mapping[str, Any] | None) -> str:
    """Return the text, or the requested JSON: an instance of the schema, with the text in every
    string and its final value in every number. Raises Unfillable."""
    if not asks_for_json(response_format):
        return text
    schema = schema_of(response_format)
    if schema is None:
        return json.dumps({"answer": text}, ensure_ascii=False)
    value = number(final_answer(text))

    def offer(key: str, rule: Rule) -> str | float | None:
        if isinstance(rule, dict) and rule.get("type") in ("integer", "number"):
            return float(value) if value is not None and abs(value) < _LARGE else None
        return text

    return json.dumps(filled(schema, offer), ensure_ascii=False)


# Replies.


def model_card(name: str = MODEL) -> dict[str, Any]:
    """Return a row of the list of models."""
    owner = "flowright (simulated)"
    return {"id": name, "object": "model", "created": 0, "owned_by": owner, "simulated": True}


def reply_of(
    query: ChatQuery, choices: Sequence[ReplyChoice], name: str, malformed: bool
) -> Response:
    """Build the reply, whole or streamed; a ``malformed`` one breaks off."""
    if query.stream:
        events = _events(query, choices, name)
        return StreamingResponse(_sent(events, malformed), media_type="text/event-stream")
    parts = [
        {
            "index": index,
            "message": _message(choice),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choices)
    ]
    data = _body("chat.completion", name, parts, model=query.model, usage=_usage(query, choices))
    return Response(
        _encoded(data[: len(data) // 2] if malformed else data), media_type="application/json"
    )


def error_of(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status, headers)


def _body(
    kind: str, name: str, choices: Sequence[Mapping[str, Any]], model: str, **more: Any
) -> str:
    payload = {
        "id": f"chatcmpl-{name}",
        "object": kind,
        "created": 0,
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        **more,
    }
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a prompt may have had lone surrogates


def _message(choice: ReplyChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if choice.reasoning is not None:
        message["reasoning"] = choice.reasoning
    return message


def _usage(query: ChatQuery, choices: Sequence[ReplyChoice]) -> dict[str, int]:
    prompt = sum(tokens(content) for _, content in query.messages)
    completion = sum(tokens((c.content or "") + (c.reasoning or "")) for c in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _events(query: ChatQuery, choices: Sequence[ReplyChoice], name: str) -> Iterator[str]:
    """Yield server-sent events: per choice the role, chunks of the text, the finish reason."""

    def delta(index: int, value: dict[str, Any], finish: str | None = None) -> str:
        part = {"index": index, "delta": value, "finish_reason": finish}
        return _body("chat.completion.chunk", name, [part], model=query.model)

    for index, choice in enumerate(choices):
        yield delta(index, _message(choice) | {"content": ""})
        text = choice.content or ""
        for start in range(0, len(text), 64):
            yield delta(index, {"content": text[start : start + 64]})
        yield delta(index, {}, choice.finish_reason)
    if query.stream_usage:
        usage = _usage(query, choices)
        yield _body("chat.completion.chunk", name, [], model=query.model, usage=usage)
    yield "[DONE]"


async def _sent(events: Iterator[str], malformed: bool) -> AsyncIterator[bytes]:
    for event in islice(events, 1 if malformed else None):
        yield _encoded(f"data: {event}\n\n")
