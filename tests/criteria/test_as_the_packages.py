"""What is computed here in place of NLTK and langdetect says what they say, on texts drawn to be
awkward, and on the benchmark's own answers where they are."""

import random
import re
from collections.abc import Sequence

import pytest

from flowright.criteria.constraints import detection
from flowright.criteria.constraints.capitals import _CASED_MARKS, _between
from flowright.criteria.constraints.checkers import make
from flowright.criteria.constraints.language import _punkt, missing, sentences, tokens
from flowright.criteria.constraints.table import Sought, compiled, whole_word

pytestmark = pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")


def drawn(parts: Sequence[str], count: int, longest: int) -> list[str]:
    draws = random.Random(0)
    return [
        "".join(
            draws.choice(parts) + " " * (draws.random() < 0.4)
            for _ in range(draws.randrange(longest))
        )
        for _ in range(count)
    ]


def test_sentences_end_where_punkt_has_it() -> None:
    parts = [*".?!.?!.\n\t\xa0\x85\x1d\"')]}*-,;:&#@`aA1", ". . .", "Dr", "U.S", "e.g", "No", "St",
             "word", "The", "--", "...", "well-known", "don't", "’", "”", "“", "2.5", "etc", "a.m",
             "\ud800", "é", "x-etc", "co-op", "St-"]  # fmt: skip
    for text in drawn(parts, 4000, 14):
        assert list(sentences.__wrapped__(text)) == _punkt().tokenize(text), repr(text)


def test_capitals_are_between_what_is_counted_quickly() -> None:
    parts = ["DON'T", "Don't", "DOn't", "CANNOT", "CANnot", "'TIS", "'tIS", "I'M", "JOHN'S", "A.B",
             "X-ray", "É", "ſ", "İ", "ǅ", "a", "A", "B", "1", "I", "GONNA", "wanNA", "MORE'N",
             "D'YE", "e\u0301X", "Ⓐ", *"\"'“’.?!)(*\n\xa0@&,\x1d:_`", "--"]  # fmt: skip
    certain = 0
    for text in drawn(parts, 3000, 9):
        low, high = _between(text)
        count = sum(map(str.isupper, tokens(text)))
        assert low <= count and (high is None or count <= high), repr(text)
        certain += low == high
        for relation in ("at least", "less than"):
            values = {"capital_relation": relation, "capital_frequency": 2}
            said = make("change_case:capital_word_frequency", values).met(text)
            assert said is ((count >= 2) == (relation == "at least")), repr(text)
    assert certain > 500
    cased = [c for c in map(chr, range(0x110000)) if c.isupper() or c.islower()]
    assert [c for c in cased if not re.match(r"\w|" + _CASED_MARKS.pattern, c)] == []


def test_languages_are_those_that_langdetect_tells() -> None:
    parts = ["the", "Ein", "casa", "e\u0301", "a@b.com", "http://x.y", "DIE", "\n", "解", "ư",
             "\u1ea1\u0323", "naïve", "الم", "한국", "--", "42", "\xa0", "whale", "on"]  # fmt: skip
    texts = [*drawn(parts, 60, 30), "THE CAT SAT ON THE MAT.", "hello", "We sat. " * 900]
    for text in texts:
        for seed in (0, 3):
            detector = detection._factory().create()
            detector.seed = seed
            detector.append(text)
            detector.cleaning_text()
            told = detection._told(text, seed, surely=True)
            if not detector._extract_ngrams():
                assert told.language is None
                continue
            first = detector.get_probabilities()[0]
            assert told.language == first.lang, repr(text)
            assert told.certain is (first.prob > detection._CERTAIN), repr(text)
            assert detection._told(text, seed, surely=False).language == first.lang, repr(text)


def test_a_word_that_is_sought_is_what_its_pattern_finds() -> None:
    texts = drawn(["rock", "ROCK", "roc", "k", "ſea", "SEA", "ıs", "\u212a", "i", "s", "."], 600, 6)
    for word in ("rock", "Sea", "is", "k", "C#", "a.c"):
        for pattern in (compiled(word), compiled(rf"\b{word}\b"), whole_word(word)):
            sought = Sought(word, pattern)
            for text in texts:
                found = sum(1 for _ in pattern.finditer(text))
                assert (sought.is_in(text), sought.count(text)) == (found > 0, found), repr(text)


def test_words_of_ascii_are_those_of_the_pattern() -> None:
    values = {"num_words": 4, "relation": "at least"}
    met = make("length_constraints:number_words", values).met
    for text in drawn(["a", "_", "1", "-", "é", "\x1c", "\n", "'", "\x00"], 600, 12):
        assert met(text) is (len(re.findall(r"\w+", text)) >= 4), repr(text)
