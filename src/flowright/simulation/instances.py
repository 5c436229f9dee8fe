"""JSON Schemas filled by type: an instance of a schema that was never seen before.

What a server with a grammar would make a model write, of the keywords of JSON Schema 2020-12 that
say what a value is; what is made is checked by :mod:`flowright.simulation.validity`. What values
mean is decided by who asks: each leaf is offered one first.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flowright.simulation.patterns import matching
from flowright.simulation.validity import Rule, Unfillable, is_valid, resolved

Offer = Callable[[str, Rule], Any]
"""From the key of the nearest property and the rule of a leaf to a value for it, fit or not; None
for none."""

_FULL_DEPTH = 4  # below it only what has to be there: schemas may contain themselves
_DEEPEST = 40
_MOST = 2000  # values that are made, those that did not fit included
_FORMATS = {
    "date": "2026-01-01", "date-time": "2026-01-01T00:00:00Z", "time": "00:00:00Z",
    "email": "a@example.org", "uri": "https://example.org", "hostname": "example.org",
    "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uuid": "00000000-0000-4000-8000-000000000000",
    "duration": "P1D",
}  # fmt: skip
_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def filled(schema: Rule, offer: Offer) -> Any:
    """An instance of the schema. Raises Unfillable."""
    try:
        return _Filler(schema, offer).value(schema, "", 0)
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
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
        failure = Unfillable("nothing fits it")
        for choice in self._choices(rule, depth):
            try:
                made = self._of_one(choice, key, depth)
            except Unfillable as error:
                failure = error
                continue
            if is_valid(made, rule, self._root):
                return made
        raise failure

    def _choices(self, rule: Rule, depth: int) -> Iterator[dict[str, Any]]:
        """The rules without ``$ref``, ``allOf``, ``anyOf`` and several types that it stands for,
        null last; where it is deep already those without references first."""
        flat = self._flat(rule)
        for name in ("anyOf", "oneOf"):
            if name in flat:
                options = list(flat.pop(name))
                is_deep = depth >= _FULL_DEPTH
                options.sort(key=lambda o: "$ref" in str(o) if is_deep else o == {"type": "null"})
                for option in options:
                    yield from self._choices(_both(flat, self._flat(option)), depth)
                return
        types = flat.get("type")
        if isinstance(types, list):
            for one in sorted(types, key=lambda name: name == "null"):
                yield {**flat, "type": one}
        else:
            yield flat

    def _flat(self, rule: Rule) -> dict[str, Any]:
        flat = resolved(rule, self._root)
        for other in flat.pop("allOf", []):
            flat = _both(flat, self._flat(other))
        return flat

    def _of_one(self, rule: dict[str, Any], key: str, depth: int) -> Any:
        if "const" in rule:
            return rule["const"]
        offered = self._offer(key, rule)
        if "enum" in rule:
            return _chosen(rule["enum"], offered)
        kind = rule.get("type") or _kind_of(rule)
        match kind:
            case "object":
                return self._object(rule, depth)
            case "array":
                return self._array(rule, key, depth)
            case "string":
                return _string(rule, offered)
            case "integer" | "number":
                return _number(rule, offered, whole=kind == "integer")
            case "boolean":
                return offered if isinstance(offered, bool) else True
            case "null":
                return None
            case _:
                return offered if offered is not None else ""

    def _object(self, rule: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = rule.get("properties", {}), rule.get("required", [])
        most = rule.get("maxProperties", math.inf)
        others = rule.get("additionalProperties", True)
        made: dict[str, Any] = {}
        for key, inner in properties.items():
            left_out = sum(name not in made for name in required if name != key)
            if key in required:
                made[key] = self.value(inner, key, depth + 1)
            elif depth < _FULL_DEPTH and len(made) + left_out < most:
                with suppress(Unfillable):
                    made[key] = self.value(inner, key, depth + 1)
        fresh = (f"key{number}" for number in range(rule.get("minProperties", 0)))
        for key in (*required, *fresh):
            if key not in made and (key in required or len(made) < rule["minProperties"]):
                made[key] = self.value(others, key, depth + 1)
        return made

    def _array(self, rule: dict[str, Any], key: str, depth: int) -> list[Any]:
        first, items = rule.get("prefixItems", []), rule.get("items", True)
        wanted = 1 if depth < _FULL_DEPTH and items is not False else 0
        count = max(rule.get("minItems", 0), len(first), wanted)
        count = min(count, rule.get("maxItems", count))
        made: list[Any] = []
        for place in range(count):
            inner = first[place] if place < len(first) else items
            try:
                value = self.value(inner, key, depth + 1)
            except Unfillable:
                if place >= rule.get("minItems", 0):
                    break
                raise
            if rule.get("uniqueItems") and value in made:
                value = next((v for v in _others(value, self._flat(inner)) if v not in made), value)
            made.append(value)
        return made


def _both(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The rule that says what both say."""
    made = {**one, **other}
    for name in one.keys() & other.keys():
        a, b = one[name], other[name]
        if name == "properties":
            made[name] = a | b | {key: {"allOf": [a[key], b[key]]} for key in a.keys() & b.keys()}
        elif name == "required":
            made[name] = list(dict.fromkeys([*a, *b]))
        elif name == "enum":
            made[name] = [value for value in a if value in b]
        elif name == "type" and isinstance(a, list):
            made[name] = [kind for kind in a if kind == b or kind in b]
        elif name == "type" and isinstance(b, list):
            made[name] = a
        elif name in ("anyOf", "oneOf"):
            made[name] = [{"allOf": [x, y]} for x in a for y in b]
        elif name in _LARGEST or name in _SMALLEST:
            made[name] = max(a, b) if name in _LARGEST else min(a, b)
    return made


def _kind_of(rule: Rule) -> str:
    """The type of a rule that names none, by its other words."""
    words = {
        "object": ("properties", "required", "additionalProperties", "minProperties"),
        "array": ("items", "prefixItems", "minItems"),
        "string": ("pattern", "minLength", "maxLength", "format"),
        "number": ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"),
    }
    assert isinstance(rule, Mapping)
    return next((kind for kind, names in words.items() if any(n in rule for n in names)), "any")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _chosen(values: Sequence[Any], offered: Any) -> Any:
    if not values:
        raise Unfillable("an enum is empty")
    if _is_number(offered) and all(map(_is_number, values)):
        return min(values, key=lambda value: abs(value - offered))
    same = (v for v in values if v == offered and isinstance(v, bool) == isinstance(offered, bool))
    return next(same, values[0])


def _number(rule: Rule, offered: Any, whole: bool) -> float:
    assert isinstance(rule, Mapping)
    step = rule.get("multipleOf") or (1 if whole else 0)
    low, high = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    nudge = step or 1e-3
    if (above := rule.get("exclusiveMinimum")) is not None:
        low = max(low, above + min(nudge, (high - above) / 2) if not step else above + 1e-9)
    if (below := rule.get("exclusiveMaximum")) is not None:
        high = min(high, below - min(nudge, (below - low) / 2) if not step else below - 1e-9)
    value = min(max(offered if _is_number(offered) else 0, low), high)
    if step:
        places = (math.floor(value / step), math.ceil(value / step), math.ceil(low / step)
                  if math.isfinite(low) else 0)  # fmt: skip
        fits = [place * step for place in places if low <= place * step <= high]
        if not fits:
            raise Unfillable("its bounds hold no number")
        value = min(fits, key=lambda fit: abs(fit - value))
    return int(value) if whole or float(value).is_integer() else value


def _string(rule: Rule, offered: Any) -> str:
    assert isinstance(rule, Mapping)
    text = offered if isinstance(offered, str) else "" if offered is None else str(offered)
    text = _FORMATS.get(rule.get("format", ""), text)
    if (pattern := rule.get("pattern")) is not None and not is_valid(text, rule, rule):
        text = matching(pattern)
        least = rule.get("minLength", 0)
        return text if len(text) >= least else matching(pattern, least - len(text))
    return text[: rule.get("maxLength", len(text))].ljust(rule.get("minLength", 0), ".")


def _others(value: Any, rule: Mapping[str, Any]) -> Iterator[Any]:
    """Other values like this one."""
    yield from rule.get("enum", [])
    if isinstance(value, bool):
        yield not value
    for number in range(1, 200):
        if _is_number(value):
            for sign in (1, -1):
                other = value + sign * number * rule.get("multipleOf", 1)
                if is_valid(other, rule, rule):
                    yield other
        elif isinstance(value, str):
            for other in (f"{value}{number}", f"{value[: -len(str(number))]}{number}"):
                if is_valid(other, rule, rule):
                    yield other
