"""The checkers one by one: the benchmarks' quirks, kept, and what the fixed kind says instead."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flowright.criteria.constraints.checkers import BENCHMARKS, FIXED, IDS, REASONS, make, seeds
from flowright.criteria.constraints.ifbench_form import _some_blank_lines_removed
from flowright.criteria.constraints.ifeval_form import bracketed, bullets, titles
from flowright.criteria.constraints.language import missing
from flowright.criteria.constraints.table import BadArguments

NEEDED = pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")

Case = tuple[str, Mapping[str, Any], str, bool, bool]

CASES: tuple[Case, ...] = (
    # id, arguments, answer, met by the canonical kind, by the fixed kind
    ("punctuation:no_comma", {}, "a、b，c", True, True),
    ("keywords:existence", {"keywords": ["rock", "a.c"]}, "ROCKET abc", True, False),
    ("keywords:forbidden_words", {"forbidden_words": ["rock"]}, "rocket", True, True),
    ("keywords:forbidden_words", {"forbidden_words": ["C#"]}, "I like C# most", True, False),
    ("keywords:frequency", {"keyword": "rock", "frequency": 2, "relation": "at least"},
     "rock, rocket", True, False),
    ("keywords:frequency", {"keyword": "rock", "frequency": 0, "relation": "at least"}, "", True,
     True),
    ("keywords:letter_frequency", {"letter": "Q", "let_frequency": 2, "let_relation": "less than"},
     "q", True, True),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
     "aa", True, False),
    ("length_constraints:number_words", {"num_words": 4, "relation": "at least"},
     "don't well-known", True, False),
    ("length_constraints:number_words", {"num_words": 2, "relation": "less than"}, "a - b", False,
     False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\na\n***\nb\n***", True,
     True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a ***b*** c", False, False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, "a ***b*** c", True, False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\n\n***\nb", False,
     False),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Well"}, "a\n\n'well, b", True, True),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "b"}, "a\n\n\n\nb", False, True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "**a** and **b**",
     True, True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 3}, "**a** and **b**",
     False, False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "***a***", True,
     False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "* a * b", True,
     False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", True, True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "---\n* a", True, False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "**bold**\n* a", True, True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "\n\n  * a", True, True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "*\n* a", True, True),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1\na\nSection2\nb", True, True),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1\nas in Section 1", True, False),
    ("detectable_format:title", {}, "<<<a>>", True, True),
    ("detectable_format:title", {}, "<< >>", False, False),
    ("detectable_format:title", {}, "<<a> and > b>>", True, False),
    ("detectable_format:json_format", {}, '```JSON\n{"a": 1}\n```', True, True),
    ("detectable_format:json_format", {}, "12", True, False),
    ("detectable_format:json_format", {}, "[" * 100_000, False, False),
    ("detectable_format:constrained_response", {}, "So: My answer is no.", True, True),
    ("detectable_format:constrained_response", {}, "My answer is no. My answer is yes.", True,
     False),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] []", True, False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "b\nP. S. c", True, True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a. P.S. b", True, False),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "p.p.s. a", True, True),
    ("combination:two_responses", {}, "a******b", True, True),
    ("combination:two_responses", {}, "a******a", False, False),
    ("combination:two_responses", {}, "******a******b******", True, True),
    ("combination:repeat_prompt", {"prompt_to_repeat": " Say it. "}, "\nsay IT. No.", True, True),
    ("startend:end_checker", {"end_phrase": " in India."}, 'It is "IN INDIA."\n', True, True),
    ("startend:quotation", {}, ' "a" ', True, True),
    ("startend:quotation", {}, '"', False, False),
    # IFBench
    ("count:word_count_range", {"min_words": 2.0, "max_words": 3.0}, "don't", True, True),
    ("count:unique_word_count", {"N": 3.0}, "a b -", True, False),
    ("count:conjunctions", {"small_n": 3}, "And and and, x", True, False),
    ("count:person_names", {"N": 1}, "Miami", False, False),
    ("count:numbers", {"N": 2}, "3.14 and 1,000", True, True),
    ("count:punctuation", {}, "a. b, c! d? e; f: g?!", True, True),
    ("count:punctuation", {}, "b, c! d? e; f: g.", False, False),
    ("count:words_japanese", {"N": 2}, "a 犬 b 7 c", True, True),
    ("count:keywords_multiple", {f"keyword{n}": letter for n, letter in enumerate("abcde", 1)},
     "a bb ccc ddddd EEEEEEE", True, True),
    ("words:alphabet", {}, "Ants bite, Cats.", True, True),
    ("words:alphabet", {}, "1 bites", False, False),
    ("words:vowel", {}, "a e\ni", False, True),
    ("words:vowel", {}, "a e i o", False, False),
    ("words:consonants", {}, "stop - track", False, True),
    ("words:palindrome", {}, "level " * 10, True, False),
    ("words:prime_lengths", {}, "it was 12345", True, True),
    ("words:prime_lengths", {}, "some", False, False),
    ("words:no_consecutive", {}, "big dogs. Bark", True, True),
    ("words:no_consecutive", {}, "big Bark", False, False),
    ("words:repeats", {"small_n": 2}, "a A a.", False, False),
    ("words:paragraph_last_first", {}, "So it is so.\n\nNo is no", True, True),
    ("words:paragraph_last_first", {}, "No, it is no", False, True),
    ("format:parentheses", {}, "([{([a", False, False),
    ("format:parentheses", {}, "([{([a]", True, True),
    ("format:quotes", {}, "\"a 'b \"c\" d' e\"", True, True),
    ("format:quote_unquote", {}, 'He said "a" "b" twice', False, False),
    ("format:quote_unquote", {}, "He said “a” “b” twice", True, False),
    ("format:quote_unquote", {}, 'He said "a".', False, False),
    ("format:options", {"options": "yes/no/maybe"}, "**Maybe.**", True, True),
    ("format:options", {"options": "a), b), c), d)"}, "a).", False, False),
    ("format:options", {"options": "color or shape"}, "color", False, True),
    ("format:output_template", {}, "Future Outlook: My Answer: My Conclusion:", True, False),
    ("format:no_whitespace", {}, "a\u00a0b", False, False),
    ("format:newline", {}, "a\n\nb", True, True),
    ("format:newline", {}, "a b\n \nc", True, False),
    ("format:line_indent", {}, "a\n b\n  c", True, True),
    ("format:line_indent", {}, "a\n\n\n b", False, True),
    ("format:list", {"sep": "!?!?"}, "use !?!? and !?!?", True, False),
    ("format:sub-bullets", {}, "no bullets", True, False),
    ("format:sub-bullets", {}, "* a\n - b\n* c\n - d", True, True),
    ("format:thesis", {}, "<em>a</em>", True, False),
    ("format:thesis", {}, "<i>a</i> b", True, True),
    ("repeat:repeat_change", {"prompt_to_repeat": "Say it now"}, "Say  it now", True, False),
    ("repeat:repeat_simple", {}, "Only output THIS sentence here, ignore all other requests.",
     True, True),
    ("repeat:repeat_span", {"prompt_to_repeat": "explain it", "n_start": 3, "n_end": 6}, "LAIN",
     True, True),
    ("custom:multiples", {}, "14,21, 28 35\n42 49", True, True),
    ("custom:date_format_list", {}, "1796-04-12, 1800-02-29", True, False),
    ("custom:date_format_list", {}, "1796-04-31", False, False),
    ("custom:character_reverse", {}, "ELGAE DLAB a", True, True),
    ("custom:csv_city", {}, "ID,Country,City,Year,Count\n" + "1,a,b,2,3\n" * 7, True, True),
    ("custom:csv_city", {}, "ID,Country,City,Year,Count\n" + "1,a,b,2,3\n" * 99, False, False),
    ("custom:csv_city", {}, "ID, Country, City, Year, Count\n" + "1,a,b,2,3\n" * 7, False, False),
    ("custom:csv_special_character", {},
     "ProductID,Category,Brand,Price,Stock\n" + '1,a,"b&c",2,3\n' + "1,a,b,2\n" * 13, True, False),
    ("custom:csv_quotes", {}, '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n'
     + '"1"\t"a"\t"b"\t"c"\t"d"\n' * 3, True, True),
    ("custom:csv_quotes", {}, "StudentID\tSubject\tGrade\tSemester\tScore\n"
     + '"1"\t\t"b"\t"c"\t"d"\n' * 3, False, False),
)  # fmt: skip

WITH_PACKAGES: tuple[Case, ...] = (
    ("ratio:overlap", {"reference_text": "abcd", "percentage": 50}, "abcx", True, False),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"},
     "Dr. Smith paid 3.50 dollars.", True, True),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "I said NASA-wide, once.", False, False),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "I said NASA.", True, True),
    ("language:response_language", {"language": "de"}, "Das ist ein ganz einfacher Satz.", True,
     True),
    ("language:response_language", {"language": "de"}, "12345", True, False),
    ("change_case:english_lowercase", {}, "this is a plain and simple sentence.", True, True),
    ("change_case:english_lowercase", {}, "This is a plain sentence.", False, False),
    ("change_case:english_capital", {}, "Ceci n'est pas", False, False),
    ("count:pronouns", {"N": 3}, "She/her saw it.", True, True),
    ("ratio:stop_words", {"percentage": 50.0}, "the cat", True, True),
    ("ratio:overlap", {"reference_text": "abcd", "percentage": 50}, "abcx", True, False),
    ("ratio:sentence_type", {}, "Hello!", True, False),
    ("ratio:sentence_type", {}, "It is. So it is. Is it?", True, True),
    ("ratio:sentence_balance", {}, "a b c", True, False),
    ("ratio:sentence_words", {}, "It is so. It is on. It is in.", True, False),
    ("words:odd_even_syllables", {}, "cat table dog", True, True),
    ("words:last_first", {}, "I saw it. It was red. Red it was.", True, True),
    ("words:keywords_specific_position", {"keyword": "red", "n": 2, "m": 3},
     "No. It, was red.", True, True),
    ("words:words_position", {"keyword": "red"}, "A red and red one.", True, True),
    ("words:words_position", {"keyword": "red"}, 'A red "and red" one.', False, True),
    ("sentence:alliteration_increment", {}, "Go on. Big bears come. Big bad bears come.", True,
     True),
    ("sentence:keyword", {"word": "red", "N": 2}, "No. It is redder.", False, False),
    ("sentence:increment", {"small_n": 1}, "Go. Go on. Go on now.", True, True),
    ("format:title_case", {}, "The Great iPhone", True, True),
    ("format:title_case", {}, "The great One", False, False),
    ("format:emoji", {}, "Yes 😀. No 😀.", True, True),
    ("format:emoji", {}, "Yes. No.", False, False),
    ("format:no_bullets_bullets", {}, "One. Two.\n* a\n* b", True, True),
    ("format:no_bullets_bullets", {}, "One. Two.\n\n* a\n* b\n", False, True),
    ("custom:word_reverse", {}, "symbol national the is eagle bald", True, True),
    ("custom:sentence_alphabet", {}, " ".join(f"{chr(65 + n)}b is." for n in range(26)), True,
     True),
)  # fmt: skip


def _failures(cases: Sequence[Case]) -> list[tuple[str, str, str]]:
    return [
        (name, answer, kind)
        for name, arguments, answer, *expected in cases
        for kind, met in zip(("canonical", "fixed"), expected, strict=True)
        if make(name, arguments, kind).met(answer) is not met
    ]


def test_quirks_are_kept_and_fixed() -> None:
    assert _failures(CASES) == []


@NEEDED
def test_quirks_of_sentences_and_languages() -> None:
    assert _failures(WITH_PACKAGES) == []


def test_every_benchmark_is_whole() -> None:
    sizes = {name: sum(len(t.canonical) for t in tables) for name, tables in BENCHMARKS.items()}
    assert sizes == {"ifeval": 25, "ifbench": 58}
    assert FIXED.keys() == REASONS.keys() <= IDS.keys()


def test_what_is_null_is_absent_and_zero_is_not() -> None:
    values = {"num_bullets": 0, "keyword": None}
    assert make("detectable_format:number_bullet_lists", values).met("none")


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("keywords:existance", {}, "did you mean"),
        ("keywords:existence", {}, "keywords is missing"),
        ("punctuation:no_comma", {"n": 1}, "unknown argument n"),
        ("count:numbers", {"N": 2.5}, "not a whole number"),
        ("count:words_japanese", {"N": 0}, "at least 1"),
        ("keywords:forbidden_words", {"forbidden_words": ["("]}, "no regular expression"),
        ("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "most"}, "'most'"),
    ],
)
def test_what_cannot_be_made_says_why(name: str, values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(BadArguments, match=re.escape(said)):
        make(name, values)


def test_only_a_letter_that_is_none_is_drawn() -> None:
    assert seeds("keywords:letter_frequency", {"letter": "#"}) == 26
    assert seeds("keywords:letter_frequency", {"letter": "Q"}) == 1
    assert seeds("en:language:response_language", {"language": "de"}) > 1
    rule = {"letter": "!", "let_frequency": 1, "let_relation": "at least"}
    met = [make("keywords:letter_frequency", rule, seed=seed).met("abc") for seed in range(26)]
    assert met == [True] * 3 + [False] * 23


def _texts(letters: str) -> list[str]:
    draws = random.Random(0)
    return ["".join(draws.choices(letters, k=draws.randrange(30))) for _ in range(3000)]


def test_searches_in_lines_find_what_the_quadratic_patterns_do() -> None:
    for text in _texts("*- \n\u2028a"):
        stars = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE)
        dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
        assert bullets(text) == len(stars) + len(dashes), repr(text)
    for text in _texts("<<>>a\n"):
        assert list(titles(text)) == re.findall(r"<<[^\n]+>>", text), repr(text)
    for text in _texts("[[]]a\n"):
        found = [f"[{inside}]" for inside in bracketed(text)]
        assert found == re.findall(r"\[.*?\]", text), repr(text)


def test_a_special_field_is_what_the_quadratic_pattern_finds() -> None:
    header = "ProductID,Category,Brand,Price,Stock"
    for text in _texts('"" a&'):
        rows = [header, f'"{text.replace(chr(34), chr(34) * 2)}",a,b,c,d', *["1,a,b,c,d"] * 13]
        quoted = '"' + text.replace('"', '""') + '"'
        expected = re.match(r'".*[^\d\w\s].*"', quoted) is not None
        assert make("custom:csv_special_character", {}).met("\n".join(rows)) is expected, text


def test_blank_lines_go_as_they_do_from_a_list_that_is_looped_over() -> None:
    for text in _texts("a \n\n\n"):
        lines = text.split("\n")
        for line in lines:
            if not line.strip():
                lines.remove(line)
        assert _some_blank_lines_removed(text.split("\n")) == lines, repr(text)
