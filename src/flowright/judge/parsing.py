"""Reading a judge's reply: an anchored parser that would rather find no verdict than a wrong one.

The reply is all it reads: what the judge was shown cannot change how its reply is understood. No
prompts and no calls here.

A reply is read in this order. Thinking is cut off; a reply that ends inside its thinking holds no
verdict. Blocks between the fences that the prompt puts around untrusted text are an echo of the
prompt and are cut off. Of what is left the last value of a field counts, and only where a verdict
can stand: on the last or the first line (text), or alone on its lines or at an end of the reply
(tags and JSON objects). A last value that does not fit its answer schema is a parse error; the
parser never goes back to an earlier one. Where several fields are asked for, each is read by
itself, lines of text may stand among others, and what was not said is missing while the rest
stands.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowright.judge.schemas import WRAPPING, Field, Value, folded
from flowright.llm.fences import without_echoes
from flowright.llm.replies import strip_thinking

Form = Literal["json_schema", "json_object", "text"]
"""How a verdict is asked for: a JSON object held to a schema by the server, a JSON object that the
server only guarantees to be JSON, or last lines in plain text."""

Fault = Literal["empty", "unclosed_thinking", "no_verdict", "invalid", "misplaced"]

MAX_READ_CHARS = 16_000
"""Only the end of a longer reply is read; a verdict stands at the end."""

_MAX_REASON_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply says: the ``values`` of the fields that it has. ``fault`` is why another field
    has none, and None when none is missing. ``reason`` is the judge's own explanation, or a
    description of the fault."""

    values: Mapping[str, Value]
    reason: str
    fault: Fault | None = None


class _Unread(Exception):
    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault: Fault = fault
        self.reason = reason


def parse_reply(text: str, form: Form, fields: Sequence[Field]) -> Reading:
    """Read the fields out of a judge's reply to a request of this form."""
    try:
        if not text.strip():
            raise _Unread("empty", "the reply is empty")
        if form != "text" and (whole := _whole_object(text)) is not None:
            return _collected(fields, _ObjectPage([(0, len(text), whole)], text))
        spoken = strip_thinking(text)
        if spoken is None:
            raise _Unread("unclosed_thinking", "the reply ends inside its thinking")
        spoken = _without_end_tokens(without_echoes(spoken))[-MAX_READ_CHARS:].strip()
        if not spoken:
            raise _Unread("empty", "nothing is left of the reply without thinking and echoes")
    except _Unread as unread:
        return Reading({}, unread.reason, unread.fault)
    page = _TextPage(spoken, fields) if form == "text" else _ObjectPage(_objects(spoken), spoken)
    return _collected(fields, page)


def _collected(fields: Sequence[Field], page: "_TextPage | _ObjectPage") -> Reading:
    values: dict[str, Value] = {}
    unread: list[_Unread] = []
    for field in fields:
        try:
            values[field.key] = page.value(field)
        except _Unread as error:
            unread.append(error)
    if not unread:
        return Reading(values, _shortened(page.reason))
    # What was said, but badly, tells more than what was not said at all.
    worst = next((error for error in unread if error.fault != "no_verdict"), unread[0])
    more = f", and {len(unread) - 1} more" if len(unread) > 1 else ""
    return Reading(values, worst.reason + more, worst.fault)


_END_TOKEN = re.compile(r"(?:<\|\w{1,20}\|>|</s>)\Z")


def _without_end_tokens(text: str) -> str:
    text = text.rstrip()
    while token := _END_TOKEN.search(text, max(0, len(text) - 24)):
        text = text[: token.start()].rstrip()
    return text


def _value(field: Field, raw: object) -> Value:
    value = field.schema.read(raw)
    if value is None:
        shown = f"{field.key} is {str(raw)[:80]!r}, not {field.schema.words}"
        raise _Unread("invalid", shown)
    return value


def _shortened(text: str) -> str:
    text = text.strip().encode("utf-8", "replace").decode()  # JSON can hold lone surrogates
    return text if len(text) <= _MAX_REASON_CHARS else text[: _MAX_REASON_CHARS - 1] + "…"


# Plain text.

_LEAD = r"(?:#{1,6}\s+|[-*+]\s+|\d{1,2}[.)]\s+)?"
_WRAP = r"[*_`\"'“”‘’]*"
_KEY = re.compile(
    rf"{_LEAD}{_WRAP}\s*(?:final\s+)?([a-z][a-z0-9_ -]{{0,50}}?)\s*{_WRAP}\s*", re.IGNORECASE
)
_MAX_KEY_CHARS = 80
_FENCE_LINE = re.compile(r"`{3,}\s*\w*")
_OR = re.compile(r"\||/|\bor\b")


class _TextPage:
    """A reply in plain text, line by line."""

    def __init__(self, text: str, fields: Sequence[Field]) -> None:
        self._text = text
        self._alone = len(fields) == 1
        self._lines = [folded(line) for line in text.splitlines()]
        self._lines = [line for line in self._lines if line and not _FENCE_LINE.fullmatch(line)]
        known = {_normal(field.key): field for field in fields if not field.tagged}
        self._marked: list[tuple[int, str, str]] = []  # line, key, what follows it
        self._echoes: set[int] = set()
        for number, line in enumerate(self._lines):
            key, value = _key_and_value(line)
            if key not in known:
                continue
            # The request's own `Verdict: True|False`, repeated, is not a verdict.
            if _is_echo(value, known[key]):
                self._echoes.add(number)
            else:
                self._marked.append((number, key, value))
        self._verdict_lines = {number for number, _, _ in self._marked} | self._echoes
        self._tagged: str | None = None  # a tag that was read, as it stands

    @property
    def reason(self) -> str:
        """What stands above the verdict, or else below it."""
        if self._tagged is not None:
            return self._text.replace(self._tagged, "")
        first = min(self._verdict_lines)
        above = [line for i, line in enumerate(self._lines) if i < first]
        below = [line for i, line in enumerate(self._lines) if i not in self._verdict_lines]
        return "\n".join(above or below)

    def value(self, field: Field) -> Value:
        return self._tag(field) if field.tagged else self._line(field)

    def _line(self, field: Field) -> Value:
        wanted = _normal(field.key)
        mine = [(number, value) for number, key, value in self._marked if key == wanted]
        if not mine:
            raise _Unread("no_verdict", f"no line begins with '{field.title}:'")
        first = last = mine[-1][0]
        value = mine[-1][1]
        if not value and last + 1 < len(self._lines):
            last += 1
            value = self._lines[last]
            self._verdict_lines.add(last)
        numbers = [i for i in range(len(self._lines)) if i not in self._echoes]
        if self._alone and any(i > last for i in numbers) and any(i < first for i in numbers):
            reason = f"text stands before and after the line with the {field.key}"
            raise _Unread("misplaced", reason)
        return _value(field, value)

    def _tag(self, field: Field) -> Value:
        opening, closing = f"<{field.key}>", f"</{field.key}>"
        text = self._text
        lower = text.lower()
        if len(lower) != len(text):  # some capital letters have small forms of two characters
            text = lower
        end = len(text)
        while True:
            start = lower.rfind(opening, 0, end)
            if start < 0:
                raise _Unread("no_verdict", f"no {opening} in it")
            close = lower.find(closing, start)
            if close < 0:
                raise _Unread("misplaced", f"{opening} is not closed")
            raw = text[start + len(opening) : close]
            if not _is_echo(folded(raw), field):
                break
            end = start
        stop = close + len(closing)
        before, after = (part.replace(field.shown, "") for part in (text[:start], text[stop:]))
        if not (_blank(before) or _blank(after)):
            raise _Unread("misplaced", f"text stands before and after {opening}")
        self._tagged = text[start:stop]
        return _value(field, raw)


def _normal(key: str) -> str:
    return re.sub(r"[\s_-]+", " ", key.strip()).casefold()


def _key_and_value(line: str) -> tuple[str, str]:
    head, colon, value = line.partition(":")
    match = _KEY.fullmatch(head) if colon and len(head) <= _MAX_KEY_CHARS else None
    return (_normal(match[1]), value.strip(WRAPPING)) if match else ("", "")


def _is_echo(value: str, field: Field) -> bool:
    """Whether a value is the choice itself, as the request shows it or in words."""
    if len(value) > 60:
        return False
    words = [word.strip(WRAPPING + "<>[](){}") for word in _OR.split(value.casefold())]
    return words == field.schema.shown.casefold().split("|")


# JSON.

_DECODER = json.JSONDecoder(strict=False)
_BACKTICKS = re.compile(r"`{3,}(?:json)?|`", re.IGNORECASE)


class _ObjectPage:
    """A reply's JSON objects, with their spans in it."""

    def __init__(self, objects: "Sequence[_Span] | Iterator[_Span]", text: str) -> None:
        self._text = text
        self._objects = list(objects)
        self.reason = ""

    def value(self, field: Field) -> Value:
        wanted = _normal(field.key)
        found = [(span, key) for span in self._objects if (key := _key_of(span[2], wanted))]
        if not found:
            raise _Unread("no_verdict", f"no JSON object with the key {field.key!r}")
        (start, end, value), key = found[-1]
        before, after = self._text[:start], self._text[end:]
        if f'"{field.key}"' in after.casefold():
            raise _Unread("misplaced", "a broken object follows the last whole one")
        alone = _blank(before.rpartition("\n")[2]) and _blank(after.partition("\n")[0])
        if not (alone or _blank(before) or _blank(after)):
            raise _Unread("misplaced", "the object stands inside a sentence")
        reason = value.get("reason", "")
        self.reason = reason if isinstance(reason, str) else ""
        return _value(field, value[key])


_Span = tuple[int, int, dict[str, Any]]


def _key_of(value: dict[str, Any], wanted: str) -> str | None:
    return next((key for key in reversed(value) if _normal(key) == wanted), None)


def _blank(text: str) -> bool:
    """Whether a text holds nothing but the marks of a code fence."""
    return not _BACKTICKS.sub("", text).strip(WRAPPING + "\n")


def _whole_object(text: str) -> dict[str, Any] | None:
    """The object that the whole text is, with no thinking or chatter around it."""
    stripped = text.strip().removeprefix("\ufeff")
    decoded = _decode(stripped, 0)
    return decoded[0] if decoded is not None and decoded[1] == len(stripped) else None


def _objects(text: str) -> Iterator[_Span]:
    """The outermost JSON objects in a text, left to right, with their spans."""
    position = text.find("{")
    while position >= 0:
        decoded = _decode(text, position)
        if decoded is None:
            position = text.find("{", position + 1)
            continue
        value, end = decoded
        yield position, end, value
        position = text.find("{", end)


def _decode(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    if not text.startswith("{", start):
        return None
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
