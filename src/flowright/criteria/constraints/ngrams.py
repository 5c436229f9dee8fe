"""The n-grams that langdetect tells a language by: letters of a text, one to three in a row.

An n-gram never reaches over a space, so that a word has the same ones wherever it stands.
"""

import re
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flowright.criteria.constraints.language import optional_package

_LONGEST_TEXT = 10_000  # characters that langdetect reads, after addresses are gone
_SPACES = re.compile(" {2,}")
_LATIN = re.compile("[A-z]")  # with the marks between, as langdetect has it
_NOT_LATIN = re.compile("[\u0300-\U0010ffff]")
_MARKED = re.compile("[\u0300-\u036f]")
_ADDRESS = re.compile("://|@")
_ASCII = "".join(chr(n) if chr(n).isalpha() else " " for n in range(128))
_KEPT, _LONGEST_WORD = 1 << 15, 24


def plain(text: str) -> str:
    """The text that langdetect reads: without addresses, and without Latin letters where most
    letters are others; what tells no language is a space."""
    detector, ngram = _package()
    if _ADDRESS.search(text):
        text = detector.MAIL_RE.sub(" ", detector.URL_RE.sub(" ", text))
    if not text.isascii() and _MARKED.search(text):
        text = ngram.normalize_vi(text)
    text = text[:_LONGEST_TEXT]
    if not text.isascii():
        text = _SPACES.sub(" ", text)
        other = len(_NOT_LATIN.findall(text))
        if other and len(_LATIN.findall(text)) * 2 < other:
            text = _LATIN.sub("", text)
        if other < len(text) / 4:  # curly quotes and dashes, which are spaces
            text = _NOT_LATIN.sub(_sign, text)
    return text.translate(_ASCII if text.isascii() else _signs())


class Grams:
    """The n-grams that are known, by row."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self._of_words = _OfWords(rows)

    def of(self, text: str) -> npt.NDArray[np.int32]:
        """The rows of the n-grams of a :func:`plain` text, in their order."""
        words = text.split(" ")
        last = self._of_words.read(words.pop())  # no space behind it
        known = map(self._of_words.__getitem__, filter(None, words))
        return np.frombuffer(b"".join([*known, last]), dtype=np.int32)


class _OfWords(dict[str, bytes]):
    """Of words that were seen, and a space behind them. Most texts of a language share them."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, word: str) -> bytes:
        found = self.read(word + " ")
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _KEPT:
                self.clear()
            self[word] = found
        return found

    def read(self, word: str) -> bytes:
        found = map(self._rows.get, _grams(word))
        return array("i", [row for row in found if row is not None]).tobytes()


def _grams(word: str) -> Iterator[str]:
    """As langdetect's buffer of three has them. Of capitals in a row the first alone counts."""
    text = " " + word
    is_capital = False
    is_plain = word[1:].islower()  # most words: no capital behind another
    for end in range(2, len(text) + 1):
        if not is_plain:
            is_capital = text[end - 1].isupper() and (is_capital or text[end - 2].isupper())
            if is_capital:
                continue
        yield text[end - 1]
        yield text[end - 2 : end]
        if end > 2:
            yield text[end - 3 : end]


@cache
def _package() -> tuple[Any, Any]:
    detector = optional_package("langdetect.detector").Detector
    return detector, optional_package("langdetect.utils.ngram").NGram


def _sign(found: re.Match[str]) -> str:
    return _signs()[ord(found[0])]


class _Signs(dict[int, str]):
    """What langdetect reads of each character."""

    def __missing__(self, key: int) -> str:
        sign = _package()[1].normalize(chr(key))
        self[key] = sign
        return sign


@cache
def _signs() -> _Signs:
    return _Signs()
