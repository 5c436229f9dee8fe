"""Where the sentences of a text end, as NLTK's Punkt tokeniser tells it (Kiss and Strunk 2006).

Most ends are plain: a question or exclamation mark, or a full stop behind a word of letters that is
no abbreviation. The tokeniser itself is asked about the others.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

_END = re.compile(
    "[.?!](?:(?=[)\";}\\]*:@'({\\[\u2018\u2019\u201c\u201d\xab\xbb!?])|(?=\\s+(\\S+)))"
)
_OTHER_SPACE = re.compile("[\x1c-\x1f]")  # white space to Python, and none to NLTK's expressions
_PLAIN = re.compile(r"[*(\"\[#]*((?:[A-Za-z]+-)*[A-Za-z]{2,})")
_CLOSING_MARKS = frozenset("\"')]}\u2018\u2019\u201c\u201d\xab\xbb")
_CLOSING = re.compile("[\"')\\]}\u2018\u2019\u201c\u201d\xab\xbb]+?(?:\\s+|(?=--)|$)", re.MULTILINE)
_SHORT, _KEPT = 64, 1 << 14

Span = tuple[int, int]


class Splitter:
    """``punkt`` is NLTK's tokeniser, with its parameters."""

    def __init__(self, punkt: Any) -> None:
        self._punkt = punkt
        collocations = (first for first, _ in punkt._params.collocations)
        self._known = frozenset([*punkt._params.abbrev_types, *collocations])
        self._asked: Callable[[str], bool] = lru_cache(_KEPT)(punkt.text_contains_sentbreak)

    def split(self, text: str) -> list[str]:
        """The sentences, as ``punkt.tokenize``; in linear time."""
        if _OTHER_SPACE.search(text):
            return self._punkt.tokenize(text)
        return [text[start:end] for start, end in _aligned(text, self._spans(text))]

    def _spans(self, text: str) -> Iterator[Span]:
        start = 0
        for word, found in _ends(text):
            if self._is_end(text, word, found):
                yield start, found.end()
                start = found.end() if found[1] is None else found.start(1)
        yield start, len(text.rstrip())

    def _is_end(self, text: str, word: Span, found: re.Match[str]) -> bool:
        """Of what may end a sentence, and the word before it, whether it does."""
        if found[0] != ".":
            return True
        following = found[1]
        before = text[slice(*word)]
        plain = _PLAIN.fullmatch(before)
        if plain and not (following and following.startswith(".")):
            kind = plain[1].lower()
            if not {kind, kind.rpartition("-")[2]} & self._known:
                return True
        return self._ask(text, before, found)

    def _ask(self, text: str, before: str, found: re.Match[str]) -> bool:
        stop = found.end() + 1 if found[1] is None else found.end(1)
        context = before + text[found.start() : stop]
        if len(context) > _SHORT:
            return self._punkt.text_contains_sentbreak(context)
        return self._asked(context)


def _ends(text: str) -> Iterator[tuple[Span, re.Match[str]]]:
    """What may end a sentence, with the word before it. Of several marks in a word, the last."""
    spaced = text
    for space in "\t\n\r\x0b\x0c":
        spaced = spaced.replace(space, " ")
    start = stop = 0
    waiting: re.Match[str] | None = None
    for found in _END.finditer(text):
        space = spaced.rfind(" ", stop, found.start())
        word = space + 1 if space > stop else start
        if waiting is not None and stop <= word:
            yield (start, stop), waiting
        waiting, start, stop = found, word, found.start()
    if waiting is not None:
        yield (start, stop), waiting


def _aligned(text: str, spans: Iterator[Span]) -> Iterator[Span]:
    """With the quotes and brackets that close a sentence, which stand behind its full stop."""
    moved = 0
    before: Span | None = None
    for span in spans:
        if before is not None:
            start, stop = before[0] + moved, before[1]
            closing = None
            if span[0] < span[1] and text[span[0]] in _CLOSING_MARKS:
                closing = _CLOSING.match(text, *span)
            if closing is not None:
                yield start, span[0] + len(closing[0].rstrip())
                moved = len(closing[0])
            else:
                moved = 0
                if start < stop:
                    yield start, stop
        before = span
    if before is not None and before[0] + moved < before[1]:
        yield before[0] + moved, before[1]
