"""The context of a policy's next turn, as token ids: what it saw, what it wrote, and the answer.

What a policy wrote is never decoded and encoded again. Behind it stands the answer, sliced out of
the token ids of a rendered conversation, because the ids of a part of a text are not always a part
of its ids. A template that rewrites earlier turns, as Qwen3's drops their thinking, gives no such
continuation: the next turn then has a context that is rendered anew.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from flowright.core.errors import ConfigError, DataError
from flowright.llm.chat import Message, Role
from flowright.llm.replies import THINKING_TAG
from flowright.policy.sampling import (
    Sample,
    Tokenizer,
    cut_middle,
    template_ids,
    template_text,
)

CUT_MARKER = "\n[... the middle of this message is cut ...]\n"
_THOUGHT = re.compile(rf"</(?:{THINKING_TAG})>", re.IGNORECASE)
_ASKED, _PLAIN_REPLY = Message("user", "a"), "b"
_THINKING_REPLY = "<think>\nc\n</think>\n\nb"


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
        self._keeps = lru_cache(maxsize=None)(self._keeps_history)

    def check(self) -> None:
        """Raise ConfigError unless the template renders a message behind a completion, and ends the
        completion before it."""
        try:
            self._answers(Message("user", "d"))
        except DataError as error:
            raise ConfigError(f"policy.chat_template: {error}") from None

    def keeps(self, role: Role, thinking: bool) -> bool:
        """Return whether the template leaves a completion, with or without ``thinking``, as it was
        once a message of this role follows. Raises DataError."""
        return self._keeps(role, thinking)

    def after(
        self,
        conversation: Sequence[Message],
        context_ids: Sequence[int],
        sample: Sample,
        answer: Message,
    ) -> Context:
        """Return the context behind a completion and its answer. ``conversation``: all messages up
        to and with the answer. Raises DataError where the template refuses them."""
        if not self._keeps(answer.role, _THOUGHT.search(sample.text) is not None):
            return Context(tuple(template_ids(conversation, self._tokenizer, to_answer=True)), None)
        end, *behind = self._answers(answer)
        ended = sample.token_ids[-1:] and sample.token_ids[-1] in self._end_ids
        answer_ids = (*(() if ended else (end,)), *behind)
        return Context((*context_ids, *sample.token_ids, *answer_ids), answer_ids)

    def shortened(self, text: str, most: int) -> str:
        """Cut a text of more than ``most`` tokens in its middle; what is no Unicode is replaced."""
        text = text.encode("utf-8", "replace").decode()
        if len(text) > 64 * most:  # hardly any token has more characters
            text = text[: 32 * most] + text[-32 * most :]
        return cut_middle(text, self._tokenizer, most, CUT_MARKER)

    @cached_property
    def _ends(self) -> int:
        """The number of end tokens up to the end of a first reply."""
        turns = [_ASKED, Message("assistant", _PLAIN_REPLY)]
        ids = template_ids(turns, self._tokenizer, to_answer=False)
        count = sum(token in self._end_ids for token in ids)
        if not count:
            raise DataError("the chat template ends no turn with a token that ends a completion")
        return count

    def _answer(self, answer: Message) -> tuple[int, ...]:
        """Return the token that ends a completion, and the ids of an answer behind it."""
        turns = [_ASKED, Message("assistant", _PLAIN_REPLY), answer]
        ids = template_ids(turns, self._tokenizer, to_answer=True)
        places = [place for place, token in enumerate(ids) if token in self._end_ids]
        if len(places) < self._ends:
            raise DataError("the chat template does not end the turns before a new message")
        return tuple(ids[places[self._ends - 1] :])

    def _keeps_history(self, role: Role, thinking: bool) -> bool:
        reply = _THINKING_REPLY if thinking else _PLAIN_REPLY
        begun = template_text([_ASKED], self._tokenizer, to_answer=True)
        turns = [_ASKED, Message("assistant", reply), Message(role, "d")]
        return template_text(turns, self._tokenizer, to_answer=True).startswith(begun + reply)
