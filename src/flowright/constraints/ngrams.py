"""The n-grams that langdetect tells a language by: letters of a text, one to three in a row.

An n-gram never reaches over a space, so that a word has the same ones wherever it stands.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flowright.constraints.language import optional_package

_LONGEST_TEXT = 10_000  # characters that langdetect reads, after addresses are gone
_SPACES = re.compile(" {2,}")
_LATIN = re.compile("[A-z]")  # with the marks between, as langdetect has it
_NOT_LATIN = re.compile("[\u0300-\U0010ffff]")
_MARKED = re.compile("[\u0300-\u036f]")
_ADDRESS = re.compile("://|@")
_LETTERS = "".join(chr(n) if chr(n).isalpha() else " " for n in range(128))
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
    if text.isascii():
        return text.translate(_LETTERS)
    text = _SPACES.sub(" ", text)
    other = len(_NOT_LATIN.findall(text))
    if other and len(_LATIN.findall(text)) * 2 < other:
        text = _LATIN.sub("", text)
    return text.translate(_signs())


class Grams:
    """The n-grams that are known, by row."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self._rows = rows
        self._kept: dict[str, bytes] = {}
        """Of words that were seen, which most texts of a language share."""

    def of(self, text: str) -> npt.NDArray[np.int32]:
        """The rows of the n-grams of a :func:`plain` text, in their order."""
        words = text.split(" ")
        last = words.pop()  # no space behind it
        parts = [self._kept.get(word) or self._of_word(word) for word in words]
        parts.append(self._read(last))
        return np.frombuffer(b"".join(parts), dtype=np.int32)

    def _of_word(self, word: str) -> bytes:
        found = self._read(word + " ")
        if len(word) <= _LONGEST_WORD:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[word] = found
        return found

    def _read(self, word: str) -> bytes:
        found = map(self._rows.get, _grams(word))
        return np.array([row for row in found if row is not None], dtype=np.int32).tobytes()


def _grams(word: str) -> Iterator[str]:
    """As langdetect's buffer of three has them. Of capitals in a row the first alone counts."""
    text = " " + word
    if text == "  ":
        return
    is_capital = False
    for end in range(2, len(text) + 1):
        is_capital = text[end - 1].isupper() and (is_capital or text[end - 2].isupper())
        if is_capital:
            continue
        for size in (1, 2, 3):
            if size <= end and (gram := text[end - size : end]) != " ":
                yield gram


@cache
def _package() -> tuple[Any, Any]:
    detector = optional_package("langdetect.detector").Detector
    return detector, optional_package("langdetect.utils.ngram").NGram


class _Signs(dict[int, str]):
    """What langdetect reads of each character."""

    def __missing__(self, key: int) -> str:
        sign = _package()[1].normalize(chr(key))
        self[key] = sign
        return sign


@cache
def _signs() -> _Signs:
    return _Signs()
