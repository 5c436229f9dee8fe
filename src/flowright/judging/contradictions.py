"""What in a reply speaks against a verdict that was read from it: a verdict counts where it is the
judge's own, its last word, and the only one.

Lists of words cannot know whether a reply means what it says. They are used in one direction only:
what they find leaves a reply without a verdict, and nothing that they miss makes one. Each search
looks at a bounded stretch of text or is a single pass.
"""

import re
from collections.abc import Iterable

from flowright.judging.schemas import BETTER, TRUTH, WRAPPING, Field, Unread, Value, normal

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
    return all(line in ("", ".", "。") or _CLOSERS.fullmatch(line) for line in lines)


# An unfinished sentence that makes what comes next another's word, or depend on something.
_SPEECH = (
    r"(?:sa(?:y|id)|read|state|claim|assert|conclude|quote|output|contain|include|hold|print|insist"
    r"|declare|announce|answer|respond|replie|finishe|propose|suggest|argue|add|append|mention"
    r"|request|ask|demand|want|end)(?:e?s|e?d|ing)|said|writ(?:es?|ing|ten)|wrote|told|tells"
    r"|behauptet|schreibt|sagt|lautet|endet|affirme|écrit|dit|prétend|afirma|dice|escribe"
)
_SPEAKER = (
    r"answer|response|solution|candidate|student|submission|text|author|reply|user|it|they|he|she"
    r"|prompt|message|problem|passage|proof|model|assistant|program|code|function|output|antwort"
    r"|kandidat|réponse|respuesta"
)
_CONDITION = (
    r"if|else|elif|otherwise|unless|assuming|suppose|provided|when(?:ever)?|whether|should|would"
    r"|could|might|example|instance|e\.g|falls|wenn|sonst|si|sinon|если|jeśli"
)
_INTRODUCES = re.compile(
    rf"\b(?:{_SPEECH}|{_CONDITION})\b"
    r"|说|写|声称|认为|表示|如果|否则|若|言|書|もし|なら|場合|만약",
    re.IGNORECASE,
)
_AS_ASKED = re.compile(r"\b(?:you|you['’]ve|have|as|the) (?:asked|requested)\b", re.IGNORECASE)
_ANOTHERS = re.compile(
    rf"\b(?:{_SPEAKER})['’]s\b|\b(?:of|from|in|by|to) (?:the|this|that) (?:\w+ )?(?:{_SPEAKER})\b"
    rf"|^\W*(?:candidate|student|submission|text|prompt|quot\w+|excerpt|kandidat|zitat)\W*$",
    re.IGNORECASE,
)
# Who quotes does so in any language; what leads a judge up to its own verdict are few words, or a
# title of one.
_LEADS_UP = re.compile(
    r"(?<![a-z])(?:verdict|judge?ments?|decision|conclu\w+|results?|therefore|thus|hence|so|since"
    r"|because|accordingly|consequently|finally|overall|evaluation|assessment|reason(?:ing|s)?"
    r"|explanation|analysis|comparison|summar\w+|above|in mind|given th(?:is|at)|grades?"
    r"|scor(?:es?|ing)|ratings?|i(?:['’]d| would| will)? (?:give|say|rate|grade)|criteri(?:on|a)"
    r"|aspects?|values?|json|object|format|here (?:it is|you go|is my)|step \d{1,2}|match(?:es)?"
    r"|agree|same|equals?|differ\w*|(?:in)?correct|right|wrong|better|urteil|ergebnis|bewertung"
    r"|daher|somit|also|donc|ainsi|veredicto|conclusión|resultado|verdetto|quindi|вердикт|вывод"
    r"|итог\w*|поэтому)(?![a-z])"
    r"|判[定断]|判決|结[论果]|結[論果]|理由|评[估价分]|評価|因此|所以|综上|よって|したがって"
    r"|결론|판정|평가|^\W*(?:my |the )?final (?:answer|response|reply|output)\W*$"
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
    """Whether a verdict goes on with a sentence that quotes, or that says under which condition.
    One held open, by a colon say, does unless it is known to lead up to a verdict."""
    open_ = _AS_ASKED.sub("", _unfinished(before))
    is_held = open_.endswith(_HELD_OPEN) and any(map(str.isalnum, open_))
    if is_held and (_ANOTHERS.search(open_) or not _LEADS_UP.search(open_)):
        return True
    return _INTRODUCES.search(open_) is not None


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


# What is said behind a verdict: words that take it back, and words that may.
_TAKES_BACK = (
    r"wait|actually|hold on|hang on|hm+|oops|sorry|apolog\w+|correct(?:ion|ing)"
    r"|on (?:second|reflect)\w*|take (?:it|that|this) back|too (?:generous|strict|harsh|lenient)"
    r"|(?:re|mis)-?(?:consider|check|read|examin|evaluat|visit|think|count|look|judg|verif)\w*"
    r"|revis\w+|retract|withdraw|scratch|strike|disregard|should (?:be|have|say)|nope|overrul\w+"
    r"|opposite|flip\w*|moment|eigentlich|en fait|perdón|等等|更正|其实|いや"
)
_DOUBTS = (
    r"thought|however|but|although|though|instead|mistake|error|chang\w+|ignore|in fact|no|unless"
    r"|if|otherwise|rather|doch|aber|nein|mais|non|pero|不对|但是|但|でも|しかし"
)
_RETRACTION = re.compile(rf"(?<![a-z])(?:{_TAKES_BACK})(?![a-z])", re.IGNORECASE)
_DOUBT = re.compile(rf"(?<![a-z])(?:{_TAKES_BACK}|{_DOUBTS})(?![a-z])", re.IGNORECASE)


def is_taken_back(between: str) -> bool:
    """Whether text between two verdicts may take back the one above it."""
    return _DOUBT.search(between) is not None


def is_retracted(reason: str) -> bool:
    """Whether a reason that was written after a verdict takes it back in so many words."""
    return _RETRACTION.search(reason) is not None


# Other verdicts in the same reply.
_VALUE = (
    r"[\[({*_`\"'“‘$\s]{0,6}(?:\\text\{)?"
    r"(?P<value>[A-Za-z]{1,12}|[+-]?\d{1,3}(?:\.\d{1,6})?)\b"
)
_BOXED = re.compile(rf"\\boxed\{{{_VALUE}")
# Headings of a verdict by another name, and what may stand there.
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
    """Raises Unread where the text says another value of the field outside of its ``own`` spans.
    What is expressly another's does not count where it stands before ``last``, the judge's own."""
    key = re.escape(normal(field.key)).replace("\\ ", r"[\s_-]+")
    patterns = [re.compile(rf"(?<![^\W_]){key}{_SIGN}{_VALUE}", re.IGNORECASE)]
    if field.schema is TRUTH:
        patterns.append(_BOXED)
    if is_verdict(field):
        for found in _NAMED.finditer(text):
            if (found["value"].lower() in _YES) != value:
                raise Unread("conflict", f"{field.key} is {value}, and it also says {found[0]!r}")
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


# How a grade is given in words on a scale, which may be another one than was asked for.
_ON_SCALE = re.compile(
    r"\b(?:scor(?:e[sd]?|ing)|rat(?:e[sd]?|ings?)|grade[sd]?|marks?|awards?|deserves?|gets?"
    r"|(?:i|would|to) give)\b[^\n]{0,40}?(?<![\d.])(?P<share>\d{1,3}(?:\.\d{1,3})?) *(?:points? *)?"
    r"(?:/|out of) *(?P<top>4|5|6|7|10|20|100)(?![\d.]*\d)"
    r"|\bscale (?:of|from)? ?\d ?(?:to|-|–) ?(?P<end>\d{1,3})\b",
    re.IGNORECASE,
)
_SAME_SHARE = 0.15  # 8 of 10 is 3 of 4, and 1 of 10 is not 1 of 1


def require_scale(field: Field, value: Value, text: str) -> None:
    """Raises Unread where the text gives the grade on another scale, and it is another share of it:
    "1 out of 10" before a score of 1."""
    top = field.schema.top
    if not top:
        return
    for found in _ON_SCALE.finditer(text):
        if found["end"]:
            is_other = int(found["end"]) != top
        else:
            share = float(found["share"]) / int(found["top"])
            is_other = abs(float(value) / top - share) > _SAME_SHARE
        if is_other:
            raise Unread("conflict", f"{field.key} is {value}, and it also says {found[0]!r}")


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
    """Raises Unread where the last sentence before a verdict plainly says the opposite."""
    sentence = _last_sentence(prose)
    if is_verdict(field):
        said = {_polarity(match) for match in _STATED.finditer(sentence)}
        opposite: Value = not value
    elif field.schema is BETTER:
        said = {_preferred(match) for match in _COMPARED.finditer(sentence)}
        opposite = "AB".strip(str(value))
    else:
        return
    if said == {opposite} and not is_attributed(sentence):
        raise Unread("conflict", f"{field.key} is {value} after {sentence[:80]!r}")


def is_verdict(field: Field) -> bool:
    """Whether the field is about the answer as a whole, and not one criterion among others."""
    return field.schema is TRUTH and field.key == "verdict"


def _preferred(match: re.Match[str]) -> str:
    side = match["liked"] or match["side"]
    return "AB".strip(side) if match["how"] in _WORSE else side


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
