"""LLMBar, PandaLM, Auto-J, EvalBiasBench and JudgeBench: two answers to one instruction.

Answers stay as they are, empty ones included: the annotators saw them so.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flowright.data.preference_sources.source import asked, chosen, loosely_written, written
from flowright.data.preferences import Pair, Preferred, Turn
from flowright.data.sources.rows import UpstreamRow, json_table

_FIRST_OR_SECOND: Mapping[int, Preferred] = {1: "first", 2: "second"}
_VOTES: Mapping[int, Preferred] = {0: "tie", 1: "first", 2: "second"}


def llmbar(category: str) -> Callable[[UpstreamRow], Pair]:
    """A row of one of its five files (arXiv 2310.07641): the authors agreed on the label."""

    def convert(row: UpstreamRow) -> Pair:
        return Pair(
            id=f"{category}/{row.name}",
            source="llmbar",
            conversation=asked(row, Turn("user", written(row, "input"))),
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
        conversation=asked(row, Turn("user", "".join(texts))),
        first=loosely_written(row, "response1"),
        second=loosely_written(row, "response2"),
        label=majority(votes),
        votes=votes,
    )


def majority(votes: Sequence[Preferred]) -> Preferred:
    """What more than half say, else a tie. PandaLM takes the majority, too; for three different
    votes its own script takes the first annotator's, but its test set has no such row."""
    vote, count = Counter(votes).most_common(1)[0]
    return vote if count * 2 > len(votes) else "tie"


def autoj(row: UpstreamRow) -> Pair:
    """A row of its pairwise test set (arXiv 2310.05470); the category is its scenario."""
    return Pair(
        id=row.name,
        source="autoj",
        conversation=asked(row, Turn("user", written(row, "prompt"))),
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
        conversation=asked(row, Turn("user", written(row, "instruction"))),
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
            conversation=asked(row, Turn("user", written(row, "question"))),
            first=written(row, "response_A"),
            second=written(row, "response_B"),
            label="first" if label == "A>B" else "second",
            category=f"{answered_by}/{category}",
        )

    return convert
