"""Prompts and completions that come as lists of messages, as the one text that a judge reads.

The one place that knows what a message looks like: the service's requests, the functions for
trainers and files of rows all read them here. Nothing is judged, and no chat template is applied.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from flowright.llm.fences import fence_for, fenced

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
