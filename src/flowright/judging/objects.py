"""The JSON objects of a judge's reply, and what they say of a field."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.judging.doubts import (
    is_attributed,
    is_closed,
    is_introduced,
    is_retracted,
    is_verdict,
    require_agreement,
    require_scale,
    require_unanimous,
)
from flowright.judging.reading import Unread, normal, value_of
from flowright.judging.schemas import WRAPPING, Field, Value

MOST_OBJECTS = 64
"""A reply with more openings of objects than this is not read: each may cost a pass over it."""

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object with all its pairs, equal keys included, and its span in the reply."""

    start: int
    end: int
    pairs: Pairs

    def says(self, keys: Collection[str]) -> bool:
        return any(normal(key) in keys for key, _ in self.pairs)


class ObjectPage:
    """A reply's JSON objects. ``enforced``: the server was to hold the whole reply to the schema,
    which it did where there is no more than the reason and then the values."""

    def __init__(self, text: str, fields: Sequence[Field], enforced: bool = False) -> None:
        self._text = text
        keys = [field.key for field in fields]
        self._wanted = {normal(key) for key in keys}
        self._objects = [o for o in _objects(text) if o.says(self._wanted)]
        asked = [["reason", *keys]]
        self._enforced = enforced and [[key for key, _ in o.pairs] for o in self._objects] == asked
        self.reason = ""

    def value(self, field: Field) -> Value:
        """What the reply says of a field. Raises Unread."""
        wanted = normal(field.key)
        said = [(o, v) for o in self._objects for key, v in o.pairs if normal(key) == wanted]
        if not said:
            raise Unread("no_verdict", f"no JSON object with the key {field.key!r}")
        last = said[-1][0]
        value = value_of(field, said[-1][1])
        reason = dict(last.pairs).get("reason", "")
        self.reason = reason if isinstance(reason, str) else ""
        others = [other for o, other in said[:-1] if o is last or not self._is_quoted(o)]
        if any(field.schema.read(other) != value for other in others):
            raise Unread("conflict", f"several objects say different things of {field.key}")
        if not self._enforced:
            self._require_own(field, value, last)
        require_scale(field, value, self.reason)
        return value

    def _is_quoted(self, found: JsonObject) -> bool:
        return is_attributed(self._text[: found.start])

    def _require_own(self, field: Field, value: Value, last: JsonObject) -> None:
        """Raises Unread unless the object is the judge's own and last word."""
        text, objects = self._text, self._objects
        before, after = text[: last.start], text[last.end :]
        following = next((o for o in objects if o.start > last.start), None)
        if following is not None and not _blank(text[last.end : following.start]):
            raise Unread("misplaced", "text stands between the objects")
        if not is_closed(text[objects[-1].end :]):
            raise Unread("misplaced", "text follows the object, and may take it back")
        if not (_blank(before.rpartition("\n")[2]) or _blank(after)):
            raise Unread("misplaced", "the object stands inside a sentence")
        if is_introduced(before):
            raise Unread("misplaced", "the object is quoted, or given under a condition")
        spans = [(o.start, o.end) for o in objects]
        require_unanimous(field, value, text, spans, last.start)
        _require_one_opinion(field, value, last, is_alone=len(self._wanted) == 1)
        # What is written after the verdict may take it back; a reason before it may quote.
        keys = [normal(key) for key, _ in last.pairs]
        later = last.pairs[keys.index(normal(field.key)) + 1 :]
        for key, text in later:
            if isinstance(text, str) and normal(key) not in self._wanted:
                if is_retracted(text):
                    raise Unread("misplaced", f"{key!r} follows the {field.key}, and takes it back")
                require_agreement(field, value, text)


_OF_A_VERDICT = re.compile(r"verdict|correct|right|final(?! answer)|judg|grade|score|better|winner")
_OF_A_SCALE = re.compile(r"\b(?:max|maximum|out of|scale|range|best possible)\b")


def _require_one_opinion(field: Field, value: Value, found: JsonObject, is_alone: bool) -> None:
    """Raises Unread where another key of the object, at whatever depth, says otherwise: a verdict
    inside a verdict, a correction of it, another scale. Where several fields are asked for, other
    keys may be about other things."""
    extra = [(k, v) for k, v in found.pairs if k != "reason" and normal(k) != normal(field.key)]
    for key, other in [*extra, *_inner(found.pairs)]:
        same = normal(key) == normal(field.key)
        if field.schema.top and _OF_A_SCALE.search(normal(key)) and other != field.schema.top:
            raise Unread("conflict", f"{field.key} is {value}, and {key!r} is {other!r}")
        if not same and not (is_verdict(field) or is_alone):
            continue
        said = field.schema.read(other)
        if said is not None and said != value and (same or _OF_A_VERDICT.search(normal(key))):
            raise Unread("conflict", f"{field.key} is {value}, and {key!r} says {other!r}")


def _inner(pairs: Pairs) -> Iterator[tuple[str, Any]]:
    """The pairs of the objects inside the values of an object's pairs."""
    waiting: list[Any] = [value for _, value in pairs]
    while waiting:
        value = waiting.pop()
        if isinstance(value, _Inner):
            yield from value.pairs
            waiting += [inner for _, inner in value.pairs]
        elif isinstance(value, list):
            waiting += value


@dataclass(frozen=True, slots=True)
class _Inner:
    pairs: Pairs


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_Inner)
_BACKTICKS = re.compile(r"`{3,}(?:json)?|`", re.IGNORECASE)
_OPENS = re.compile(r'\{(?=\s{0,200}["}])')


def _blank(text: str) -> bool:
    """Whether a text holds nothing but the marks of a code fence."""
    return not _BACKTICKS.sub("", text).strip(WRAPPING + "\r\n")


def whole_object(text: str) -> Mapping[str, Any] | None:
    """The object that the whole text is, with no thinking or chatter around it."""
    stripped = text.strip().removeprefix("\ufeff")
    decoded = _decode(stripped, 0)
    return dict(decoded[0]) if decoded is not None and decoded[1] == len(stripped) else None


def _objects(text: str) -> Iterator[JsonObject]:
    """The outermost JSON objects in a text, left to right. Raises Unread where too many begin."""
    end = tried = 0
    for opening in _OPENS.finditer(text):
        if opening.start() < end:
            continue
        tried += 1
        if tried > MOST_OBJECTS:
            raise Unread("misplaced", f"more than {MOST_OBJECTS} objects begin in the reply")
        if (decoded := _decode(text, opening.start())) is not None:
            yield JsonObject(opening.start(), decoded[1], decoded[0])
            end = decoded[1]


def _decode(text: str, start: int) -> tuple[Pairs, int] | None:
    if not text.startswith("{", start):
        return None
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return found.pairs, end
