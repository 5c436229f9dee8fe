"""Checks that a verdict is the judge's own, the last word of its reply, and not contradicted in it.

Word lists (``phrases.yaml``) cannot decide whether a reply is meant literally. They work in one
direction: a phrase that is found leaves the reply without a verdict. Each search is a single pass
or looks at a bounded stretch of text.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from flowright.judging.schemas import BETTER, TRUTH, WRAPPING, Field, Unread, Value, normal

_TEXTS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8")
)
PHRASES = {name: "|".join(text.splitlines()) for name, text in _TEXTS.items()}
"""Alternations of regular expressions, by name."""

_NEAR = 300  # characters before a verdict that may introduce it

_CLOSERS = re.compile(rf"(?:{PHRASES['closers']})[.!?]*", re.IGNORECASE)


def is_closed(after: str) -> bool:
    """Return whether only fences, rules or farewells follow a verdict. Prose may take a verdict
    back in words that no list holds."""
    lines = (line.strip(WRAPPING + "\r") for line in after.replace("```json", "```").split("\n"))
    return all(line in ("", ".", "。") or _CLOSERS.fullmatch(line) for line in lines)


# An unfinished sentence that attributes what follows to another author, or makes it conditional.
_SPEECH = rf"(?:{PHRASES['speech_stems']})(?:e?s|e?d|ing)|{PHRASES['speech']}"
_SPEAKER = PHRASES["speakers"]
_INTRODUCES = re.compile(
    rf"\b(?:{_SPEECH}|{PHRASES['conditions']})\b|{PHRASES['unspaced_introductions']}", re.IGNORECASE
)
_AS_ASKED = re.compile(r"\b(?:you|you['’]ve|have|as|the) (?:asked|requested)\b", re.IGNORECASE)
_ANOTHERS = re.compile(
    rf"\b(?:{_SPEAKER})['’]s\b|\b(?:of|from|in|by|to) (?:the|this|that) (?:\w+ )?(?:{_SPEAKER})\b"
    rf"|^\W*(?:candidate|student|submission|text|prompt|quot\w+|excerpt|kandidat|zitat)\W*$",
    re.IGNORECASE,
)
# Quotations come in any language; lead-ups to a verdict are few words, or a title.
_LEADS_UP = re.compile(
    rf"(?<![a-z])(?:{PHRASES['lead_ups']})(?![a-z])|{PHRASES['unspaced_lead_ups']}"
    r"|^\W*(?:my |the )?final (?:answer|response|reply|output)\W*$"
    r"|^\W*(?:my )?(?:[^\W_\u3040-\u9fff]{1,20}|[\u3040-\u9fff]{1,4})\W*$",
    re.IGNORECASE,
)
_ATTRIBUTES = re.compile(
    rf"(?<!my )(?<!own )\b(?:{_SPEAKER})(?:'s)?\b.{{0,80}}?\b(?:{_SPEECH})\b", re.IGNORECASE
)
_SPEAKS_ON = re.compile(rf"\b(?:{_SPEECH})(?: (?:with|that|as|so|this|the following))?\W*$", re.I)
_SENTENCE_END = re.compile(r"[.!?](?=[\s\"'”’)*]|$)|[。！？]")
_HELD_OPEN = (":", "：", ",", "，", "、", ";", "-", "–", "—", "…")


def is_introduced(before: str) -> bool:
    """Return whether a verdict continues a sentence that quotes or states a condition. A sentence
    held open, such as by a colon, counts unless it is known to lead up to a verdict."""
    open_ = _AS_ASKED.sub("", _unfinished(before))
    is_held = open_.endswith(_HELD_OPEN) and any(map(str.isalnum, open_))
    if is_held and (_ANOTHERS.search(open_) or not _LEADS_UP.search(open_)):
        return True
    return _INTRODUCES.search(open_) is not None


def is_attributed(before: str) -> bool:
    """Return whether a verdict is expressly another author's, such as the answer's own."""
    return _ATTRIBUTES.search(_unfinished(before)) is not None


def _unfinished(before: str) -> str:
    """Return the open sentence at the end of a text, if any; a blank line ends one that no colon or
    comma holds open."""
    near = before[-_NEAR:]
    line = near.rstrip("`~*_\"'“‘ \n{[(")  # opening quotation marks
    end = max((match.end() for match in _SENTENCE_END.finditer(line)), default=0)
    open_ = line[end:].rpartition("\n")[2]
    is_held = line.endswith(_HELD_OPEN) or _SPEAKS_ON.search(open_)
    return open_ if is_held or near[len(line) :].count("\n") < 2 else ""


_RETRACTION = re.compile(rf"(?<![a-z])(?:{PHRASES['retractions']})(?![a-z])", re.IGNORECASE)
_RESERVATION = re.compile(
    rf"(?<![a-z])(?:{PHRASES['retractions']}|{PHRASES['reservations']})(?![a-z])", re.IGNORECASE
)


def is_taken_back(between: str) -> bool:
    """Return whether text between two verdicts may take back the first."""
    return _RESERVATION.search(between) is not None


def is_retracted(reason: str) -> bool:
    """Return whether a reason written after a verdict expressly takes it back."""
    return _RETRACTION.search(reason) is not None


_VALUE = (
    r"[\[({*_`\"'“‘$\s]{0,6}(?:\\text\{)?"
    r"(?P<value>[A-Za-z]{1,12}|[+-]?\d{1,3}(?:\.\d{1,6})?)\b"
)
_BOXED = re.compile(rf"\\boxed\{{{_VALUE}")
# A verdict under another heading.
_NAMED = re.compile(
    r"^[^\w\n]{0,9}(?:(?:final|overall|is|my) )*(?:correct(?:ness)?|judge?ment|decision|assessment"
    r"|conclusion|match(?:es)?)[^\w\n]{0,9}[:：=|][^\w\n]{0,9}"
    r"(?P<value>true|correct|right|yes|false|incorrect|wrong|no)[^\w\n]{0,9}$",
    re.IGNORECASE | re.MULTILINE,
)
_YES = frozenset({"true", "correct", "right", "yes"})
_IS = r"(?:is|was|ist|est|should be|would be|must be|to)\b"
_SIGN = rf"[\]*_`\"'”’\s]{{0,6}}(?:=>|->|→|:=|==?|:|>|\||{_IS})"


def require_unanimous(
    field: Field, value: Value, text: str, own: Iterable[tuple[int, int]], last: int
) -> None:
    """Raise Unread if the text gives another value of the field outside its ``own`` spans. Values
    expressly attributed to others are ignored before ``last``, the judge's own."""
    key = re.escape(normal(field.key)).replace("\\ ", r"[\s_-]+")
    patterns = [re.compile(rf"(?<![^\W_]){key}{_SIGN}{_VALUE}", re.IGNORECASE)]
    if field.schema is TRUTH:
        patterns.append(_BOXED)
    if is_verdict(field):
        for found in _NAMED.finditer(text):
            if (found["value"].lower() in _YES) != value:
                raise _conflict(field, value, repr(found[0]))
    spans = list(own)
    for pattern in patterns:
        for found in pattern.finditer(text):
            other = field.schema.read(found["value"])
            if other is None or other == value:
                continue
            if any(start <= found.start() < end for start, end in spans):
                continue
            if found.start() < last and is_attributed(text[: found.start()]):
                continue
            raise _conflict(field, value, repr(" ".join(found[0].split())[:80]))


def _conflict(field: Field, value: Value, other: str) -> Unread:
    return Unread("conflict", f"{field.key} is {value}, and the reply also has {other}")


# A grade in words on a scale, which may differ from the requested one.
_ON_SCALE = re.compile(
    r"\b(?:scor(?:e[sd]?|ing)|rat(?:e[sd]?|ings?)|grade[sd]?|marks?|awards?|deserves?|gets?"
    r"|(?:i|would|to) give)\b[^\n]{0,40}?(?<![\d.])(?P<share>\d{1,3}(?:\.\d{1,3})?) *(?:points? *)?"
    r"(?:/|out of) *(?P<top>4|5|6|7|10|20|100)(?![\d.]*\d)"
    r"|\bscale (?:of|from)? ?\d ?(?:to|-|–) ?(?P<end>\d{1,3})\b",
    re.IGNORECASE,
)
_SAME_SHARE = 0.15  # 8 of 10 is 3 of 4, and 1 of 10 is not 1 of 1


def require_scale(field: Field, value: Value, text: str) -> None:
    """Raise Unread if the text grades on another scale with another result: "1 out of 10" before a
    score of 1."""
    top = field.schema.top
    for found in _ON_SCALE.finditer(text) if top else ():
        if found["end"]:
            is_other = int(found["end"]) != top
        else:
            share = float(found["share"]) / int(found["top"])
            is_other = abs(float(value) / top - share) > _SAME_SHARE
        if is_other:
            raise _conflict(field, value, repr(found[0]))


_STATED = re.compile(
    r"\b(?:answer|response|solution|result|submission|candidate|student|it|this|that|antwort|lösung"
    r"|ergebnis|das|réponse|solution|c|respuesta|solución)(?:\s+|['’])(?:s|is|was|ist|est|es)"
    r"(?P<middle>(?:n['’]t|\s+[\w'’]+){0,3}?)\s+"
    r"(?P<word>correct[eo]?|right|incorrect[eo]?|wrong|(?:in)?accurate|korrekt|richtig|falsch"
    r"|fausse?|faux)\b(?!\s+that)|(?P<chinese>不正确|不对|错误|错的|正确|是对的)",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"n['’]t|\b(?:not|never|hardly|nicht|pas|no)\b", re.IGNORECASE)
_RIGHT = ("correct", "correcte", "correcto", "right", "accurate", "korrekt", "richtig")
_COMPARED = re.compile(
    r"\b(?P<side>[AB]) (?:is (?:\w+ |the ){0,2}?)?"
    r"(?P<how>better|superior|preferable|stronger|wins|worse|inferior|weaker|loses)\b"
    r"|\b[Pp]refer (?:[Aa]nswer |[Rr]esponse )?(?P<liked>[AB])\b"
)
_WORSE = ("worse", "inferior", "weaker", "loses")


def require_agreement(field: Field, value: Value, prose: str) -> None:
    """Raise Unread if the last sentence before a verdict plainly states the opposite."""
    near = prose[-_NEAR:].rstrip().rstrip(".!?。！？*_ ")
    begin = max((match.end() for match in _SENTENCE_END.finditer(near)), default=0)
    sentence = near[begin:].rpartition("\n")[2].strip()
    if is_verdict(field):
        stated = {_polarity(match) for match in _STATED.finditer(sentence)}
        opposite: Value = not value
    elif field.schema is BETTER:
        stated = {_preferred(match) for match in _COMPARED.finditer(sentence)}
        opposite = "AB".strip(str(value))
    else:
        return
    if stated == {opposite} and not is_attributed(sentence):
        raise Unread("conflict", f"{field.key} is {value} after {sentence[:80]!r}")


def is_verdict(field: Field) -> bool:
    """Return whether the field is about the answer as a whole, not one criterion of several."""
    return field.schema is TRUTH and field.key == "verdict"


def _preferred(match: re.Match[str]) -> str:
    side = match["liked"] or match["side"]
    return "AB".strip(side) if match["how"] in _WORSE else side


def _polarity(match: re.Match[str]) -> bool:
    if chinese := match["chinese"]:
        return chinese in ("正确", "是对的")
    return (match["word"].lower() in _RIGHT) != bool(_NEGATION.search(match["middle"]))
