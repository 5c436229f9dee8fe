"""JSON Schemas filled by type: an instance of a schema that was never seen before.

What a server with a grammar would make a model write, of the words that libraries describe types
with; a schema with others is refused by name. What values mean is decided by who asks: each leaf is
offered one first. No validator: schemas that contradict themselves may get what does not fit them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rule = Mapping[str, Any] | bool

Offer = Callable[[str, Rule], Any]
"""From the key of the nearest property and the rule of a leaf to a value for it, fit or not; None
for none."""

_FULL_DEPTH = 4  # below it only what has to be there: schemas may contain themselves
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
    """A schema that this simulated server cannot fill; says why."""


def filled(schema: Rule, offer: Offer) -> Any:
    """An instance of the schema. Raises Unfillable."""
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
        """The rule with one of its alternatives: the first that is not null, or where it is deep
        already one without references."""
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
        """The rule with what its ``$ref`` and ``allOf`` say."""
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
    """The nearest to what is offered, of those that bounds and steps name."""
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
        for said in (text, *(word.strip(".,;:!?") for word in reversed(text.split()))):
            if least <= len(said) <= most and re.search(pattern, said):
                return said
    except re.error as error:
        raise Unfillable(f"pattern {pattern[:60]!r}: {error}") from None
    raise Unfillable(f"pattern {pattern[:60]!r}: no word of the reply matches it; give an enum")
