"""Judges' replies in the formats of RuscaRL and of VerIF.

Reading is strict: a verdict outside the format is no verdict, and never a "not met".
"""

import re
from collections import Counter
from collections.abc import Mapping

from flowright.llm.loose_json import read_object
from flowright.llm.replies import strip_thinking

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_PRESENCE: Mapping[object, bool] = {"PRESENT": True, "NOT_PRESENT": False}
_LONGEST = 200_000  # characters, more than any rubric needs


def read_presence(text: str, count: int) -> Mapping[int, bool]:
    """By number, from 1 to ``count``, which criteria a reply calls ``PRESENT`` or ``NOT_PRESENT``.
    The reply is one JSON object, alone or in a fence, behind any thinking; a criterion that it
    leaves out, calls something else or names twice is missing, and all are in any other reply."""
    spoken = (strip_thinking(text[:_LONGEST]) or "").strip()
    fenced = _FENCED.fullmatch(spoken)
    spoken = fenced[1].strip() if fenced else spoken
    found = read_object(spoken)
    if found is None or found.end != len(spoken):
        return {}
    pairs = found.pairs
    named = Counter(key for key, _ in pairs)
    numbers = {str(number): number for number in range(1, count + 1)}
    return {
        numbers[key]: _PRESENCE[value]
        for key, value in pairs
        if key in numbers and named[key] == 1 and isinstance(value, str) and value in _PRESENCE
    }


_SCORE = re.compile(r"\[\[([^\[\]\n]{0,40})\]\]")


def read_bracketed(text: str) -> bool | None:
    """Return the verdict of a reply that begins with ``[[1]]`` or ``[[0]]``, after any thinking;
    None for any other, and for one with a contradicting mark further on."""
    spoken = (strip_thinking(text) or "").strip()
    head = _SCORE.match(spoken)
    if head is None or head[1] not in ("0", "1"):
        return None
    others = {mark[1].strip() for mark in _SCORE.finditer(spoken, head.end())} & {"0", "1"}
    return head[1] == "1" if others <= {head[1]} else None
