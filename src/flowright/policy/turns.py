"""The context of a policy's next turn, as token ids: what it saw, what it wrote, and the answer.

What a policy wrote is never decoded and encoded again. Behind it stands the answer, sliced out of
the token ids of a rendered conversation, because the ids of a part of a text are not always a part
of its ids. A template that rewrites earlier turns, as Qwen3's drops their thinking, gives no such
continuation: the next turn then has a context that is rendered anew. A template shows which of the
two it does on a conversation of the same roles with short texts.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from flowright.core.errors import ConfigError, DataError
from flowright.llm.chat import Message, Role
from flowright.llm.replies import THINKING_TAG, strip_thinking
from flowright.policy.sampling import (
    Sample,
    Tokenizer,
    cut_middle,
    template_ids,
    template_text,
    text_ids,
)

CUT_MARKER = "\n[... the middle of this message is cut ...]\n"
_THOUGHT = re.compile(rf"</(?:{THINKING_TAG})>", re.IGNORECASE)
_CHANNEL = "<|channel|>"
"""Begins a part of GPT-OSS's completions, whose template takes the final one alone."""
_ASKED, _PLAIN_REPLY, _ANSWER = Message("user", "a"), "b", "1729"
_OPENING, _THINKING_REPLY = "<think>\n", "<think>\nc\n</think>\n\nb"

Shape = tuple[tuple[Role, bool], ...]
"""The messages of a conversation by role, each with whether it is a completion with thinking."""


@dataclass(frozen=True, slots=True)
class Context:
    """The token ids before the next turn. ``answer_ids``: those behind the last completion, None
    where the context is not the earlier one with its completion and more."""

    token_ids: tuple[int, ...]
    answer_ids: tuple[int, ...] | None


class Contexts:
    """Makes the contexts of later turns with a tokenizer's chat template. ``end_ids`` end a
    completion."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        self._answers = lru_cache(maxsize=4096)(self._answer)
        self._keeps = lru_cache(maxsize=4096)(self._keeps_history)

    def check(self) -> None:
        """Raise ConfigError unless the template renders a message behind a completion, and ends the
        completion before it."""
        try:
            for thinking in (False, True):
                if self.keeps("user", thinking):
                    ids = self._answers(Message("user", _ANSWER))
                    if _ANSWER not in self._tokenizer.decode(ids):
                        raise DataError("the chat template ends no completion before a new message")
        except DataError as error:
            raise ConfigError(f"policy.chat_template: {error}") from None

    def keeps(self, role: Role, thinking: bool) -> bool:
        """Return whether the template leaves a first completion, with or without ``thinking``, as
        it was once a message of this role follows. Raises DataError."""
        return self._keeps((("user", False), ("assistant", thinking), (role, False)))

    @property
    def rewrites(self) -> bool:
        """True if a second user message may change a first completion. Raises DataError."""
        return not (self.keeps("user", False) and self.keeps("user", True))

    def after(
        self,
        conversation: Sequence[Message],
        context_ids: Sequence[int],
        sample: Sample,
        answer: Message,
    ) -> Context:
        """Return the context behind a completion and its answer. ``conversation``: all messages up
        to and with the answer. Raises DataError where the template refuses them."""
        shape = tuple((m.role, _thinks(m)) for m in conversation)
        if not self._keeps(shape):
            shown = [*map(_spoken, conversation)]
            return Context(tuple(template_ids(shown, self._tokenizer, to_answer=True)), None)
        end, *behind = self._answers(answer)
        ended = sample.token_ids[-1:] and sample.token_ids[-1] in self._end_ids
        answer_ids = (*(() if ended else (end,)), *behind)
        return Context((*context_ids, *sample.token_ids, *answer_ids), answer_ids)

    def shortened(self, text: str, most: int) -> str:
        """Cut a text of more than ``most`` tokens in its middle; what is no Unicode is replaced."""
        text = text.encode("utf-8", "replace").decode()
        if len(text) > 64 * most:  # hardly any token has more characters
            text = text[: 32 * most] + CUT_MARKER + text[-32 * most :]
        return cut_middle(text, self._tokenizer, most, CUT_MARKER)

    @cached_property
    def _begun(self) -> str:
        """The rendering of a prompt, up to the beginning of the reply."""
        return template_text([_ASKED], self._tokenizer, to_answer=True)

    def _answer(self, answer: Message) -> tuple[int, ...]:
        """Return the token that ends a completion, and the ids of an answer behind it."""
        turns = [_ASKED, Message("assistant", _PLAIN_REPLY), answer]
        ids = template_ids(turns, self._tokenizer, to_answer=True)
        before = sum(token in self._end_ids for token in text_ids(self._begun, self._tokenizer))
        places = [place for place, token in enumerate(ids) if token in self._end_ids]
        if len(places) <= before:
            raise DataError("the chat template ends no completion with a token that ends one")
        return tuple(ids[places[before] :])

    def _keeps_history(self, shape: Shape) -> bool:
        opened = self._begun.endswith(_OPENING)
        thought = _THINKING_REPLY.removeprefix(_OPENING) if opened else _THINKING_REPLY
        turns = [
            Message(role, thought if thinking else _PLAIN_REPLY if role == "assistant" else "a")
            for role, thinking in shape[:-1]
        ]
        role, _ = shape[-1]
        answered = [*turns, Message(role, _ANSWER)]
        text = template_text(answered, self._tokenizer, to_answer=True)
        if _ANSWER not in text:
            raise DataError(f"the chat template shows no turns of {role}; take another role")
        *before, reply = turns
        return text.startswith(
            template_text(before, self._tokenizer, to_answer=True) + reply.content
        )


def _thinks(message: Message) -> bool:
    return message.role == "assistant" and _THOUGHT.search(message.content) is not None


def _spoken(message: Message) -> Message:
    """Return a message as a template takes it that knows no channels."""
    if message.role != "assistant" or _CHANNEL not in message.content:
        return message
    return Message(message.role, strip_thinking(message.content) or "")
