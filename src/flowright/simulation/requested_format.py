"""What a judge's prompt wants said, and in which form: the keys of the reply and the menu of each.

They are read from the JSON Schema where one is sent, else from the words of the prompt. What is
said for them is :mod:`flowright.simulation.assessor`'s.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Menu = Literal["truth", "side", "grade", "share", "choice", "text"]
Said = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Wish:
    """``choices`` are those of a menu that is a list of words; ``tagged``: ``<key>...</key>``."""

    key: str
    menu: Menu
    tagged: bool = False
    choices: tuple[str, ...] = ()


VERDICT = Wish("verdict", "truth")
WINNER = Wish("verdict", "side")

# Menus as prompts write them.
_MENUS: Sequence[tuple[re.Pattern[str], Menu]] = (
    (re.compile(r"\W*true\W+(?:or\W+)?false\W*", re.I), "truth"),
    (re.compile(r"\W*A\W+(?:or\W+)?B(?:\W+(?:or\W+)?(?:tie|C)\b)?\W*"), "side"),
    (re.compile(r"\W*0\W.*\b4\W*", re.S), "grade"),
    (re.compile(r".{0,40}\b0(?:\.0+)?\b.{1,8}\b1(?:\.0+)?\b.{0,20}", re.S), "share"),
)
_IN_JSON = re.compile(r'"([\w -]{1,60})"\s*:\s*<([^<>]{1,80})>')
_IN_TAGS = re.compile(r"<(\w{1,40})>([^<>]{1,80})</\1>")
_IN_LINES = re.compile(r"^[ \t*]*([A-Za-z][\w -]{0,60}):[ \t]*(\S[^\n]{0,60})$", re.M)


def wishes(said: str, form: Mapping[str, Any] | None) -> list[Wish]:
    """What a prompt that says this wants; empty where it does not tell.

    ``said`` is the prompt without the texts that it hands over, ``form`` the ``response_format``.
    """
    kind = form.get("type") if form else None
    if kind == "json_schema":
        properties = schema_properties(form) or {}
        return [_by_rule(str(key), rule) for key, rule in properties.items()]
    if kind == "json_object":
        found = [(key, menu, False) for key, menu in _IN_JSON.findall(said)]
    else:
        found = [(key, menu, True) for key, menu in _IN_TAGS.findall(said)]
        found += [(key, menu, False) for key, menu in _IN_LINES.findall(said)]
    read = [Wish(key, menu, tag) for key, shown, tag in found if (menu := _menu(shown))]
    return [*read, Wish("reason", "text")] if kind == "json_object" and read else read


def schema_properties(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The properties of the JSON Schema in a ``response_format``, if there is one."""
    wrapper = form.get("json_schema") if form else None
    schema = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else None


def _menu(shown: str) -> Menu | None:
    return next((menu for pattern, menu in _MENUS if pattern.fullmatch(shown)), None)


def _by_rule(key: str, rule: Any) -> Wish:
    """What a property of a schema stands for."""
    rule = rule if isinstance(rule, Mapping) else {}
    menu = rule.get("enum")
    if isinstance(menu, list) and menu:
        if all(isinstance(item, int) for item in menu):
            return Wish(key, "grade")
        return Wish(key, "choice", choices=tuple(map(str, menu)))
    match rule.get("type"):
        case "boolean":
            return Wish(key, "truth")
        case "integer":
            return Wish(key, "grade")
        case "number":
            return Wish(key, "share")
        case _:
            return Wish(key, "text")


def chosen(wish: Wish, verdict: bool | str) -> str:
    """The word of a menu that says the verdict: right or wrong, or "A" or "B"."""
    word = str(verdict).lower()
    synonyms = {
        "true": ("true", "yes", "correct"),
        "false": ("false", "no", "incorrect"),
        "a": ("a", "first"),
        "b": ("b", "second"),
    }
    found = [item for item in wish.choices if item.lower() in synonyms.get(word, (word,))]
    return found[0] if found else wish.choices[0 if verdict in (True, "A") else -1]


def worded(reason: str, said: Mapping[Wish, Said], form: Mapping[str, Any] | None) -> str:
    """The reply in the form that was asked for."""
    kind = form.get("type") if form else None
    if kind in ("json_schema", "json_object"):
        return json.dumps({wish.key: value for wish, value in said.items()})
    lines = [
        f"<{wish.key}>{value}</{wish.key}>" if wish.tagged else f"{_title(wish.key)}: {value}"
        for wish, value in said.items()
        if wish.menu != "text"
    ]
    return "\n".join([reason, *lines])


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()
