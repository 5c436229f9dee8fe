"""IFBench's instructions as they can be drawn, in words of our own. Those of ``custom:`` are tasks
of their own rather than instructions on another, and are not drawn; nor is ``words:start_verb``,
whose tagger no package brings.
"""

import random
from collections.abc import Mapping
from typing import Any

from flowright.criteria.constraints.drawable import Drawable, number, one_of

_PLAIN_WORDS = ("lamp", "stone", "cloud", "basket", "mirror", "ladder", "pocket", "candle",
                "button", "spoon", "carpet", "whistle")  # fmt: skip


def _none(draws: random.Random, request: str) -> dict[str, Any]:
    return {}


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
