"""Chat messages, requests and replies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flowright.core.errors import FailureError, Reason

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["low", "medium", "high"]
LESS_EFFORT: Mapping[Effort, Effort] = {"high": "medium", "medium": "low", "low": "low"}
"""The reasoning effort of a retry after a reply that spent its budget thinking."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a model; None leaves a parameter to the model's entry in the LLM config.

    ``top_k`` is vLLM's and not OpenAI's; some servers refuse it. ``seed`` makes a sampled reply
    repeatable where the server supports it; derive it from the request, never from the clock or
    the order of arrival.
    """

    messages: Sequence[Message]
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    response_format: Mapping[str, Any] | None = None
    reasoning_effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Requests that reached a server and the tokens it counted; ``money`` is 0 without prices."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.money + other.money,
        )


REFUSAL = "refusal"
"""The finish reason given to a reply in the protocol's ``refusal`` field."""


LENGTH_STOPS = frozenset({"length", "max_tokens", "model_length"})
"""The finish reasons of a truncated reply."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A model's reply. ``text`` may be empty: a reasoning model that spent its budget thinking
    returns no content and ``finish_reason == "length"``. ``context``: tokens of prompt and reply
    together that the server admits, if known."""

    text: str
    finish_reason: str
    usage: Usage
    model: str
    seconds: float
    attempts: int = 1
    reasoning: str | None = None
    context: int | None = None

    @property
    def room(self) -> float:
        """Most tokens of a reply to this prompt; infinite if unknown, or if this reply is longer
        than the server's own figure admits."""
        if self.context is None or not self.usage.prompt_tokens:
            return math.inf
        left = self.context - self.usage.prompt_tokens
        return left if left > 0 and left >= self.usage.completion_tokens else math.inf


class RequestRefused(FailureError):
    """Raised for HTTP 400, 413 and 422: an unknown parameter, a prompt that is too long or that a
    filter stops. Counts against no server. Repeating it is useless; asking for less, such as no
    ``response_format``, may work, and so may another seed: gpt-oss behind vLLM gets a 400 for a
    reply that its parser cannot read. :class:`flowright.llm.context.WithControl` finds out whose
    fault it is."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.LLM_UNAVAILABLE, message)


class ServerMisconfigured(FailureError):
    """Raised for HTTP 401, 403, 404 and the like: a wrong key or model name. Repeating it is
    useless until the configuration changes."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.LLM_UNAVAILABLE, message)


class NoCompletion(FailureError):
    """Raised when every attempt got a reply, and none a completion: an error or a web page with
    status 200, HTTP 409 or 500."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.LLM_UNAVAILABLE, message)


class ChatModel(Protocol):
    """Anything that answers chat requests.

    ``chat`` raises :class:`flowright.core.errors.FailureError` with ``LLM_UNAVAILABLE`` once its
    retries and its deadline (seconds, for the whole call with retries) are spent, its subclass
    :class:`NoCompletion` among them, and :class:`RequestRefused` and :class:`ServerMisconfigured`
    at once.
    """

    @property
    def name(self) -> str: ...

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply: ...
