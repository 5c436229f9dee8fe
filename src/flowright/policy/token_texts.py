"""The text of each token of a completion, such that they make up the completion. A token may be a
part of a character, or only mean something behind another, so that each alone is not enough.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

from flowright.policy.prompt import Tokenizer

BROKEN = "\ufffd"
"""What bytes that make no character are decoded as."""

WAITING = 16
"""Tokens in a row that may each wait for the rest of a character. Where there are more, which no
text has, they are looked at this many at a time: each look decodes all of them again."""


class TokenTexts:
    """Of a tokenizer; ``end_ids`` end a completion and are no part of its text."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        self._alone = lru_cache(maxsize=None)(lambda token: self._decode([token]))

    def of(self, token_ids: Sequence[int], text: str) -> list[str] | None:
        """A text for each token, which joined are ``text``. A character that several tokens make is
        the last one's; the others have an empty text, as has what ends the completion. None where
        the tokens do not make up the text."""
        kept = [token for token in token_ids if token not in self._end_ids]
        for texts in (map(self._alone, kept), self._behind_each_other(kept)):
            found = list(texts)
            if "".join(found) == text:
                each = iter(found)
                return ["" if token in self._end_ids else next(each) for token in token_ids]
        return None

    def _behind_each_other(self, token_ids: Sequence[int]) -> list[str]:
        """What each token adds to those before it. Only a few of these are decoded again: those
        that added the last text before it, as a first token may lose its space."""
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
