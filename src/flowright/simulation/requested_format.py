"""The reply format that a prompt requests: fields in words, or a JSON Schema.

Fields are read from the prompt's words. A JSON Schema is filled by type, even an unknown one, with
the keywords that libraries describe types with; others are refused by name. Each leaf is offered a
value first. Schemas are not validated: contradictory ones may get an instance that does not fit.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Rule = Mapping[str, Any] | bool

Offer = Callable[[str, Rule], Any]
"""Maps the key of the nearest property and a leaf's rule to a value, fit or not, or None."""

_FULL_DEPTH = 4  # deeper, only required parts: schemas may contain themselves
_DEEPEST = 40
_MOST = 2000  # values of one instance
_NOTES = ("title", "description", "default", "examples", "$defs", "definitions")
_UNKNOWN = (
    "if", "not", "contains", "dependentRequired", "dependentSchemas", "dependencies",
    "minProperties", "maxProperties", "patternProperties", "propertyNames",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_KINDS = {  # of a rule that names no type
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"),
}
_FORMATS = {
    "date": "2026-01-01", "date-time": "2026-01-01T00:00:00Z", "time": "00:00:00Z",
    "email": "a@example.org", "uri": "https://example.org", "hostname": "example.org",
    "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uuid": "00000000-0000-4000-8000-000000000000",
    "duration": "P1D",
}  # fmt: skip


class Unfillable(Exception):
    """Raised for a schema that this server cannot fill."""


def filled(schema: Rule, offer: Offer) -> Any:
    """Make an instance of the schema. Raises Unfillable."""
    try:
        return _Filler(schema, offer).value(schema, "", 0)
    except RecursionError:
        raise Unfillable("a $ref points to itself") from None
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise Unfillable(f"it is no JSON Schema ({type(error).__name__}: {error})") from None


class _Filler:
    def __init__(self, root: Rule, offer: Offer) -> None:
        self._root = root
        self._offer = offer
        self._made = 0

    def value(self, rule: Rule, key: str, depth: int) -> Any:
        self._made += 1
        if depth > _DEEPEST or self._made > _MOST:
            raise Unfillable("it is too large, or contains itself without end")
        flat = self._chosen(self._flat(rule), depth)
        if "const" in flat:
            return flat["const"]
        offered = self._offer(key, flat)
        if "enum" in flat:
            return _member(flat["enum"], offered)
        words = (kind for kind, names in _KINDS.items() if any(name in flat for name in names))
        kind = flat.get("type") or next(words, None)
        match kind:
            case "object":
                return self._object(flat, depth)
            case "array":
                return self._array(flat, key, depth)
            case "string":
                return _string(flat, offered)
            case "integer" | "number":
                return _number(flat, offered, whole=kind == "integer")
            case "boolean":
                return offered if isinstance(offered, bool) else True
            case "null":
                return None
            case None:
                return offered if offered is not None else ""
            case _:
                raise Unfillable(f"type {str(kind)[:40]}: there is no such type")

    def _chosen(self, flat: dict[str, Any], depth: int) -> dict[str, Any]:
        """Resolve alternatives: the first that is not null, or deep down one without references."""
        for name in ("anyOf", "oneOf"):
            if name in flat:
                is_deep = depth >= _FULL_DEPTH
                options = sorted(
                    flat.pop(name),
                    key=lambda o: "$ref" in str(o) if is_deep else o == {"type": "null"},
                )
                return self._chosen(self._flat({"allOf": [flat, *options[:1]]}), depth)
        if isinstance(flat.get("type"), list):
            flat["type"] = min(flat["type"], key=lambda kind: kind == "null")
        return flat

    def _flat(self, rule: Rule) -> dict[str, Any]:
        """Merge a rule with its ``$ref`` and ``allOf``."""
        if isinstance(rule, bool):
            if not rule:
                raise Unfillable("nothing fits false")
            return {}
        flat = {word: value for word, value in rule.items() if word not in _NOTES}
        parts = flat.pop("allOf", [])
        if (reference := flat.pop("$ref", None)) is not None:
            parts = [self._pointed(reference), *parts]
        for part in parts:
            for word, value in self._flat(part).items():
                if flat.setdefault(word, value) != value:
                    raise Unfillable(f"{word}: given twice, by allOf or beside $ref or anyOf")
        if unknown := [word for word in _UNKNOWN if word in flat]:
            raise Unfillable(f"{unknown[0]}: this simulated server does not know it")
        return flat

    def _pointed(self, reference: str) -> Rule:
        if not reference.startswith("#"):
            raise Unfillable(f"$ref {reference[:60]}: only within the schema, as #/$defs/x")
        found: Any = self._root
        for part in filter(None, reference[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, ValueError, IndexError, TypeError):
                raise Unfillable(f"$ref {reference[:60]}: there is no such part") from None
        return found

    def _object(self, rule: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, required = rule.get("properties", {}), rule.get("required", [])
        others = rule.get("additionalProperties", True)
        return {
            key: self.value(properties.get(key, others), key, depth + 1)
            for key in dict.fromkeys([*properties, *required])
            if key in required or depth < _FULL_DEPTH
        }

    def _array(self, rule: Mapping[str, Any], key: str, depth: int) -> list[Any]:
        first, items = rule.get("prefixItems", []), rule.get("items", True)
        wanted = 1 if depth < _FULL_DEPTH and items is not False else 0
        count = max(rule.get("minItems", 0), len(first), wanted)
        rules = [*first, *[items] * count][: min(count, rule.get("maxItems", count))]
        made = [self.value(inner, key, depth + 1) for inner in rules]
        if rule.get("uniqueItems") and any(v in made[:place] for place, v in enumerate(made)):
            raise Unfillable("uniqueItems: this simulated server has no two values that differ")
        return made


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _member(values: Sequence[Any], offered: Any) -> Any:
    if not values:
        raise Unfillable("an enum is empty")
    if _is_number(offered) and all(map(_is_number, values)):
        return min(values, key=lambda value: abs(value - offered))
    same = (v for v in values if v == offered and isinstance(v, bool) == isinstance(offered, bool))
    return next(same, values[0])


def _number(rule: Mapping[str, Any], offered: Any, whole: bool) -> float:
    """Return the nearest number to the offer within bounds and steps."""
    wanted = offered if _is_number(offered) else 0
    step = rule.get("multipleOf") or (1 if whole else 0)
    beyond = rule.get("exclusiveMinimum", -math.inf), rule.get("exclusiveMaximum", math.inf)
    low = max(rule.get("minimum", -math.inf), beyond[0])
    high = min(rule.get("maximum", math.inf), beyond[1])
    near = [wanted, low, high, (low + high) / 2, low + (step or 1), high - (step or 1)]
    near = [number for number in near if math.isfinite(number)]
    if step:
        near = [turn(n / step) * step for n in near for turn in (math.floor, math.ceil)]
    fits = [number for number in near if low <= number <= high and number not in beyond]
    if not fits:
        raise Unfillable("its bounds hold no number")
    found = min(fits, key=lambda number: abs(number - wanted))
    return int(found) if whole or float(found).is_integer() else found


def _string(rule: Mapping[str, Any], offered: Any) -> str:
    text = _FORMATS.get(rule.get("format", ""), "" if offered is None else str(offered))
    least, most = rule.get("minLength", 0), rule.get("maxLength", len(text))
    if (pattern := rule.get("pattern")) is None:
        return text[:most].ljust(least, ".")
    try:
        for part in (text, *(word.strip(".,;:!?") for word in reversed(text.split()))):
            if least <= len(part) <= most and re.search(pattern, part):
                return part
    except re.error as error:
        raise Unfillable(f"pattern {pattern[:60]!r}: {error}") from None
    raise Unfillable(f"pattern {pattern[:60]!r}: no word of the reply matches it; give an enum")


Schema = Literal["truth", "side", "grade", "share", "choice", "order", "text"]
FieldValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RequestedField:
    """A field of a reply. ``choices`` are those of a list of words; a ``tagged`` one is
    ``<key>...</key>``; a grade or share lies between ``least`` and ``most``."""

    key: str
    schema: Schema
    tagged: bool = False
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = 1


VERDICT = RequestedField("verdict", "truth")
WINNER = RequestedField("verdict", "side")
RANKING = RequestedField("ranking", "order")

_TOP: Mapping[Schema, int] = {"grade": 4}  # the highest value where none is named

# Answer formats as prompts write them.
_SHOWN: Sequence[tuple[re.Pattern[str], Schema]] = (
    (re.compile(r"\W*(?:the )?letters of (?:all|the)\b.{0,60}", re.I), "order"),
    (re.compile(r"\W*true\W+(?:or\W+)?false\W*", re.I), "truth"),
    (re.compile(r"\W*A\W+(?:or\W+)?B(?:\W+(?:or\W+)?(?:tie|C)\b)?\W*"), "side"),
    (re.compile(r"\W*0\W.*\b4\W*", re.S), "grade"),
    (re.compile(r".{0,40}\b0(?:\.0+)?\b.{1,8}\b1(?:\.0+)?\b.{0,20}", re.S), "share"),
    (re.compile(r".{0,20}\bprinciples\b.{0,60}"), "text"),
)
_IN_JSON = re.compile(r'"([\w -]{1,60})"\s*:\s*"?<([^<>]{1,80})>')
_IN_TAGS = re.compile(r"<(\w{1,40})>([^<>]{1,80})</\1>")
_IN_LINES = re.compile(r"^[ \t*]*([A-Za-z][\w -]{0,60}):[ \t]*(\S[^\n]{0,60})$", re.M)


def requested_fields(
    instruction: str, response_format: Mapping[str, Any] | None
) -> list[RequestedField]:
    """Read the fields that a prompt (without its fenced texts) requests in words, possibly none."""
    kind = response_format.get("type") if response_format else None
    if kind == "json_object":
        found = [(key, shown, False) for key, shown in _IN_JSON.findall(instruction)]
    else:
        found = [(key, shown, True) for key, shown in _IN_TAGS.findall(instruction)]
        found += [(key, shown, False) for key, shown in _IN_LINES.findall(instruction)]
    read = [
        RequestedField(key, schema, tag, most=_TOP.get(schema, 1))
        for key, shown, tag in found
        if (schema := _schema(shown))
    ]
    return [*read, RequestedField("reason", "text")] if kind == "json_object" and read else read


def asks_for_json(response_format: Mapping[str, Any] | None) -> bool:
    kind = response_format.get("type") if response_format else None
    return kind in ("json_schema", "json_object")


def schema_of(response_format: Mapping[str, Any] | None) -> Rule | None:
    """Return the JSON Schema in a ``response_format``, or None."""
    wrapper = response_format.get("json_schema") if response_format else None
    schema = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
    return schema if isinstance(schema, Mapping | bool) else None


def _schema(shown: str) -> Schema | None:
    return next((schema for pattern, schema in _SHOWN if pattern.fullmatch(shown)), None)


def field_of_rule(key: str, rule: Rule) -> RequestedField:
    """Return the field that a leaf of a schema stands for."""
    rule = rule if isinstance(rule, Mapping) else {}
    words, kind = rule.get("enum") or (), rule.get("type")
    if words and all(isinstance(item, bool) for item in words):
        return RequestedField(key, "truth")
    numbers = [item for item in words if isinstance(item, int | float)]
    if words and len(numbers) == len(words):
        is_whole = all(isinstance(item, int) for item in numbers)
        shape: Schema = "grade" if is_whole else "share"
        return RequestedField(key, shape, least=min(numbers), most=max(numbers))
    if words:
        return RequestedField(key, "choice", choices=tuple(map(str, words)))
    if kind in ("integer", "number"):
        shape = "grade" if kind == "integer" else "share"
        least = rule.get("minimum", 0)
        return RequestedField(
            key, shape, least=least, most=rule.get("maximum", least + _TOP.get(shape, 1))
        )
    return RequestedField(key, "truth" if kind == "boolean" else "text")


def choice_for(field: RequestedField, verdict: bool | str) -> str:
    """Choose the word of a list that states the verdict: right or wrong, or "A" or "B"."""
    word = str(verdict).lower()
    synonyms = {
        "true": ("true", "yes", "correct"),
        "false": ("false", "no", "incorrect"),
        "a": ("a", "first"),
        "b": ("b", "second"),
    }
    found = [item for item in field.choices if item.lower() in synonyms.get(word, (word,))]
    return found[0] if found else field.choices[0 if verdict in (True, "A") else -1]


def write_reply(
    reason: str,
    values: Mapping[RequestedField, FieldValue],
    response_format: Mapping[str, Any] | None,
) -> str:
    """Write the reply in the requested format."""
    if asks_for_json(response_format):
        return json.dumps({field.key: value for field, value in values.items()})
    lines = [
        f"<{field.key}>{value}</{field.key}>" if field.tagged else f"{_title(field.key)}: {value}"
        for field, value in values.items()
        if field.schema != "text" or field.tagged
    ]
    return "\n".join([reason, *lines])


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()
