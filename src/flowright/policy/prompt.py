"""From messages to the policy's prompt tokens. No tokenizer is imported; any with a chat template
serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError

from flowright.core.errors import DataError, UserError
from flowright.llm.chat import Message

CUT_MARKER = "\n[... the middle of the problem is cut ...]\n"
_LEAST_PROBLEM_TOKENS = 32
_SHOWN = 6  # roles in an error


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: Any, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt, ready for a sampler; ``truncated`` when the problem had to be cut."""

    token_ids: tuple[int, ...]
    truncated: bool


def render(messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int) -> Prompt:
    """Apply the tokenizer's chat template; cut the last message in its middle, with a marker, where
    the prompt is longer than ``max_tokens``. Raises UserError when the rest leaves no room."""
    ids = template_ids(messages, tokenizer, to_answer=True)
    if len(ids) <= max_tokens:
        return Prompt(tuple(ids), truncated=False)
    content = tokenizer.encode(messages[-1].content, add_special_tokens=False)
    keep = len(content) - (len(ids) - max_tokens)
    while keep >= _LEAST_PROBLEM_TOKENS:
        head, tail = content[: keep // 2], content[len(content) - keep // 2 :]
        shorter = tokenizer.decode(head) + CUT_MARKER + tokenizer.decode(tail)
        turns = [*messages[:-1], Message(messages[-1].role, shorter)]
        ids = template_ids(turns, tokenizer, to_answer=True)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), truncated=True)
        keep -= max(1, len(ids) - max_tokens)  # the marker, and words that were cut apart
    alone = len(template_ids(messages, tokenizer, to_answer=True)) - len(content)
    raise UserError(
        f"policy.max_prompt_tokens: {max_tokens} leaves no room for the problem; the instructions "
        f"alone need about {alone} tokens"
    )


def fitting(
    messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int
) -> tuple[int, ...] | None:
    """Token ids of messages as a prompt; None where they are more than ``max_tokens``: nothing is
    cut. Raises DataError as :func:`template_ids`."""
    ids = template_ids(messages, tokenizer, to_answer=True)
    return tuple(ids) if len(ids) <= max_tokens else None


def template_text(messages: Sequence[Message], tokenizer: Tokenizer, to_answer: bool) -> str:
    """Messages as the chat template writes them, ``to_answer`` with the beginning of an answer
    behind them. Raises DataError where it refuses them, such as a role that it does not know."""
    chat = [{"role": m.role, "content": m.content} for m in messages]
    try:
        return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=to_answer)
    except (TemplateError, ValueError, TypeError) as error:
        roles = ", ".join(m.role for m in messages[:_SHOWN]) + ", ..." * (len(messages) > _SHOWN)
        why = " ".join(str(error).split())[:200]
        raise DataError(f"the chat template refuses turns of {roles}: {why}") from error


def template_ids(messages: Sequence[Message], tokenizer: Tokenizer, to_answer: bool) -> list[int]:
    """Token ids of :func:`template_text`. Raises DataError as it does."""
    text = template_text(messages, tokenizer, to_answer)
    return list(tokenizer.encode(text, add_special_tokens=False))
