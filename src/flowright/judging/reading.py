"""What was read of a judge's reply, and why something was not. No reading here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowright.judging.schemas import Field, Value

Fault = Literal["empty", "unclosed_thinking", "no_verdict", "invalid", "misplaced", "conflict"]
"""``misplaced``: it stands where it may be another's, or where what follows may take it back;
``conflict``: the reply also says something else."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply says: the ``values`` of the fields that it has. ``fault`` is why another field
    has none, and None when none is missing. ``reason`` is the judge's own explanation, or a
    description of the fault."""

    values: Mapping[str, Value]
    reason: str
    fault: Fault | None = None


class Unread(Exception):
    """A field, or a reply, that holds no verdict."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault: Fault = fault
        self.reason = reason


def normal(key: str) -> str:
    """A key without regard to case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", " ", key.strip()).casefold()


def value_of(field: Field, raw: object) -> Value:
    """What ``raw`` is by the field's schema. Raises Unread."""
    value = field.schema.read(raw)
    if value is None:
        shown = f"{field.key} is {str(raw)[:80]!r}, not {field.schema.words}"
        raise Unread("invalid", shown)
    return value
