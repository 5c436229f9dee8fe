"""What in a reply speaks against a verdict that was read from it: a verdict counts where it is the
judge's own, its last word, and the only one.

Lists of words cannot know whether a reply means what it says. They are used in one direction only:
what they find leaves a reply without a verdict, and nothing that they miss makes one. Each search
looks at a bounded stretch of text or is a single pass.
"""

import re
from collections.abc import Iterable

from flowright.judge.reading import Unread, normal
from flowright.judge.schemas import BETTER, TRUTH, WRAPPING, Field, Value

_NEAR = 300  # characters before a verdict that may introduce it

# What may stand behind a verdict and takes nothing back.
_CLOSERS = re.compile(
    r"(?:`{3,}\w*|[-*_=]{3,}|</?\|?\w{1,20}\|>|</s>"
    r"|(?:i )?hope (?:this|that) helps\b.{0,20}"
    r"|(?:please )?let me know if you (?:have|need)\b.{0,60}"
    r"|(?:is there )?anything else(?: i can help with)?\b.{0,20}"
    r"|confidence:? *(?:score:? *)?(?:high|medium|low|\d{1,3}(?:\.\d{1,4})?)? ?%?)[.!?]*",
    re.IGNORECASE,
)


def is_closed(after: str) -> bool:
    """Whether what follows a verdict is no more than a fence, a rule or a farewell. Prose may take
    the verdict back in words that no list holds."""
    lines = (line.strip(WRAPPING + "\r") for line in after.replace("```json", "```").split("\n"))
    return all(not line or _CLOSERS.fullmatch(line) for line in lines)


# An unfinished sentence that makes what comes next another's word, or depend on something.
_SPEECH = (
    r"(?:sa(?:y|id)|read|state|claim|assert|conclude|quote|output|contain|include|hold|print|insist"
    r"|declare|announce|answer|respond|replie|finishe|propose|suggest|argue|add|append|mention"
    r"|request|ask|demand|want|end)(?:e?s|e?d|ing)|said|writ(?:es?|ing|ten)|wrote|told|tells"
    r"|behauptet|schreibt|sagt|lautet|endet|affirme|écrit|dit|prétend|afirma|dice|escribe"
)
_SPEAKER = (
    r"answer|response|solution|candidate|student|submission|text|author|reply|user|it|they|he|she"
    r"|prompt|message|problem|passage|proof|model|assistant|antwort|kandidat|réponse|respuesta"
)
_CONDITION = (
    r"if|else|elif|otherwise|unless|assuming|suppose|provided|when(?:ever)?|whether|should|would"
    r"|could|might|example|instance|e\.g|falls|wenn|sonst|si|sinon"
)
_INTRODUCES = re.compile(
    rf"\b(?:{_SPEECH}|{_CONDITION})\b|说|写|声称|认为|表示|如果|否则|若|言|書", re.IGNORECASE
)
_ATTRIBUTES = re.compile(
    rf"(?<!my )(?<!own )\b(?:{_SPEAKER})(?:'s)?\b.{{0,80}}?\b(?:{_SPEECH})\b", re.IGNORECASE
)
_SPEAKS_ON = re.compile(rf"\b(?:{_SPEECH})(?: (?:with|that|as|so|this|the following))?\W*$", re.I)
_SENTENCE_END = re.compile(r"[.!?](?=[\s\"'”’)*]|$)|[。！？]")
_HELD_OPEN = (":", "：", ",", "，", ";", "-", "–", "—", "…")


def is_introduced(before: str) -> bool:
    """Whether a verdict goes on with a sentence that quotes, or that says under which condition."""
    return _INTRODUCES.search(_unfinished(before)) is not None


def is_attributed(before: str) -> bool:
    """Whether a verdict is expressly another's: "The answer says ..."."""
    return _ATTRIBUTES.search(_unfinished(before)) is not None


def _unfinished(before: str) -> str:
    """The sentence that a text leaves open, where it ends with one: a blank line ends what no
    colon and no comma holds open."""
    near = before[-_NEAR:]
    line = near.rstrip("`~*_\"'“‘ \n{[(")  # what opens a quotation
    end = max((match.end() for match in _SENTENCE_END.finditer(line)), default=0)
    open_ = line[end:].rpartition("\n")[2]
    is_held = line.endswith(_HELD_OPEN) or _SPEAKS_ON.search(open_)
    return open_ if is_held or near[len(line) :].count("\n") < 2 else ""


# Doubts between the lines of a reply with several verdicts.
_DOUBT = re.compile(
    r"\b(?:wait|actually|hold on|hang on|hm+|oops|sorry|apolog\w+|correct(?:ion|ing)|on second"
    r"|thought|(?:re|mis)-?(?:consider|check|read|examin|evaluat|visit|think|count|look|judg|verif)"
    r"\w*|however|but|although|though|instead|mistake|error|revis\w+|chang\w+|retract|withdraw"
    r"|scratch|strike|disregard|ignore|should (?:be|have)|in fact|nope|no|unless|if|otherwise"
    r"|overrul\w+|opposite|flip\w*|rather|doch|moment|aber|eigentlich|nein|mais|en fait|non|pero"
    r"|perdón)\b|等等|不对|更正|其实|但是|但|でも|しかし|いや",
    re.IGNORECASE,
)


def is_taken_back(between: str) -> bool:
    """Whether text between two verdicts may take back the one above it."""
    return _DOUBT.search(between) is not None


# Other verdicts in the same reply.
_VALUE = (
    r"[\[({*_`\"'“‘$\s]{0,6}(?:\\text\{)?"
    r"(?P<value>[A-Za-z]{1,12}|[+-]?\d{1,3}(?:\.\d{1,6})?)\b"
)
_BOXED = re.compile(rf"\\boxed\{{{_VALUE}")
_IS = r"(?:is|was|ist|est|should be|would be|must be|to)\b"
_SIGN = rf"[\]*_`\"'”’\s]{{0,6}}(?:=>|->|→|:=|==?|:|>|\||{_IS})"


def require_unanimous(
    field: Field, value: Value, text: str, own: Iterable[tuple[int, int]], last: int
) -> None:
    """Raises Unread where the text says another value of the field outside of its ``own`` spans.
    What is expressly another's does not count where it stands before ``last``, the judge's own."""
    key = re.escape(normal(field.key)).replace("\\ ", r"[\s_-]+")
    patterns = [re.compile(rf"(?<![^\W_]){key}{_SIGN}{_VALUE}", re.IGNORECASE)]
    if field.schema is TRUTH:
        patterns.append(_BOXED)
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
            shown = " ".join(found[0].split())[:80]
            raise Unread("conflict", f"{field.key} is {value}, and it also says {shown!r}")


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
_COMPARED = re.compile(r"\b([AB]) is (?:clearly |much |far |the )?(better|worse)\b")


def require_agreement(field: Field, value: Value, prose: str) -> None:
    """Raises Unread where the last sentence before a verdict plainly says the opposite."""
    sentence = _last_sentence(prose)
    if field.schema is TRUTH and field.key == "verdict":
        said = {_polarity(match) for match in _STATED.finditer(sentence)}
        opposite: Value = not value
    elif field.schema is BETTER:
        sides = _COMPARED.findall(sentence)
        said = {side if word == "better" else "AB".strip(side) for side, word in sides}
        opposite = "AB".strip(str(value))
    else:
        return
    if said == {opposite} and not is_attributed(sentence):
        raise Unread("conflict", f"{field.key} is {value} after {sentence[:80]!r}")


def _polarity(match: re.Match[str]) -> bool:
    if chinese := match["chinese"]:
        return chinese in ("正确", "是对的")
    return (match["word"].lower() in _RIGHT) != bool(_NEGATION.search(match["middle"]))


def _last_sentence(prose: str) -> str:
    near = prose[-_NEAR:].rstrip().rstrip(".!?。！？*_ ")
    begin = 0
    for match in _SENTENCE_END.finditer(near):
        begin = match.end()
    return near[begin:].rpartition("\n")[2].strip()
