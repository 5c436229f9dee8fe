"""Pairs, RewardBench 2's rows and JudgeBench's outputs from files, whatever their format. An
unusable row is reported as ``file:row: reason``, and the others stand.

A file of pairs has one of three forms, by the keys of each row:

- LLMBar's: ``input``, ``output_1``, ``output_2``, ``label`` 1 or 2;
- ours: ``first``, ``second``, ``label`` ("first", "second" or "tie"), and ``question`` or
  ``conversation`` (a list of messages); optionally ``id``, ``source``, ``category``, ``strength``
  and ``votes``;
- ``chosen`` and ``rejected``: lists of messages, or such lists as JSON strings, equal up to the
  last one, which is the assistant's.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import LINES, Place, read_rows
from flowright.data.preferences import PREFERRED, Pair, Preferred, Speaker, Turn
from flowright.judging.measuring.measured_judges import GameOutcome, Games, key_of
from flowright.judging.measuring.rewardbench2 import SHOWN, SUBSETS, TIES, BestOfPrompt

T = TypeVar("T")

_OURS = ("id", "source", "conversation", "question", "first", "second", "label", "category",
         "strength", "votes")  # fmt: skip
_TIED = re.compile(r"(ref|tied):\d+")


class BadRow(ValueError):
    """Raised for an unusable row."""


@dataclass(frozen=True, slots=True)
class UsableRows(Generic[T]):
    """The usable rows, and a line (``file:row: reason``) for each other one."""

    rows: tuple[T, ...]
    problems: tuple[str, ...]


def read_pairs_file(path: Path) -> UsableRows[Pair]:
    """Read a file of pairs. Raises DataError for a file that cannot be read, or without a usable
    pair."""

    def read(row: Mapping[str, Any], number: str) -> Pair:
        return replace(_pair(row, number), source=str(row.get("source") or path.name))

    return _read(path, read, lambda pair: (pair.source, pair.id), "no pair in it can be used")


def read_rewardbench2(folder: Path) -> UsableRows[BestOfPrompt]:
    """Read the rows of every Parquet and JSON Lines file of ``folder`` in the form of
    ``allenai/reward-bench-2``: ``id``, ``prompt``, ``chosen`` and ``rejected`` (lists of answers),
    ``subset`` and, in Ties, ``num_correct``. Raises DataError as :func:`read_pairs_file`."""
    files = sorted(p for p in folder.glob("*") if p.suffix in (".parquet", *LINES))
    if not files:
        raise DataError(
            f"{folder}: no .parquet or .jsonl file; "
            "python scripts/download_all_datasets.py rewardbench2 brings them"
        )
    nothing = "no row in it can be used"
    read = [_read(file, _best, lambda best: (best.subset, best.id), nothing) for file in files]
    return UsableRows(
        tuple(row for one in read for row in one.rows),
        tuple(problem for one in read for problem in one.problems),
    )


def _read(
    path: Path,
    read: Callable[[Mapping[str, Any], str], T],
    name: Callable[[T], tuple[str, str]],
    nothing: str,
) -> UsableRows[T]:
    rows: list[T] = []
    problems: list[str] = []
    seen: dict[tuple[str, str], str] = {}
    count = 0

    def on_bad(place: Place, why: str) -> None:
        nonlocal count
        count += 1
        problems.append(f"{place}: {why}")

    for place, values in read_rows(path, on_bad):
        count += 1
        try:
            row = read(values, str(count))
            if name(row) in seen:
                raise BadRow(f"id {name(row)[1]!r} was used at {seen[name(row)]}")
        except BadRow as error:
            problems.append(f"{place}: {error}")
            continue
        seen[name(row)] = str(place)
        rows.append(row)
    if not rows:
        raise DataError(*problems[:10], f"{path}: {nothing}")
    return UsableRows(tuple(rows), tuple(problems))


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
        f"its keys are {keys}; a pair has first, second and label, input, output_1, output_2 and "
        "label, or chosen and rejected"
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
        raise BadRow("votes is not a list")
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
        raise BadRow("no message of the user before the answers")
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
            raise BadRow(f"{name} is text that is not a JSON list of messages") from None
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} is {_shown(value)}, not a list of messages")
    turns = tuple(_turn(message, name) for message in value)
    if turns[-1].role != ends_with:
        raise BadRow(f"{name} ends with a message of the {turns[-1].role}, not of the {ends_with}")
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


def _best(row: Mapping[str, Any], number: str) -> BestOfPrompt:
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
    return BestOfPrompt(name, subset, asked, (*chosen, *rejected), len(chosen))


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    values = row.get(name)
    if not isinstance(values, list) or not values:
        raise BadRow(f"{name} is {_shown(values)}, not a list of answers")
    if not all(isinstance(value, str) for value in values):
        raise BadRow(f"{name} holds something that is not text")
    return values


# JudgeBench's outputs.

_DECISIONS: Mapping[object, Preferred] = {"A>B": "first", "B>A": "second", "A=B": "tie"}
# By the start of a row's `source`, such as `mmlu-pro-law`.
_CATEGORIES = {
    "mmlu-pro": "knowledge",
    "livebench-reasoning": "reasoning",
    "livebench-math": "math",
    "livecodebench": "coding",
}


@dataclass(frozen=True, slots=True)
class PublishedOutputs:
    """The pairs of a file, the ``games`` of ``judge`` by :func:`key_of`, and a line for each
    unusable row."""

    judge: str
    pairs: tuple[Pair, ...]
    games: Mapping[str, Games]
    problems: tuple[str, ...]


def read_outputs(path: Path) -> PublishedOutputs:
    """Read published outputs of a judge in JudgeBench's form: a row a pair with two ``judgments``,
    the second of the swapped pair. Raises DataError as :func:`read_pairs_file`."""

    def read(row: Mapping[str, Any], number: str) -> tuple[Pair, Games, str]:
        try:
            return _output_pair(row), _games(row), _judge(row)
        except KeyError as error:
            raise BadRow(f"the row lacks {error.args[0]}") from None

    nothing = "no row with two judgments in it"
    found = _read(path, read, lambda row: (row[0].source, row[0].id), nothing)
    judges = dict.fromkeys(judge for *_, judge in found.rows)
    games = {key_of(pair): games for pair, games, _ in found.rows}
    pairs = tuple(pair for pair, *_ in found.rows)
    return PublishedOutputs(", ".join(judges), pairs, games, found.problems)


def _output_pair(row: Mapping[str, Any]) -> Pair:
    names = ("pair_id", "question", "response_A", "response_B")
    texts = {name: row[name] for name in names}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadRow(f"{name} is not text")
    label = _DECISIONS.get(row["label"]) if isinstance(row["label"], str) else None
    if label not in ("first", "second"):
        raise BadRow(f"label is {_shown(row['label'])}, not A>B or B>A")
    name, question, first, second = texts.values()
    turns, category = (Turn("user", question),), _category(row.get("source"))
    return Pair(name, "judgebench", turns, first, second, label, category)


def _category(source: object) -> str:
    for start, category in _CATEGORIES.items():
        if isinstance(source, str) and source.startswith(start):
            return category
    raise BadRow(f"source is {_shown(source)}; known ones begin with {', '.join(_CATEGORIES)}")


def _games(row: Mapping[str, Any]) -> Games:
    judgments = row["judgments"]
    if not isinstance(judgments, list) or len(judgments) != 2:
        raise BadRow("judgments are not two: the pair was judged in one order only")
    straight, swapped = (_outcome(judgment) for judgment in judgments)
    return Games(straight, swapped.turned())


def _outcome(judgment: object) -> GameOutcome:
    """The outcome of a game; without one of the three decisions it is unreadable, as the authors
    count it."""
    if judgment is None:
        return GameOutcome(None, "unreadable", reason="no judgment")
    if not isinstance(judgment, Mapping):
        raise BadRow("a judgment is an object or null")
    decision = judgment.get("decision")
    preferred = _DECISIONS.get(decision) if isinstance(decision, str) else None
    scores = _scores(judgment.get("judgment"))
    if preferred is None:
        return GameOutcome(None, "unreadable", scores, f"decision {str(decision)[:60]}")
    return GameOutcome(preferred, "ok", scores)


def _scores(judgment: object) -> tuple[float, float] | None:
    scores = judgment.get("scores") if isinstance(judgment, Mapping) else None
    if not isinstance(scores, list) or len(scores) != 2:
        return None
    if not all(isinstance(s, int | float) and not isinstance(s, bool) for s in scores):
        return None
    return float(scores[0]), float(scores[1])


def _judge(row: Mapping[str, Any]) -> str:
    """The model that judged, and its way of asking."""
    for judgment in row["judgments"]:
        details = judgment.get("judgment") if isinstance(judgment, Mapping) else None
        model = details.get("judge_model") if isinstance(details, Mapping) else None
        if isinstance(model, str):
            return f"{model} ({row.get('judge_name', 'unknown')})"
    return str(row.get("judge_name", "unknown"))
