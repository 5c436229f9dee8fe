"""Texts with all of Unicode's ways to write the same thing as one: what every comparison of texts
in this room begins with. What else does not count is for each of them to say.
"""

import unicodedata

_PIECE = 256  # characters of a word: putting combining marks in order is quadratic in their run


def folded(text: str) -> str:
    """The text in Unicode's NFKC, without case, with one space for any white space; in time that
    is linear in it. Words of more than 256 characters are taken in pieces."""
    if text.isascii():
        return " ".join(text.casefold().split())
    words = (
        "".join(_folded(word[start : start + _PIECE]) for start in range(0, len(word), _PIECE))
        for word in text.split()
    )
    return " ".join(" ".join(words).split())  # some signs are a space and a mark in NFKC


def _folded(piece: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", piece).casefold())
