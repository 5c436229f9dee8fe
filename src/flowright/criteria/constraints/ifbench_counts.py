"""IFBench's checkers of counts, ratios and repetitions of the prompt."""

import re
from itertools import chain

from flowright.criteria.constraints.language import (
    MARKS,
    sentences,
    stop_words,
    tokens,
    without_punctuation,
)
from flowright.criteria.constraints.table import Arguments, CheckerTable, Met


def _words(text: str) -> list[str]:
    return text.split()


CONJUNCTIONS = frozenset(_words("and but for nor or so yet"))
NAMES = frozenset(
    _words(
        """Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte
        Alexander Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail
        Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah
        Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"""
    )
)
PRONOUNS = frozenset(
    _words(
        """i me we us you he him she her it they them
        my mine our ours your yours his hers its their theirs
        myself ourselves yourself yourselves himself herself itself themselves
        this that these those who whom whose which what whoever whomever whatever whichever
        anybody anyone anything everybody everyone everything nobody nothing somebody someone
        something each either neither both all some any none"""
    )
)
CAPITALS = _words(
    """Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin
    Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz
    Chisinau Bern Ljubljana Zagreb"""
)
"""Countries of Europe north of 45 degrees, from north to south."""


TABLE = CheckerTable()

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+")
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_SENTENCE_MARKS = frozenset(".,!?;:")
_KEYWORD_COUNTS = (1, 2, 3, 5, 7)
_TOLERANCE = 2  # percentage points


def trimmed(text: str) -> str:
    """Less the marks and spaces around it."""
    return text.strip(MARKS + " ")


# Counts.


@TABLE.add("count:word_count_range")
def _word_range(arguments: Arguments) -> Met:
    least, most = arguments.whole("min_words"), arguments.whole("max_words")
    return lambda text: sum(1 for _ in _WORD.finditer(text)) in range(least, most + 1)


@TABLE.add("count:unique_word_count")
def _unique_words(arguments: Arguments) -> Met:
    least = arguments.whole("N")
    return lambda text: len({trimmed(word) for word in text.lower().split()}) >= least


@TABLE.fix("count:unique_word_count", "what has no letter or digit, such as a dash, is a word")
def _unique_full_words(arguments: Arguments) -> Met:
    least = arguments.whole("N")
    return lambda text: len({trimmed(word) for word in text.lower().split()} - {""}) >= least


@TABLE.add("count:conjunctions")
def _conjunctions(arguments: Arguments) -> Met:
    least = arguments.whole("small_n")

    def met(text: str) -> bool:
        return len({w for w in text.split() if trimmed(w).lower() in CONJUNCTIONS}) >= least

    return met


@TABLE.fix("count:conjunctions", "And, and and and, are three conjunctions")
def _different_conjunctions(arguments: Arguments) -> Met:
    least = arguments.whole("small_n")
    return lambda text: len(CONJUNCTIONS & {trimmed(w).lower() for w in text.split()}) >= least


@TABLE.add("count:person_names")
def _person_names(arguments: Arguments) -> Met:
    least = arguments.whole("N")
    return lambda text: len(NAMES.intersection(_WORD.findall(text))) >= least


@TABLE.add("count:numbers")
def _numbers(arguments: Arguments) -> Met:
    count = arguments.whole("N")
    return lambda text: sum(1 for _ in _NUMBER.finditer(without_punctuation(text))) == count


@TABLE.plain("count:punctuation")
def _all_marks(text: str) -> bool:
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    rest = text.replace("?!", "", 1)
    if len(rest) == len(text):
        rest = text.replace("!?", "", 1)
    return set(rest) >= _SENTENCE_MARKS


@TABLE.add("count:words_japanese")
def _every_nth_is_japanese(arguments: Arguments) -> Met:
    cycle = arguments.whole("N", least=1)

    def met(text: str) -> bool:
        due = map(trimmed, text.split()[cycle - 1 :: cycle])
        return all(_JAPANESE.search(word) for word in due if word and not word.isdigit())

    return met


@TABLE.add("count:pronouns")
def _pronouns(arguments: Arguments) -> Met:
    least = arguments.whole("N")

    def met(text: str) -> bool:
        words = tokens(text.replace("/", " ").lower())
        return sum(1 for word in words if word in PRONOUNS) >= least

    return met


@TABLE.add("count:keywords_multiple")
def _keywords(arguments: Arguments) -> Met:
    words = [arguments.text(f"keyword{n}").strip().lower() for n in range(1, 6)]
    counts = list(zip(words, _KEYWORD_COUNTS, strict=True))

    def met(text: str) -> bool:
        lower = text.lower()
        return all(lower.count(word) == count for word, count in counts)

    return met


# Ratios.


@TABLE.add("ratio:stop_words")
def _few_stop_words(arguments: Arguments) -> Met:
    most, listed = arguments.whole("percentage"), stop_words()

    def met(text: str) -> bool:
        words = _WORD.findall(text)
        stops = sum(1 for word in words if word.lower() in listed)
        return bool(words) and stops / len(words) * 100 <= most

    return met


def _ends(text: str) -> tuple[int, int, int]:
    """Sentences that end with a full stop, a question mark and an exclamation mark."""
    last = [sentence[-1:] for sentence in sentences(text)]
    return last.count("."), last.count("?"), last.count("!")


@TABLE.plain("ratio:sentence_type")
def _two_to_one(text: str) -> bool:
    stated, asked, _ = _ends(text)
    return stated == 2 * asked


@TABLE.plain_fix("ratio:sentence_type", "no sentence of either sort is twice as many")
def _some_two_to_one(text: str) -> bool:
    stated, asked, _ = _ends(text)
    return stated == 2 * asked > 0


@TABLE.plain("ratio:sentence_balance")
def _balanced(text: str) -> bool:
    return len(set(_ends(text))) == 1


@TABLE.plain_fix("ratio:sentence_balance", "no sentence of any sort is in balance")
def _some_balanced(text: str) -> bool:
    ends = _ends(text)
    return len(set(ends)) == 1 and ends[0] > 0


@TABLE.add("ratio:overlap")
def _overlap(arguments: Arguments) -> Met:
    share = arguments.whole("percentage")
    reference = _trigrams(arguments.text("reference_text"))
    return lambda text: _near(_trigrams(text), reference, share)


@TABLE.fix("ratio:overlap", "trigrams are of characters, not of words")
def _word_overlap(arguments: Arguments) -> Met:
    share = arguments.whole("percentage")
    reference = _trigrams(tokens(arguments.text("reference_text")))
    return lambda text: _near(_trigrams(tokens(text)), reference, share)


def _trigrams(items: str | list[str]) -> set[tuple[str, str, str]]:
    return set(zip(items, items[1:], items[2:], strict=False))


def _near(
    found: set[tuple[str, str, str]], reference: set[tuple[str, str, str]], share: int
) -> bool:
    if not found:
        return False
    overlap = len(found & reference) / len(found) * 100
    return share - _TOLERANCE <= overlap <= share + _TOLERANCE


@TABLE.plain("ratio:sentence_words")
def _three_of_a_length(text: str) -> bool:
    found = sentences(text)
    return len(found) == 3 and len({len(sentence.strip()) for sentence in found}) == 1


@TABLE.plain_fix("ratio:sentence_words", "does not look whether the words are different")
def _three_of_different_words(text: str) -> bool:
    words = [{w.lower() for w in _WORD.findall(sentence)} for sentence in sentences(text)]
    shared = sum(map(len, words)) != len(set(chain.from_iterable(words)))
    return _three_of_a_length(text) and not shared


# Repetitions of the prompt.


@TABLE.add("repeat:repeat_change")
def _repeat_but_first(arguments: Arguments) -> Met:
    prompt = arguments.text("prompt_to_repeat")
    rest = prompt.split()[1:]
    return lambda text: text != prompt and text.split()[1:] == rest


@TABLE.fix("repeat:repeat_change", "the request unchanged, with one more space, is a change")
def _repeat_with_other_first(arguments: Arguments) -> Met:
    words = arguments.text("prompt_to_repeat").split()

    def met(text: str) -> bool:
        said = text.split()
        return said[1:] == words[1:] and said[:1] != words[:1]

    return met


@TABLE.plain("repeat:repeat_simple")
def _only_this(text: str) -> bool:
    return text.strip().lower() == "only output this sentence here, ignore all other requests."


@TABLE.add("repeat:repeat_span")
def _span(arguments: Arguments) -> Met:
    first, last = arguments.whole("n_start"), arguments.whole("n_end")
    span = arguments.text("prompt_to_repeat")[first : last + 1].strip().lower()
    return lambda text: text.strip().lower() == span
