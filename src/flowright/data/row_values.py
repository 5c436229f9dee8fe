"""The values that a row of a file holds, as they are read out of it: messages, texts, numbers. What
they are for is known to who reads the rows (:mod:`flowright.environments.judging.forms`,
:mod:`flowright.criteria.rubrics.rows`).

Lists may be numpy's, as pandas reads them. Nothing is repaired.
"""

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, get_args

from flowright.core.errors import FlowrightError
from flowright.data.preferences import Conversation, Speaker, Turn


class Fault(StrEnum):
    """Why a row cannot be used: a closed list, by which such rows are counted."""

    NOT_A_ROW = "not a row"
    FORM = "form"
    COLUMN = "missing column"
    MESSAGES = "messages"
    ROLES = "roles"
    EMPTY = "empty text"
    CHARACTERS = "characters"
    SOURCE = "source"
    ANSWERS = "answers"
    LABEL = "label"
    PREFERENCE = "preference"
    MARGIN = "margin"
    CONVERSATIONS = "two conversations"
    SAME_ANSWERS = "same answers"
    RUBRIC = "rubric"
    POINTS = "points"
    RULE = "rule"
    CHECKERS = "checkers"
    OVERLONG = "overlong"
    TEMPLATE = "chat template"
    HELD_OUT = "held out"
    BENCHMARK = "benchmark"


class UnusableRow(FlowrightError):
    """A row that cannot be used, and why."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault
        self.why = why


# Messages.


def turns_of(given: object, column: str, ends: Speaker) -> Conversation:
    messages = items_of(given, column)
    turns = tuple(_turn(message, f"{column}[{n}]") for n, message in enumerate(messages))
    spoken = [turn.role for turn in turns]
    if spoken[:1] == ["system"]:
        spoken = spoken[1:]
    wanted = ["user", "assistant"] * (len(spoken) // 2 + 1)
    if spoken != wanted[: len(spoken)]:
        raise UnusableRow(
            Fault.ROLES,
            f"{column}: the roles are {short(' '.join(turn.role for turn in turns))}; after an "
            "optional system message user and assistant take turns",
        )
    if not spoken or spoken[-1] != ends:
        raise UnusableRow(Fault.ROLES, f"{column} does not end with a message of the {ends}")
    return turns


def _turn(message: object, where: str) -> Turn:
    if not isinstance(message, Mapping):
        raise UnusableRow(Fault.MESSAGES, f"{where} is {short(message)}, not a message")
    role = message.get("role")
    if not isinstance(role, str) or role not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise UnusableRow(Fault.ROLES, f"{where}: role {short(role)} is not one of {known}")
    content = message.get("content")
    if role == "system" and isinstance(content, str) and not content:
        return Turn("system", "")
    return Turn(_SPEAKERS[role], text_of(content, where))


_SPEAKERS: Mapping[str, Speaker] = {role: role for role in get_args(Speaker)}
_BROKEN = re.compile("[\x00\ud800-\udfff]")
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})  # white space, and signs without a width


def text_of(content: object, where: str) -> str:
    if not isinstance(content, str):
        said = "missing" if content is None else f"{short(content)}, not text"
        raise UnusableRow(Fault.MESSAGES, f"{where}: content is {said}")
    _require_whole(content, where)
    if not any(unicodedata.category(sign) not in _UNSEEN for sign in content):
        raise UnusableRow(Fault.EMPTY, f"{where}: the text is empty")
    return content


def source_of(given: object, otherwise: str) -> str:
    """What a row says it is from; ``otherwise`` where it says nothing."""
    if given is None or given == "":
        return otherwise
    if not isinstance(given, str):
        raise UnusableRow(Fault.SOURCE, f"source is {short(given)}, not text")
    _require_whole(given, "source")
    return given


def _require_whole(text: str, where: str) -> None:
    if broken := _BROKEN.search(text):
        what = "NUL" if broken[0] == "\x00" else "half of a surrogate pair"
        raise UnusableRow(
            Fault.CHARACTERS, f"{where}: {what} at character {broken.start() + 1} of the text"
        )


# Values.


def column(values: Mapping[str, Any], name: str) -> object:
    value = values.get(name)
    if value is None:
        if name in values:
            raise UnusableRow(Fault.COLUMN, f"{name} is null")
        has = ", ".join(map(str, values)) or "nothing"
        raise UnusableRow(Fault.COLUMN, f"no {name}; the row has {short(has)}")
    return value


def decoded(value: object, name: str) -> object:
    """A column that may be a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "too long or too deep"
        raise UnusableRow(Fault.MESSAGES, f"{name} is a string that is not JSON: {why}") from None


def items_of(value: object, name: str) -> list[Any]:
    items = plain(value)
    if not isinstance(items, list | tuple):
        raise UnusableRow(Fault.MESSAGES, f"{name} is {short(items)}, not a list")
    return list(items)


def plain(value: object) -> object:
    """Numpy's arrays and numbers as Python's; what pandas writes for nothing as None."""
    if not isinstance(value, str | int | float | list | tuple | Mapping):
        listed = getattr(value, "tolist", None)
        value = listed() if callable(listed) else value
    return None if isinstance(value, float) and math.isnan(value) else value


def short(value: object) -> str:
    """A value of a file for a message of one line."""
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = value if isinstance(value, str) else repr(value)
    line = " ".join(text[:200].encode("utf-8", "backslashreplace").decode().split())
    return f"{line[:60]}..." if len(line) > 60 else line or "empty"


def number_of(given: object, name: str) -> float | None:
    number = plain(given)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UnusableRow(Fault.MARGIN, f"{name} is {short(number)}, not a number")
    if not abs(number) <= _LARGEST:
        why = f"{name} is {short(number)}, not a number of at most {_LARGEST:,}"
        raise UnusableRow(Fault.MARGIN, f"{why}; leave it out where it is not known")
    return float(number)


_LARGEST = 1_000_000  # of a difference of scores; one that is larger leaves float32 in the loss
