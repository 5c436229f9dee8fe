"""Checks that a verdict is the judge's own, the last word of its reply, and not contradicted in it.

Word lists (``phrases.yaml``) cannot decide whether a reply is meant literally. They work in one
direction: a phrase that is found leaves the reply without a verdict. Each search is a single pass
or looks at a bounded stretch of text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from flowright.judging.schemas import BETTER, TRUTH, WRAPPING, Field, Unread, Value, normal

_TEXTS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8")
)
PHRASES = {name: "|".join(text.splitlines()) for name, text in _TEXTS.items()}
"""Alternations of regular expressions, by name."""

_NEAR = 300  # characters before a verdict that may introduce it
_OPENING = "`~*_\"'“‘ \n{[("  # marks that may open a quotation
_TITLE_WORDS = 4
_CLOSING = ")]}\"'”’»*_`」』】 "

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
_STOPS = tuple(".!?。！？؟।։።")
_SENTENCE_END = re.compile(r"[.!?](?=[\s\"'”’)*]|$)|[。！？؟।։።]")
_NOTE = re.compile(r"(?<=[.!?。！？])\s*\([^()\n]{1,80}\)$")
_HELD_OPEN = (":", "：", ",", "，", "、", ";", "-", "–", "—", "…")
_ANNOUNCES = re.compile(
    rf"\b(?:{PHRASES['announcements']})\b|{PHRASES['unspaced_announcements']}", re.IGNORECASE
)
_NAMES_ANOTHER = re.compile(
    rf"\b(?:{_SPEAKER}|{PHRASES['speakers_abroad']})\b|{PHRASES['unspaced_speakers']}",
    re.IGNORECASE,
)


def is_introduced(before: str, field: Field | None = None, value: Value | None = None) -> bool:
    """Return whether the text before a verdict runs on into it, as a quotation or a condition does.

    A sentence without its stop counts, in any language, unless it is known to lead up to a verdict
    or is a statement of the same verdict; so does a sentence that announces another's words.
    """
    sentence = _AS_ASKED.sub("", _last_sentence(before))
    line = sentence.rpartition("\n")[2]
    if not any(map(str.isalnum, line)):
        return False
    leads_up = _LEADS_UP.search(line) is not None
    names_another = _NAMES_ANOTHER.search(line) is not None
    if line.rstrip(_CLOSING).endswith(_STOPS):
        return _ANNOUNCES.search(line) is not None and (names_another or not leads_up)
    if _INTRODUCES.search(line):
        return True
    if line.endswith(_HELD_OPEN):
        return _ANOTHERS.search(line) is not None or not leads_up
    is_title = len(line.split()) <= _TITLE_WORDS or "\n" not in before[len(before.rstrip()) :]
    if leads_up and not names_another and is_title:
        return False
    return field is None or not is_verdict(field) or _stated(line) != {value}


def is_attributed(before: str) -> bool:
    """Return whether a verdict is expressly another author's, such as the answer's own."""
    sentence = _last_sentence(before).rpartition("\n")[2]
    is_apart = before[len(before.rstrip()) :].count("\n") > 1 and not sentence.endswith(_HELD_OPEN)
    is_whole = sentence.rstrip(_CLOSING).endswith(_STOPS)
    return not is_apart and not is_whole and _ATTRIBUTES.search(sentence) is not None


def _last_sentence(before: str) -> str:
    """Return the sentence at the end of a text, with its stop if it has one."""
    near = before[-_NEAR:].rstrip(_OPENING)
    note = _NOTE.search(near)
    if note is not None and not _INTRODUCES.search(note[0]):
        near = near[: note.start()]
    ends = [match.end() for match in _SENTENCE_END.finditer(near)]
    if ends and not any(map(str.isalnum, near[ends[-1] :])):
        near = near[: ends.pop()]
    return near[ends[-1] if ends else 0 :].strip()


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
TRUTHS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "yes", "y", "t", "1", "correct", "right", "valid", "pass"), True),
    **dict.fromkeys(("false", "no", "n", "f", "0", "nope", "not", "incorrect", "wrong"), False),
    **dict.fromkeys(("invalid", "fail", "failed"), False),
}
"""Words for a verdict under another key than the requested one."""
OF_THE_DATA = re.compile(
    r"(?:(?:the|final|candidate(?:'s)?|student(?:'s)?|model|given|submitted|reference|expected"
    r"|correct|accepted|original) )*(?:answer|reference|problem|question|response|expected)"
)
"""Keys of what a judge was shown, which may be true or false itself."""
_BOXED = re.compile(rf"\\boxed\{{{_VALUE}")
# A verdict or a score under another heading.
_NAMED = re.compile(
    r"^[^\w\n]{0,9}(?P<key>\w[\w '’()-]{0,40}?)[^\w\n]{0,6}[:：=|?][^\w\n]{0,9}"
    r"(?:(?P<value>[^\W\d]{1,12})|(?P<number>\d{1,3}(?:\.\d{1,3})?) ?"
    r"(?:(?:/|out of) ?(?P<top>\d{1,3})|(?P<percent>%))?)[^\w\n]{0,9}$",
    re.MULTILINE,
)
_SCORES = re.compile(r"\b(?:scores?|grades?|ratings?|marks?|points?)\b", re.IGNORECASE)
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
    others = [
        (found, field.schema.read(found["value"]))
        for pattern in patterns
        for found in pattern.finditer(text)
    ]
    if is_verdict(field):
        others += [(found, _named_verdict(found)) for found in _NAMED.finditer(text)]
    spans = list(own)
    for found, other in others:
        if other is None or other == value:
            continue
        if any(start <= found.start() < end for start, end in spans):
            continue
        if found.start() < last and is_attributed(text[: found.start()]):
            continue
        raise _conflict(field, value, repr(" ".join(found[0].split())[:80]))


def _named_verdict(line: re.Match[str]) -> Value | None:
    """Return the verdict of a line such as ``Correct: no`` or ``Score: 0``; a score between the
    ends of its scale, or of an unknown one, is neither."""
    if OF_THE_DATA.fullmatch(normal(line["key"])):
        return None
    if line["number"] is None:
        return TRUTHS.get(line["value"].casefold())
    if not _SCORES.search(line["key"]):
        return None
    share = float(line["number"]) / (float(line["top"] or 0) or (100 if line["percent"] else 1))
    return "neither" if 0 < share < 1 or share > 1 else share == 1


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


# Statements about an answer: adjectives behind a subject, and verbs.
_NOT = rf"(?:n['’]t|\b(?:{PHRASES['negations']})\b)"
_STATED = re.compile(
    r"\b(?:answer|response|solution|result|submission|candidate|student|it|this|that|antwort|lösung"
    r"|ergebnis|das|sie|réponse|elle|c|respuesta|solución|resposta|risposta)"
    r"(?:\s+|['’])(?:s|is|was|ist|est|es|está|è)"
    r"(?P<middle>(?:n['’]t|\s+[\w'’]+){0,3}?)\s+(?:(?P<right>correct[aeo]?|right|accurate|korrekt"
    r"|richtig|corrett[ao]|corret[ao]|juste)|(?P<wrong>incorrect[aeo]?|wrong|inaccurate|falsch"
    r"|fausse?|faux|errat[ao]|errad[ao]|incorret[ao]))\b(?!\s+that)"
    rf"|(?P<denied>{_NOT}(?:\s+[\w'’]+){{0,3}}?\s+(?:correct[aeo]?|right|accurate|valid|korrekt"
    r"|richtig|juste|corrett[ao]|corret[ao]))\b"
    rf"|(?P<before>{_NOT}(?:\s+[\w'’]+){{0,3}}?\s+)?\b(?:(?P<agrees>{PHRASES['agrees']})"
    rf"|(?P<differs>{PHRASES['differs']}))\b(?P<after>\s+(?:nicht|pas)\b)?"
    rf"|(?P<differs_too>{PHRASES['unspaced_differs']})|(?P<agrees_too>{PHRASES['unspaced_agrees']})",
    re.IGNORECASE,
)
_LIMITED = re.compile(rf"[,;]\s|\b(?:{PHRASES['limits']})\b", re.IGNORECASE)
_NEGATION = re.compile(_NOT, re.IGNORECASE)
_COMPARED = re.compile(
    r"\b(?P<side>[AB]) (?:is (?:\w+ |the ){0,2}?)?"
    r"(?P<how>better|superior|preferable|stronger|wins|worse|inferior|weaker|loses)\b"
    r"|\b[Pp]refer (?:[Aa]nswer |[Rr]esponse )?(?P<liked>[AB])\b"
)
_WORSE = ("worse", "inferior", "weaker", "loses")


def require_agreement(field: Field, value: Value, prose: str) -> None:
    """Raise Unread if the last sentence before a verdict that states one states the opposite."""
    sentences = _sentences(prose)
    if is_verdict(field):
        found = next(((s, stated) for s in sentences if (stated := _stated(s))), None)
        opposite: Value = not value
    elif field.schema is BETTER:
        last = next(sentences, "")
        found = last, {_preferred(match) for match in _COMPARED.finditer(last)}
        opposite = "AB".strip(str(value))
    else:
        return
    if found is None or found[1] != {opposite} or is_attributed(found[0]):
        return
    # What is the same in part, or but for something, is wrong for all that.
    if not (value is False and _LIMITED.search(found[0])):
        raise Unread("conflict", f"{field.key} is {value} after {found[0][:80]!r}")


def _sentences(prose: str) -> Iterator[str]:
    """Yield the sentences near the end of a text, the last one first."""
    near = prose[-_NEAR:].rstrip().rstrip(".!?。！？*_ ")
    ends = [*(match.end() for match in _SENTENCE_END.finditer(near)), len(near)]
    for begin, end in zip(reversed([0, *ends[:-1]]), reversed(ends), strict=True):
        for line in reversed(near[begin:end].split("\n")):
            if line.strip():
                yield line.strip()


def is_verdict(field: Field) -> bool:
    """Return whether the field is about the answer as a whole, not one criterion of several."""
    return field.schema is TRUTH and field.key == "verdict"


def _preferred(match: re.Match[str]) -> str:
    side = match["liked"] or match["side"]
    return "AB".strip(side) if match["how"] in _WORSE else side


def _stated(sentence: str) -> set[bool]:
    """Return what a sentence calls an answer: right, wrong, both or neither."""
    return {_polarity(match) for match in _STATED.finditer(sentence)}


def _polarity(match: re.Match[str]) -> bool:
    is_right = bool(match["right"] or match["agrees"] or match["agrees_too"])
    is_negated = bool(match["before"] or match["after"] or _NEGATION.search(match["middle"] or ""))
    return is_right != is_negated
