"""IFEval's checkers of words: keywords, lengths, case and language."""

import re
from collections.abc import Callable

from flowright.criteria.constraints.language import detect, sentences, tokens
from flowright.criteria.constraints.table import (
    Arguments,
    BadArguments,
    CheckerTable,
    Met,
    Sought,
    compiled,
    whole_word,
)

TABLE = CheckerTable()
_WORD = re.compile(r"\w+")
_MARKS = frozenset(".,?!'\"")
_ASCII_WORDS = "".join(chr(n) if _WORD.match(chr(n)) else " " for n in range(128))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENGLISH = "en"
LETTER = "keywords:letter_frequency"


# Keywords.


@TABLE.add("keywords:existence")
def _existence(arguments: Arguments) -> Met:
    keywords = [Sought(word, compiled(word)) for word in arguments.texts("keywords")]
    return lambda text: all(keyword.is_in(text) for keyword in keywords)


@TABLE.fix("keywords:existence", "a keyword is a regular expression, and found within other words")
def _existence_of_words(arguments: Arguments) -> Met:
    keywords = [Sought(word, whole_word(word)) for word in arguments.texts("keywords")]
    return lambda text: all(keyword.is_in(text) for keyword in keywords)


@TABLE.add("keywords:forbidden_words")
def _forbidden(arguments: Arguments) -> Met:
    given = arguments.texts("forbidden_words")
    words = [Sought(word, compiled(rf"\b{word}\b")) for word in given]
    return lambda text: not any(word.is_in(text) for word in words)


@TABLE.fix("keywords:forbidden_words", "a word is a regular expression; one with a mark at its end "
           "is never found before white space")  # fmt: skip
def _forbidden_words(arguments: Arguments) -> Met:
    words = [Sought(word, whole_word(word)) for word in arguments.texts("forbidden_words")]
    return lambda text: not any(word.is_in(text) for word in words)


def _frequency(keyword: Sought, enough: Callable[[int], bool]) -> Met:
    return lambda text: enough(keyword.count(text))


@TABLE.add("keywords:frequency")
def _keyword_frequency(arguments: Arguments) -> Met:
    keyword = Sought(arguments.text("keyword"), arguments.pattern("keyword"))
    return _frequency(keyword, arguments.compare("relation", "frequency"))


@TABLE.fix("keywords:frequency", "counts a keyword within other words: rock in rocket")
def _word_frequency(arguments: Arguments) -> Met:
    word = Sought(arguments.text("keyword"), whole_word(arguments.text("keyword")))
    return _frequency(word, arguments.compare("relation", "frequency"))


def _letter_frequency(letter: str, enough: Callable[[int], bool]) -> Met:
    return lambda text: enough(text.lower().count(letter))


def draws_a_letter(letter: str) -> bool:
    """Return whether IFEval replaces the character to be counted by a random letter: one that is no
    letter of ASCII, such as "#" and "!"."""
    letter = letter.strip().lower()
    return len(letter) != 1 or letter not in LETTERS


@TABLE.add(LETTER)
def _letter(arguments: Arguments) -> Met:
    letter = arguments.text("letter").strip().lower()
    if draws_a_letter(letter):
        letter = LETTERS[arguments.seed % len(LETTERS)]
    return _letter_frequency(letter, arguments.compare("let_relation", "let_frequency"))


@TABLE.fix("keywords:letter_frequency", "counts a letter drawn at random in place of # and !")
def _character(arguments: Arguments) -> Met:
    letter = arguments.text("letter").strip().lower()
    if len(letter) != 1:
        raise BadArguments(f"letter is {letter!r}, not one character")
    return _letter_frequency(letter, arguments.compare("let_relation", "let_frequency"))


# Lengths.


@TABLE.add("length_constraints:number_words")
def _words(arguments: Arguments) -> Met:
    enough = arguments.compare("relation", "num_words")
    return lambda text: enough(_count_words(text))


def _count_words(text: str) -> int:
    if text.isascii():  # five times as fast
        return len(text.translate(_ASCII_WORDS).split())
    return len(_WORD.findall(text))


@TABLE.fix("length_constraints:number_words", "counts don't and well-known as two words each")
def _spaced_words(arguments: Arguments) -> Met:
    enough = arguments.compare("relation", "num_words")
    return lambda text: enough(sum(1 for word in text.split() if _WORD.search(word)))


@TABLE.add("length_constraints:number_sentences")
def _sentences(arguments: Arguments) -> Met:
    enough = arguments.compare("relation", "num_sentences")
    return lambda text: enough(len(sentences(text)))


@TABLE.add("length_constraints:nth_paragraph_first_word")
def _paragraph_word(arguments: Arguments) -> Met:
    return _nth_paragraph(arguments, lambda paragraphs: paragraphs)


@TABLE.fix("length_constraints:nth_paragraph_first_word", "an empty paragraph shifts the numbers "
           "of those behind it")  # fmt: skip
def _full_paragraph_word(arguments: Arguments) -> Met:
    return _nth_paragraph(arguments, lambda paragraphs: [p for p in paragraphs if p.strip()])


def _nth_paragraph(arguments: Arguments, kept: Callable[[list[str]], list[str]]) -> Met:
    count = arguments.whole("num_paragraphs")
    place = arguments.whole("nth_paragraph", least=1)
    first = arguments.text("first_word").lower()

    def met(text: str) -> bool:
        paragraphs = kept(text.split("\n\n"))
        full = sum(1 for paragraph in paragraphs if paragraph.strip())
        return full == count and place <= full and first_word(paragraphs[place - 1]) == first

    return met


def first_word(paragraph: str) -> str | None:
    """Return the first word as IFEval reads it: lower case, without leading quotes, up to the first
    mark."""
    words = paragraph.split(None, 1)
    if not words:
        return None
    word = words[0].lstrip("'").lstrip('"')
    end = next((place for place, letter in enumerate(word) if letter in _MARKS), len(word))
    return "".join(map(str.lower, word[:end]))


# Case and language.


@TABLE.add("change_case:capital_word_frequency")
def _capital_words(arguments: Arguments) -> Met:
    enough = arguments.compare("capital_relation", "capital_frequency")
    return lambda text: enough(sum(map(str.isupper, tokens(text))))


def _in_language(language: str, seed: int) -> Met:
    return lambda text: detect(text, seed).language in (language, None)


@TABLE.add("language:response_language")
def _language(arguments: Arguments) -> Met:
    return _in_language(arguments.text("language"), arguments.seed)


@TABLE.fix("language:response_language", "an answer without a letter is in any language")
def _known_language(arguments: Arguments) -> Met:
    language = arguments.text("language")
    return lambda text: detect(text).language == language


@TABLE.add("change_case:english_capital")
def _capital(arguments: Arguments) -> Met:
    english = _in_language(ENGLISH, arguments.seed)
    return lambda text: text.isupper() and english(text)


@TABLE.fix("change_case:english_capital", "capitals are detected as German or Dutch, and "
           "differ from one run to the next")  # fmt: skip
def _capital_of_any_draw(arguments: Arguments) -> Met:
    return lambda text: text.isupper() and detect(text.lower()).language in (ENGLISH, None)


@TABLE.add("change_case:english_lowercase")
def _lower(arguments: Arguments) -> Met:
    english = _in_language(ENGLISH, arguments.seed)
    return lambda text: text.islower() and english(text)


DETECTING = frozenset(
    {"change_case:english_capital", "change_case:english_lowercase", "language:response_language"}
)
"""Ids whose canonical checkers ask for the language, which depends on the seed."""
