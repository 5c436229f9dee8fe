"""Converters of preference datasets: LLMBar, PandaLM, Auto-J, EvalBiasBench, JudgeBench, HHH and
HelpSteer2.

Answers stay as they are, empty ones included: the annotators saw them so.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from flowright.data.sources.dataset import UpstreamRow, json_table
from flowright.data.task import Pair, Preferred, Rated, Speaker
from flowright.llm.chat import Message

T = TypeVar("T")


def written(row: UpstreamRow, key: str) -> str:
    """A text that UTF-8 can hold, with Unix line ends; empty is a text. Raises DataError."""
    text = row.text(key)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise row.error(f"{key} has half a character at {error.start} (a lone surrogate)") from None
    return text


def loosely_written(row: UpstreamRow, key: str) -> str:
    """Read a text of a file that went through a spreadsheet: an empty cell is NaN, and a cell True
    is a boolean. Raises DataError."""
    value = row.get(key)
    if isinstance(value, float) and math.isnan(value):
        return ""
    return str(value) if isinstance(value, bool) else written(row, key)


def chosen(row: UpstreamRow, key: str, meanings: Mapping[int, T]) -> T:
    """Return the meaning of the whole number in a field. Raises DataError for any other value."""
    value = row.get(key)
    if type(value) is not int or value not in meanings:  # True is an int to Python
        raise row.error(f"{key} is {value!r}, not one of {', '.join(map(str, meanings))}")
    return meanings[value]


def conversation_of(row: UpstreamRow, *turns: Message) -> tuple[Message, ...]:
    """Return the turns as a conversation. Raises DataError for an empty turn."""
    empty = next((turn for turn in turns if not turn.content.strip()), None)
    if empty is not None:
        raise row.error(f"a turn of the {empty.role} is empty")
    return turns


_FIRST_OR_SECOND: Mapping[int, Preferred] = {1: "first", 2: "second"}
_VOTES: Mapping[int, Preferred] = {0: "tie", 1: "first", 2: "second"}


def llmbar(category: str) -> Callable[[UpstreamRow], Pair]:
    """A row of one of its five files (arXiv 2310.07641): the authors agreed on the label."""

    def convert(row: UpstreamRow) -> Pair:
        return Pair(
            id=f"{category}/{row.name}",
            source="llmbar",
            conversation=conversation_of(row, Message("user", written(row, "input"))),
            first=written(row, "output_1"),
            second=written(row, "output_2"),
            label=chosen(row, "label", _FIRST_OR_SECOND),
            category=category,
        )

    return convert


def pandalm(row: UpstreamRow) -> Pair:
    """A row of its test set (arXiv 2306.05087), with three votes; :func:`majority` is the label.

    Instruction and input are joined under the headings that its own prompt has. Upstream has two
    versions of the file: in one an empty text is NaN, and in both six answers are booleans.
    """
    instruction, given = loosely_written(row, "instruction"), loosely_written(row, "input")
    texts = [text for text in (instruction, given) if text.strip()]
    if len(texts) == 2:
        texts = [f"### Instruction:\n{instruction}\n\n### Input:\n{given}"]
    votes: tuple[Preferred, ...] = tuple(
        chosen(row, f"annotator{number}", _VOTES) for number in (1, 2, 3)
    )
    return Pair(
        id=str(row.integer("idx")),
        source="pandalm",
        conversation=conversation_of(row, Message("user", "".join(texts))),
        first=loosely_written(row, "response1"),
        second=loosely_written(row, "response2"),
        label=majority(votes),
        votes=votes,
    )


def majority(votes: Sequence[Preferred]) -> Preferred:
    """Return the vote of more than half, else a tie. PandaLM takes the majority, too; for three
    different votes its own script takes the first annotator's, but its test set has no such row."""
    vote, count = Counter(votes).most_common(1)[0]
    return vote if count * 2 > len(votes) else "tie"


def autoj(row: UpstreamRow) -> Pair:
    """A row of its pairwise test set (arXiv 2310.05470); the category is its scenario."""
    return Pair(
        id=row.name,
        source="autoj",
        conversation=conversation_of(row, Message("user", written(row, "prompt"))),
        first=written(row, "response 1"),
        second=written(row, "response 2"),
        label=chosen(row, "label", {0: "first", 1: "second", 2: "tie"}),
        category=row.text("scenario"),
    )


def evalbiasbench(row: UpstreamRow) -> Pair:
    """A row of :func:`by_bias` (arXiv 2407.06551); the better answer is the first in every row of
    the file. ``familiar knowledge preference bias`` is the category ``familiar_knowledge``."""
    bias = row.text("bias").removesuffix(" bias").removesuffix(" preference")
    category = "_".join(bias.split())
    return Pair(
        id=f"{category}/{row.name}",
        source="evalbiasbench",
        conversation=conversation_of(row, Message("user", written(row, "instruction"))),
        first=written(row, "response1"),
        second=written(row, "response2"),
        label=chosen(row, "label", _FIRST_OR_SECOND),
        category=category,
    )


def by_bias(path: Path) -> Iterator[UpstreamRow]:
    """The rows of EvalBiasBench's file, an object with a list for each bias."""
    table = json_table(path)
    for bias in table.values:
        for index, value in enumerate(table.items(bias)):
            place = replace(table, where=f"{path}: {bias}, row {index}")
            yield place.inner(value, str(index))


_CATEGORIES = {
    "mmlu-pro": "knowledge",
    "livebench-reasoning": "reasoning",
    "livebench-math": "math",
    "livecodebench": "coding",
}


def judgebench(answered_by: str) -> Callable[[UpstreamRow], Pair]:
    """A row of one of its two files (arXiv 2410.12784), which differ by the model that
    ``answered_by`` names: ``gpt`` or ``claude``, the start of the id and of the category, since
    figures are published for each file."""

    def convert(row: UpstreamRow) -> Pair:
        source, label = row.text("source"), row.text("label")
        category = next((c for start, c in _CATEGORIES.items() if source.startswith(start)), None)
        if category is None:
            raise row.error(f"source is {source!r}, none of {', '.join(_CATEGORIES)}")
        if label not in ("A>B", "B>A"):
            raise row.error(f"label is {label!r}, neither A>B nor B>A")
        return Pair(
            id=f"{answered_by}/{row.text('pair_id')}",
            source="judgebench",
            conversation=conversation_of(row, Message("user", written(row, "question"))),
            first=written(row, "response_A"),
            second=written(row, "response_B"),
            label="first" if label == "A>B" else "second",
            category=f"{answered_by}/{category}",
        )

    return convert


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
    """Convert a row of Prometheus' copy of HHH alignment (arXiv 2112.00861): twice the same prompt,
    around the chosen answer and around the rejected one. The file has no order of the two: the
    chosen one becomes the first. The category is ``helpful``, ``honest``, ``harmless`` or
    ``other``."""
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


def turns(row: UpstreamRow, text: str, heading: re.Pattern[str]) -> tuple[Message, ...]:
    """A conversation that begins and ends with the user, where ``heading`` stands before each
    turn but the first. Raises DataError where two turns in a row are of one speaker."""
    first, *rest = heading.split(text)
    spoken = [Message("user", first.strip())]
    for name, content in zip(rest[::2], rest[1::2], strict=True):
        spoken.append(Message(_SPEAKERS[name], content.strip()))
    expected = [("user", "assistant")[index % 2] for index in range(len(spoken))]
    if [turn.role for turn in spoken] != expected or len(spoken) % 2 == 0:
        raise row.error("the turns do not go from user to assistant and end with the user")
    return conversation_of(row, *spoken)


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
