"""Context lengths: bounds on a text's tokens, a server's limit, and refusals for length.

A refusal may quote the prompt, so its numbers hold for the refused request alone and are not kept.
:class:`WithControl` finds out whether a refusal is the prompt's fault or ours.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowright.core.batch_calls import Memo
from flowright.core.errors import FailureError
from flowright.llm.chat import (
    ChatModel,
    ChatReply,
    ChatRequest,
    Message,
    NoCompletion,
    RequestRefused,
    ServerMisconfigured,
)


def most_tokens(text: str) -> int:
    """Return an upper bound on the tokens of a text: its bytes in UTF-8.

    A byte-level tokenizer (GPT, GPT-OSS, Llama 3, Qwen, DeepSeek) makes at most one token of a
    byte, one with byte fallback (Llama 2, Mistral, Gemma) at most one more in all. Characters are
    no bound: ``"𓀀"`` is one character and four tokens.
    """
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def first_tokens(text: str, most: int) -> str:
    """Return the longest prefix of whole characters with at most ``most`` tokens."""
    if most_tokens(text) <= most:
        return text
    return text[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def last_tokens(text: str, most: int) -> str:
    """Return the longest suffix of whole characters with at most ``most`` tokens."""
    if most_tokens(text) <= most:
        return text
    return text[-most:].encode("utf-8", "replace")[-most:].decode("utf-8", "ignore")


_CARD_KEYS = ("max_model_len", "context_length", "context_window")  # vLLM, SGLang; hosted models
_LONGEST = re.compile(
    r"context (?:length|size|window)(?: is| of)?(?: only)?[ :=(]{1,3}(\d{1,9})"
    r"|(?:max_model_len|max_total_tokens|n_ctx)\W{1,3}(\d{1,9})"
    r"|max_new_tokens\W{1,3}must be <= (\d{1,9})",
    re.IGNORECASE,
)
_LONGEST_REPLY = re.compile(r"at most (\d{1,9}) (?:completion|output) tokens", re.IGNORECASE)
# A count with "at least", or of a prompt that was cut for counting, is none.
_PROMPT = re.compile(
    r"\((\d{1,9}) in the (?:messages|prompt)|(?:request has|prompt contains) (\d{1,9}) input tokens"
    r"|(\d{1,9}) tokens from the input|Given: (\d{1,9}) .?inputs|resulted in (\d{1,9}) tokens"
    r"|request \((\d{1,9}) tokens\)"
)
_BYTES_PER_TOKEN = 2  # at least, in prose of any script and in code


@dataclass(frozen=True, slots=True)
class TooLong:
    """A refusal for length: the server's limit, and the tokens of the prompt if it names them. A
    limit on the reply alone is a context of which the prompt takes nothing."""

    context: int
    prompt_tokens: int | None

    def room(self, messages: Sequence[Message], prompt_tokens: int = 0) -> int:
        """Return the tokens left for a reply, 0 or less for none. Without a count by the server or
        the caller (``prompt_tokens``) the prompt's tokens are estimated by its size."""
        size = sum(most_tokens(message.content) for message in messages)
        counted = prompt_tokens or size // _BYTES_PER_TOKEN
        return self.context - (counted if self.prompt_tokens is None else self.prompt_tokens)


def too_long(message: str) -> TooLong | None:
    """Parse the lengths in a refusal by vLLM, SGLang, TGI, llama.cpp or OpenAI; else None."""
    if (reply := _LONGEST_REPLY.search(message)) is not None:
        return TooLong(_number(reply), 0)
    longest = _LONGEST.search(message)
    if longest is None:
        return None
    prompt = _PROMPT.search(message)
    return TooLong(_number(longest), _number(prompt) if prompt else None)


def context_of(cards: Sequence[Mapping[str, Any]], model: str) -> int | None:
    """Return the context length in the list of models: of ``model`` or its parent, or of the only
    model there is."""
    named = [card for card in cards if card.get("id") == model or len(cards) == 1]
    parents = [card.get("parent") for card in named]
    mine = [*named, *(card for card in cards if card.get("id") in parents)]
    lengths = [card.get(key) for card in mine for key in _CARD_KEYS]
    return next((n for n in lengths if isinstance(n, int) and n > 0), None)


def _number(match: re.Match[str]) -> int:
    return int(next(filter(None, match.groups())))


CONTROL = (Message("user", "Reply with the word yes."),)
_KEPT = 16  # sets of parameters


class SettingsRefused(ServerMisconfigured):
    """Raised when the server refuses any prompt with these parameters."""


DOUBTED = (ServerMisconfigured, NoCompletion)
"""Failures of a server that is up: of one prompt, or of every one; so is RequestRefused to callers
that have no looser request to make."""
REFUSED_TRIES = 8
"""Requests before the prompt is to blame, each with another seed: a server that cannot read every
second reply of its own model refuses 4 prompts in 1,000 for that."""
_GREEDY_RETRY = 0.3  # temperature of a retry; at 0 no seed changes the reply


@dataclass(eq=False)
class WithControl:
    """A :class:`~flowright.llm.chat.ChatModel` whose RequestRefused is about the prompt alone.

    After one of the ``doubted`` failures a control request is sent: the same parameters with a
    prompt of five words, begun after the failed request and shared by all callers that wait for it;
    for a RequestRefused, one that was served in the last ``seconds`` will do. A control without a
    reply ends the call with the failure, or with SettingsRefused if both were refused; if the
    control fails otherwise, with that. A served one means another try, ``tries`` in all, unless the
    prompt is too long; then ``chat`` raises RequestRefused.
    """

    inner: ChatModel
    tries: int = 1
    doubted: tuple[type[FailureError], ...] = DOUBTED
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _served: Memo[ChatReply] = field(default_factory=lambda: Memo(_KEPT), init=False)
    _since: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        return self.inner.name

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        message = ""
        for number in range(self.tries):
            began = self.clock()
            try:
                return await self.inner.chat(_varied(request, number), deadline)
            except self.doubted as refused:
                await self._control(request, deadline, refused, began)
                message = refused.failure.message
            if too_long(message) is not None:
                break
        raise RequestRefused(message)

    async def _control(
        self, request: ChatRequest, deadline: float | None, refused: FailureError, began: float
    ) -> None:
        control = replace(request, messages=CONTROL, seed=None)
        kept = self.seconds if isinstance(refused, RequestRefused) else 0.0
        asked = repr(control)
        if self._since.get(asked, -math.inf) < began - kept:
            self._since[asked] = self.clock()
        key = asked, self._since[asked]
        try:
            await self._served.get(key, lambda: self.inner.chat(control, deadline))
        except RequestRefused:
            raise SettingsRefused(
                f"{refused.failure.message}; it refuses a prompt of five words too, so change the "
                "parameters: max_tokens, temperature, reasoning_effort of `executor` or of the "
                "model's entry"
            ) from None
        except (ServerMisconfigured, NoCompletion):
            raise refused from None


def _varied(request: ChatRequest, number: int) -> ChatRequest:
    """Return the request with the seed of its try ``number``, from 0."""
    if not number:
        return request
    seed = None if request.seed is None else (request.seed + number) % 2**31
    temperature = _GREEDY_RETRY if request.temperature == 0 else request.temperature
    return replace(request, seed=seed, temperature=temperature)
