"""Whether a value is an instance of a JSON Schema (2020-12), of the keywords that
:mod:`flowright.simulation.instances` fills; a schema with others is refused by name.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

Rule = Mapping[str, Any] | bool

_UNKNOWN = (
    "if", "contains", "dependentRequired", "dependentSchemas", "propertyNames", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
_LONGEST_PATTERN = 500


class Unfillable(Exception):
    """A schema that this simulated server cannot fill; says why."""


def resolved(rule: Rule, root: Rule) -> dict[str, Any]:
    """A rule as a mapping, in the place of a ``$ref`` what that points to. Raises Unfillable."""
    if isinstance(rule, bool):
        return {} if rule else {"enum": []}
    if not isinstance(rule, Mapping):
        raise Unfillable(f"a schema is an object or true or false, not {str(rule)[:60]}")
    seen: set[Any] = set()
    made: dict[str, Any] = dict(rule)
    while (reference := made.pop("$ref", None)) is not None:
        if reference in seen:
            raise Unfillable(f"$ref {reference} points to itself")
        seen.add(reference)
        target = _pointed(reference, root)
        siblings = {k: value for k, value in made.items() if k not in ("$defs", "definitions")}
        made = resolved(target, root) if isinstance(target, bool) else dict(target)
        if siblings:
            made = {"allOf": [made, siblings]}
    if unknown := [word for word in _UNKNOWN if word in made]:
        raise Unfillable(f"{unknown[0]}: this simulated server does not know it")
    return made


def _pointed(reference: object, root: Rule) -> Rule:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise Unfillable(f"$ref {str(reference)[:60]}: only within the schema, as #/$defs/x")
    found: Any = root
    for part in filter(None, reference[1:].split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, ValueError, IndexError, TypeError):
            raise Unfillable(f"$ref {reference[:60]}: there is no such part") from None
    return found


def is_valid(value: Any, rule: Rule, root: Rule) -> bool:
    """Whether the value is what the rule of the schema ``root`` says. Raises Unfillable."""
    found = resolved(rule, root)
    types = found.get("type", [])
    if types and not any(_is_a(value, t) for t in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in found and not any(_same(value, item) for item in found["enum"]):
        return False
    if "const" in found and not _same(value, found["const"]):
        return False
    each = {
        name: [is_valid(value, option, root) for option in found[name]]
        for name in ("allOf", "anyOf", "oneOf")
        if name in found
    }
    if not all(each.get("allOf", [True])) or not any(each.get("anyOf", [True])):
        return False
    if sum(each.get("oneOf", [True])) != 1:
        return False
    if "not" in found and is_valid(value, found["not"], root):
        return False
    if isinstance(value, str):
        return _is_valid_string(value, found)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _is_valid_number(value, found)
    if isinstance(value, list):
        return _is_valid_array(value, found, root)
    return not isinstance(value, dict) or _is_valid_object(value, found, root)


def _is_a(value: Any, name: str) -> bool:
    if name not in _TYPES:
        raise Unfillable(f"type {str(name)[:40]}: there is no such type")
    if isinstance(value, bool) and name != "boolean":
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _is_valid_string(value: str, rule: Mapping[str, Any]) -> bool:
    pattern = rule.get("pattern")
    if pattern is not None:
        if len(pattern) > _LONGEST_PATTERN:
            raise Unfillable(f"pattern: of at most {_LONGEST_PATTERN} characters")
        try:
            if not re.search(pattern, value):
                return False
        except re.error as error:
            raise Unfillable(f"pattern {pattern[:60]!r}: {error}") from None
    return rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", math.inf)


def _is_valid_number(value: float, rule: Mapping[str, Any]) -> bool:
    step = rule.get("multipleOf")
    if step and abs(value / step - round(value / step)) > 1e-9:
        return False
    above, below = rule.get("exclusiveMinimum", -math.inf), rule.get("exclusiveMaximum", math.inf)
    within = rule.get("minimum", -math.inf) <= value <= rule.get("maximum", math.inf)
    return within and above < value < below


def _is_valid_array(value: list[Any], rule: Mapping[str, Any], root: Rule) -> bool:
    first, items = rule.get("prefixItems", []), rule.get("items", True)
    rules = [*first, *[items] * (len(value) - len(first))]
    if rule.get("uniqueItems") and any(v in value[:place] for place, v in enumerate(value)):
        return False
    if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", math.inf):
        return False
    return all(is_valid(item, inner, root) for item, inner in zip(value, rules, strict=False))


def _is_valid_object(value: dict[str, Any], rule: Mapping[str, Any], root: Rule) -> bool:
    properties, patterns = rule.get("properties", {}), rule.get("patternProperties", {})
    others = rule.get("additionalProperties", True)
    if any(key not in value for key in rule.get("required", [])):
        return False
    if not rule.get("minProperties", 0) <= len(value) <= rule.get("maxProperties", math.inf):
        return False
    for key, item in value.items():
        rules = [properties[key]] if key in properties else []
        rules += [inner for pattern, inner in patterns.items() if re.search(pattern, key)]
        if not all(is_valid(item, inner, root) for inner in rules or [others]):
            return False
    return True
