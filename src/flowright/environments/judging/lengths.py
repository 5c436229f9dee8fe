"""How long rows are once the chat template is applied, and what becomes of those that are too long.
The tokens are counted by whoever has the tokenizer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from flowright.core.errors import DataError
from flowright.data.row_files import Fault, LeftOut
from flowright.environments.judging.config import Overlong
from flowright.environments.judging.rows import AnyRow, Row, prompt_of, with_prompt

CUT = "\n[... cut: the text was too long ...]\n"
"""What stands in the place of what was cut."""

SHORTEST = 1_000
"""Characters that a cut turn keeps, half of them from each end: a frame that is itself a turn keeps
its request for the output format, which ends it."""

_NAMED = 5  # overlong rows that an error names


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of some rows after the chat template; ``median`` and ``p95`` by nearest rank."""

    rows: int
    least: int
    median: int
    p95: int
    most: int
    limit: int
    overlong: int

    def __str__(self) -> str:
        return (
            f"tokens a row after the chat template: min {self.least:,}, median {self.median:,}, "
            f"p95 {self.p95:,}, max {self.most:,}; {self.overlong:,} of {self.rows:,} rows over "
            f"{self.limit:,}"
        )


@dataclass(frozen=True, slots=True)
class Fitted(Generic[AnyRow]):
    """Rows of at most the limit. ``lengths`` are those before, of what the chat template takes;
    ``cut`` rows lost ``cut_characters`` of their conversations; ``left_out`` are the others."""

    rows: tuple[AnyRow, ...]
    lengths: Lengths
    cut: int
    cut_characters: int
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        faults = [row.fault for row in self.left_out]
        told = f"{self.lengths}; {self.cut:,} cut by {self.cut_characters:,} characters"
        refused = faults.count(Fault.TEMPLATE)
        more = f", {refused:,} refused by the chat template" * bool(refused)
        return f"{told}, {faults.count(Fault.OVERLONG):,} dropped{more}"


def lengths_of(tokens: Sequence[int], limit: int) -> Lengths:
    """Raises ValueError without any row."""
    if not tokens:
        raise ValueError("no rows to measure")
    ordered = sorted(tokens)

    def rank(share: float) -> int:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    over = sum(count > limit for count in ordered)
    return Lengths(len(ordered), ordered[0], rank(0.5), rank(0.95), ordered[-1], limit, over)


def fit(
    rows: Sequence[AnyRow], tokens: Callable[[AnyRow], int], limit: int, overlong: Overlong
) -> Fitted[AnyRow]:
    """The rows with at most ``limit`` tokens each, as ``tokens`` counts them.

    What is longer is dropped, or its conversation is cut: the longest turn in its middle, again and
    again until the row fits. Answers, verdicts and the words of a frame are never cut, so that a
    row whose answers alone are too long is dropped. Rows that ``tokens`` raises DataError for, whom
    the chat template refuses, are left out. Raises DataError with ``overlong: error``, and where
    every row is refused.
    """
    counted = [(row, _counted(row, tokens)) for row in rows]
    left_out = [count for _, count in counted if isinstance(count, LeftOut)]
    taken = [(row, count) for row, count in counted if isinstance(count, int)]
    if rows and not taken:
        raise DataError(
            *map(str, left_out[:_NAMED]),
            f"the chat template refuses all {len(left_out)} rows; take the turns that it refuses "
            "out of the data, or train another model",
        )
    lengths = lengths_of([count for _, count in taken], limit)
    if overlong == "error" and lengths.overlong:
        over = [row.id for row, count in taken if count > limit]
        names = ", ".join(over[:_NAMED]) + (", ..." if len(over) > _NAMED else "")
        raise DataError(
            f"{lengths.overlong} of {lengths.rows} rows have more than {limit} tokens ({names}); "
            "shorten them, raise the limit, or set overlong to drop or truncate"
        )
    kept: list[AnyRow] = []
    cut, characters = 0, 0
    for row, count in taken:
        if count <= limit:
            kept.append(row)
            continue
        shorter = _cut(row, count, tokens, limit) if overlong == "truncate" else None
        if shorter is None:
            why = f"{count:,} tokens after the chat template, more than {limit:,}"
            what = "; without its conversation it is still longer" * (overlong == "truncate")
            left_out.append(LeftOut(row.id, Fault.OVERLONG, why + what))
            continue
        kept.append(shorter)
        cut += 1
        characters += _characters(row) - _characters(shorter)
    return Fitted(tuple(kept), lengths, cut, characters, tuple(left_out))


def _counted(row: AnyRow, tokens: Callable[[AnyRow], int]) -> int | LeftOut:
    try:
        return tokens(row)
    except DataError as error:
        return LeftOut(row.id, Fault.TEMPLATE, "; ".join(error.problems))


def _cut(row: AnyRow, count: int, tokens: Callable[[AnyRow], int], limit: int) -> AnyRow | None:
    """The row with turns cut so that it fits; None where it cannot."""
    turns = prompt_of(row)
    kept = [len(turn.content) for turn in turns]
    while kept and (longest := max(kept)) > SHORTEST:
        place = kept.index(longest)
        estimate = (count - limit) / count * sum(kept)
        kept[place] = max(SHORTEST, longest - len(CUT) - math.ceil(max(estimate, longest / 10)))
        shorter = with_prompt(
            row,
            tuple(
                replace(turn, content=_without_middle(turn.content, size))
                for turn, size in zip(turns, kept, strict=True)
            ),
        )
        count = tokens(shorter)
        if count <= limit:
            return shorter
    return None


def _without_middle(text: str, size: int) -> str:
    if size >= len(text):
        return text
    return text[: size // 2] + CUT + text[len(text) - (size - size // 2) :]


def _characters(row: Row) -> int:
    """Of the conversation, without what stands for what was cut."""
    return sum(len(turn.content.replace(CUT, "")) for turn in prompt_of(row))
