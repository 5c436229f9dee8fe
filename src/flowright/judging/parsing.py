"""Parse a judge's reply: no verdict rather than a wrong one.

Only the reply is read, so that nothing the judge was shown changes how it is understood. Thinking
is cut off first; a reply that ends inside its thinking has no verdict. Echoes of the prompt's
fenced blocks are cut off next. In the rest a verdict counts

- in the requested form: a line of text, a tag, a JSON object of its own;
- as the last word: prose behind it may take it back, which no word list can decide;
- as the judge's own: not in a sentence that quotes or states a condition;
- if nothing else in the reply contradicts it, in any notation.

Otherwise the field is unread, and the judge is asked again. A reply that is one JSON object as a
whole, with the reason and then the values of the schema, is accepted as it is where the server had
to enforce the schema. Several fields are read one by one: prose may stand between their lines, and
a missing one does not affect the others.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from flowright.judging.contradictions import (
    OF_THE_DATA,
    TRUTHS,
    is_attributed,
    is_closed,
    is_introduced,
    is_retracted,
    is_taken_back,
    is_verdict,
    require_agreement,
    require_scale,
    require_unanimous,
)
from flowright.judging.schemas import (
    PRINCIPLES,
    TRUTH,
    WRAPPING,
    Field,
    ReadReply,
    Unread,
    Value,
    folded,
    normal,
    value_of,
)
from flowright.llm.control_tokens import without_echoes
from flowright.llm.loose_json import CutText, FoundObject, NestedObject, Pairs, read_object
from flowright.llm.replies import strip_thinking

Form = Literal["json_schema", "json_object", "text"]
"""Requested reply forms: JSON held to a schema by the server, JSON of any shape, or last lines of
plain text."""

MAX_READ_CHARS = 16_000
"""Longer replies are read from the end, where the verdict stands."""
MOST_OBJECTS = 64
"""Replies with more opening braces of objects are not read: each may cost a pass over the text."""

_MAX_WHOLE_CHARS = 200_000  # of a reply that is one object, with a long reason
_MAX_REASON_CHARS = 2_000


def parse_reply(text: str, form: Form, fields: Sequence[Field]) -> ReadReply:
    """Read the fields out of a judge's reply to a request of this form."""
    try:
        if not text.strip():
            raise Unread("empty", "the reply is empty")
        if form != "text" and _is_whole_object(text):
            return _collected(fields, _JsonReply(text, fields, enforced=form == "json_schema"))
        spoken = strip_thinking(text)
        if spoken is None:
            raise Unread("unclosed_thinking", "the reply ends inside its thinking")
        whole = _WRAPPED.fullmatch(spoken) if len(spoken) < len(text) else None
        spoken = without_echoes(whole[2] if whole else spoken)
        spoken = _without_end_tokens(spoken)[-MAX_READ_CHARS:].strip()
        if not spoken:
            raise Unread("empty", "nothing is left of the reply without thinking and echoes")
        _require_closed_tags(spoken, fields)
        reply = _TextReply(spoken, fields) if form == "text" else _JsonReply(spoken, fields)
    except Unread as unread:
        return ReadReply({}, unread.reason, unread.fault)
    return _collected(fields, reply)


def _collected(fields: Sequence[Field], reply: "_TextReply | _JsonReply") -> ReadReply:
    values: dict[str, Value] = {}
    unread: list[Unread] = []
    for field in fields:
        try:
            values[field.key] = reply.value(field)
        except Unread as error:
            unread.append(error)
    if fields[0].schema is PRINCIPLES and fields[0].key not in values:
        values = {}  # a verdict before the principles is none
    if not unread:
        reason = reply.reason.strip().encode("utf-8", "replace").decode()  # JSON has surrogates
        if len(reason) > _MAX_REASON_CHARS:
            reason = reason[: _MAX_REASON_CHARS - 1] + "…"
        return ReadReply(values, reason)
    # A value in a bad form explains more than a missing one.
    worst = next((error for error in unread if error.fault != "no_verdict"), unread[0])
    more = f", and {len(unread) - 1} more" if len(unread) > 1 else ""
    return ReadReply(values, worst.reason + more, worst.fault)


# An answer behind the thinking, where the model's template marks that too.
_WRAPPED = re.compile(r"\s*<(answer|response)>(.*)</\1>\s*", re.DOTALL | re.IGNORECASE)
_END_TOKEN = re.compile(
    r"(?:<[|｜][\w▁]{1,40}[|｜]>|</s>|<(?:seed:)?eos>|<end_of_turn>|<turn\|>|<SPECIAL_\d{1,4}>"
    r"|\[e~\[)\Z"
)
_BEGINNINGS = frozenset({"s", "bos"})  # tokens, not tags: nothing closes them
_LINE_TAG = re.compile(r"^[ \t]*<(/?)([a-z][\w:.-]{0,40})>", re.IGNORECASE | re.MULTILINE)


def _without_end_tokens(text: str) -> str:
    text = text.rstrip()
    while token := _END_TOKEN.search(text, max(0, len(text) - 44)):
        text = text[: token.start()].rstrip()
    return text


def _require_closed_tags(text: str, fields: Sequence[Field]) -> None:
    """Raise Unread for a text that ends inside a tag opened at the start of a line: thinking under
    another name, or a quotation."""
    keys = {field.key.casefold() for field in fields} | _BEGINNINGS
    last = {tag[2].casefold(): tag for tag in _LINE_TAG.finditer(text)}
    for name, tag in last.items():
        closes = tag[1] or f"</{name}>" in text[tag.end() :].casefold()
        if name not in keys and not closes:
            raise Unread("misplaced", f"the reply ends inside <{name}>")


# JSON.


class _JsonReply:
    """JSON objects of a reply. ``enforced``: the server had to hold the whole reply to the schema;
    believed if the reply has exactly the reason and then the values."""

    def __init__(self, text: str, fields: Sequence[Field], enforced: bool = False) -> None:
        self._text = text
        first = [field.key for field in fields if field.schema is PRINCIPLES]
        keys = [field.key for field in fields if field.schema is not PRINCIPLES]
        self._wanted = {normal(key) for key in keys}
        self._objects = [
            found
            for found in _objects(text)
            if any(normal(key) in {*self._wanted, *first} for key, _ in found.pairs)
        ]
        layout = [[*first, "reason", *keys]]
        is_exact = all(o.exact for o in self._objects)
        has_layout = [[k for k, _ in o.pairs] for o in self._objects] == layout
        self._enforced = enforced and is_exact and has_layout
        self.reason = ""

    def value(self, field: Field) -> Value:
        """Return the value of a field. Raises Unread."""
        wanted = normal(field.key)
        found = [(o, v) for o in self._objects for key, v in o.pairs if normal(key) == wanted]
        if not found:
            raise Unread("no_verdict", f"no JSON object with the key {field.key!r}")
        last = found[-1][0]
        if isinstance(found[-1][1], CutText):
            raise Unread("no_verdict", f"the reply ends in {field.key!r}")
        if not last.exact and sum(obj is last for obj, _ in found) > 1:
            raise Unread("conflict", f"an object that is no JSON has {field.key!r} twice")
        value = value_of(field, found[-1][1])
        if field.schema is PRINCIPLES:
            return value
        reason = dict(last.pairs).get("reason", "")
        self.reason = reason if isinstance(reason, str) else ""
        others = [
            other
            for obj, other in found[:-1]
            if obj is last or not is_attributed(self._text[: obj.start])
        ]
        if any(field.schema.read(other) != value for other in others):
            raise Unread("conflict", f"several objects disagree about {field.key}")
        if not self._enforced:
            self._require_own(field, value, last)
        require_scale(field, value, self.reason)
        return value

    def _require_own(self, field: Field, value: Value, last: FoundObject) -> None:
        """Raise Unread unless the object is the judge's own and last word."""
        text, objects = self._text, self._objects
        before, after = text[: last.start], text[last.end :]
        following = next((o for o in objects if o.start > last.start), None)
        if following is not None and not _is_blank(text[last.end : following.start]):
            raise Unread("misplaced", "text stands between the objects")
        if not is_closed(text[objects[-1].end :]):
            raise Unread("misplaced", "text follows the object, and may take it back")
        if not (_is_blank(before.rpartition("\n")[2]) or _is_blank(after)):
            raise Unread("misplaced", "the object stands inside a sentence")
        if is_introduced(before, field, value):
            raise Unread("misplaced", "the object is quoted, or given under a condition")
        spans = [(o.start, o.end) for o in objects]
        require_unanimous(field, value, text, spans, last.start)
        _require_one_opinion(field, value, last, is_alone=len(self._wanted) == 1)
        # Text after the verdict may take it back; a reason before it may quote.
        keys = [normal(key) for key, _ in last.pairs]
        later = last.pairs[keys.index(normal(field.key)) + 1 :]
        for key, text in later:
            if isinstance(text, str) and normal(key) not in self._wanted:
                if is_retracted(text):
                    raise Unread("misplaced", f"{key!r} follows the {field.key}, and takes it back")
                require_agreement(field, value, text)
                require_unanimous(field, value, text, (), 0)


_OF_A_VERDICT = re.compile(r"verdict|correct|right|final(?! answer)|judg|grade|score|better|winner")
_OF_A_SCALE = re.compile(r"\b(?:max|maximum|out of|scale|range|best possible)\b")


def _require_one_opinion(field: Field, value: Value, found: FoundObject, is_alone: bool) -> None:
    """Raise Unread if another key of the object, at any depth, disagrees: a nested verdict, a
    correction, another scale. Beside several requested fields, other keys may be about something
    else."""
    extra = [(k, v) for k, v in found.pairs if k != "reason" and normal(k) != normal(field.key)]
    for key, other in [*extra, *_nested_pairs(found.pairs)]:
        same = normal(key) == normal(field.key)
        if field.schema.top and _OF_A_SCALE.search(normal(key)) and other != field.schema.top:
            raise Unread("conflict", f"{field.key} is {value}, and {key!r} is {other!r}")
        if not same and not (is_verdict(field) or is_alone):
            continue
        read = field.schema.read(other)
        is_opinion = same or _OF_A_VERDICT.search(normal(key))
        if field.schema is TRUTH:
            read = TRUTHS.get(str(other).strip(WRAPPING + ".!").casefold(), read)
            is_own = OF_THE_DATA.fullmatch(normal(key)) is None
            is_opinion = is_opinion or (is_own and isinstance(other, bool | str))
        if read is not None and read != value and is_opinion:
            raise Unread("conflict", f"{field.key} is {value}, and {key!r} is {other!r}")


def _nested_pairs(pairs: Pairs) -> Iterator[tuple[str, Any]]:
    waiting: list[Any] = [value for _, value in pairs]
    while waiting:
        value = waiting.pop()
        if isinstance(value, NestedObject):
            yield from value.pairs
            waiting += [inner for _, inner in value.pairs]
        elif isinstance(value, list):
            waiting += value


_BACKTICKS = re.compile(r"`{3,}(?:json)?|`", re.IGNORECASE)
_OPENS = re.compile(r"\{(?=\s{0,200}(?:[\"'“}]|[A-Za-z_]\w{0,60}\s{0,9}:))")


def _is_blank(text: str) -> bool:
    """Return whether a text holds nothing but the marks of a code fence."""
    return not _BACKTICKS.sub("", text).strip(WRAPPING + "\r\n")


def _is_whole_object(text: str) -> bool:
    """Return whether the text is one JSON object as a whole, without thinking or chatter."""
    stripped = text.strip().removeprefix("\ufeff")
    if len(text) > _MAX_WHOLE_CHARS:
        return False
    found = read_object(stripped, may_end=True)
    return found is not None and found.end == len(stripped)


def _objects(text: str) -> Iterator[FoundObject]:
    """Yield the outermost JSON objects from left to right. Raises Unread if too many begin."""
    end = tried = 0
    for opening in _OPENS.finditer(text):
        if opening.start() < end:
            continue
        tried += 1
        if tried > MOST_OBJECTS:
            raise Unread("misplaced", f"more than {MOST_OBJECTS} objects begin in the reply")
        found = read_object(text, opening.start())
        if found is None and _is_blank(text[: opening.start()].removeprefix("\ufeff")):
            found = read_object(text.rstrip("`\n "), opening.start(), may_end=True)
        if found is not None:
            yield found
            end = found.end


# Plain text.

_LEAD = r"(?:#{1,6}\s+|[-*+]\s+|\d{1,2}[.)]\s+)?"
_WRAP = r"[*_`\"'“”‘’]*"
_KEY = re.compile(
    rf"{_LEAD}{_WRAP}\s*(?:final\s+)?([a-z][a-z0-9_ -]{{0,50}}?)\s*{_WRAP}\s*", re.IGNORECASE
)
_MAX_KEY_CHARS = 80
_FENCE_LINE = re.compile(r"`{3,}\s*\w*")
_OR = re.compile(r"\||/|\bor\b")
_PRINCIPLES = re.compile(r"<principles>(.*?)</principles>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line ``Key: value``, a key above its value, or a tag; with its span in the text."""

    key: str
    raw: str
    start: int
    end: int


class _TextReply:
    """A reply in plain text, without repetitions of the request's own menu
    (`Verdict: True|False`), which are no verdict."""

    def __init__(self, text: str, fields: Sequence[Field]) -> None:
        self._principles = ""
        if fields[0].schema is PRINCIPLES:
            fields = fields[1:]
            found = _PRINCIPLES.search(text)
            if found is not None:
                self._principles, text = found[1], text[: found.start()] + text[found.end() :]
        known = {normal(field.key): field for field in fields}
        tagged = [field for field in fields if field.tagged]
        for field in tagged:
            text = _tag(field.key).sub(lambda m, f=field: "." if _is_echo(m[1], f) else m[0], text)
        lines = [folded(line) for line in text.splitlines()]
        lines = ["" if _FENCE_LINE.fullmatch(line) else line for line in lines]
        pairs = [_key_and_value(line) for line in lines]
        kept = [i for i, (k, v) in enumerate(pairs) if k not in known or not _is_echo(v, known[k])]
        self._text = "\n".join(lines[i] for i in kept)
        self._entries = list(_entries(self._text, known.keys())) if not tagged else []
        for field in tagged:
            for m in _tag(field.key).finditer(self._text):
                self._entries.append(_Entry(normal(field.key), m[1], m.start(), m.end()))

    @property
    def reason(self) -> str:
        """The text outside the verdicts."""
        ends = [0, *(entry.end for entry in self._entries)]
        starts = [*(entry.start for entry in self._entries), len(self._text)]
        outside = "".join(self._text[a:b] for a, b in zip(ends, starts, strict=True))
        return "\n".join(line for line in outside.split("\n") if line.strip(WRAPPING))

    def value(self, field: Field) -> Value:
        """Return the value of a field. Raises Unread."""
        if field.schema is PRINCIPLES:
            return value_of(field, self._principles)
        text, key = self._text, normal(field.key)
        own = [entry for entry in self._entries if entry.key == key]
        if not own:
            where = f"no <{field.key}> is closed" if field.tagged else "no line begins with it"
            fault = "misplaced" if f"<{field.key}>" in text.casefold() else "no_verdict"
            raise Unread(fault, f"{field.key} is not there: {where}")
        last = own[-1]
        value = value_of(field, last.raw)
        for entry in own[:-1]:
            if field.schema.read(entry.raw) != value and not is_attributed(text[: entry.start]):
                shown = entry.raw[:80]
                raise Unread("conflict", f"{field.key} is {value}, and {shown!r} before that")
        # Text behind the verdict may take it back; between two verdicts it may explain either.
        following = min((e.start for e in self._entries if e.start >= last.end), default=None)
        after = text[last.end : following]
        if is_taken_back(after) if following is not None else not is_closed(after):
            raise Unread("misplaced", f"text follows the {field.key}, and may take it back")
        begin = max((entry.end for entry in self._entries if entry.end <= last.start), default=0)
        if is_introduced(text[begin : last.start], field, value):
            raise Unread("misplaced", f"the {field.key} is quoted, or given under a condition")
        spans = [(entry.start, entry.end) for entry in own]
        require_unanimous(field, value, text, spans, last.start)
        require_agreement(field, value, text[: last.start])
        require_scale(field, value, text)
        return value


def _entries(text: str, keys: Collection[str]) -> Iterator[_Entry]:
    end = -1
    above: _Entry | None = None  # a key whose value stands on a line below
    for line in text.split("\n"):
        start, end = end + 1, end + 1 + len(line)
        key, value = _key_and_value(line)
        if above is not None and line:
            is_next = key in keys
            if not is_next or key != above.key:  # else it is a title above the verdict
                raw = "" if is_next else line
                yield _Entry(above.key, raw, above.start, start if is_next else end)
            above = None
        if key in keys:
            entry = _Entry(key, value, start, end)
            if value:
                yield entry
            else:
                above = entry
    if above is not None:
        yield above


@cache
def _tag(key: str) -> re.Pattern[str]:
    key = re.escape(key)
    return re.compile(rf"<{key}>(.{{0,80}}?)</{key}>", re.IGNORECASE | re.DOTALL)


def _key_and_value(line: str) -> tuple[str, str]:
    head, colon, value = line.partition(":")
    match = _KEY.fullmatch(head) if colon and len(head) <= _MAX_KEY_CHARS else None
    return (normal(match[1]), value.strip(WRAPPING)) if match else ("", "")


def _is_echo(value: str, field: Field) -> bool:
    """Return whether a value is the menu itself, as the request shows it or in words."""
    if len(value) > 60:
        return False
    words = [word.strip(WRAPPING + "<>[](){}") for word in _OR.split(folded(value).casefold())]
    return words == field.schema.shown.casefold().split("|")
