"""Chat types shared by every role that asks a large model. No transport here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flowright.core.errors import FailureError, Reason

Role = Literal["system", "user", "assistant"]
Effort = Literal["low", "medium", "high"]
LESS_EFFORT: Mapping[Effort, Effort] = {"high": "medium", "medium": "low", "low": "low"}
"""What a reasoning model that spent its room thinking is asked for next."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question to a model. None leaves a parameter to the model's entry in the LLM config.
    ``top_k`` is none of OpenAI's: vLLM and its like know it, and others may refuse it.

    ``seed`` makes a sampled reply repeatable where the server supports it; callers derive it from
    what they ask, never from the clock or the order of arrival, so that a run can be repeated.
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
    """What was spent: requests that reached a server and the tokens it counted."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


REFUSAL = "refusal"
"""The finish reason of a reply that is the model's refusal: the protocol has a field of its own for
it, beside an ordinary finish reason."""


LENGTH_STOPS = frozenset({"length", "max_tokens", "model_length"})
"""The finish reasons of a reply that was cut."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A model's reply. ``text`` may be empty: a reasoning model that spent its budget thinking
    returns no content and ``finish_reason == "length"``. ``context`` is how many tokens its server
    takes, prompt and reply together, where it has said so."""

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
        """The tokens that a reply to this prompt can have at most; infinite where nobody knows, or
        where this one has more than what the server says leaves it."""
        if self.context is None or not self.usage.prompt_tokens:
            return math.inf
        left = self.context - self.usage.prompt_tokens
        return left if left > 0 and left >= self.usage.completion_tokens else math.inf


class RequestRefused(FailureError):
    """The server understood the request and will not serve it as it stands (HTTP 400, 413 or 422):
    a parameter that it does not know, a prompt that is too long or that a filter stops. It is up,
    so this counts against no server and no breaker. Sending it again is useless; asking for less,
    such as no ``response_format``, may work. Whose fault it is :mod:`flowright.llm.refusals` finds
    out."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.LLM_UNAVAILABLE, message)


class ServerMisconfigured(FailureError):
    """The server will serve no request of ours until somebody changes the configuration (HTTP 401,
    403, 404 and the like): a wrong key, a model that it does not have. Asking again is useless."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.LLM_UNAVAILABLE, message)


class ChatModel(Protocol):
    """Something that answers chat requests: the HTTP client, or a test's double.

    ``chat`` raises :class:`flowright.core.errors.FailureError` with ``LLM_UNAVAILABLE`` once its
    retries and its deadline (seconds, for the whole call with retries) are spent, and its
    subclasses :class:`RequestRefused` and :class:`ServerMisconfigured` at once.
    """

    @property
    def name(self) -> str: ...

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply: ...
