"""Whether an answer in words says what is expected in other ones: a sentence, a title, yes and no.

Beyond the normalisation of :mod:`flowright.grading.text`; no number is read here.
"""

import re

from flowright.grading.text import bare, exact_match

_DENIALS = r"not|no|never|neither|nor|cannot|without|\w+n['’]t"
_TURNS = r"but|however|actually|wait|rather|instead|although|though"
_SUBJECT = re.compile(
    r"(?:[^.;:?!]{1,200},\s(?:but|so|and)\s(?:in\sfact,?\s)?)?"
    r"(?:(?:so|thus|hence|therefore),?\s)?(?:(?:it|that|he|she)'s\s"
    r"|(?:the|it|this|that|they|these|those|its|their|his|her|he|she|my)(?:\s[^.,;:?!]{1,80}?)??"
    r"\s(?:is|was|are|were|stands\sfor|would\sbe|must\sbe)\s)(?P<said>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE = re.compile(r"(?:i|we)(?:'d|\swould)?\s(?:choose|pick|select|say)\s(?P<said>\S.*)", re.I)
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
_CLOSED = re.compile(r"\W{0,5}(yes|no|true|false)\b\s?(?:[,.;:!\n]|\s[-–—]|[–—]|$)", re.IGNORECASE)
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
    """What a sentence says that something is: ``Paris`` of ``The capital of France is Paris``. The
    text itself where that is no plain statement: a denial, a condition, a comparison."""
    found = (_SUBJECT.fullmatch(text) or _CHOICE.fullmatch(text)) if len(text) < _LONGEST else None
    if found is None or _OPEN.search(text[: found.start("said")]):
        return text
    return bare(found["said"])


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
    opening = _CLOSED.match(text[:_LONGEST])
    if opening is None or len(text) > _LONGEST:
        return None
    word = opening[1].lower()
    return None if _OPPOSED[word in ("yes", "true")].search(text, opening.end()) else word


def says_nothing_is(text: str) -> bool:
    """Whether an answer is that there is none: ``no solution``, the empty set."""
    return _NOTHING.fullmatch(text) is not None
