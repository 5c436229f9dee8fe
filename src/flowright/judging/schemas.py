"""Fields of a judge's reply, and the strict answer schema of each.

A value that does not fit its schema is no value, however clear it seems to a reader: a policy
learns to provoke whatever is read too leniently.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowright.grading.text import normalised

Value = bool | int | float | str

WRAPPING = " \t*_`\"'“”‘’"
"""Markdown and quotation marks around a value or a key."""

TOP_GRADE = 4
REASON_CHARS = 200
"""Longest reason in a schema-constrained reply; small models may repeat themselves in a string
until their tokens run out."""
CRITIQUE_CHARS = 800
"""Longest principles there, and longest reason that criticises by them."""


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """``read`` parses a JSON value or text, None if it does not fit. ``shown`` is the choice as
    requests in plain text write it; ``top`` the highest number, 0 for values that are none."""

    read: Callable[[object], Value | None]
    shown: str
    json_schema: Mapping[str, Any]
    top: int = 0

    @property
    def words(self) -> str:
        """The choice in words: ``True or False``."""
        return self.shown.replace("|", " or ")


@dataclass(frozen=True, slots=True)
class Field:
    """One required value of a reply. ``key`` is its name, in JSON and at the start of a line; with
    ``tagged`` the text form is ``<key>value</key>``."""

    key: str
    schema: AnswerSchema
    tagged: bool = False

    def line(self, value: str) -> str:
        """Return the line of text with the value; the request shows ``line(schema.shown)``."""
        if self.tagged:
            return f"<{self.key}>{value}</{self.key}>"
        return f"{self.key.replace('_', ' ').capitalize()}: {value}"


# Ligatures of whole phrases, whose plain forms would be up to 18 times as long.
_PHRASES = {0xFDFA: "\u0635", 0xFDFB: "\u062c", 0x33AF: "/"}


def plain_forms(text: str) -> str:
    """Full-width letters, digits and colons as their plain forms (NFKC)."""
    return normalised("NFKC", text.translate(_PHRASES))


def folded(text: str) -> str:
    """:func:`plain_forms` without the space around."""
    return plain_forms(text).strip()


_LONGEST_VALUE = 200  # characters of what can fit a schema


def _word(value: object) -> str | None:
    if not isinstance(value, str) or len(value) > _LONGEST_VALUE:
        return None
    return folded(value).strip(WRAPPING).rstrip(".!。").strip(WRAPPING).casefold()


def _read_truth(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(_word(value) or "")


_NUMBER = re.compile(r"[+-]?\d{1,3}(?:\.\d{1,6})?", re.ASCII)


def _read_number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1000 and math.isfinite(value) else None
    word = _word(value)
    return float(word) if word is not None and _NUMBER.fullmatch(word) else None


def _read_share(value: object) -> float | None:
    number = _read_number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _read_grade(value: object) -> int | None:
    number = _read_number(value)
    return int(number) if number is not None and number in range(TOP_GRADE + 1) else None


_SIDE = re.compile(r"(?:answer |response )?\(?([ab])\)?")


def _read_better(value: object) -> str | None:
    word = _word(value)
    if word == "tie":
        return word
    side = _SIDE.fullmatch(word or "")
    return side[1].upper() if side else None


TRUTH = AnswerSchema(_read_truth, "True|False", {"type": "boolean"})
# Hundredths, one by one: a menu is what the grammars of servers have in common. Bounds alone let a
# model write digits for ever, and multipleOf is ignored or refused. 0 and 1 as models write them.
# Where a server ignores the menu, any number from 0 to 1 is read.
SHARE = AnswerSchema(
    _read_share,
    "a number from 0 to 1",
    {"type": "number", "enum": [0, *(n / 100 for n in range(1, 100)), 1]},
    top=1,
)
GRADE = AnswerSchema(
    _read_grade, "0|1|2|3|4", {"type": "integer", "enum": [0, 1, 2, 3, TOP_GRADE]}, TOP_GRADE
)
BETTER = AnswerSchema(_read_better, "A|B|tie", {"type": "string", "enum": ["A", "B", "tie"]})


def _read_principles(value: object) -> str | None:
    text = value.strip() if isinstance(value, str) else ""
    return text if 0 < len(text) <= _MOST_PRINCIPLES else None


_MOST_PRINCIPLES = 4000
PRINCIPLES = AnswerSchema(
    _read_principles, "two to five principles, each with its weight in percent", {"type": "string"}
)
"""Principles of ``judge.principles``: text that precedes the reason and decides nothing."""


Fault = Literal["empty", "unclosed_thinking", "no_verdict", "invalid", "misplaced", "conflict"]
"""``misplaced``: it stands where it may be another's, or where what follows may take it back;
``conflict``: the reply contradicts itself."""


@dataclass(frozen=True, slots=True)
class ReadReply:
    """``values`` of the fields that were found in a reply. ``fault``: why another field has none;
    None if none is missing. ``reason``: the judge's explanation, or a description of the fault."""

    values: Mapping[str, Value]
    reason: str
    fault: Fault | None = None


class Unread(Exception):
    """Raised for a field, or a reply, without a usable verdict."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault: Fault = fault
        self.reason = reason


def normal(key: str) -> str:
    """Return a key normalised for case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", " ", key.strip()).casefold()


def value_of(field: Field, raw: object) -> Value:
    """Return ``raw`` as the field's schema reads it. Raises Unread."""
    value = field.schema.read(raw)
    if value is None:
        shown = f"{field.key} is {str(raw)[:80]!r}, not {field.schema.words}"
        raise Unread("invalid", shown)
    return value
