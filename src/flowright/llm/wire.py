"""Chat completions as bytes: encode a request, decode a whole or a streamed reply.

Replies are parsed by hand into the few fields that are used.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flowright.config.llm import ModelEntry
from flowright.llm.chat import REFUSAL, ChatRequest


class MalformedReply(Exception):
    """Raised for a body of status 200 that is not a chat completion."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The first choice of a reply. Token counts are 0 where the server gave none."""

    text: str
    finish_reason: str
    reasoning: str | None
    model: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


def encode_request(entry: ModelEntry, request: ChatRequest) -> bytes:
    """Encode a request as JSON; parameters that it leaves open come from the model's entry."""
    body: dict[str, Any] = {
        "model": entry.model_name,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
    }
    for name in ("temperature", "top_p", "max_tokens", "reasoning_effort"):
        asked = getattr(request, name)
        value = getattr(entry, name) if asked is None else asked
        if value is not None:
            body[name] = value
    if request.top_k is not None:
        body["top_k"] = request.top_k
    if request.seed is not None:
        body["seed"] = request.seed
    if request.response_format is not None:
        body["response_format"] = dict(request.response_format)
    if entry.streams:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def decode_reply(content: bytes) -> ChatCompletion:
    """Decode a JSON body or a server-sent event stream; a gateway under load may send white space
    of any length first. Raises MalformedReply."""
    content = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not content:
        raise MalformedReply("the body is empty")
    if _EVENT_FIELD.match(content):
        return _decode_stream(content)
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):  # the latter from brackets that nest without end
        raise _not_json(content) from None
    choice = _first_choice(body)
    message = choice.get("message") if choice else None
    if choice is None or not isinstance(message, dict):
        raise MalformedReply(f"no choices in it: {_shown(body)}")
    return _completion(body, message, choice.get("finish_reason"), body.get("usage"))


def _not_json(data: bytes) -> MalformedReply:
    return MalformedReply(f"not JSON: {data[:80].decode('utf-8', 'replace')!r}")


_EVENT_FIELD = re.compile(rb"(?:data|event|id|retry)?:|(?:data|event|id|retry)[\r\n]")
_WORD = re.compile(r"\S")
_JSON = json.JSONDecoder()


def _events(content: bytes) -> Iterator[Any]:
    """Yield the JSON values of a server-sent event stream up to its ``[DONE]`` (WHATWG HTML,
    section 9.2.6). An event holds one value in one or several lines, or several values where a
    gateway leaves out the blank lines between events."""
    kind, data = b"", list[bytes]()
    for line in [*content.splitlines(), b"", b"data: [DONE]"]:
        name, _, value = line.partition(b":")
        is_done = name == b"data" and value.strip() == b"[DONE]"
        if name == b"data" and not is_done:
            data.append(value)
        elif name == b"event":
            kind = value.strip()
        if line and not is_done:
            continue
        text = b"\n".join(data).decode("utf-8", "replace")
        if kind == b"error":
            raise MalformedReply(f"the stream broke off: {text[:120]}")
        end = 0
        while (word := _WORD.search(text, end)) is not None:
            try:
                event, end = _JSON.raw_decode(text, word.start())
            except (ValueError, RecursionError):
                raise _not_json(text.encode()) from None
            yield event
        if is_done:
            return
        kind, data = b"", []


def _decode_stream(content: bytes) -> ChatCompletion:
    deltas: list[dict[str, Any]] = []
    finish: Any = None
    usage: Any = None
    model: Any = None
    last: Any = None
    for event in _events(content):
        if event is None:  # keeps the connection alive
            continue
        if isinstance(event, dict):  # the usage comes without choices
            event = {**event, "choices": event.get("choices") or []}
            usage, model = event.get("usage") or usage, event.get("model") or model
        choice = _first_choice(event)
        last = event
        if choice is not None:
            finish = choice.get("finish_reason") or finish
            deltas += [delta] if isinstance(delta := choice.get("delta"), dict) else []
    if finish is None:
        raise MalformedReply(f"the stream ended without a finish_reason: {_shown(last)}")
    message = {
        name: "".join(_text(delta.get(name)) for delta in deltas) for name in ("content", "refusal")
    }
    message["reasoning"] = "".join(map(_reasoning, deltas))
    return _completion({"model": model}, message, finish, usage)


def _first_choice(body: Any) -> dict[str, Any] | None:
    """Return the choice with index 0, if there is one."""
    choices = body.get("choices") if isinstance(body, dict) and not body.get("error") else None
    if not isinstance(choices, list):
        raise MalformedReply(f"no choices in it: {_shown(body)}")
    for choice in choices:
        if isinstance(choice, dict) and not choice.get("index"):
            if choice.get("error") or choice.get("finish_reason") == "error":
                raise MalformedReply(f"the reply broke off: {_shown(choice)}")
            return choice
    return None


def _completion(
    body: dict[str, Any], message: dict[str, Any], finish: Any, usage: Any
) -> ChatCompletion:
    usage = usage if isinstance(usage, dict) else {}
    text, refusal = _text(message.get("content")), message.get("refusal")
    if isinstance(refusal, str) and refusal and not text:
        text, finish = refusal, REFUSAL
    return ChatCompletion(
        text=text,
        finish_reason=finish if isinstance(finish, str) else "unknown",
        reasoning=_reasoning(message) or None,
        model=str(body.get("model") or ""),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_cached(usage),
    )


def _text(content: Any) -> str:
    """Return the text of a content: a string, null, or a list of parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        parts = (p.get("text") for p in content if isinstance(p, dict))
        return "".join(p for p in parts if isinstance(p, str))
    raise MalformedReply(f"the content is neither text nor null: {_shown(content)}")


def _reasoning(message: dict[str, Any]) -> str:
    """Return vLLM's ``reasoning``, or ``reasoning_content``, its older name and DeepSeek's."""
    for name in ("reasoning", "reasoning_content"):
        value = message.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _cached(usage: dict[str, Any]) -> int:
    """Return the prompt's tokens that were cached; DeepSeek has a name of its own."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return _count(usage.get("prompt_cache_hit_tokens") if cached is None else cached)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:120]
