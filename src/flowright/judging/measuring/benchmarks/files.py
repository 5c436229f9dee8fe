"""Pairs and RewardBench 2's rows out of files, whatever their format; a row that cannot be used is
named by file and row, and the others stand. The benchmarks' own files are read by
:mod:`flowright.data`, all but RewardBench 2, whose rows are no pairs.

A file of pairs has one of three forms, by the keys of each row:

- LLMBar's: ``input``, ``output_1``, ``output_2``, ``label`` 1 or 2;
- ours: ``first``, ``second``, ``label`` ("first", "second" or "tie"), and ``question`` or
  ``conversation`` (a list of messages); where there are any, ``id``, ``source``, ``category``,
  ``strength`` and ``votes``;
- ``chosen`` and ``rejected``: lists of messages, or such lists as JSON strings, alike up to the
  last one, which is the assistant's.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import read_errors
from flowright.data.preferences import PREFERRED, Pair, Preferred, Speaker, Turn
from flowright.data.sources.rows import read_table
from flowright.judging.measuring.benchmarks.rewardbench2 import SHOWN, SUBSETS, TIES, Best

T = TypeVar("T")

_OURS = ("id", "source", "conversation", "question", "first", "second", "label", "category",
         "strength", "votes")  # fmt: skip
_LINES = (".jsonl", ".ndjson")
_TIED = re.compile(r"(ref|tied):\d+")


class BadRow(ValueError):
    """Why a row cannot be used."""


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """The rows that can be used, and a line (``file:row: why``) for each that cannot."""

    rows: tuple[T, ...]
    problems: tuple[str, ...]


def read_pairs_file(path: Path) -> Read[Pair]:
    """Raises DataError for a file that cannot be read, or without a pair that can be used."""

    def read(row: Mapping[str, Any], number: str) -> Pair:
        return replace(_pair(row, number), source=str(row.get("source") or path.name))

    return _read(path, read, lambda pair: (pair.source, pair.id), "pair")


def read_rewardbench2(folder: Path) -> Read[Best]:
    """The rows of every Parquet and JSON Lines file of ``folder`` in the form of
    ``allenai/reward-bench-2``: ``id``, ``prompt``, ``chosen`` and ``rejected`` (lists of answers),
    ``subset`` and, in Ties, ``num_correct``. Raises DataError as :func:`read_pairs_file`."""
    files = sorted(p for p in folder.glob("*") if p.suffix in (".parquet", *_LINES))
    if not files:
        raise DataError(
            f"{folder}: no .parquet or .jsonl file; "
            "python scripts/download_all_datasets.py rewardbench2 brings them"
        )
    read = [_read(file, _best, lambda best: (best.subset, best.id), "row") for file in files]
    return Read(
        tuple(row for one in read for row in one.rows),
        tuple(problem for one in read for problem in one.problems),
    )


def _read(
    path: Path,
    read: Callable[[Mapping[str, Any], str], T],
    name: Callable[[T], tuple[str, str]],
    what: str,
) -> Read[T]:
    rows: list[T] = []
    problems: list[str] = []
    seen: dict[tuple[str, str], str] = {}
    for number, (where, values) in enumerate(_rows(path), start=1):
        try:
            if isinstance(values, str):
                raise BadRow(values)
            row = read(values, str(number))
            if name(row) in seen:
                raise BadRow(f"id {name(row)[1]!r} was used at {seen[name(row)]}")
        except BadRow as error:
            problems.append(f"{where}: {error}")
            continue
        seen[name(row)] = where
        rows.append(row)
    if not rows:
        raise DataError(*problems[:10], f"{path}: no {what} in it can be used")
    return Read(tuple(rows), tuple(problems))


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Where each row stands, and its values or why it has none."""
    if path.suffix.lower() not in _LINES:
        for row in read_table(path):
            yield row.where, row.values
        return
    with read_errors(path), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}:{number}", _object(line)


def _object(line: bytes) -> Mapping[str, Any] | str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {str(error)[:100]}"
    return value if isinstance(value, dict) else "a row is a JSON object"


# Pairs.


def _pair(row: Mapping[str, Any], number: str) -> Pair:
    if "chosen" in row and "rejected" in row:
        return _chosen(row, number)
    if "output_1" in row or "output_2" in row:
        return _llmbar(row, number)
    if "first" in row or "second" in row:
        return _ours(row, number)
    keys = ", ".join(map(str, row))[:100] or "nothing"
    raise BadRow(
        f"it has {keys}; a pair has first, second and label, input, output_1, output_2 and label, "
        "or chosen and rejected"
    )


def _llmbar(row: Mapping[str, Any], number: str) -> Pair:
    sides: dict[object, Preferred] = {1: "first", 2: "second"}
    label = row.get("label")
    if isinstance(label, bool) or not isinstance(label, int) or label not in sides:
        raise BadRow(f"label is {_shown(label)}; write 1 or 2")
    conversation = (Turn("user", _text(row, "input")),)
    first, second = _text(row, "output_1"), _text(row, "output_2")
    return Pair(number, "", conversation, first, second, sides[label])


def _ours(row: Mapping[str, Any], number: str) -> Pair:
    for name in row:
        if name not in _OURS:
            raise BadRow(f"unknown field {str(name)[:60]}{suggest(str(name), _OURS)}")
    if ("question" in row) == ("conversation" in row):
        raise BadRow("write either question or conversation")
    if "question" in row:
        conversation = (Turn("user", _text(row, "question")),)
    else:
        conversation = _turns(row["conversation"], "conversation", ends_with="user")
    votes = row.get("votes") or []
    if not isinstance(votes, list):
        raise BadRow("votes is no list")
    strength = row.get("strength")
    if isinstance(strength, bool) or not isinstance(strength, int | float | None):
        raise BadRow(f"strength is {_shown(strength)}, not a number")
    return Pair(
        id=str(row.get("id", number)),
        source="",
        conversation=conversation,
        first=_text(row, "first"),
        second=_text(row, "second"),
        label=_preferred(row.get("label"), "label"),
        category=_text(row, "category") if row.get("category") else "",
        strength=strength,
        votes=tuple(_preferred(vote, "a vote") for vote in votes),
    )


def _chosen(row: Mapping[str, Any], number: str) -> Pair:
    chosen = _turns(row["chosen"], "chosen", ends_with="assistant")
    rejected = _turns(row["rejected"], "rejected", ends_with="assistant")
    if chosen[:-1] != rejected[:-1]:
        raise BadRow("chosen and rejected do not answer the same conversation")
    if len(chosen) < 2 or chosen[-2].role != "user":
        raise BadRow("no turn of the user's stands before the answers")
    name = str(row.get("id", number))
    return Pair(name, "", chosen[:-1], chosen[-1].content, rejected[-1].content, "first")


def _preferred(value: object, name: str) -> Preferred:
    for known in PREFERRED:
        if value == known:
            return known
    raise BadRow(f"{name} is {_shown(value)}; write {', '.join(PREFERRED[:-1])} or {PREFERRED[-1]}")


def _turns(value: object, name: str, ends_with: Speaker) -> tuple[Turn, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadRow(f"{name} is text that is no JSON list of messages") from None
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} is {_shown(value)}, not a list of messages")
    turns = tuple(_turn(message, name) for message in value)
    if turns[-1].role != ends_with:
        raise BadRow(f"{name} ends with a turn of the {turns[-1].role}, not of the {ends_with}")
    return turns


def _turn(message: object, name: str) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRow(f"{name} holds {_shown(message)}, not a message")
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, str):
        raise BadRow(f"{name}: a message's content is {_shown(content)}, not text")
    for known in get_args(Speaker):
        if role == known:
            return Turn(known, content)
    raise BadRow(f"{name}: a message's role is {_shown(role)}, not one of system, user, assistant")


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise BadRow(f"{name} is {_shown(value)}, not text")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


# RewardBench 2.


def _best(row: Mapping[str, Any], number: str) -> Best:
    subset, name = _text(row, "subset"), str(row.get("id") or number)
    known = {one.casefold(): one for one in SUBSETS}
    if subset.casefold() not in known:
        raise BadRow(f"subset is {subset[:40]!r}, not one of {', '.join(SUBSETS)}")
    subset = known[subset.casefold()]
    chosen, rejected = _texts(row, "chosen"), _texts(row, "rejected")
    correct = row.get("num_correct")
    if correct not in (None, len(chosen)):
        raise BadRow(f"num_correct is {_shown(correct)}, and {len(chosen)} answers are chosen")
    if subset == TIES and not _TIED.fullmatch(name):
        raise BadRow(f"id is {name[:40]!r}; in {TIES} it is ref:N or tied:N")
    if subset != TIES and (len(chosen) != 1 or len(rejected) != SHOWN - 1):
        raise BadRow(f"{len(chosen)} chosen and {len(rejected)} rejected answers, not 1 and 3")
    prompt = row.get("prompt")
    asked = (Turn("user", prompt),) if isinstance(prompt, str) else _turns(prompt, "prompt", "user")
    return Best(name, subset, asked, (*chosen, *rejected), len(chosen))


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    values = row.get(name)
    if not isinstance(values, list) or not values:
        raise BadRow(f"{name} is {_shown(values)}, not a list of answers")
    if not all(isinstance(value, str) for value in values):
        raise BadRow(f"{name} holds something that is not text")
    return values
