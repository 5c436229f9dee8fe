"""Keys and values of the earlier turns of attempts, so that a turn computes its new tokens alone.

They form a tree of texts: a template, the prompts behind it, behind each prompt what was written
and answered in a turn, and so on. Texts that begin alike share them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from flowright.policy.prefix.attention import KeysValues


@dataclass(eq=False, slots=True)
class KeptText:
    """Token ids at the end of a ``path`` of texts, with their own keys and values by layer; the
    root has none. ``length``: tokens of the path."""

    ids: tuple[int, ...] = ()
    own: Sequence[KeysValues] = ()
    path: "tuple[KeptText, ...]" = ()
    length: int = 0
    below: "list[KeptText]" = field(default_factory=list)

    def followed_by(self, ids: Sequence[int], own: Sequence[KeysValues]) -> "KeptText":
        text = KeptText(tuple(ids), own, (), self.length + len(ids))
        text.path = (*self.path, text)
        self.below.append(text)
        return text

    def keys_values(self, begin: int, end: int) -> list[KeysValues]:
        """Return those of the path from one token to another."""
        parts: list[list[KeysValues]] = []
        for text in self.path:
            start = text.length - len(text.ids)
            places = slice(max(begin - start, 0), max(end - start, 0))
            parts.append([(k[:, places], v[:, places]) for k, v in text.own])
        layers = [tuple(zip(*pairs, strict=True)) for pairs in zip(*parts, strict=True)]
        return [(torch.cat(keys, dim=1), torch.cat(values, dim=1)) for keys, values in layers]


class Kept:
    """Texts of up to ``most`` tokens, of one policy version, for one set of attempts: which are
    kept depends on nothing else."""

    def __init__(self, most: float) -> None:
        self.most, self.tokens = most, 0
        self._root, self._version = KeptText(), -1

    def begin(self, version: int) -> None:
        """Drop what another version computed."""
        if version != self._version:
            self._root, self._version, self.tokens = KeptText(), version, 0

    def find(self, ids: Sequence[int]) -> KeptText:
        """Return the longest text that the ids begin with and that is not all of them."""
        found, ids = self._root, tuple(ids[:-1])
        while below := [t for t in found.below if ids[found.length : t.length] == t.ids]:
            found = max(below, key=lambda text: text.length)
        return found

    def add(self, ids: Sequence[int], parts: Sequence[Sequence[KeysValues]]) -> None:
        """Copy the parts, which follow each other and hold all ids but the last, as far as they are
        not kept and there is room."""
        text, stop = self.find(ids), 0
        for part in parts:
            start, stop = stop, stop + (part[0][0].shape[1] if part else 0)
            behind = ids[text.length : stop]
            if self.tokens + len(behind) > self.most:
                return
            if behind:
                places = slice(text.length - start, stop - start)
                own = [(k[:, places].clone(), v[:, places].clone()) for k, v in part]
                text = text.followed_by(behind, own)
                self.tokens += len(behind)

    def retain(self, contexts: Sequence[Sequence[int]]) -> None:
        """Drop the texts that none of the contexts begins with."""
        used = {text for context in contexts for text in self.find(context).path}
        for text in (self._root, *used):
            text.below = [one for one in text.below if one in used]
        self.tokens = sum(len(text.ids) for text in used)
