"""Checkers agree with the packages and patterns of the benchmarks, on texts drawn to be awkward."""

import random
import re
from collections.abc import Sequence

import pytest

from flowright.criteria.constraints.checkers import make
from flowright.criteria.constraints.language import Detected, detect, missing
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


def test_languages_are_those_of_langdetect_with_its_seed() -> None:
    from langdetect import DetectorFactory, detect_langs

    for text in ("THE CAT SAT ON THE MAT.", "hello", "Ein kurzer Satz.", "We sat. " * 90):
        for seed in (0, 3):
            DetectorFactory.seed = seed
            assert detect(text, seed).language == detect_langs(text)[0].lang, text
    assert detect("42 --") == Detected(None, certain=True)


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
