"""One row of a file in the form of OpenJudge's training data, as a typed row; or why it is none.
No file is opened here.

The four forms, by their columns:

- ``sft``: ``messages``;
- ``bradley_terry``: ``chosen`` and ``rejected``, message lists or JSON strings of them; optional
  ``margin``, ``strength``, ``tie``;
- ``pointwise``: ``input``, ``output[0].answer`` with ``label.helpfulness``;
- ``pairwise``: ``input``, ``output[0].answer`` (A) and ``output[1].answer`` (B) with
  ``label.preference``.

Lists may be numpy's, as pandas reads them. Nothing is repaired: text that is not text, an order of
roles that no chat template takes, or a label off its scale make a row unusable.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, get_args

from flowright.data.preferences import Pair, Preferred, Speaker, Turn
from flowright.errors import FlowrightError
from flowright.judge_training.rows import (
    TOP_LABEL,
    Conversation,
    PairRow,
    PointwiseRow,
    Row,
    SftRow,
)

Form = Literal["sft", "bradley_terry", "pointwise", "pairwise"]
FORMS: tuple[Form, ...] = get_args(Form)


class Fault(StrEnum):
    """Why a row cannot be used: a closed list, by which such rows are counted."""

    NOT_A_ROW = "not a row"
    FORM = "form"
    COLUMN = "missing column"
    MESSAGES = "messages"
    ROLES = "roles"
    EMPTY = "empty text"
    CHARACTERS = "characters"
    ANSWERS = "answers"
    LABEL = "label"
    PREFERENCE = "preference"
    MARGIN = "margin"
    CONVERSATIONS = "two conversations"
    SAME_ANSWERS = "same answers"
    OVERLONG = "overlong"
    HELD_OUT = "held out"


class UnusableRow(FlowrightError):
    """A row that cannot be used, and why."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault
        self.why = why


def form_of(values: Mapping[str, Any], forms: Sequence[Form]) -> Form:
    """Which of the forms a row has. Raises UnusableRow where it has none of them."""
    if len(forms) == 1:
        return forms[0]
    if values.get("chosen") is not None:
        found: Form = "bradley_terry"
    elif values.get("output") is None:
        found = "sft"
    else:
        found = "pairwise" if len(_items(values["output"], "output")) > 1 else "pointwise"
    if found not in forms:
        has = ", ".join(map(str, values)) or "nothing"
        raise UnusableRow(Fault.FORM, f"none of the forms {', '.join(forms)}: it has {has}")
    return found


def typed(form: Form, values: Mapping[str, Any], id: str, source: str) -> Row:
    """The row that the columns hold. ``source`` is what it is from where no column says so. Raises
    UnusableRow."""
    given = values.get("source")
    return _TYPED[form](values, id, given if isinstance(given, str) and given else source)


def _sft(values: Mapping[str, Any], id: str, source: str) -> SftRow:
    return SftRow(_turns(_column(values, "messages"), "messages", "assistant"), source, id)


def _bradley_terry(values: Mapping[str, Any], id: str, source: str) -> PairRow:
    chosen, rejected = (
        _turns(_decoded(_column(values, name), name), name, "assistant")
        for name in ("chosen", "rejected")
    )
    if chosen[:-1] != rejected[:-1]:
        raise UnusableRow(Fault.CONVERSATIONS, "chosen and rejected answer different conversations")
    given = _plain(values.get("tie"))
    if not isinstance(given, bool | None):
        raise UnusableRow(Fault.PREFERENCE, f"tie is {_short(given)}, not true or false")
    strength, margin = (_magnitude(values.get(name), name) for name in ("strength", "margin"))
    tie = bool(given) or strength == 0
    answers = chosen[-1].content, rejected[-1].content
    _require_difference(*answers, tie, "chosen and rejected")
    margin = strength if margin is None else margin
    return PairRow(chosen[:-1], *answers, tie, margin, source, id)


def _pointwise(values: Mapping[str, Any], id: str, source: str) -> PointwiseRow:
    conversation = _turns(_column(values, "input"), "input", "user")
    outputs = _items(_column(values, "output"), "output")
    if len(outputs) != 1:
        raise UnusableRow(Fault.ANSWERS, f"output holds {len(outputs)} answers, not one")
    answer, label = _answer(outputs[0], "output[0]")
    return PointwiseRow(conversation, answer, _grade(label.get("helpfulness")), source, id)


def _pairwise(values: Mapping[str, Any], id: str, source: str) -> Pair:
    conversation = _turns(_column(values, "input"), "input", "user")
    outputs = _items(_column(values, "output"), "output")
    if len(outputs) != 2:
        raise UnusableRow(Fault.ANSWERS, f"output holds {len(outputs)} answers, not two")
    (first, of_first), (second, of_second) = (
        _answer(output, f"output[{n}]") for n, output in enumerate(outputs)
    )
    for n, (label, name) in enumerate(((of_first, "A"), (of_second, "B"))):
        if label.get("response_id") not in (None, name):
            said = _short(label["response_id"])
            raise UnusableRow(Fault.PREFERENCE, f"output[{n}] is {name}, its response_id {said}")
    said = [_preference(label) for label in (of_first, of_second)]
    named = [preferred for preferred in said if preferred is not None]
    if not named:
        raise UnusableRow(Fault.PREFERENCE, "neither answer's label has a preference")
    if len({*named}) > 1:
        raise UnusableRow(Fault.PREFERENCE, "the labels of the two answers disagree")
    label, preferred = (of_first if said[0] is not None else of_second), named[0]
    strength = _number(label.get("preference_strength"), "preference_strength")
    _require_difference(first, second, preferred == "tie", "A and B")
    return Pair(
        id=id,
        source=source,
        conversation=conversation,
        first=first,
        second=second,
        label=preferred,
        # Of a signed one the sign names the preferred answer, which the preference does already.
        strength=None if strength is None else abs(strength),
    )


_TYPED: Mapping[Form, Callable[[Mapping[str, Any], str, str], Row]] = {
    "sft": _sft,
    "bradley_terry": _bradley_terry,
    "pointwise": _pointwise,
    "pairwise": _pairwise,
}


# Labels.

_PREFERENCES: Mapping[str, Preferred] = {"a": "first", "b": "second", "tie": "tie"}


def _preference(label: Mapping[str, Any]) -> Preferred | None:
    given = label.get("preference")
    if given is None:
        return None
    found = _PREFERENCES.get(given.strip().casefold()) if isinstance(given, str) else None
    if found is None:
        raise UnusableRow(Fault.PREFERENCE, f"preference is {_short(given)}, not A, B or tie")
    return found


def _grade(given: object) -> int:
    number = _plain(given)
    if isinstance(number, int | float) and not isinstance(number, bool):
        if number in range(TOP_LABEL + 1):
            return int(number)
    said = "missing" if number is None else _short(number)
    raise UnusableRow(
        Fault.LABEL, f"helpfulness is {said}, not a whole number from 0 to {TOP_LABEL}"
    )


def _number(given: object, name: str) -> float | None:
    number = _plain(given)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UnusableRow(Fault.MARGIN, f"{name} is {_short(number)}, not a number")
    if not math.isfinite(number):
        raise UnusableRow(Fault.MARGIN, f"{name} is {number}; leave it out where it is not known")
    return float(number)


def _magnitude(given: object, name: str) -> float | None:
    number = _number(given, name)
    if number is not None and number < 0:
        raise UnusableRow(
            Fault.MARGIN, f"{name} is {number:g}, which calls the rejected answer the better one"
        )
    return number


def _require_difference(one: str, other: str, tie: bool, called: str) -> None:
    if one == other and not tie:
        raise UnusableRow(Fault.SAME_ANSWERS, f"{called} are the same answer, and it is no tie")


# Messages.


def _answer(output: object, where: str) -> tuple[str, Mapping[str, Any]]:
    """An answer's text and its label, which may be empty."""
    answer = output.get("answer") if isinstance(output, Mapping) else None
    if not isinstance(answer, Mapping):
        raise UnusableRow(Fault.ANSWERS, f"{where} has no answer")
    if answer.get("role") not in (None, "assistant"):
        said = _short(answer["role"])
        raise UnusableRow(Fault.ROLES, f"{where}.answer is of {said}, not of the assistant")
    label = answer.get("label")
    if not isinstance(label, Mapping | None):
        raise UnusableRow(Fault.LABEL, f"{where}.answer.label is {_short(label)}, not an object")
    return _text(answer.get("content"), f"{where}.answer"), label or {}


def _turns(given: object, column: str, ends: Speaker) -> Conversation:
    messages = _items(given, column)
    turns = tuple(_turn(message, f"{column}[{n}]") for n, message in enumerate(messages))
    spoken = [turn.role for turn in turns]
    if spoken[:1] == ["system"]:
        spoken = spoken[1:]
    wanted = ["user", "assistant"] * (len(spoken) // 2 + 1)
    if spoken != wanted[: len(spoken)]:
        raise UnusableRow(
            Fault.ROLES,
            f"{column}: the roles are {_short(' '.join(turn.role for turn in turns))}; after an "
            "optional system message user and assistant take turns",
        )
    if not spoken or spoken[-1] != ends:
        raise UnusableRow(Fault.ROLES, f"{column} does not end with a message of the {ends}")
    return turns


def _turn(message: object, where: str) -> Turn:
    if not isinstance(message, Mapping):
        raise UnusableRow(Fault.MESSAGES, f"{where} is {_short(message)}, not a message")
    role = message.get("role")
    if not isinstance(role, str) or role not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise UnusableRow(Fault.ROLES, f"{where}: role {_short(role)} is not one of {known}")
    content = message.get("content")
    if role == "system" and isinstance(content, str) and not content:
        return Turn("system", "")
    return Turn(_SPEAKERS[role], _text(content, where))


_SPEAKERS: Mapping[str, Speaker] = {role: role for role in get_args(Speaker)}
_BROKEN = re.compile("[\x00\ud800-\udfff]")


def _text(content: object, where: str) -> str:
    if not isinstance(content, str):
        said = "missing" if content is None else f"{_short(content)}, not text"
        raise UnusableRow(Fault.MESSAGES, f"{where}: content is {said}")
    if not content.strip():
        raise UnusableRow(Fault.EMPTY, f"{where}: the text is empty")
    if broken := _BROKEN.search(content):
        what = "NUL" if broken[0] == "\x00" else "half of a surrogate pair"
        raise UnusableRow(
            Fault.CHARACTERS, f"{where}: {what} at character {broken.start() + 1} of the text"
        )
    return content


# Values.


def _column(values: Mapping[str, Any], name: str) -> object:
    value = values.get(name)
    if value is None:
        has = ", ".join(map(str, values)) or "nothing"
        raise UnusableRow(Fault.COLUMN, f"no {name}; the row has {_short(has)}")
    return value


def _decoded(value: object, name: str) -> object:
    """A column that may be a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "too long or too deep"
        raise UnusableRow(Fault.MESSAGES, f"{name} is a string that is not JSON: {why}") from None


def _items(value: object, name: str) -> list[Any]:
    items = _plain(value)
    if not isinstance(items, list | tuple):
        raise UnusableRow(Fault.MESSAGES, f"{name} is {_short(items)}, not a list")
    return list(items)


def _plain(value: object) -> object:
    """Numpy's arrays and numbers as Python's; what pandas writes for nothing as None."""
    if not isinstance(value, str | int | float | list | tuple | Mapping):
        listed = getattr(value, "tolist", None)
        value = listed() if callable(listed) else value
    return None if isinstance(value, float) and math.isnan(value) else value


def _short(value: object) -> str:
    """A value of a file for a message of one line."""
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = value if isinstance(value, str) else repr(value)
    line = " ".join(text[:200].encode("utf-8", "backslashreplace").decode().split())
    return f"{line[:60]}..." if len(line) > 60 else line or "empty"
