"""The prompts of a judge that is trained: its task, the data between fences, the form of the reply.
What comes back is read by :mod:`flowright.environments.judging.reading`.

Conversation and answers are untrusted text: they stand between fences longer than any run of the
fence character in them, with the control tokens of chat templates broken, and are joined in once.
No request holds anything that can be read as a verdict if the judge repeats it.
"""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flowright.config.loading import load_section
from flowright.config.section import Section
from flowright.core.errors import ConfigError
from flowright.data.preferences import Conversation, Pair
from flowright.environments.judging.rows import JudgedRow
from flowright.llm.chat import Message
from flowright.llm.fences import fence_for, fenced, sanitise

Text = Annotated[str, Field(pattern=r"\S")]


class FrameWording(Section):
    """What a judge is told: ``data`` about what is shown to it, the others as its task."""

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
