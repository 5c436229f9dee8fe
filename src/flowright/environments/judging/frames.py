"""The prompts of a judge that is trained: its task, the data between fences, the form of the reply.
What comes back is read by :mod:`flowright.environments.judging.frames`.

Conversation and answers are untrusted text: they stand between fences longer than any run of the
fence character in them, with the control tokens of chat templates broken, and are joined in once.
No request holds anything that can be read as a verdict if the judge repeats it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flowright.config.loading import load_section
from flowright.config.section import Section
from flowright.core.errors import ConfigError
from flowright.data.task import Conversation, Pair, Preferred
from flowright.environments.judging.rows import JudgedRow
from flowright.llm.chat import Message
from flowright.llm.control_tokens import fence_for, fenced, sanitise

Text = Annotated[str, Field(pattern=r"\S")]


class FrameWording(Section):
    """The words of a judge's prompt: ``data`` about the texts between fences, the others as its
    task."""

    data: Text
    pointwise: Text
    pairwise: Text


_BUILT_IN = {"standard": "wording.yaml", "short": "short_wording.yaml"}


def wording_of(choice: str) -> FrameWording:
    """``standard``, ``short``, or a YAML file. Raises ConfigError, one line a mistake."""
    if choice in _BUILT_IN:
        return _read(Path(__file__).with_name(_BUILT_IN[choice]))
    if not choice.endswith((".yaml", ".yml")):
        known = ", ".join(_BUILT_IN)
        raise ConfigError(f"judging.wording: {choice} is neither one of {known} nor a YAML file")
    return load_section(FrameWording, Path(choice), ())


@cache
def _read(path: Path) -> FrameWording:
    return load_section(FrameWording, path, ())


_SCORE = "a whole number from 0 to 4 in the place of k"
_BETTER = "one of the three words in the place of A|B|tie"
_CONFIDENCE = (
    ", and in the place of p the probability, from 0 to 1 as in 0.85, that your verdict is right"
)


def frame(row: JudgedRow, words: FrameWording, confidence: bool = False) -> list[Message]:
    """The prompt for a row, one message of the user's. With ``confidence`` the judge is asked how
    sure it is, too."""
    if isinstance(row, Pair):
        task, tag, value = words.pairwise, "<better>A|B|tie</better>", _BETTER
    else:
        task, tag, value = words.pointwise, "<score>k</score>", _SCORE
    form = f"<think>your reasons</think>{tag}" + "<confidence>p</confidence>" * confidence
    value += _CONFIDENCE * confidence
    ask = f"Reply in this form and with nothing else, {value}:\n{form}"
    return [Message("user", "\n\n".join([task, words.data, shown(row), ask]))]


def shown(row: JudgedRow) -> str:
    """Conversation and answers between their fences. What the two orders of a pair share comes
    first."""
    if isinstance(row, Pair):
        answers = [("ANSWER A", row.first), ("ANSWER B", row.second)]
    else:
        answers = [("ANSWER", row.answer)]
    blocks = [(title, sanitise(text)) for title, text in [*_titled(row.conversation), *answers]]
    fence = fence_for((text for _, text in blocks), "~")
    return "\n\n".join(fenced(text, f" {title}", fence) for title, text in blocks)


def _titled(conversation: Conversation) -> list[tuple[str, str]]:
    if len(conversation) == 1:
        return [("QUESTION", conversation[0].content)]
    count = len(conversation)
    return [
        (f"MESSAGE {n} of {count}, {turn.role}", turn.content)
        for n, turn in enumerate(conversation, start=1)
    ]


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
"""Reasons that a completion cannot be read: a closed list, in the order of the checks."""

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
_VERDICTS: Mapping[str, Preferred] = {"A": "first", "B": "second", "tie": "tie"}
LETTERS: Mapping[object, str] = {preferred: letter for letter, preferred in _VERDICTS.items()}
"""Names of a preference in replies and records."""
_PROBABILITY = re.compile(r"0(?:\.[0-9]{1,6})?|1(?:\.0{1,6})?")


def verdict_text(verdict: int | Preferred) -> str:
    """Return a verdict in its tag."""
    if isinstance(verdict, int):
        return f"<score>{verdict}</score>"
    return f"<better>{LETTERS[verdict]}</better>"


def reply_text(thought: str, verdict: int | Preferred, confidence: float | None = None) -> str:
    """Return a completion that :func:`read` reads as this."""
    sure = "" if confidence is None else f"<confidence>{confidence:g}</confidence>"
    return f"{_OPEN}{thought}{_CLOSE}{verdict_text(verdict)}{sure}"


def read(text: str, kind: Kind, confidence: bool = False, opened: bool = False) -> Reading | Unread:
    """Read a completion, or return the reason that it cannot be read; in time linear in it.

    ``confidence``: one must follow the verdict; else none may. ``opened``: the prompt ended with
    the opening tag of the thought, so that the completion may begin without it.
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
    value, rest = _value(rest, tag)
    if value is None:
        return "no_verdict"
    if f"<{tag}>" in rest:
        return "several_verdicts"
    verdict = _SCORES.get(value) if kind == "pointwise" else _VERDICTS.get(value)
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
    """Return the content of the tag that a text begins with, and the text behind it."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not text.startswith(opening):
        return None, text
    value, closed, rest = text[len(opening) :].partition(closing)
    return (value, rest.strip()) if closed else (None, text)
