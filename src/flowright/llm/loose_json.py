"""JSON objects as models write them: with LaTeX, quotation marks or raw line breaks in strings,
single quotes, Python's literals, bare keys, trailing commas, or without their end.

Lenient about form alone. All pairs are kept, equal keys included, so that a caller sees an object
that contradicts itself. Time is linear in the text.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class NestedObject:
    """An object inside a value, with all its pairs."""

    pairs: Pairs


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object with its pairs and its span in the text; ``exact`` if it is JSON as it stands."""

    start: int
    end: int
    pairs: Pairs
    exact: bool


class CutText(str):
    """A string that the text ends in."""

    __slots__ = ()


def read_object(text: str, start: int = 0, may_end: bool = False) -> FoundObject | None:
    """Return the object that begins at ``start``, None if none does. ``may_end``: the text may end
    inside it; its last string is then a :class:`CutText`, and a number at the very end, which may
    go on, is left out."""
    if not text.startswith("{", start):
        return None
    try:
        found, end = _EXACT.raw_decode(text, start)
        return FoundObject(start, end, found.pairs, exact=True)
    except (ValueError, RecursionError):
        reader = _Reader(text, start)
    pairs: Pairs = []
    try:
        reader.fill(pairs, 0)
    except _Unreadable:
        return None
    except _Ended:
        # A mark inside a string may be its end, where more text would have shown which.
        if not may_end or reader.has_inner_marks:
            return None
        reader.at = len(text)
    return FoundObject(start, reader.at, pairs, exact=False)


_EXACT = json.JSONDecoder(strict=False, object_pairs_hook=NestedObject)
_MOST_DEPTH = 32
_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"[+-]?[\w.][\w.+-]{0,40}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_LITERALS = {"true": True, "false": False, "null": None, "none": None}
_BARE_KEY = re.compile(r"[A-Za-z_]\w{0,60}(?=\s*:)")
_QUOTES = {'"': '"', "'": "'", "“": "”"}
_MARKS = {closing: re.compile(rf"[\\{closing}]") for closing in _QUOTES.values()}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
# Behind the mark that ends a value; any other mark stands inside the string.
_ENDS_VALUE = re.compile(
    r"\s*(?:[}\]]|\Z|,\s*(?:[}\]]|\Z|[\"'“][^\"'“”\n]{1,60}[\"'”]\s*:|[A-Za-z_]\w{0,60}\s*:))"
)


class _Unreadable(Exception):
    """Raised where the text is no object."""


class _Ended(Exception):
    """Raised where the text ends inside an object, with a value that it ends in."""


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.at = at
        self.has_inner_marks = False
        self._text = text

    def fill(self, pairs: Pairs, depth: int) -> None:
        """Add the pairs of the object here."""
        self.at += 1
        while self._next() != "}":
            key = self._key()
            if self._next() != ":":
                raise _Unreadable
            self.at += 1
            try:
                pairs.append((key, self._value(depth + 1)))
            except _Ended as ended:
                pairs += [(key, value) for value in ended.args]
                raise
            self._comma("}")
        self.at += 1

    def _next(self) -> str:
        """Move to the next character that is no white space, and return it. Raises _Ended."""
        space = _SPACE.match(self._text, self.at)
        self.at = space.end() if space else self.at
        if self.at == len(self._text):
            raise _Ended
        return self._text[self.at]

    def _comma(self, closing: str) -> None:
        if self._next() == ",":
            self.at += 1
        elif self._text[self.at] != closing:
            raise _Unreadable

    def _key(self) -> str:
        if self._text[self.at] in _QUOTES:
            return self._string(ends=None)
        bare = _BARE_KEY.match(self._text, self.at)
        if bare is None:
            raise _Unreadable
        self.at = bare.end()
        return bare[0]

    def _value(self, depth: int, ends: re.Pattern[str] | None = _ENDS_VALUE) -> Any:
        first = self._next()
        if depth > _MOST_DEPTH:
            raise _Unreadable
        if first in _QUOTES:
            return self._string(ends)
        if first in "{[":
            return self._nested(first, depth)
        word = _SCALAR.match(self._text, self.at)
        if word is None:
            raise _Unreadable
        self.at = word.end()
        if word[0].lower() in _LITERALS:
            return _LITERALS[word[0].lower()]
        if self.at == len(self._text):
            raise _Ended
        if _NUMBER.fullmatch(word[0]) is None:
            raise _Unreadable
        return json.loads(word[0])

    def _nested(self, first: str, depth: int) -> Any:
        found = NestedObject([]) if first == "{" else list[Any]()
        try:
            if isinstance(found, NestedObject):
                self.fill(found.pairs, depth)
                return found
            self.at += 1
            while self._next() != "]":
                found.append(self._value(depth + 1, ends=None))
                self._comma("]")
        except _Ended:
            raise _Ended(found) from None
        self.at += 1
        return found

    def _string(self, ends: re.Pattern[str] | None) -> str:
        """Return the string here; ``ends``: what follows the mark that ends it."""
        text, parts, begin = self._text, list[str](), self.at + 1
        marks = _MARKS[_QUOTES[text[self.at]]]
        while (mark := marks.search(text, begin)) is not None:
            parts.append(text[begin : mark.start()])
            begin = mark.end()
            if mark[0] == "\\":
                part, begin = self._escape(begin)
                parts.append(part)
            elif ends is None or ends.match(text, begin):
                self.at = begin
                return "".join(parts)
            else:
                parts.append(mark[0])
                self.has_inner_marks = True
        self.at = len(text)
        raise _Ended(CutText("".join([*parts, text[begin:]])))

    def _escape(self, at: int) -> tuple[str, int]:
        """Return the character of an escape, and its end; the backslash where it is none, as in
        LaTeX."""
        letter = self._text[at : at + 1]
        if letter and letter in "\"'/\\":
            return letter, at + 1
        if letter and letter in "nrt":
            return {"n": "\n", "r": "\r", "t": "\t"}[letter], at + 1
        if letter == "u" and (code := _HEX.match(self._text, at + 1)):
            return chr(int(code[0], 16)), code.end()
        return "\\", at
