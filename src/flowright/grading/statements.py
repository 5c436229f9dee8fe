"""The answer that a reply states: where it stands in the text, and what a sentence claims.

A closed grammar: an answer is a value by itself or behind a lead-in that names it as the answer. A
sentence about something else counts where nothing in it denies, hedges, bounds or conditions it.
Everything else claims nothing.
"""

import re
from functools import lru_cache

from flowright.grading.text import bare, normalise
from flowright.llm.replies import boxed

LONGEST_STATEMENT = 2_000  # characters; longer ones are prose

DOUBT = re.compile(
    r"""(?ix)
    (?:^|\s)~\s?(?=\d) | n't\b | \bnon- | [≠¬❌✗✘✖🚫👎不非] | \?\s*$ | \?\? | \b(?:
    not | no(?!\.) | no(?:body|thing|where|pe|ne|r)  | never | neither | some(?:one|body) | without
    | cannot
    | hardly
    | scarcely | barely | anything | refus\w* | nicht | kein\w{0,2} | pas | non | не
    | (?-i:may) | maybe | perhaps | might | could\s(?:\w+\s)?be | guess\w* | doubt\w* | suppos\w*
    | presum\w* | suspect\w* | unclear | unsure | unknown | uncertain | unverified | apparent\w*
    | alleg\w+ | seem\w* | likel\w+ | unlikel\w+ | probabl[ey] | possibl[ey] | rough\w*
    | (?<!\\)approx\w* | theory | nearly | almost | circa | (?-i:ca) | close
    | ballpark | sa(?:y\w*|id)
    | think\w* | thought | believ\w* | claim\w* | hope\w* | confirm\w* | determine
    | than | under | (?<!left\s)over | below | above | beyond | short | shy | off | exceed\w*
    | at\s+(?:the\s+)?(?:least|most|best) | up\s+to | least\s+\w+ly
    | upwards | as\s+(?:many|few|much|little|early|late|high|low)\s+as
    | if | unless | whether | assum\w+ | provided | otherwise | else
    | or | but | instead | rather | however | although | though | whereas | except\w* | unlike
    | versus | vs | actually | wait | alternativ\w+ | opposed | retract\w* | crossed | struck
    | wrong\w* | incorrect\w* | false\w* | untrue | mistak\w* | errors? | trap | decoy
    | distractor\w*
    | den(?:y|ies|ied) | refut\w* | reject\w* | exclud\w* | eliminat\w* | invalid\w* | impossib\w*
    | avoid\w* | fails? | failed | differ\w* | distinct | fool\w* | naive | tempting | opposite
    | contrary | ruled? | bogus | fake | myth | lies? | falsch\w* | faux | неверно | wrongly
    )\b"""
)
"""Words that take a statement back, weaken, bound or condition it: negation, hedge, comparison,
condition, contrast, falsity."""

CONDITION = re.compile(
    r"\b(?:if|unless|whether|assum\w+|suppos\w+|let|provided|never|no(?:body|thing))\b",
    re.IGNORECASE,
)
_COURTESY = re.compile(r"(?:let me know|i hope (?:this|that|it)).*", re.IGNORECASE | re.DOTALL)
_WORDS_OF_ANSWER = (
    r"answer|ans|result|solution|output|antwort|lösung|respuesta|réponse|risposta|resposta|ответ"
    r"|答案|答え|정답"
)
_KINDS = (
    r"(?:final|correct|right|exact|true|actual|required|requested|desired|overall|total|numeric(?:al)?"
    r"|short|only|best|simplified|resulting|richtige|finale|correcta|correcte|final[ae]?|最终|正确)"
)
_ARTICLE = r"(?:the|my|our|your|this|its|an?|die|das|la|el|le|il|a)"
_NAMED = (
    rf"(?:{_ARTICLE}\s+)?(?:{_KINDS}\s*){{0,3}}"
    rf"(?:{_WORDS_OF_ANSWER}|value|total|sum|number|amount|cost|price)"
    r"(?:\s+(?:of|for|to|in)\s+[^.,;:!?=\n]{1,80}?)?"
)
_VARIABLE = r"\$?[A-Za-zα-ω](?:_\{?\w{1,3}\}?)?'?(?:\([^()=]{1,30}\))?\$?"
_STATES = (
    r"(?:is|are|was|were|equals?|would\sbe|will\sbe|should\sbe|must\sbe|comes?\s(?:out\s)?to|becomes"
    r"|ist|es|est|è|é|est\sde|это|是|为|は|[:=：≈])(?:\s+(?:therefore|thus|hence|then|simply|just"
    r"|exactly|precisely|also|indeed|equal\sto|approximately\sequal\sto))?[:：]?"
)
_LEADS = (
    r"(?:(?:so|thus|hence|therefore|then|and|now|finally|overall|altogether|consequently|that|in\s"
    r"(?:total|all|conclusion|summary)|(?:we|i)\s(?:get|got|have|find|obtain|conclude)"
    r"|(?:that|this|which|it)?\s?(?:gives|makes|yields|giving|means)(?:\sus)?)(?:\s*[,:]?\s+|\s*[,:]))"
)
LEAD_IN = re.compile(
    rf"[\s*_$(\"'`]*{_LEADS}{{0,4}}"
    rf"(?:(?:{_NAMED}|{_VARIABLE}|it|that|this|which|there|\\angle\s?[A-Z]{{1,3}}|(?-i:[A-Z]{{2}}))"
    rf"[\s*_$]*"
    rf"(?:'s|{_STATES})|=|≈|it's|that's)?[\s*_$(\"'`]*",
    re.IGNORECASE,
)
"""All that may stand before an answer and names nothing but the answer."""


def without_lead(text: str) -> str:
    """The text behind its lead-in: ``Paris`` of ``Final answer: Paris``."""
    lead = LEAD_IN.match(text[:LONGEST_STATEMENT])
    return text[lead.end() :] if lead else text


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_MARK = re.compile(r"^[ \t>*]*####[ \t]*(\S[^\n]{0,100})$", re.MULTILINE)
_VALUE = re.compile(r"(?:[A-Za-z]\s?=\s?)?[-+$€£¥({\[\\.\d][^\n]*")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3}")
_RUN_ON = re.compile(r"^[ \t*#]*(?:next )?(?:question|problem|q)\b[ \t*\d]{0,9}:", re.I | re.M)
_PHRASE = re.compile(
    r"\banswer\b(?P<of>\s+(?:to|for|of)\s+[^.,;:!?=\n]{1,80}?)?[*_`]{0,3}[^\S\n]{0,3}"
    r"(?:\b(?:is|are|would\sbe|should\sbe|must\sbe)\b|:|=)[*_`:\s]{0,8}(?P<value>\S[^\n]*)",
    re.IGNORECASE,
)
_BEFORE_ANSWER = re.compile(
    rf"(?:.*(?<!\w))?{_ARTICLE}\s+[*_]{{0,3}}(?:{_KINDS}\s+){{0,3}}[*_]{{0,3}}"
    rf"|[^\w]*(?:{_LEADS}){{0,3}}[*_]{{0,3}}(?:{_KINDS}\s+){{0,3}}[*_]{{0,3}}",
    re.IGNORECASE | re.DOTALL,
)
_OPENS_ANEW = re.compile(r"(?:^|(?<![A-Z])\b[^\WA-Z]\w*\W*\s)Answer[*_`]{0,3}:")
_FENCES = "`\\[]()$*_-#>~=| \t\r"


_BARE_BOX = re.compile(r"(?<![\\\w])b?oxed\{|\x08oxed\{")
"""A box that has lost its backslash, to Markdown or, with its b, to an escape of a string."""


@lru_cache(maxsize=256)
def extract_answer(text: str) -> str:
    """The final answer within a reply, normalised and without its wrapping.

    The last of, in this order: ``<answer>`` tags, ``\\boxed{}``, a line ``#### 42`` as in GSM8K,
    "the answer is" or "answer:", and else the last line that is not empty. Behind an answer mark, a
    "Question:" opens another problem, which does not count.
    """
    text = _BARE_BOX.sub(r"\\boxed{", normalise(text))
    marks = [mark for mark in _MARK.finditer(text) if _is_marked(mark[1])]
    if marks and (run_on := _RUN_ON.search(text, marks[0].end())):
        text = text[: run_on.start()]
    tagged = _tagged(text)
    if tagged is not None:
        return bare(tagged)
    if (in_box := boxed(text)) is not None:
        return _around_box(text, in_box)
    if marks:
        return bare([mark[1] for mark in marks if mark.end() <= len(text)][-1])
    for phrase in reversed(list(_PHRASE.finditer(text))):
        first = max(0, phrase.start() - LONGEST_STATEMENT)
        ends = (text.rfind(end, first, phrase.start()) for end in ("\n", ". ", "! ", "? "))
        lead = text[max(first, *(end + 1 for end in ends)) : phrase.start()]
        clause = lead.rpartition(",")[2]
        opens = _BEFORE_ANSWER.fullmatch(clause) or _OPENS_ANEW.search(clause + phrase[0][:20])
        if opens and not (DOUBT.search(clause) or CONDITION.search(lead)):
            return bare(phrase["value"])
    lines = [line for line in text.splitlines() if line.strip(_FENCES)]
    lines = lines or [line for line in text.splitlines() if line.strip("*_` \t\r")]
    return bare(lines[-1]) if lines else ""


def _is_marked(content: str) -> bool:
    """Return whether a line behind ``####`` is an answer as GSM8K writes it, and no heading."""
    is_value = _VALUE.fullmatch(content) and re.search(r"\d", content)
    return bool(is_value) and not _LONG_WORD.search(content)


def _tagged(text: str) -> str | None:
    """The content of the last ``<answer>`` that is closed."""
    found = start = None
    for tag in _TAG.finditer(text):
        if tag[1]:
            found, start = text[start : tag.start()] if start is not None else found, None
        elif start is None:
            start = tag.end()
    return found


_JOINED_BEFORE = re.compile(
    r"(?:[-+*/^!√∛±¬≠<>~|\d.]|\\(?:sqrt|ln|log|pm|cdot|times)\s?\{?|\bnot|\bn't)[\s$(]*$"
)
_JOINED_AFTER = re.compile(r"[\s$}]*(?:[\^!*/+%‰]|[A-Za-z](?![A-Za-z])|(?:is|was)\s)")


def _around_box(text: str, inner: str) -> str:
    """The content of the last box; with what stands around it on its line where that changes it:
    ``-\\boxed{6}``, ``\\boxed{6} is wrong``."""
    start = text.rfind("\\boxed{" + inner + "}")
    end = start + len("\\boxed{}") + len(inner)
    line_start = max(text.rfind("\n", 0, start) + 1, start - LONGEST_STATEMENT)
    before = text[line_start:start].replace("**", "")
    line_end = text.find("\n", end)
    after = text[end : line_end if line_end >= 0 else len(text)][:LONGEST_STATEMENT]
    clause = re.split(r"[,;:.]\s|\b(?:so|thus|hence|therefore)\b", before)[-1]
    if _JOINED_BEFORE.search(before) or _JOINED_AFTER.match(after) or DOUBT.search(clause):
        return bare(f"{clause}{inner}{after}".replace("$", ""))
    return bare(inner)


# --- claims --------------------------------------------------------------------------------------

_CONTRASTS = (
    re.compile(r"(?P<claim>[^,;()]{1,200}?),?\s+(?:rather\sthan|instead\sof|as\sopposed\sto|and\snot"
               r"|not)\s+(?P<other>[^,;]{1,200})", re.IGNORECASE),
    re.compile(r"(?P<claim>[^,;()]{1,200}?)\s*\((?:and\s)?not\s+(?P<other>[^()]{1,200})\)", re.I),
    re.compile(r"(?:it is )?not\s+(?P<other>[^,;]{1,99}?),?\s+but\s+(?P<claim>[^,;]{1,99})", re.I),
)  # fmt: skip
_REASON = re.compile(
    r"(?P<claim>[^,;()]{1,300}?)(?:,\s+(?:because|since|as|which|where|who|so)|\s+because|\s+since)\s+"
    r"(?P<reason>[^\n]{1,1000})",
    re.IGNORECASE,
)
_DESCRIBED = re.compile(r"(?P<claim>[^()]{1,300})\s\((?P<reason>(?:the|an?|born)\s[^()]{1,200})\)")
_IS_ANSWER = re.compile(
    rf"(?P<claim>[^,;:]{{1,300}}?)\s+is\s+(?:{_ARTICLE}\s+)?(?:{_KINDS}\s+){{0,3}}(?:{_WORDS_OF_ANSWER})",
    re.IGNORECASE,
)
_ENDED = re.compile(
    r"(?=\s)(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b(?:[DM]r|M[st]|S[rt]|Jr|No|vs)\.)\s+(?=[A-Z(\"'$\\*])"
)


def claims(text: str) -> list[str]:
    """The readings of a final answer: as it stands; its last sentence; that without the value that
    it sets itself against (``8, not 9``), the reason that it gives, and "is the answer". Empty for
    a question."""
    if text.rstrip(" .!*_\"')").endswith("?") or _ASKS.match(text):
        return []
    if len(text) > LONGEST_STATEMENT:
        return [text]
    found = [text, *map(bare, _ENDED.split(text)[1:][-1:])]
    for form in (*_CONTRASTS, _REASON, _DESCRIBED, _IS_ANSWER):
        whole = form.fullmatch(found[-1])
        if whole is None or DOUBT.search(whole["claim"]):
            continue
        aside = whole.groupdict().get("reason") or whole.groupdict().get("other") or ""
        if not DOUBT.search(aside):
            found.append(bare(whole["claim"]))
    return found


_ASKS = re.compile(
    r"(?:is|are|was|were|does|do|did|can|could)\s(?:it|the|this|that|there|they|he|she|[-\d])", re.I
)


def opening(text: str) -> str | None:
    """The first of several sentences, if the others take nothing back."""
    first, *rest = _ENDED.split(text[:LONGEST_STATEMENT], maxsplit=1)
    return bare(first) if rest and not DOUBT.search(_COURTESY.sub("", rest[0])) else None


_SUBJECT = re.compile(
    r"(?:[^.;:?!]{1,200},\s(?:but|so|and)\s(?:in\sfact,?\s)?)?"
    r"(?:(?:so|thus|hence|therefore),?\s)?(?P<subject>(?:it|that|he|she)'s\s"
    r"|(?:(?:the|it|this|that|they|these|those|its|their|his|her|he|she|my)"
    r"(?:\s[^.,;:?!]{1,80}?)??|[A-Z][\w.-]{0,30}'s\s[^.,;:?!]{1,80}?)"
    r"\s(?:is|was|are|were|stands\sfor|would\sbe|must\sbe)\s)(?P<predicate>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE = re.compile(
    r"(?P<subject>(?:i|we)(?:'d|\swould)?\s(?:choose|pick|select))\s(?P<predicate>\S.*)", re.I
)
_ASIDE = re.compile(r"\b(?:former\w*|who|which|what|next)\b", re.IGNORECASE)
OF_ANSWERS = re.compile(
    r"\b(?:answer|guess|attempt|try|option|choice|solution|response|candidate|alternative)s?\b",
    re.IGNORECASE,
)
_THE_ANSWER = re.compile(
    rf"(?:{_ARTICLE}\s)?(?:{_KINDS}\s){{0,3}}(?:answer|option|choice|solution|response)"
    r"(?:\s(?:to|for|of)\s[^.,;:?!]{1,80})?\s(?:is|was|are|would\sbe|must\sbe)\s",
    re.IGNORECASE,
)


def predicate(text: str) -> str:
    """Return the predicate of a plain statement: ``Paris`` of ``The capital of France is Paris``.
    The text itself for anything else: a denial, a condition, a comparison, a wrong answer."""
    if len(text) > LONGEST_STATEMENT:
        return text
    found = _SUBJECT.fullmatch(text) or _CHOICE.fullmatch(text)
    if found is None or CONDITION.search(text, 0, found.start("predicate")):
        return text
    subject = found["subject"]
    before = text[: found.start("subject")]
    if DOUBT.search(subject) or _ASIDE.search(subject) or re.search(r"\bno\w*\b", before, re.I):
        return text
    if OF_ANSWERS.search(subject) and not _THE_ANSWER.fullmatch(subject):
        return text
    return bare(found["predicate"])


_CLOSED_WORDS = re.compile(
    r"\W{0,5}(yes|no|true|false)\b\s?(?:[,.;:!\n]|\s?-|$"
    r"|(?=(?:it|they|he|she|we|i|you|both|there|this|that)\b))",
    re.IGNORECASE,
)
_TAKES_BACK = re.compile(
    r"(?i)\b(?:yes|no|true|maybe|perhaps|but|however|actually|wait|rather|instead|although|though"
    r"|incorrect|wrong|false|if|unless|or)\b|\?\s*$"
)


def closed_answer(text: str) -> str | None:
    """``yes``, ``no``, ``true`` or ``false`` where a text opens with it, by itself or before a
    remark that does not take it back; None else."""
    opening = _CLOSED_WORDS.match(text[:LONGEST_STATEMENT])
    if opening is None or len(text) > LONGEST_STATEMENT:
        return None
    word = opening[1].lower()
    against = _TAKES_BACK if word in ("no", "false") else DOUBT
    remark = text[opening.end() :]
    return None if against.search(remark) or re.match(r"\s*yes\b", remark, re.I) else word


_NOTHING = re.compile(
    r"\s*(?:\\(?:emptyset|varnothing)|∅|\\?\{\s*\\?\}|none|(?:the\s)?empty\sset"
    r"|(?:there\s(?:is|are)\s)?no\s(?:real\s)?(?:solutions?|roots?))\s*",
    re.IGNORECASE,
)


def states_no_answer(text: str) -> bool:
    """Return whether an answer states that there is none: ``no solution``, the empty set."""
    return _NOTHING.fullmatch(text) is not None
