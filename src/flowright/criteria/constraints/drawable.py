"""IFEval's instructions as they can be drawn: with arguments that any request can meet, and in
words of our own.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowright.criteria.constraints.table import AT_LEAST, LESS_THAN

Values = Mapping[str, Any]

LANGUAGES = {"es": "Spanish", "fr": "French", "de": "German", "it": "Italian", "pt": "Portuguese",
             "nl": "Dutch", "pl": "Polish", "ru": "Russian", "sv": "Swedish", "tr": "Turkish",
             "fi": "Finnish", "vi": "Vietnamese"}  # fmt: skip
# Four lists without a word in common, so that no instruction forbids what another one asks for.
_WANTED = ("lantern", "river", "window", "music", "silver", "garden", "letter", "winter", "paper",
           "bridge", "orange", "island", "market", "candle", "story", "morning")  # fmt: skip
_REPEATED = ("time", "house", "light", "water", "road", "friend", "hand", "day", "tree")
_FORBIDDEN = ("very", "really", "good", "because", "however", "important", "great", "always",
              "never", "beautiful", "suddenly", "amazing")  # fmt: skip
_FIRST = ("today", "once", "there", "people", "sometimes", "nobody", "perhaps", "first", "here")
_ENDINGS = ("That is all for now.", "Let me know what you think.", "Thank you for reading.",
            "The rest is up to you.", "Is there anything else you need?", "We shall see.",
            "Nothing more needs to be said.", "Now it is your turn.")  # fmt: skip
_FREQUENT_LETTERS, _RARE_LETTERS = "eaotinsr", "jkqvwxyz"


@dataclass(frozen=True, slots=True)
class Drawable:
    """``arguments``: of a draw and the request. ``wordings`` have them between braces; see
    :meth:`sentence`. ``is_easy``: a model of 135 million parameters can follow it at times."""

    arguments: Callable[[random.Random, str], dict[str, Any]]
    wordings: tuple[str, ...]
    is_easy: bool = False

    def sentence(self, values: Values, draws: random.Random) -> str:
        """One of the wordings: lists between quotes, a language by its name."""
        return draws.choice(self.wordings).format(**{n: _shown(n, v) for n, v in values.items()})


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(f'"{each}"' for each in value)
    return LANGUAGES.get(value, value) if name == "language" else value


def _none(draws: random.Random, request: str) -> dict[str, Any]:
    return {}


def number(name: str, least: int, most: int) -> Callable[[random.Random, str], dict[str, Any]]:
    return lambda draws, request: {name: draws.randint(least, most)}


def one_of(name: str, values: tuple[str, ...]) -> Callable[[random.Random, str], dict[str, Any]]:
    return lambda draws, request: {name: draws.choice(values)}


def _some(name: str, words: tuple[str, ...]) -> Callable[[random.Random, str], dict[str, Any]]:
    return lambda draws, request: {name: sorted(draws.sample(words, draws.randint(1, 3)))}


def _related(
    relation: str, name: str, at_least: range, less_than: range
) -> Callable[[random.Random, str], dict[str, Any]]:
    def drawn(draws: random.Random, request: str) -> dict[str, Any]:
        chosen, among = draws.choice([(AT_LEAST, at_least), (LESS_THAN, less_than)])
        return {relation: chosen, name: draws.choice(among)}

    return drawn


def _keyword_frequency(draws: random.Random, request: str) -> dict[str, Any]:
    related = _related("relation", "frequency", range(1, 5), range(2, 5))(draws, request)
    return {"keyword": draws.choice(_REPEATED), **related}


def _letter_frequency(draws: random.Random, request: str) -> dict[str, Any]:
    related = _related("let_relation", "let_frequency", range(3, 16), range(3, 9))(draws, request)
    is_least = related["let_relation"] == AT_LEAST
    return {"letter": draws.choice(_FREQUENT_LETTERS if is_least else _RARE_LETTERS), **related}


def _paragraph_word(draws: random.Random, request: str) -> dict[str, Any]:
    count = draws.randint(2, 4)
    return {"num_paragraphs": count, "nth_paragraph": draws.randint(1, count),
            "first_word": draws.choice(_FIRST)}  # fmt: skip


def _sections(draws: random.Random, request: str) -> dict[str, Any]:
    return {"section_spliter": draws.choice(("Section", "Part", "SECTION", "Chapter")),
            "num_sections": draws.randint(2, 4)}  # fmt: skip


IFEVAL: Mapping[str, Drawable] = {
    "punctuation:no_comma": Drawable(_none, (
        "Do not use any commas.", "Your answer must be free of commas.",
        "Write it without a single comma."), is_easy=True),
    "keywords:existence": Drawable(_some("keywords", _WANTED), (
        "Use these words: {keywords}.", "Your text has to mention {keywords}.",
        "Make sure that {keywords} can be found in the answer."), is_easy=True),
    "keywords:forbidden_words": Drawable(_some("forbidden_words", _FORBIDDEN), (
        "Avoid the following: {forbidden_words}.", "Never write {forbidden_words}.",
        "Leave out these words: {forbidden_words}."), is_easy=True),
    "keywords:frequency": Drawable(_keyword_frequency, (
        'Let the word "{keyword}" appear {relation} {frequency} times.',
        'The number of times you write "{keyword}" must be {relation} {frequency}.')),
    "keywords:letter_frequency": Drawable(_letter_frequency, (
        'The letter "{letter}" should occur {let_relation} {let_frequency} times.',
        'Use the letter "{letter}" {let_relation} {let_frequency} times in all.')),
    "length_constraints:number_words": Drawable(
        _related("relation", "num_words", range(20, 201, 10), range(40, 201, 10)), (
        "Write {relation} {num_words} words.", "The answer must have {relation} {num_words} words.",
        "Keep to this length: {relation} {num_words} words."), is_easy=True),
    "length_constraints:number_sentences": Drawable(
        _related("relation", "num_sentences", range(2, 11), range(4, 11)), (
        "Write {relation} {num_sentences} sentences.",
        "The number of sentences has to be {relation} {num_sentences}.")),
    "length_constraints:number_paragraphs": Drawable(number("num_paragraphs", 2, 4), (
        "Write exactly {num_paragraphs} paragraphs and put a line of three asterisks, ***, between"
        " one and the next.",
        "Divide the text by *** into {num_paragraphs} paragraphs."), is_easy=True),
    "length_constraints:nth_paragraph_first_word": Drawable(_paragraph_word, (
        "Write {num_paragraphs} paragraphs with an empty line between them; paragraph number"
        ' {nth_paragraph} begins with the word "{first_word}".',
        'There are to be {num_paragraphs} paragraphs, apart by one blank line. "{first_word}" is'
        " the first word of number {nth_paragraph}.")),
    "change_case:capital_word_frequency": Drawable(
        _related("capital_relation", "capital_frequency", range(1, 6), range(3, 9)), (
        "Write {capital_relation} {capital_frequency} words all in capitals.",
        "Words in which every letter is a capital should occur {capital_relation}"
        " {capital_frequency} times.")),
    "change_case:english_capital": Drawable(_none, (
        "Answer in English and in capital letters only.",
        "Every letter of your English answer must be a capital."), is_easy=True),
    "change_case:english_lowercase": Drawable(_none, (
        "Answer in English, all in lower case.",
        "Use English and small letters only; no capitals anywhere."), is_easy=True),
    "language:response_language": Drawable(one_of("language", tuple(LANGUAGES)), (
        "Answer in {language} and in no other language.",
        "The whole answer has to be in {language}.")),
    "detectable_content:number_placeholders": Drawable(number("num_placeholders", 1, 5), (
        "Leave at least {num_placeholders} gaps to be filled in, in square brackets such as"
        " [place].",
        "Put in {num_placeholders} or more placeholders like [date]."), is_easy=True),
    "detectable_content:postscript": Drawable(
        one_of("postscript_marker", ("P.S.", "P.P.S")), (
        "Close with a postscript that starts with {postscript_marker}",
        "Add a last remark behind the mark {postscript_marker}"), is_easy=True),
    "detectable_format:number_bullet_lists": Drawable(number("num_bullets", 2, 6), (
        "Use exactly {num_bullets} bullet points, each on a line that starts with an asterisk and"
        " a space.",
        "Have a list of {num_bullets} items, no more and no fewer, in the form: * an item"),
        is_easy=True),
    "detectable_format:constrained_response": Drawable(_none, (
        'Choose one of these: "My answer is yes.", "My answer is no.", "My answer is maybe."',
        'Say either "My answer is yes." or "My answer is no." or "My answer is maybe."'),
        is_easy=True),
    "detectable_format:number_highlighted_sections": Drawable(number("num_highlights", 1, 4), (
        "Highlight at least {num_highlights} parts of the text with asterisks, *like this*.",
        "Mark {num_highlights} or more passages as *important* with an asterisk on each side."),
        is_easy=True),
    "detectable_format:multiple_sections": Drawable(_sections, (
        "Divide it into {num_sections} sections, headed {section_spliter} 1, {section_spliter} 2"
        " and so on.",
        'Write {num_sections} sections and begin each with "{section_spliter}" and its number.')),
    "detectable_format:title": Drawable(_none, (
        "Give it a title between double angle brackets, <<so>>.",
        "Head the text with a <<title>>."), is_easy=True),
    "detectable_format:json_format": Drawable(_none, (
        "The entire output must be one JSON object.",
        "Put the whole answer into JSON, and nothing outside it.")),
    "combination:two_responses": Drawable(_none, (
        "Give two different answers with a line of six asterisks, ******, between them.",
        "Answer twice, in different ways, and part the two with ******.")),
    "combination:repeat_prompt": Drawable(
        lambda draws, request: {"prompt_to_repeat": request}, (
        "Before you answer, repeat the request above word for word (this sentence is no part"
        " of it).",
        "Start with an exact copy of the request up to this sentence, then do what it says.")),
    "startend:end_checker": Drawable(one_of("end_phrase", _ENDINGS), (
        "The very last words must be: {end_phrase}",
        "Finish with this phrase and add nothing to it: {end_phrase}"), is_easy=True),
    "startend:quotation": Drawable(_none, (
        "Put your whole answer between double quotation marks.",
        'Begin with a " and end with a ", so that all of it is quoted.'), is_easy=True),
}  # fmt: skip
