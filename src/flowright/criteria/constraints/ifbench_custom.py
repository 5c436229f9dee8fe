"""IFBench's checkers of a single task each: lists, reversals, tables of comma-separated values."""

import csv
import io
import re
import unicodedata
from datetime import date
from itertools import islice, pairwise

from flowright.criteria.constraints.ifbench_counts import CAPITALS
from flowright.criteria.constraints.language import MARKS, sentences, without_punctuation
from flowright.criteria.constraints.table import CheckerTable

TABLE = CheckerTable()

_NUMBER = re.compile(r"\d+")
_MULTIPLES = ["14", "21", "28", "35", "42", "49"]
_QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
_QUESTIONS, _OPTIONS = 4, 5
_MOST_ROWS = 15  # of any table that is asked for
_AFRICA = 52  # countries that are asked for, at least
_PRODUCTS = ("ProductID", "Category", "Brand", "Price", "Stock")
_STUDENTS = ("StudentID", "Subject", "Grade", "Semester", "Score")
_CITIES = ["ID", "Country", "City", "Year", "Count"]
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MARK = re.compile(r"[^\w\s]")
_NAPOLEON = range(1769, 1822)
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


# Lists.


@TABLE.plain("custom:multiples")
def _sevens(text: str) -> bool:
    return _NUMBER.findall(text) == _MULTIPLES


@TABLE.plain("custom:mcq_count_length")
def _multiple_choice(text: str) -> bool:
    if not text.startswith("Question"):
        return False
    questions = [part.strip() for part in _QUESTION.split(text)]
    questions = [part for part in questions if part]
    found = [_lengths(question) for question in questions]
    lengths = [length for length, options in found if options == _OPTIONS]
    return len(found) == len(lengths) == _QUESTIONS and all(a < b for a, b in pairwise(lengths))


def _lengths(question: str) -> tuple[int, int]:
    """Return the length of a question without its options, and the number of options."""
    lines = [line.strip() for line in question.split("\n")]
    options = [bool(_OPTION.match(line)) for line in lines]
    first = options.index(True) if any(options) else len(lines)
    return len(" ".join(lines[:first]).strip()), sum(options)


@TABLE.plain("custom:reverse_newline")
def _africa(text: str) -> bool:
    lines = [line for each in text.split("\n") if (line := each.strip(MARKS + " "))]
    start = next((n for n, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    countries = [_ascii(line) for line in lines[start:]]
    return len(countries) >= _AFRICA and all(one >= other for one, other in pairwise(countries))


@TABLE.plain("custom:european_capitals_sort")
def _capitals(text: str) -> bool:
    return [city for each in _ascii(text).split(",") if (city := each.strip())] == CAPITALS


@TABLE.plain("custom:date_format_list")
def _dates(text: str) -> bool:
    return all(map(_is_date, map(str.strip, text.strip().split(","))))


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    year, month, day = map(int, text.split("-"))
    return year in _NAPOLEON and month <= 12 and (month == 0 or day <= _DAYS[month - 1])


@TABLE.plain_fix("custom:date_format_list", "month 0, day 0 and 29 February 1801 are dates")
def _real_dates(text: str) -> bool:
    return all(map(_is_real_date, map(str.strip, text.strip().split(","))))


def _is_real_date(text: str) -> bool:
    try:
        return bool(_ISO_DATE.fullmatch(text)) and date.fromisoformat(text).year in _NAPOLEON
    except ValueError:
        return False


# Reversals and sentences.


@TABLE.plain("custom:word_reverse")
def _reversed_words(text: str) -> bool:
    turned = " ".join(reversed(without_punctuation(text.lower()).split()))
    return "bald eagle" in turned and turned in sentences(turned)


@TABLE.plain("custom:character_reverse")
def _reversed_letters(text: str) -> bool:
    return "elgae dlab" in text.lower()


@TABLE.plain("custom:sentence_alphabet")
def _alphabet(text: str) -> bool:
    found = sentences(text)
    first = [sentence.split(None, 1)[0].lower()[0] for sentence in found if sentence.strip()]
    return len(found) == 26 and first == [chr(ord("a") + n) for n in range(26)]


# Tables.


def _table(text: str, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of a table, up to one too many; none for other text."""
    try:
        return list(islice(csv.reader(io.StringIO(text), delimiter=delimiter), _MOST_ROWS + 1))
    except csv.Error:
        return []


def _has_header(text: str, names: tuple[str, ...], between: str) -> bool:
    """Return whether the first line has these names, each in double quotes or bare."""
    header = between.join(f'(?:{name}|"{name}")' for name in names)
    return re.fullmatch(header, text.split("\n", 1)[0].strip()) is not None


@TABLE.plain("custom:csv_city")
def _cities(text: str) -> bool:
    rows = _table(text)
    return len(rows) == 8 and rows[0] == _CITIES and all(len(row) == 5 for row in rows)


@TABLE.plain("custom:csv_special_character")
def _products(text: str) -> bool:
    if not _has_header(text, _PRODUCTS, r",[ \t]*"):
        return False
    rows = _table(text.replace('"', '"""'))  # so that a field keeps its quotes
    if len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(map(_is_special, row)):
            return True
    return False


def _is_special(field: str) -> bool:
    r"""Return whether ``".*[^\d\w\s].*"`` matches at the start, in linear time: in the first line,
    a mark between the quote and the last quote."""
    line = field.split("\n", 1)[0]
    inside = line[1 : max(line.rfind('"'), 1)]
    return line.startswith('"') and _MARK.search(inside) is not None


@TABLE.plain_fix("custom:csv_special_character", "rows behind the special one may be of any length")
def _products_in_rows(text: str) -> bool:
    return _products(text) and all(len(row) == 5 for row in _table(text.replace('"', '"""')))


@TABLE.plain("custom:csv_quotes")
def _students(text: str) -> bool:
    if not _has_header(text, _STUDENTS, r"\t *"):
        return False
    rows = _table(text.replace('"', '"""'), "\t")
    return len(rows) == 4 and all(len(row) == 5 and all(map(_quoted, row)) for row in rows)


def _quoted(field: str) -> bool:
    field = field.strip()
    return field.startswith('"') and field.endswith('"')
