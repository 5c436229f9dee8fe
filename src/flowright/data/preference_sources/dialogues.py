"""HHH and HelpSteer2: answers to conversations of several turns, which upstream keeps as one text.
No other sources here.
"""

import re
from collections.abc import Callable

from flowright.data.preference_sources.source import asked, chosen, written
from flowright.data.preferences import Pair, Rated, Speaker, Turn
from flowright.data.sources.rows import UpstreamRow

# The parts of Prometheus' prompt, which its copy of HHH has around every conversation.
_INSTRUCTION, _RESPONSE, _RUBRICS = (
    "###The instruction to evaluate:\n",
    "\n\n###Response to evaluate:\n",
    "\n\n###Score Rubrics:\n",
)
_SPOKEN = re.compile(r"\n\n(Human|Assistant):")
_MARKED = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")
_SPEAKERS: dict[str, Speaker] = {"Human": "user", "User": "user", "Assistant": "assistant"}


def hhh(row: UpstreamRow) -> Pair:
    """A row of Prometheus' copy of HHH alignment (arXiv 2112.00861): twice the same prompt, around
    the chosen answer and around the rejected one. The file says nothing of an order: the chosen one
    is the first. The category is ``helpful``, ``honest``, ``harmless`` or ``other``."""
    conversation, chosen_answer = _judged(row, "chosen_instruction")
    other, rejected_answer = _judged(row, "rejected_instruction")
    if conversation != other:
        raise row.error("the chosen and the rejected answer are to different conversations")
    return Pair(
        id=row.name,
        source="hhh",
        conversation=turns(row, conversation, _SPOKEN),
        first=chosen_answer,
        second=rejected_answer,
        label="first",
        category=row.text("source"),
    )


def _judged(row: UpstreamRow, key: str) -> tuple[str, str]:
    """The conversation and the answer within a prompt of Prometheus'."""
    text = written(row, key)
    if any(text.count(heading) != 1 for heading in (_INSTRUCTION, _RESPONSE, _RUBRICS)):
        raise row.error(f"{key} is not Prometheus' prompt: each of its headings stands there once")
    rest = text.partition(_INSTRUCTION)[2]
    conversation, _, rest = rest.partition(_RESPONSE)
    answer, found, _ = rest.partition(_RUBRICS)
    if not found:
        raise row.error(f"{key} is not Prometheus' prompt: its headings stand in another order")
    return conversation.strip(), answer.strip()


def turns(row: UpstreamRow, text: str, heading: re.Pattern[str]) -> tuple[Turn, ...]:
    """A conversation that begins and ends with the user, where ``heading`` stands before each
    turn but the first. Raises DataError where two turns in a row are of one speaker."""
    first, *rest = heading.split(text)
    spoken = [Turn("user", first.strip())]
    for name, content in zip(rest[::2], rest[1::2], strict=True):
        spoken.append(Turn(_SPEAKERS[name], content.strip()))
    expected = [("user", "assistant")[index % 2] for index in range(len(spoken))]
    if [turn.role for turn in spoken] != expected or len(spoken) % 2 == 0:
        raise row.error("the turns do not go from user to assistant and end with the user")
    return asked(row, *spoken)


def helpsteer2_pair(row: UpstreamRow) -> Pair:
    """A row of HelpSteer2-Preference (arXiv 2410.01257): a strength above 0 prefers the second
    response. 1 is slightly better, 2 better, 3 much better; the category is upstream's split,
    ``train`` or ``val``."""
    strength = chosen(row, "preference_strength", {number: number for number in range(-3, 4)})
    return Pair(
        id=f"preference/{row.name}",
        source="helpsteer2",
        conversation=turns(row, written(row, "prompt"), _MARKED),
        first=written(row, "response_1"),
        second=written(row, "response_2"),
        label="tie" if strength == 0 else "second" if strength > 0 else "first",
        category="train" if row.text("split") == "train" else "val",
        strength=float(abs(strength)),
    )


def helpsteer2_rated(split: str) -> Callable[[UpstreamRow], Rated]:
    """A row of HelpSteer2 (arXiv 2406.08673): one response, its helpfulness from 0 to 4."""

    def convert(row: UpstreamRow) -> Rated:
        return Rated(
            id=f"{split}/{row.name}",
            source="helpsteer2",
            conversation=turns(row, written(row, "prompt"), _MARKED),
            answer=written(row, "response"),
            label=chosen(row, "helpfulness", {number: number for number in range(5)}),
            category=split,
        )

    return convert
