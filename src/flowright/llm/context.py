"""How many tokens a server takes of prompt and reply together: from its list of models, and from
what it says of a request that is longer. Nothing is asked here.

The words of a refusal may quote the prompt, so they count for the request that was refused and are
never kept.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.llm.chat import Message
from flowright.llm.sizes import most_tokens

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
    """A refusal for the request's length: what the server takes, and the tokens of the prompt where
    it tells. A limit of the reply alone is a context that the prompt takes nothing of."""

    context: int
    prompt_tokens: int | None

    def room(self, messages: Sequence[Message], prompt_tokens: int = 0) -> int:
        """The tokens that are left for a reply; 0 or less where there are none. A prompt that
        neither the server nor who asks has counted (``prompt_tokens``) is estimated by its size."""
        size = sum(most_tokens(message.content) for message in messages)
        counted = prompt_tokens or size // _BYTES_PER_TOKEN
        return self.context - (counted if self.prompt_tokens is None else self.prompt_tokens)


def too_long(message: str) -> TooLong | None:
    """What a server's refusal says of lengths: vLLM, SGLang, TGI, llama.cpp, OpenAI."""
    if (reply := _LONGEST_REPLY.search(message)) is not None:
        return TooLong(_number(reply), 0)
    longest = _LONGEST.search(message)
    if longest is None:
        return None
    prompt = _PROMPT.search(message)
    return TooLong(_number(longest), _number(prompt) if prompt else None)


def context_of(cards: Sequence[Mapping[str, Any]], model: str) -> int | None:
    """What the list of models says of one, or of the model that an adapter is of; where there is a
    single one, whatever its name."""
    named = [card for card in cards if card.get("id") == model or len(cards) == 1]
    parents = [card.get("parent") for card in named]
    mine = [*named, *(card for card in cards if card.get("id") in parents)]
    said = [card.get(key) for card in mine for key in _CARD_KEYS]
    return next((n for n in said if isinstance(n, int) and n > 0), None)


def _number(match: re.Match[str]) -> int:
    return int(next(filter(None, match.groups())))
