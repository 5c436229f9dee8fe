"""Texts of answers: the one normalisation, and comparison as words.

Pure functions, linear in the text.
"""

import html
import re
import string
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import Literal

LONGEST = 20_000  # characters that are compared, from the end

# Thirty characters that may all be combining marks: normalisation sorts a run of marks in
# quadratic time. \uff9e and \uff9f are letters that become marks.
_MARKS = re.compile(r"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){30}")


def normalised(form: Literal["NFC", "NFD", "NFKC"], text: str) -> str:
    """The text in a Unicode normalisation form, in linear time: each thirty marks in a row are put
    in order by themselves, as in UAX #15's Stream-Safe Text Format."""
    if text.isascii():
        return text
    cuts = [0, *(marks.end() for marks in _MARKS.finditer(text)), len(text)]
    return "".join(unicodedata.normalize(form, text[a:b]) for a, b in pairwise(cuts))


_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}\d{0,2});")
_STRUCK = re.compile(r"~~(?=\S)[^~\n]{1,500}~~|<(del|s|strike)>[^<]{0,500}</\1>", re.IGNORECASE)
_INLINE = re.compile(r"</?(?:b|i|u|em|p|strong|span|mark|br|center)\s?/?>", re.IGNORECASE)
_RAISED_TAG = re.compile(r"<(sup|sub)>([^<>]{1,20})</\1>", re.IGNORECASE)
_MINUS = "‐‑‒–—―−⁃﹘﹣－➖˗⸺⸻֊᠆⁻₋"
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺ⁿⁱ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊"
_PLAIN = str.maketrans(f"{_RAISED}{_LOWERED}⁻₋", "0123456789+ni0123456789+--")
_RUNS = (
    (re.compile(rf"(?<=[\w)\]}}|!°%µ])⁻?[{_RAISED}]{{1,20}}"), "^"),
    (re.compile(rf"(?<=[\w)\]}}])₋?[{_LOWERED}]{{1,20}}"), "_"),
)
_SPACED_DASH = re.compile(r"(?<=[^\W\d_]{2})[^\S\n]+[—―][^\S\n]+")
_FRACTION = re.compile("[¼-¾⅐-⅞↉]")
_SIGNS = str.maketrans({
    **dict.fromkeys(_MINUS, "-"),
    **dict.fromkeys("⁄∕／", "/"),
    **dict.fromkeys("‘’‚‛´｀", "'"),
    **dict.fromkeys("“”„‟«»‹›「」『』《》〈〉❝❞＂", '"'),
    **dict.fromkeys("™℠®©\u034f\u115f\u1160\u3164", ""),
    "º": "°", "˚": "°", "。": ".", "、": ",", "٫": ".", "٬": ",", "٪": "%", "∶": ":", "∙": "·",
    "㎡": "m^2", "㎥": "m^3",
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℚ": "\\mathbb{Q}", "ℕ": "\\mathbb{N}",
    "ℂ": "\\mathbb{C}", "\u2028": "\n", "\u2029": "\n", "\x85": "\n",
    "\ufdfa": "\u0635", "\ufdfb": "\u062c", "\u33af": "/",  # phrases of up to 18 characters
})  # fmt: skip
_DASH_LIKE = re.compile(r"(?:^|(?<=[\s(:=]))[ー一](?=\d)", re.MULTILINE)
_HIDDEN = re.compile("[\ufe00-\ufe0f\U000e0000-\U000e0fff]")
_GROUPED = re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3}){1,9}(?!\w)")


@lru_cache(maxsize=512)
def normalise(text: str) -> str:
    """An answer as it is compared everywhere: every dash and minus sign as ``-``, every space as a
    space, straight quotes, plain fractions, digits and letters, exponents as ``x^2``; without
    invisible characters, struck-out text, inline HTML and thousands' underscores.

    NFKC, but for what it would change in value: ``10⁻³`` is no ``10-3`` and ``3½`` no ``31/2``.
    """
    if "&" in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    if "~~" in text or "<" in text:
        text = _RAISED_TAG.sub(_script, _INLINE.sub("", _STRUCK.sub(" ", text)))
    if "_" in text:
        text = _GROUPED.sub(lambda digits: digits[0].replace("_", ""), text)
    if text.isascii():
        return text
    for run, mark in _RUNS:
        text = run.sub(lambda found, mark=mark: _braced(mark, found[0].translate(_PLAIN)), text)
    text = _FRACTION.sub(lambda found: _in_digits(text, found), text)
    text = _HIDDEN.sub("", _SPACED_DASH.sub(": ", text).translate(_SIGNS))
    text = normalised("NFKC", text)
    if not text.isascii():
        text = "".join(map(_plain_character, text)) if not text.isprintable() else text
        text = _OTHER_DIGITS.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
        text = _DASH_LIKE.sub("-", text.translate(_SIGNS))
    return text


_OTHER_DIGITS = re.compile(r"[^\D0-9]")


def _plain_character(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    category = unicodedata.category(character)
    return " " if category[0] == "Z" else "" if category == "Cf" else character


def _script(tag: re.Match[str]) -> str:
    return _braced("^" if tag[1].lower() == "sup" else "_", tag[2].strip())


def _braced(mark: str, inner: str) -> str:
    return f"{mark}{inner}" if len(inner) == 1 else f"{mark}{{{inner}}}"


def _in_digits(text: str, found: re.Match[str]) -> str:
    """``3 1/2`` for ``3½``, ``(1/2)x`` for ``½x``."""
    plain = unicodedata.normalize("NFKC", found[0]).replace("⁄", "/")
    before = text[max(0, found.start() - 1) : found.start()]
    after = text[found.end() : found.end() + 1]
    if before.isdecimal():
        return f" {plain}"
    return f"({plain})" if after.isalpha() or (after in ("(", "\\") and after) else plain


_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"),
             ('"', '"'), ("'", "'"), ("`", "`"), ("*", "*"), ("_", "_"))  # fmt: skip
_EDGES = "*_` \t\r\n"
_MARKDOWN = re.compile(r"(?:#{1,6}\s|>\s|[✅✔☑✓]|[-*+•](?=\s*[^\W\d_]{2}))\s*")


def bare(text: str) -> str:
    """Without markdown, quotes, mathematics delimiters and the full stop around it."""
    for _ in range(5):
        before = text
        text = text.strip(_EDGES).rstrip("✅✔☑✓ ")
        heading = _MARKDOWN.match(text)
        text = text[heading.end() :] if heading else text
        text = text[:-1] if text.endswith(".") and not text.endswith("..") else text
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            wrapped = text.startswith(opening) and text.endswith(closing)
            if wrapped and len(text) > len(opening + closing) and closing not in inner:
                text = inner
        if text == before:
            break
    return text


_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "…·", None))
_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER_WORDS = {word: str(number) for number, word in enumerate((*_SMALL, "eleven", "twelve"))}
_ORDINALS = "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th 11th 12th"
_ORDINAL_WORDS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
"""
_NUMBER_WORDS |= dict(zip(_ORDINAL_WORDS.split(), _ORDINALS.split(), strict=True))
_ACCENTS = re.compile("(?<=[A-Za-z])[\u0300-\u036f]+")
_AND = re.compile(r"(?<!\S)(?:&|'?n')(?!\S)")  # rock 'n' roll
_PRIME = re.compile(r"[a-z]['′]+")


@lru_cache(maxsize=1024)  # a vote compares every answer with every other
def tokens(text: str) -> tuple[str, ...]:
    """The words of a text for comparison: SQuAD's normalisation (lower case, no punctuation, no
    articles; Rajpurkar et al., 2016) with DROP's two changes (hyphens divide, numbers keep their
    point and lose commas and zeros; Dua et al., 2019). Number words and ordinals to twelve become
    digits, ``&`` is ``and``, and Latin letters lose their accents."""
    text = normalise(text[-LONGEST:])
    if not text.isascii():
        text = normalised("NFC", _ACCENTS.sub("", normalised("NFD", text)))
    words = _AND.sub("and", text.lower()).replace("-", " ").split()
    normal = (_word(word) for word in words)
    return tuple(word for word in normal if word and word not in ("a", "an", "the"))


def _word(word: str) -> str:
    number = word.strip(string.punctuation.replace(".", "")).rstrip(".").replace(",", "")
    if re.fullmatch(r"\d{1,400}(?:\.\d{1,400})?|\.\d{1,400}", number):
        if "." in number:
            number = number.rstrip("0").rstrip(".")
        return number.lstrip("0") or "0"
    if _PRIME.fullmatch(word):
        return word
    word = word.translate(_PUNCTUATION)
    return _NUMBER_WORDS.get(word, word)


def exact_match(answer: str, reference: str) -> bool:
    """Equal after normalisation; two texts of which nothing is left are equal only if they are."""
    one, other = tokens(answer), tokens(reference)
    return one == other if one or other else answer.strip() == reference.strip()


_BETWEEN_SPANS = re.compile(r"[,;\n&]|(?<=\s)and\b")
_BOTH = re.compile(r"both\s", re.IGNORECASE)


def same_spans(answer: str, reference: str) -> bool:
    """The same several spans in any order, however they are joined: ``A and B``, ``both B, A``."""
    one, other = _spans(answer), _spans(reference)
    return len(other) > 1 and one == other


@lru_cache(maxsize=256)
def _spans(text: str) -> tuple[str, ...]:
    text = text[-LONGEST:].lstrip()
    both = _BOTH.match(text)
    spans = _BETWEEN_SPANS.split(text[both.end() :] if both else text)
    words = (" ".join(tokens.__wrapped__(span)) or span.strip().lower() for span in spans)
    return tuple(sorted(filter(None, words)))


_LEAD = re.compile(r"(?:in|on|at)\s(?=\S)", re.IGNORECASE)
_RANGE = re.compile(r"(?<=\d)\s?(?:-|\bto\b)\s?(?=\d)")
_BOUNDS = re.compile(r"(?:from|between)\s(\d[\d.,]*)\s(?:to|and)\s(\d[\d.,]*)", re.IGNORECASE)
_REMARK = re.compile(r"\s\([A-Za-z][A-Za-z\s.-]{2,40}\)$")
_TITLE = re.compile(
    r"(?:(?:u\.?s\.?\s)?(?:president|senator|governor|general|captain|coach|judge|justice|professor"
    r"|dr|prof|mr|ms|sir|quarterback|running\sback|wide\sreceiver|tight\send|kicker|linebacker"
    r"|cornerback|safety|qb|rb|wr|te|k))\.?\s(?=\S+\s\S)",
    re.IGNORECASE,
)
_LONGEST_PHRASE = 2_000  # characters


def same_words(answer: str, reference: str) -> bool:
    """Equal after normalisation but for what stands around a name or a span and adds nothing:
    ``In Paris``, ``President John Kennedy``, ``5-10`` for ``5 to 10``, and a reference's remark in
    brackets."""
    if max(len(answer), len(reference)) > _LONGEST_PHRASE:
        return False
    one, other = _plain(answer), _plain(reference)
    if not _REMARK.search(answer):
        other = _REMARK.sub("", other)
    return exact_match(one, other) or exact_match(_TITLE.sub("", one), _TITLE.sub("", other))


def _plain(text: str) -> str:
    text = _BOUNDS.sub(r"\1 to \2", _LEAD.sub("", text, count=1) if _LEAD.match(text) else text)
    return _RANGE.sub(" to ", text)
