"""IFBench's checkers of words and sentences: which, in what order, and where."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from flowright.criteria.constraints.ifbench_counts import trimmed
from flowright.criteria.constraints.language import (
    MARKS,
    part_of_speech,
    sentences,
    syllables,
    tokens,
    without_punctuation,
    word_tokens,
)
from flowright.criteria.constraints.table import Arguments, CheckerTable, Met

TABLE = CheckerTable()

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_VOWELS = frozenset("aeiou")
_CLUSTER = re.compile("[b-df-hj-np-tv-z]{2}")
_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n")
_LONGEST_PRIME = 97  # of IFBench's list
_PALINDROMES, _SHORTEST_PALINDROME = 10, 5


# Letters of words.


@TABLE.plain("words:alphabet")
def _alphabetical(text: str) -> bool:
    words = without_punctuation(text).split()
    start = _ALPHABET.find(words[0][0].lower()) if words else -1
    if start < 0:
        return False
    due = (_ALPHABET[(start + n) % 26] for n in range(1, len(words)))
    return all(word.lower()[0] == letter for word, letter in zip(words[1:], due, strict=True))


def _vowels(text: str) -> int:
    return len(_VOWELS.intersection(text.lower()))


@TABLE.plain("words:vowel")
def _three_vowels(text: str) -> bool:
    return "\n" not in text.strip() and _vowels(text) <= 3


@TABLE.plain_fix("words:vowel", "a paragraph of two lines is two paragraphs")
def _three_vowels_in_paragraph(text: str) -> bool:
    return not _PARAGRAPHS.search(text.strip()) and _vowels(text) <= 3


@TABLE.plain("words:consonants")
def _clusters(text: str) -> bool:
    return all(_CLUSTER.search(word) for word in text.lower().split())


@TABLE.plain_fix("words:consonants", "a dash between words is a word without consonants")
def _clusters_of_words(text: str) -> bool:
    return all(_CLUSTER.search(word) for word in text.lower().split() if trimmed(word))


@TABLE.plain("words:palindrome")
def _palindromes(text: str) -> bool:
    return _count_palindromes(without_punctuation(text).lower().split()) >= _PALINDROMES


@TABLE.plain_fix("words:palindrome", "ten times the same palindrome are ten")
def _different_palindromes(text: str) -> bool:
    return _count_palindromes(set(without_punctuation(text).lower().split())) >= _PALINDROMES


def _count_palindromes(words: list[str] | set[str]) -> int:
    return sum(1 for w in words if len(w) >= _SHORTEST_PALINDROME and w == w[::-1])


@TABLE.plain("words:prime_lengths")
def _prime_lengths(text: str) -> bool:
    lengths = {len(word) for word in without_punctuation(text).split()}
    return all(length <= _LONGEST_PRIME and _is_prime(length) for length in lengths)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % by for by in range(2, int(number**0.5) + 1))


@TABLE.plain("words:no_consecutive")
def _no_alliteration(text: str) -> bool:
    words = without_punctuation(text.lower()).split()
    return all(one[0] != other[0] for one, other in pairwise(words))


@TABLE.plain("words:odd_even_syllables")
def _odd_even(text: str) -> bool:
    words = without_punctuation(text).lower().split()
    known: dict[str, bool] = {word: syllables(word) % 2 == 1 for word in set(words)}
    return all(known[one] != known[other] for one, other in pairwise(words))


@TABLE.add("words:repeats")
def _repeats(arguments: Arguments) -> Met:
    most = arguments.whole("small_n")

    def met(text: str) -> bool:
        words = Counter(without_punctuation(text.lower()).split())
        return all(count <= most for count in words.values())

    return met


# Words in their places.


@TABLE.plain("words:start_verb")
def _starts_with_verb(text: str) -> bool:
    return "VB" in part_of_speech(tokens(text))


@TABLE.plain("words:last_first")
def _last_is_first(text: str) -> bool:
    """Return whether a sentence ends with the first word of the next."""
    for one, other in pairwise(sentences(text)):
        before = one.rstrip(MARKS + " ").split()
        after = other.lstrip(MARKS + " ").split()
        if not before or not after or before[-1].lower() != after[0].lower():
            return False
    return True


@TABLE.plain_fix("words:last_first", "the marks behind a sentence's only word make it another")
def _last_word_is_first(text: str) -> bool:
    each = [[w for w in map(trimmed, s.lower().split()) if w] for s in sentences(text)]
    return all(a and b and a[-1] == b[0] for a, b in pairwise(each))


@TABLE.plain("words:paragraph_last_first")
def _paragraph_ends_as_it_starts(text: str) -> bool:
    paragraphs = (trimmed(line.strip().lower()).split() for line in text.split("\n"))
    return all(words[0] == words[-1] for words in paragraphs if words)


@TABLE.plain_fix("words:paragraph_last_first", "a mark behind the first word makes it another")
def _paragraph_ends_in_its_first_word(text: str) -> bool:
    lines = (line.lower().split() for line in text.split("\n"))
    paragraphs = ([word for word in map(trimmed, line) if word] for line in lines)
    return all(words[0] == words[-1] for words in paragraphs if words)


@TABLE.add("words:keywords_specific_position")
def _keyword_place(arguments: Arguments) -> Met:
    keyword = arguments.text("keyword").strip().lower()
    sentence, place = arguments.whole("n", least=1), arguments.whole("m", least=1)

    def met(text: str) -> bool:
        found = sentences(text)
        words = word_tokens(found[sentence - 1]) if len(found) >= sentence else []
        return len(words) >= place and words[place - 1].lower() == keyword

    return met


def _second(words: Sequence[str], last: int, keyword: str) -> bool:
    """Return whether the second word, and the last but one, are the keyword."""
    return len(words) >= -last and words[1].lower() == words[last].lower() == keyword


@TABLE.add("words:words_position")
def _second_words(arguments: Arguments) -> Met:
    keyword = arguments.text("keyword").strip().lower()

    def met(text: str) -> bool:
        words = tokens(text)
        ends_with_mark = bool(words) and words[-1] in MARKS
        return len(words) > 1 and _second(words, -3 if ends_with_mark else -2, keyword)

    return met


@TABLE.fix("words:words_position", "marks before the last but one are words, and so are ... and ''")
def _second_full_words(arguments: Arguments) -> Met:
    keyword = arguments.text("keyword").strip().lower()
    return lambda text: _second(word_tokens(text), -2, keyword)


# Sentences.


@TABLE.plain("sentence:alliteration_increment")
def _growing_alliteration(text: str) -> bool:
    before = -1
    for sentence in sentences(text):
        words = [w for word in sentence.lower().split() if (w := word.lstrip(MARKS + " "))]
        count, within = 0, False
        for one, other in pairwise(words):
            alike = one[0] == other[0]
            count += alike * (1 if within else 2)
            within = alike
        if count <= before:
            return False
        before = count
    return True


@TABLE.add("sentence:keyword")
def _sentence_keyword(arguments: Arguments) -> Met:
    place = arguments.whole("N", least=1)
    keyword = re.compile(rf"\b{re.escape(arguments.text('word'))}\b", re.IGNORECASE)

    def met(text: str) -> bool:
        found = sentences(text)
        return len(found) >= place and keyword.search(found[place - 1]) is not None

    return met


@TABLE.add("sentence:increment")
def _growing_sentences(arguments: Arguments) -> Met:
    step = arguments.whole("small_n")

    def met(text: str) -> bool:
        counts = [len(without_punctuation(sentence).split()) for sentence in sentences(text)]
        return all(other == one + step for one, other in pairwise(counts))

    return met
