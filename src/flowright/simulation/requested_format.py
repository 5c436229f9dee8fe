"""The format that a judge's prompt requests: the fields of the reply and the answer schema of each.

They are read from the JSON Schema where one is sent, else from the words of the prompt. What is
said for them is :mod:`flowright.simulation.assessor`'s.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowright.simulation.instances import Rule

Schema = Literal["truth", "side", "grade", "share", "choice", "text"]
Said = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RequestedField:
    """``choices`` are those of a schema that is a list of words; ``tagged``: ``<key>...</key>``.
    A grade or share lies between ``least`` and ``most``."""

    key: str
    schema: Schema
    tagged: bool = False
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = 1


VERDICT = RequestedField("verdict", "truth")
WINNER = RequestedField("verdict", "side")

_TOP: Mapping[Schema, int] = {"grade": 4}  # the highest value where none is named

# Answer schemas as prompts write them.
_SHOWN: Sequence[tuple[re.Pattern[str], Schema]] = (
    (re.compile(r"\W*true\W+(?:or\W+)?false\W*", re.I), "truth"),
    (re.compile(r"\W*A\W+(?:or\W+)?B(?:\W+(?:or\W+)?(?:tie|C)\b)?\W*"), "side"),
    (re.compile(r"\W*0\W.*\b4\W*", re.S), "grade"),
    (re.compile(r".{0,40}\b0(?:\.0+)?\b.{1,8}\b1(?:\.0+)?\b.{0,20}", re.S), "share"),
)
_IN_JSON = re.compile(r'"([\w -]{1,60})"\s*:\s*<([^<>]{1,80})>')
_IN_TAGS = re.compile(r"<(\w{1,40})>([^<>]{1,80})</\1>")
_IN_LINES = re.compile(r"^[ \t*]*([A-Za-z][\w -]{0,60}):[ \t]*(\S[^\n]{0,60})$", re.M)


def requested_fields(said: str, response_format: Mapping[str, Any] | None) -> list[RequestedField]:
    """The fields that a prompt that says this requests; empty where it does not tell.

    ``said`` is the prompt without the texts that it hands over. What a JSON Schema requests is
    :func:`by_rule`'s.
    """
    kind = response_format.get("type") if response_format else None
    if kind == "json_object":
        found = [(key, shown, False) for key, shown in _IN_JSON.findall(said)]
    else:
        found = [(key, shown, True) for key, shown in _IN_TAGS.findall(said)]
        found += [(key, shown, False) for key, shown in _IN_LINES.findall(said)]
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
    """The JSON Schema in a ``response_format``, if there is one."""
    wrapper = response_format.get("json_schema") if response_format else None
    schema = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
    return schema if isinstance(schema, Mapping | bool) else None


def _schema(shown: str) -> Schema | None:
    return next((schema for pattern, schema in _SHOWN if pattern.fullmatch(shown)), None)


def by_rule(key: str, rule: Rule) -> RequestedField:
    """What a leaf of a schema stands for."""
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


def chosen(field: RequestedField, verdict: bool | str) -> str:
    """The word of a list that says the verdict: right or wrong, or "A" or "B"."""
    word = str(verdict).lower()
    synonyms = {
        "true": ("true", "yes", "correct"),
        "false": ("false", "no", "incorrect"),
        "a": ("a", "first"),
        "b": ("b", "second"),
    }
    found = [item for item in field.choices if item.lower() in synonyms.get(word, (word,))]
    return found[0] if found else field.choices[0 if verdict in (True, "A") else -1]


def worded(
    reason: str, said: Mapping[RequestedField, Said], response_format: Mapping[str, Any] | None
) -> str:
    """The reply in the format that was requested."""
    if asks_for_json(response_format):
        return json.dumps({field.key: value for field, value in said.items()})
    lines = [
        f"<{field.key}>{value}</{field.key}>" if field.tagged else f"{_title(field.key)}: {value}"
        for field, value in said.items()
        if field.schema != "text"
    ]
    return "\n".join([reason, *lines])


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()
