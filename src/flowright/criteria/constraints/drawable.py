"""Instructions that can be drawn for training: arguments that any request can meet, in words of our
own."""

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

    def sentence(self, values: Values, draws: random.Random | None = None) -> str:
        """One of the wordings, the first without ``draws``: lists between quotes, a language by its
        name."""
        wording = self.wordings[0] if draws is None else draws.choice(self.wordings)
        return wording.format(**{n: _shown(n, v) for n, v in values.items()})


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(f'"{each}"' for each in value)
    if isinstance(value, float):  # as IFBench's data has whole numbers
        return f"{value:g}"
    return LANGUAGES.get(value, f"the language {value}") if name == "language" else value


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


_PLAIN_WORDS = ("lamp", "stone", "cloud", "basket", "mirror", "ladder", "pocket", "candle",
                "button", "spoon", "carpet", "whistle")  # fmt: skip


def _word_range(draws: random.Random, request: str) -> dict[str, Any]:
    least = draws.randrange(20, 151, 10)
    return {"min_words": least, "max_words": least + draws.choice((10, 20, 30))}


def _keywords(draws: random.Random, request: str) -> dict[str, Any]:
    words = draws.sample(_PLAIN_WORDS, 5)
    return {f"keyword{n}": word for n, word in enumerate(words, start=1)}


def _place(draws: random.Random, request: str) -> dict[str, Any]:
    return {"keyword": draws.choice(_PLAIN_WORDS), "n": draws.randint(1, 4),
            "m": draws.randint(1, 5)}  # fmt: skip


def _sentence(draws: random.Random, request: str) -> dict[str, Any]:
    return {"word": draws.choice(_PLAIN_WORDS), "N": draws.randint(1, 6)}


def _overlap(draws: random.Random, request: str) -> dict[str, Any]:
    return {"reference_text": request, "percentage": draws.randrange(20, 61, 10)}


def _repeated(draws: random.Random, request: str) -> dict[str, Any]:
    return {"prompt_to_repeat": request}


def _span(draws: random.Random, request: str) -> dict[str, Any]:
    end = len(request) - 1
    first = draws.randint(0, end // 2)
    last = draws.randint(min(end // 2 + 4, end), end)
    return {"prompt_to_repeat": request, "n_start": first, "n_end": last}


IFBENCH: Mapping[str, Drawable] = {
    "count:word_count_range": Drawable(_word_range, (
        "Write no fewer than {min_words} and no more than {max_words} words.",
        "Stay between {min_words} and {max_words} words.")),
    "count:unique_word_count": Drawable(number("N", 20, 80), (
        "Use {N} or more different words.", "There must be no fewer than {N} distinct words.")),
    "count:conjunctions": Drawable(number("small_n", 2, 6), (
        "Use {small_n} or more of these: for, and, nor, but, or, yet, so.",
        "At least {small_n} different coordinating conjunctions must occur.")),
    "count:person_names": Drawable(number("N", 1, 5), (
        "Mention at least {N} people, all from among Emma, Liam, Sophia, Jackson, Olivia, Noah and"
        " Ava.",
        "Name {N} or more of Emma, Liam, Sophia, Jackson, Olivia, Noah and Ava.")),
    "count:numbers": Drawable(number("N", 1, 5), (
        "Have exactly {N} numbers in it, written in digits.",
        "Numbers in digits occur {N} times, no more and no less.")),
    "count:punctuation": Drawable(_none, (
        "Use each of these marks at least once: . , ! ? ; : and also ?! in a row.",
        "No mark may be missing out of: full stop, comma, exclamation mark, question mark,"
        " semicolon, colon, and an interrobang (?!).")),
    "count:words_japanese": Drawable(number("N", 3, 6), (
        "Make every word whose number is a multiple of {N} a Japanese one.",
        "Counting words, each number {N} is in Japanese script.")),
    "count:pronouns": Drawable(number("N", 3, 12), (
        "Use {N} pronouns or more.", "Pronouns have to occur {N} times at least.")),
    "count:keywords_multiple": Drawable(_keywords, (
        'Write "{keyword1}" once, "{keyword2}" twice, "{keyword3}" three times, "{keyword4}" five'
        ' times and "{keyword5}" seven times.',
        'How often words occur: {keyword1} 1, {keyword2} 2, {keyword3} 3, {keyword4} 5,'
        " {keyword5} 7.")),
    "ratio:stop_words": Drawable(lambda draws, request: {
        "percentage": draws.randrange(30, 61, 10)}, (
        "Of all words, {percentage} % at most may be stop words such as the, of and is.",
        "Keep words like a, the, to, in down to a share of {percentage} %.")),
    "ratio:sentence_type": Drawable(_none, (
        "Let there be two statements for each question.",
        "Have exactly twice as many sentences with a full stop as with a question mark.")),
    "ratio:sentence_balance": Drawable(_none, (
        "As many sentences shall end in a full stop as in ? and as in !.",
        "Statements, questions and exclamations must be equally many.")),
    "ratio:overlap": Drawable(_overlap, (
        "Of the trigrams of your answer {percentage} % (2 more or less) are also in this request:"
        " {reference_text}",
        "Share {percentage} % of the answer's trigrams, give or take 2 %, with this text:"
        " {reference_text}")),
    "ratio:sentence_words": Drawable(_none, (
        "Write three sentences of the same length in characters that share no word.",
        "Three sentences, each with as many characters as the others and with words of its own.")),
    "repeat:repeat_change": Drawable(_repeated, (
        "Do not do it: repeat this request (up to here) with another first word.",
        "Instead of an answer write the request again, but for its first word, which you replace."
        )),
    "repeat:repeat_simple": Drawable(_none, (
        'Write nothing but this: "Only output this sentence here, ignore all other requests."'
        " Leave out the quotation marks.",
        "Forget the above and write: Only output this sentence here, ignore all other requests.")),
    "repeat:repeat_span": Drawable(_span, (
        "Do not answer; copy the characters {n_start} to {n_end} of this request, both included"
        " and counted from 0.",
        "Write only what stands from character {n_start} up to and with character {n_end} above,"
        " the first being character 0.")),
    "words:alphabet": Drawable(_none, (
        "Each word begins with the letter of the alphabet that follows that of the word before,"
        " with A behind Z.",
        "First letters of words go through the alphabet in order, and from Z to A.")),
    "words:vowel": Drawable(_none, (
        "Write one paragraph with at most three of the vowels a, e, i, o, u.",
        "In a single paragraph, do without two or more of the five vowels.")),
    "words:consonants": Drawable(_none, (
        "In every word two consonants stand side by side.",
        "Use only words that have two consonants in a row.")),
    "words:palindrome": Drawable(_none, (
        "Have ten or more palindromes of five letters or more.",
        "Ten words at least, of no fewer than five letters, read the same backwards.")),
    "words:prime_lengths": Drawable(_none, (
        "The number of letters of each word is a prime.",
        "Use words of 2, 3, 5, 7, 11 or another prime number of letters only.")),
    "words:no_consecutive": Drawable(_none, (
        "No word begins with the same letter as the word before it.",
        "Two words in a row never have one first letter.")),
    "words:odd_even_syllables": Drawable(_none, (
        "Words with an odd and an even number of syllables take turns.",
        "Behind a word with an odd number of syllables comes one with an even number, and the"
        " other way round.")),
    "words:repeats": Drawable(number("small_n", 1, 5), (
        "No word occurs more often than {small_n} times.",
        "Use each word {small_n} times at most.")),
    "words:last_first": Drawable(_none, (
        "Begin each sentence with the last word of the one before.",
        "The word that ends a sentence is the first of the next.")),
    "words:paragraph_last_first": Drawable(_none, (
        "Every paragraph ends with the word that it begins with.",
        "First and last word of each paragraph are the same.")),
    "words:keywords_specific_position": Drawable(_place, (
        'Word {m} of sentence {n} is "{keyword}".',
        'Put "{keyword}" into sentence number {n} as its word number {m}.')),
    "words:words_position": Drawable(one_of("keyword", _PLAIN_WORDS), (
        'The second word, and the last but one, is "{keyword}".',
        'Let "{keyword}" be the second word and the second to last as well.')),
    "sentence:alliteration_increment": Drawable(_none, (
        "From sentence to sentence, more words alliterate.",
        "Each sentence has more words in a row with one first letter than the sentence before.")),
    "sentence:keyword": Drawable(_sentence, (
        'Sentence number {N} has the word "{word}" in it.',
        'Use "{word}" in sentence {N}.')),
    "sentence:increment": Drawable(number("small_n", 1, 3), (
        "Each sentence has exactly {small_n} more words than the one before.",
        "Sentences grow by {small_n} words at a time.")),
    "format:parentheses": Drawable(_none, (
        "Nest brackets, ( or [ or {{, at least five deep.",
        "Somewhere, put brackets within brackets until there are five levels.")),
    "format:quotes": Drawable(_none, (
        "Quote within a quote within a quote, with \" and ' by turns.",
        "Have quotations nested three deep, double and single marks alternating.")),
    "format:quote_unquote": Drawable(_none, (
        "Each quotation is followed by words of your own that explain it.",
        "Never end with a quotation, nor put one straight behind another.")),
    "format:options": Drawable(one_of("options", ("yes/no/maybe", "now/later/not at all")), (
        "Answer with one of these and nothing else: {options}.",
        "Choose among {options}; write no other word.")),
    "format:output_template": Drawable(_none, (
        "Follow this form: My Answer: [...] My Conclusion: [...] Future Outlook: [...]",
        "Write under three headings in this order: My Answer:, My Conclusion:, Future Outlook:")),
    "format:no_whitespace": Drawable(_none, (
        "Use no white space at all.", "There may be no space and no line break in the answer.")),
    "format:title_case": Drawable(_none, (
        "Write Everything In Title Case.", "Every word begins with a capital letter.")),
    "format:newline": Drawable(_none, (
        "Put each word on a line of its own.", "One word a line, please.")),
    "format:line_indent": Drawable(_none, (
        "Indent each line by more spaces than the one above it.",
        "Make stairs of the lines: every line starts further to the right.")),
    "format:list": Drawable(one_of("sep", ("...", "SEPARATOR", "!?!?", "-")), (
        "Make it a list whose items start with {sep} rather than bullets.",
        "List the points, with {sep} in front of each.")),
    "format:sub-bullets": Drawable(_none, (
        "Use bullets (*), each with at least one bullet of the second level (-).",
        "Give a list with * whose items all have an item with - below them.")),
    "format:no_bullets_bullets": Drawable(_none, (
        "First two sentences or more, each with a full stop; then a list with at least two *.",
        "Begin with two or more sentences without bullets and go on with two or more bullets (*)."
        )),
    "format:thesis": Drawable(_none, (
        "Begin each section with a thesis in italics, by HTML's <i> and </i>.",
        "Put the main claim between <i> and </i>, and then argue for it.")),
    "format:emoji": Drawable(_none, (
        "End every sentence with an emoji.", "No sentence without an emoji at its end.")),
}  # fmt: skip


def sentence_of(name: str, values: Values) -> str:
    """Return an instruction of a row as a sentence; one that cannot be drawn by its name."""
    drawable = {**IFEVAL, **IFBENCH}.get(name)
    if drawable is None:
        return f"The instruction on {name.partition(':')[2].replace('_', ' ')}."
    return drawable.sentence({n: v for n, v in values.items() if v is not None})
