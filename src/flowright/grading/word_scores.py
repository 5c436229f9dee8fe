"""Exact match and token F1 of answers in words, as the datasets' own scorers compute them."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flowright.data.sources.benchmarks import UNANSWERABLE
from flowright.grading.statements import extract_answer
from flowright.grading.text import bare, normalise, normalised, tokens
from flowright.llm.replies import spoken_answer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_REMOVED = str.maketrans(dict.fromkeys(string.punctuation))
_SPACED = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


def squad_tokens(
    text: str, marks: Mapping[int, str | None] = _REMOVED, is_decomposed: bool = False
) -> tuple[str, ...]:
    """Return the words of a text in lower case without ``marks`` and articles, after NFD if
    ``is_decomposed`` (Rajpurkar et al., 2016)."""
    text = normalised("NFD", text) if is_decomposed else text
    return tuple(_ARTICLES.sub(" ", text.lower().translate(marks)).split())


@dataclass(frozen=True, slots=True)
class WordScorer:
    """Exact match and F1 of bags of words, of the best reference. ``closed`` answers have no F1
    with others, ``empty_f1`` is that of two texts without words. With ``unanswerable``,
    ``UNANSWERABLE`` is the empty text, and a reference without words counts only if all are.
    ``is_official``: exact match is the dataset's own."""

    words: Callable[[str], tuple[str, ...]] = squad_tokens
    closed: frozenset[str] = frozenset()
    empty_f1: float = 0.0
    unanswerable: bool = False
    is_official: bool = True

    def scores(self, prediction: str, references: Sequence[str]) -> tuple[float, float]:
        """Return exact match and F1, both from 0 to 1."""
        given, accepted = self._read(prediction), [self._read(text) for text in references]
        if self.unanswerable:
            accepted = [*filter(None, accepted)] or [()]
        return float(given in accepted), max(self._f1(given, one) for one in accepted)

    def _read(self, text: str) -> tuple[str, ...]:
        words = self.words(text)
        return () if self.unanswerable and words == (UNANSWERABLE,) else words

    def _f1(self, one: Sequence[str], other: Sequence[str]) -> float:
        if not one and not other:
            return self.empty_f1
        if one != other and {" ".join(one), " ".join(other)} & self.closed:
            return 0.0
        shared = sum((Counter(one) & Counter(other)).values())
        return 2 * shared / (len(one) + len(other)) if shared else 0.0


_CLOSED = frozenset({"yes", "no", "noanswer"})
OWN = WordScorer(tokens, _CLOSED, empty_f1=1.0, is_official=False)
"""The scorer of datasets without one here: our normalisation, HotpotQA's closed answers."""

SCORERS: Mapping[str, WordScorer] = {
    "hotpotqa": WordScorer(closed=_CLOSED),
    "2wikimultihop": WordScorer(closed=_CLOSED),
    "bamboogle": WordScorer(),
    "nq_open": WordScorer(partial(squad_tokens, is_decomposed=True)),
    "squad_v2": WordScorer(empty_f1=1.0, unanswerable=True),
    "triviaqa": WordScorer(partial(squad_tokens, marks=_SPACED)),
}
"""Scorers by source. Bamboogle publishes none and is scored by SQuAD's; NQ-open's has no F1."""


def final_words(answer: str) -> str:
    """Return the final answer of a reply: as it is written if the reply is nothing else."""
    written = spoken_answer(answer).strip()
    final = extract_answer(written)
    return written if bare(normalise(written)) == final else final
