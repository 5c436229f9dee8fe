"""Sampling as its callers see it: messages to prompt tokens, samplers and their samples, and the
text of each token. Needs neither torch nor a particular tokenizer.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

from flowright.core.errors import DataError, UserError
from flowright.llm.chat import Message
from flowright.llm.control_tokens import MARKED, OwnTokens, broken
from flowright.llm.counters import Counters
from flowright.llm.replies import THINKING_TAG
from flowright.policy.chat_templates import render_template

CUT_MARKER = "\n[... the middle of the problem is cut ...]\n"
_LEAST_PROBLEM_TOKENS = 32
_SHOWN = 6  # roles in an error


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: Any, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...

    def get_vocab(self) -> dict[str, int]: ...

    @property
    def added_tokens_decoder(self) -> dict[int, Any]: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt for a sampler; ``truncated`` if the problem was cut, and then its last
    message as it is in the prompt (``shown``)."""

    token_ids: tuple[int, ...]
    truncated: bool
    shown: str = ""


def render(messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int) -> Prompt:
    """Apply the tokenizer's chat template; cut the last message in its middle, with a marker, if
    the prompt is longer than ``max_tokens``. Raises UserError if the rest leaves no room."""
    ids = template_ids(messages, tokenizer, to_answer=True)
    if len(ids) <= max_tokens:
        return Prompt(tuple(ids), truncated=False)
    last = messages[-1]
    content = text_ids(_plain(last.content, last.role, tokenizer), tokenizer)
    keep = len(content) - (len(ids) - max_tokens)
    while keep >= _LEAST_PROBLEM_TOKENS:
        shorter = _without_middle(content, keep, tokenizer, CUT_MARKER)
        turns = [*messages[:-1], Message(last.role, shorter)]
        ids = template_ids(turns, tokenizer, to_answer=True)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), truncated=True, shown=shorter)
        keep -= max(1, len(ids) - max_tokens)  # the marker, and tokens that were cut apart
    alone = len(template_ids(messages, tokenizer, to_answer=True)) - len(content)
    raise UserError(
        f"policy.max_prompt_tokens: {max_tokens} leaves no room for the problem; the instructions "
        f"alone need about {alone} tokens"
    )


def cut_middle(text: str, tokenizer: Tokenizer, most: int, marker: str) -> str:
    """Return a message's text, cut in its middle with a marker if it has more than ``most``
    tokens."""
    content = text_ids(_plain(text, "user", tokenizer), tokenizer)
    keep, shorter, count = most, text, len(content)
    while count > most and keep > 0:
        keep -= max(1, count - most) if shorter is not text else len(marker) // 2
        shorter = _without_middle(content, max(0, keep), tokenizer, marker)
        count = len(text_ids(_plain(shorter, "user", tokenizer), tokenizer))
    return shorter


def _without_middle(content: Sequence[int], keep: int, tokenizer: Tokenizer, marker: str) -> str:
    head, tail = content[: keep // 2], content[len(content) - keep // 2 :]
    return tokenizer.decode(head) + marker + tokenizer.decode(tail)


def fitting(
    messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int
) -> tuple[int, ...] | None:
    """Return the token ids of messages as a prompt; None, and nothing is cut, for more than
    ``max_tokens``. Raises DataError as :func:`template_ids`."""
    ids = template_ids(messages, tokenizer, to_answer=True)
    return tuple(ids) if len(ids) <= max_tokens else None


_APART = "\ufdd0"
"""Marks where a text is encoded in two parts: a noncharacter of Unicode, which no text holds."""
_MARKER = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\]")
_THINKING = re.compile(rf"[<\[]/?(?:{THINKING_TAG})[>\]]", re.IGNORECASE)


def template_text(messages: Sequence[Message], tokenizer: Tokenizer, to_answer: bool) -> str:
    """Format messages by the chat template, ``to_answer`` with the beginning of an answer behind
    them; only for :func:`text_ids`, as control tokens in the messages are broken. Raises DataError
    if the template refuses the messages, such as for an unknown role, or goes beyond its limits."""
    chat = [{"role": m.role, "content": _plain(m.content, m.role, tokenizer)} for m in messages]
    try:
        return _applied(tokenizer, chat, to_answer)
    except (ValueError, TypeError) as error:
        roles = ", ".join(m.role for m in messages[:_SHOWN]) + ", ..." * (len(messages) > _SHOWN)
        why = " ".join(str(error).split())[:200]
        raise DataError(f"the chat template refuses turns of {roles}: {why}") from error


def _applied(tokenizer: Tokenizer, chat: list[dict[str, str]], to_answer: bool) -> str:
    """Render by the template of a tokenizer that has one; others format in their own way."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str):
        return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=to_answer)
    tokens = getattr(tokenizer, "special_tokens_map", {})
    try:
        return render_template(template, chat, to_answer, tokens)
    except DataError as error:
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise DataError(f"{name}: {error}") from None


def template_ids(messages: Sequence[Message], tokenizer: Tokenizer, to_answer: bool) -> list[int]:
    """Return the token ids of messages in the chat template. Control tokens in the messages are
    encoded as any other text, so that no message ends its turn or begins another one; ids of other
    messages are those of ``apply_chat_template``. Raises DataError as :func:`template_text`."""
    return text_ids(template_text(messages, tokenizer, to_answer), tokenizer)


def text_ids(text: str, tokenizer: Tokenizer, begins: bool = False) -> list[int]:
    """Return the token ids of a :func:`template_text` or a part of one; ``begins`` with those that
    the tokenizer puts before any text."""
    first, *rest = text.split(_APART)
    ids = list[int](tokenizer.encode(first, add_special_tokens=begins))
    return ids + [n for part in rest for n in tokenizer.encode(part, add_special_tokens=False)]


def prompt_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a prompt without a chat template, its control tokens as any text."""
    return text_ids(_plain(text, "user", tokenizer), tokenizer, begins=True)


def completion_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a completion, its control tokens as any text."""
    return text_ids(_plain(text, "assistant", tokenizer), tokenizer)


def _plain(content: str, role: str, tokenizer: Tokenizer) -> str:
    """Return a message's content with its control tokens broken: tokens by a mark, a template's
    markers that are no tokens by a space."""
    template = str(getattr(tokenizer, "chat_template", ""))
    tokens, markers, folds = _control(tokenizer, template, role == "assistant")
    plain = markers.broken(tokens.broken(content.replace(_APART, "\ufffd"), _APART))
    if folds and not folds.isdisjoint(text_ids(plain, tokenizer)):
        return _APART.join(plain.replace(_APART, ""))
    return plain


@lru_cache(maxsize=16)
def _control(
    tokenizer: Tokenizer, template: str, own: bool
) -> tuple[OwnTokens, OwnTokens, frozenset[int]]:
    """Return the tokens of a tokenizer that no message may hold: special ones, and others that the
    template names or that look like control tokens. A model's ``own`` turns keep its thinking tags
    and tool calls. Then the markers that the template writes and that are no tokens, and the ids of
    tokens that are also found in other spellings, such as in capitals."""
    chat = [{"role": role, "content": ""} for role in ("user", "assistant")]
    try:
        shown = _applied(tokenizer, chat, to_answer=True)
    except (ValueError, TypeError):
        shown = ""

    def is_control(token: str, special: bool) -> bool:
        if _THINKING.fullmatch(token):
            return special and not own
        is_marker = MARKED.search(token) is not None and token in (shown if own else template)
        return special or is_marker or (not own and broken(token) != token)

    added = dict[int, Any](getattr(tokenizer, "added_tokens_decoder", {}))
    named = {number: token for number, token in added.items() if len(token.content) > 1}
    control = {n: t for n, t in named.items() if is_control(t.content, t.special)}
    held = {token.content for token in named.values()}
    markers = {m for m in _MARKER.findall(shown) if m not in held and not _THINKING.fullmatch(m)}
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    folds = {number for number, token in control.items() if normalizer and token.normalized}
    return OwnTokens({t.content for t in control.values()}), OwnTokens(markers), frozenset(folds)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. ``seed`` fixes the draws of a batch; 0 temperature is greedy. ``top_k``
    of 0 draws from all tokens; else ``top_p`` is of the most likely ``top_k``, as in vLLM and
    transformers. ``part_tokens``: tokens after which a server goes on with a completion by its
    newest weights; 0: none, as in samplers without servers."""

    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int
    top_k: int = 0
    part_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion. ``logprobs[t]`` is the natural log-probability of ``token_ids[t]`` under the
    distribution it was drawn from (temperature applied), by policy ``version``. The end-of-turn
    token is part of ``token_ids`` when ``finish_reason`` is "stop". Where several policies drew
    it, ``versions`` are theirs in turn, each with its number of tokens, and ``version`` the
    first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: Literal["stop", "length"]
    version: int
    versions: tuple[tuple[int, int], ...] = ()

    @property
    def tokens_by_version(self) -> Sequence[tuple[int, int]]:
        """The versions in turn, each with its number of tokens."""
        return self.versions or ((self.version, len(self.token_ids)),)


Draw = Callable[
    [Sequence[Sequence[int]], int, Sampling, Sequence[int] | None], Awaitable[list[list[Sample]]]
]
"""A :meth:`Sampler.sample`."""


class Sampler(Protocol):
    """Draws completions from the current policy and proves which one it serves."""

    @property
    def batches(self) -> bool:
        """True where the prompts of a call are decoded together, and calls one after the other."""
        ...

    @property
    def version(self) -> int: ...

    @property
    def counters(self) -> Sequence[Counters]:
        """Counts of requests for samples; empty without a server."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest refresh's proof, under ``policy/proof_*``; empty if none is needed."""
        ...

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """Draw ``n`` completions for each prompt of token ids: one list of samples per prompt.

        ``places``: the prompts' numbers in their batch (0, 1, 2, ... if None). The draws of a
        sample depend on the seed, its prompt's place and its own number, so that one process and
        several draw the same batch.
        """
        ...

    def for_episodes(self, sets: int) -> Draw:
        """Return what draws the turns of one of ``sets`` sets of episodes that are played at once:
        it may keep what it computed of earlier ones."""
        ...

    async def refresh(self, version: int) -> None:
        """Serve the learner's weights of this moment from now on, as ``version``. Raises RunError
        if that fails: never a stale adapter, never the base model."""
        ...


BROKEN = "\ufffd"
"""The decoding of bytes that make no character."""

WAITING = 16
"""Tokens in a row that may each wait for the rest of a character. More than that, which no text
has, are decoded only every 16 tokens: each attempt decodes all of them again."""


class TokenTexts:
    """Splits a completion's text by its tokens. A token may be part of a character, or depend on
    the one before it, so that decoding each alone is not enough. ``end_ids`` end a completion and
    are not part of its text."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        self._alone = lru_cache(maxsize=None)(lambda token: self._decode([token]))

    def of(self, token_ids: Sequence[int], text: str) -> list[str] | None:
        """Return a text for each token, which joined are ``text``; None if the tokens do not make
        up the text. A character of several tokens belongs to the last; the others, and tokens that
        end the completion, have an empty text."""
        kept = [token for token in token_ids if token not in self._end_ids]
        for texts in (map(self._alone, kept), self._behind_each_other(kept)):
            found = list(texts)
            if "".join(found) == text:
                each = iter(found)
                return ["" if token in self._end_ids else next(each) for token in token_ids]
        return None

    def _behind_each_other(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token's addition to those before it. Only the tokens of the last addition are
        decoded again with it, as a first token may lose its space."""
        texts: list[str] = []
        before, begun, known = 0, 0, ""
        for end in range(1, len(token_ids) + 1):
            waiting, last = end - begun, end == len(token_ids)
            if not last and waiting > WAITING and waiting % WAITING:
                texts.append("")
                continue
            both = self._decode(token_ids[before:end])
            if both.endswith(BROKEN) and not last:
                texts.append("")
                continue
            texts.append(both[len(known) :])
            before, begun = begun, end
            known = self._decode(token_ids[before:end])
        return texts

    def _decode(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        assert isinstance(text, str)
        return text
