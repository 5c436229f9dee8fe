"""What a trained judge's completion says, read strictly: one thought, then one verdict, then its
end. No rewards here.

``<think>...</think><score>3</score>``, ``<think>...</think><better>tie</better>``, and where it is
asked for ``<confidence>0.85</confidence>`` behind that. White space may stand around the parts and
nowhere else. Whatever is read more kindly than that a policy learns to write.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowright.data.preferences import Preferred

Unread = Literal[
    "no_thought",  # it does not begin with a thought
    "open_thought",  # the thought does not end
    "several_thoughts",
    "no_verdict",
    "several_verdicts",
    "off_menu",  # a verdict that is not one of the allowed values
    "no_confidence",
    "off_scale",  # a confidence that is no number from 0 to 1
    "text_behind",
]
"""Why a completion cannot be read: a closed list, in the order in which it is found out."""

Kind = Literal["pointwise", "pairwise"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A score of 0 to 4, or which answer is better; the thought; the confidence if it was asked."""

    verdict: int | Preferred
    thought: str
    confidence: float | None = None


_OPEN, _CLOSE = "<think>", "</think>"
_TAGS: Mapping[Kind, str] = {"pointwise": "score", "pairwise": "better"}
_SCORES: Mapping[str, int] = {str(score): score for score in range(5)}
_BETTER: Mapping[str, Preferred] = {"A": "first", "B": "second", "tie": "tie"}
_PROBABILITY = re.compile(r"0(?:\.[0-9]{1,6})?|1(?:\.0{1,6})?")


def verdict_text(verdict: int | Preferred) -> str:
    """The tag that says a verdict."""
    if isinstance(verdict, int):
        return f"<score>{verdict}</score>"
    name = next(name for name, value in _BETTER.items() if value == verdict)
    return f"<better>{name}</better>"


def reply_text(thought: str, verdict: int | Preferred, confidence: float | None = None) -> str:
    """A completion that says this, as :func:`read` reads it."""
    sure = "" if confidence is None else f"<confidence>{confidence:g}</confidence>"
    return f"{_OPEN}{thought}{_CLOSE}{verdict_text(verdict)}{sure}"


def read(text: str, kind: Kind, confidence: bool = False, opened: bool = False) -> Reading | Unread:
    """What a completion says, or why it says nothing; in time linear in it.

    ``confidence``: whether one must stand behind the verdict; else none may. ``opened``: the prompt
    ended with the opening tag of the thought, so that the completion may begin without it.
    """
    text = text.strip()
    if opened and not text.startswith(_OPEN):
        text = _OPEN + text
    if not text.startswith(_OPEN):
        return "no_thought"
    if text.count(_OPEN) > 1 or text.count(_CLOSE) > 1:
        return "several_thoughts"
    thought, closed, rest = text[len(_OPEN) :].partition(_CLOSE)
    if not closed:
        return "open_thought"
    return _read_rest(thought.strip(), rest.strip(), kind, confidence)


def _read_rest(thought: str, rest: str, kind: Kind, confidence: bool) -> Reading | Unread:
    tag = _TAGS[kind]
    said, rest = _value(rest, tag)
    if said is None:
        return "no_verdict"
    if f"<{tag}>" in rest:
        return "several_verdicts"
    verdict = _SCORES.get(said) if kind == "pointwise" else _BETTER.get(said)
    if verdict is None:
        return "off_menu"
    sure: float | None = None
    if confidence:
        stated, rest = _value(rest, "confidence")
        if stated is None:
            return "no_confidence"
        if not _PROBABILITY.fullmatch(stated):
            return "off_scale"
        sure = float(stated)
    return "text_behind" if rest else Reading(verdict, thought, sure)


def _value(text: str, tag: str) -> tuple[str | None, str]:
    """What stands in the tag that a text begins with, and the text behind it."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not text.startswith(opening):
        return None, text
    value, closed, rest = text[len(opening) :].partition(closing)
    return (value, rest.strip()) if closed else (None, text)
