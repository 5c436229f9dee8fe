"""Answers as text: extracting the answer of a reply, and comparing two texts.

Pure functions on strings of bounded length.
"""

import re
import string
from collections import Counter
from functools import lru_cache

from flowright.llm.replies import boxed

LONGEST = 20_000  # characters that are looked at, from the end

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_PHRASE = re.compile(
    r"\banswer\b[*_`]{0,3}[^\S\n]{0,3}(?:is|are|:|=)[*_`:\s]{0,8}(\S[^\n]*)", re.IGNORECASE
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"))
_EDGES = "*_`\"'“”‘’ \t\r\n"


@lru_cache(maxsize=256)
def extract_answer(text: str) -> str:
    """The final answer within a reply, without its wrapping.

    The last of, in this order: ``<answer>`` tags, ``\\boxed{}``, ``####``, "answer is" or
    "answer:", and else the last line that is not empty.
    """
    text = text[-LONGEST:]
    for found in (_tagged(text), boxed(text)):
        if found is not None:
            return bare(found)
    _, mark, after = text.rpartition("####")
    if mark and after.strip():
        return bare(after.strip().splitlines()[0])
    phrases = _PHRASE.findall(text)
    if phrases:
        return bare(phrases[-1])
    lines = [line for line in text.splitlines() if line.strip(_EDGES)]
    return bare(lines[-1]) if lines else ""


def _tagged(text: str) -> str | None:
    """The content of the last ``<answer>`` that is closed."""
    found = start = None
    for tag in _TAG.finditer(text):
        if tag[1]:
            found, start = text[start : tag.start()] if start is not None else found, None
        elif start is None:
            start = tag.end()
    return found


def bare(text: str) -> str:
    """Without markdown, quotes, mathematics delimiters and the full stop around it."""
    for _ in range(4):
        before = text
        text = text.strip(_EDGES)
        text = text[:-1] if text.endswith(".") and not text.endswith("..") else text
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            wrapped = text.startswith(opening) and text.endswith(closing)
            if wrapped and len(text) > len(opening + closing) and closing not in inner:
                text = inner
        if text == before:
            break
    return text


_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "“”‘’…", None))
_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER_WORDS = {word: str(number) for number, word in enumerate((*_SMALL, "eleven", "twelve"))}
_ORDINALS = "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th 11th 12th"
_ORDINAL_WORDS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
"""
_NUMBER_WORDS |= dict(zip(_ORDINAL_WORDS.split(), _ORDINALS.split(), strict=True))


@lru_cache(maxsize=1024)  # a vote compares every answer with every other
def tokens(text: str) -> tuple[str, ...]:
    """The words of a text for comparison: SQuAD's normalisation (lower case, no punctuation, no
    articles; Rajpurkar et al., 2016) with DROP's two changes (hyphens divide, numbers keep their
    point and lose commas and zeros; Dua et al., 2019). Number words and
    ordinals to twelve become digits."""
    words = text[-LONGEST:].lower().replace("-", " ").replace("–", " ").split()
    normal = (_word(word) for word in words)
    return tuple(word for word in normal if word and word not in ("a", "an", "the"))


def _word(word: str) -> str:
    number = word.strip(string.punctuation.replace(".", "") + "“”‘’").rstrip(".").replace(",", "")
    if re.fullmatch(r"\d{1,400}(?:\.\d{1,400})?|\.\d{1,400}", number):
        if "." in number:
            number = number.rstrip("0").rstrip(".")
        return number.lstrip("0") or "0"
    word = word.translate(_PUNCTUATION)
    return _NUMBER_WORDS.get(word, word)


def exact_match(answer: str, reference: str) -> bool:
    """Equal after normalisation; two texts of which nothing is left are equal only if they are."""
    one, other = tokens(answer), tokens(reference)
    return one == other if one or other else answer.strip() == reference.strip()


_CLOSED = frozenset({"yes", "no", "noanswer"})


def token_f1(answer: str, reference: str) -> float:
    """F1 of the two bags of words after normalisation, in [0, 1] (SQuAD). As in HotpotQA's official
    script, "yes" and "no" match themselves only."""
    one, other = tokens(answer), tokens(reference)
    if one == other:
        return 1.0
    if {" ".join(one), " ".join(other)} & _CLOSED:
        return 0.0
    shared = sum((Counter(one) & Counter(other)).values())
    return 2 * shared / (len(one) + len(other)) if shared else 0.0


_BETWEEN_SPANS = re.compile(r"[,;\n&]|(?<=\s)and\b")


def same_spans(answer: str, reference: str) -> bool:
    """The same several spans in any order, however they are joined: ``A and B``, ``B, A``."""
    one, other = _spans(answer), _spans(reference)
    return len(other) > 1 and [span for span in one if span] == [span for span in other if span]


@lru_cache(maxsize=256)
def _spans(text: str) -> tuple[str, ...]:
    spans = _BETWEEN_SPANS.split(text[-LONGEST:])
    return tuple(sorted(" ".join(tokens.__wrapped__(span)) for span in spans))


_DENIALS = r"not|no|never|neither|nor|cannot|without|\w+n['’]t"
_TURNS = r"but|however|actually|wait|rather|instead|although|though"
_SUBJECT = re.compile(
    r"(?:[^.;:?!]{1,200},\s(?:but|so|and)\s(?:in\sfact,?\s)?)?"
    r"(?:(?:so|thus|hence|therefore),?\s)?(?:(?:it|that|he|she)'s\s"
    r"|(?:the|it|this|that|they|these|those|its|their|his|her|he|she|my)(?:\s[^.,;:?!]{1,80}?)??"
    r"\s(?:is|was|are|were|stands\sfor|would\sbe|must\sbe)\s)(?P<predicate>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE = re.compile(
    r"(?:i|we)(?:'d|\swould)?\s(?:choose|pick|select|say)\s(?P<predicate>\S.*)", re.I
)
_OPEN = re.compile(
    rf"\b(?:{_DENIALS}|whether|if|unless|or|false|untrue|wrong|incorrect|doubt\w*|den\w+|unlike|than"
    r"|before|after|except|near|next|opposite|former\w*|who|which|what)\b",
    re.IGNORECASE,
)
_LEAD = re.compile(r"(?:in|on|at)\s(?=\S)", re.IGNORECASE)
_RANGE = re.compile(r"(?<=\d)\s?(?:[-‐-―−]|\bto\b)\s?(?=\d)")
_BOUNDS = re.compile(r"(?:from|between)\s(\d[\d.,]*)\s(?:to|and)\s(\d[\d.,]*)", re.IGNORECASE)
_REMARK = re.compile(r"\s\([A-Za-z][A-Za-z\s.-]{2,40}\)$")
_TITLE = re.compile(
    r"(?:(?:u\.?s\.?\s)?(?:president|senator|governor|general|captain|coach|judge|justice|professor"
    r"|dr|prof|mr|ms|sir|quarterback|running\sback|wide\sreceiver|tight\send|kicker|linebacker"
    r"|cornerback|safety|qb|rb|wr|te|k))\.?\s(?=\S+\s\S)",
    re.IGNORECASE,
)
_CLOSED_WORDS = re.compile(
    r"\W{0,5}(yes|no|true|false)\b\s?(?:[,.;:!\n]|\s[-–—]|[–—]|$)", re.IGNORECASE
)
_OPPOSED = {
    True: re.compile(rf"\b(?:yes|false|untrue|maybe|{_DENIALS}|{_TURNS})\b", re.IGNORECASE),
    False: re.compile(rf"\b(?:yes|no|true|maybe|{_TURNS})\b", re.IGNORECASE),
}
_NOTHING = re.compile(
    r"\s*(?:\\(?:emptyset|varnothing)|∅|\\?\{\s*\\?\}|none|(?:the\s)?empty\sset"
    r"|(?:there\s(?:is|are)\s)?no\s(?:real\s)?(?:solutions?|roots?))\s*",
    re.IGNORECASE,
)
_LONGEST = 2_000  # characters


def predicate(text: str) -> str:
    """Return the predicate of a plain statement: ``Paris`` of ``The capital of France is Paris``.
    The text itself for anything else: a denial, a condition, a comparison."""
    found = (_SUBJECT.fullmatch(text) or _CHOICE.fullmatch(text)) if len(text) < _LONGEST else None
    if found is None or _OPEN.search(text[: found.start("predicate")]):
        return text
    return bare(found["predicate"])


def same_words(answer: str, reference: str) -> bool:
    """Equal after normalisation but for what stands around a name or a span and adds nothing:
    ``In Paris``, ``President John Kennedy``, ``5–10`` for ``5 to 10``, and a reference's remark in
    brackets."""
    if max(len(answer), len(reference)) > _LONGEST:
        return False
    one, other = _plain(answer), _plain(reference)
    if not _REMARK.search(answer):
        other = _REMARK.sub("", other)
    return exact_match(one, other) or exact_match(_TITLE.sub("", one), _TITLE.sub("", other))


def _plain(text: str) -> str:
    text = _BOUNDS.sub(r"\1 to \2", _LEAD.sub("", text, count=1) if _LEAD.match(text) else text)
    return _RANGE.sub(" to ", text)


def closed_answer(text: str) -> str | None:
    """``yes``, ``no``, ``true`` or ``false`` where a text opens with it, by itself or before a
    remark that does not take it back; None else."""
    opening = _CLOSED_WORDS.match(text[:_LONGEST])
    if opening is None or len(text) > _LONGEST:
        return None
    word = opening[1].lower()
    return None if _OPPOSED[word in ("yes", "true")].search(text, opening.end()) else word


def states_no_answer(text: str) -> bool:
    """Return whether an answer states that there is none: ``no solution``, the empty set."""
    return _NOTHING.fullmatch(text) is not None
