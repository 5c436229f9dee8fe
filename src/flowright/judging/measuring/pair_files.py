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

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import LINES
from flowright.data.row_files import (
    Fault,
    UnusableRow,
    decoded,
    number_of,
    read_row_files,
    turns_of,
)
from flowright.data.task import PREFERRED, Pair, Preferred
from flowright.judging.measuring.measured_judges import GameOutcome, Games, key_of
from flowright.judging.measuring.pair_figures import prompt_of
from flowright.judging.measuring.rewardbench2 import SHOWN, SUBSETS, TIES, BestOfPrompt
from flowright.judging.reward.calls import COMPLETIONS, PROMPTS
from flowright.llm.chat import Message

T = TypeVar("T")

_OURS = ("id", "source", "conversation", "question", "first", "second", "label", "category",
         "strength", "votes")  # fmt: skip
_TIED = re.compile(r"(ref|tied):\d+")


def _bad(why: str) -> UnusableRow:
    return UnusableRow(Fault.FORM, why)


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

    return _read([path], read, lambda pair: (pair.source, pair.id), "pair in it can be used")


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
    return _read(files, _best, lambda best: (best.subset, best.id), "row in it can be used")


def _read(
    paths: Sequence[Path],
    read: Callable[[Mapping[str, Any], str], T],
    name: Callable[[T], tuple[str, str]],
    called: str,
) -> UsableRows[T]:
    seen: dict[tuple[Path, str, str], str] = {}

    def typed(values: Mapping[str, Any], place: str, path: Path) -> T:
        row = read(values, place.rpartition(":")[2])
        key = (path, *name(row))
        if key in seen:
            raise _bad(f"id {key[2]!r} was used at {seen[key]}")
        seen[key] = place
        return row

    found = read_row_files(paths, typed, called)
    return UsableRows(found.rows, tuple(map(str, found.report.left_out)))


# Pairs.


def _pair(row: Mapping[str, Any], number: str) -> Pair:
    if "chosen" in row and "rejected" in row:
        return _chosen(row, number)
    if "output_1" in row or "output_2" in row:
        return _llmbar(row, number)
    if "first" in row or "second" in row:
        return _ours(row, number)
    keys = ", ".join(map(str, row))[:100] or "nothing"
    raise _bad(
        f"its keys are {keys}; a pair has first, second and label, input, output_1, output_2 and "
        "label, or chosen and rejected"
    )


def _llmbar(row: Mapping[str, Any], number: str) -> Pair:
    sides: dict[object, Preferred] = {1: "first", 2: "second"}
    label = row.get("label")
    if isinstance(label, bool) or not isinstance(label, int) or label not in sides:
        raise _bad(f"label is {_shown(label)}; write 1 or 2")
    conversation = (Message("user", _text(row, "input")),)
    first, second = _text(row, "output_1"), _text(row, "output_2")
    return Pair(number, "", conversation, first, second, sides[label])


def _ours(row: Mapping[str, Any], number: str) -> Pair:
    for name in row:
        if name not in _OURS:
            raise _bad(f"unknown field {str(name)[:60]}{suggest(str(name), _OURS)}")
    if ("question" in row) == ("conversation" in row):
        raise _bad("write either question or conversation")
    if "question" in row:
        conversation = (Message("user", _text(row, "question")),)
    else:
        conversation = turns_of(
            decoded(row["conversation"], "conversation"), "conversation", "user"
        )
    votes = row.get("votes") or []
    if not isinstance(votes, list):
        raise _bad("votes is not a list")
    return Pair(
        id=str(row.get("id", number)),
        source="",
        conversation=conversation,
        first=_text(row, "first"),
        second=_text(row, "second"),
        label=_preferred(row.get("label"), "label"),
        category=_text(row, "category") if row.get("category") else "",
        strength=number_of(row.get("strength"), "strength"),
        votes=tuple(_preferred(vote, "a vote") for vote in votes),
    )


def _chosen(row: Mapping[str, Any], number: str) -> Pair:
    chosen, rejected = (
        turns_of(decoded(row[name], name), name, "assistant") for name in ("chosen", "rejected")
    )
    if chosen[:-1] != rejected[:-1]:
        raise _bad("chosen and rejected do not answer the same conversation")
    name = str(row.get("id", number))
    return Pair(name, "", chosen[:-1], chosen[-1].content, rejected[-1].content, "first")


def _preferred(value: object, name: str) -> Preferred:
    for known in PREFERRED:
        if value == known:
            return known
    raise _bad(f"{name} is {_shown(value)}; write {', '.join(PREFERRED[:-1])} or {PREFERRED[-1]}")


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise _bad(f"{name} is {_shown(value)}, not text")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


# RewardBench 2.


def _best(row: Mapping[str, Any], number: str) -> BestOfPrompt:
    subset, name = _text(row, "subset"), str(row.get("id") or number)
    known = {one.casefold(): one for one in SUBSETS}
    if subset.casefold() not in known:
        raise _bad(f"subset is {subset[:40]!r}, not one of {', '.join(SUBSETS)}")
    subset = known[subset.casefold()]
    chosen, rejected = _texts(row, "chosen"), _texts(row, "rejected")
    correct = row.get("num_correct")
    if correct not in (None, len(chosen)):
        raise _bad(f"num_correct is {_shown(correct)}, and {len(chosen)} answers are chosen")
    if subset == TIES and not _TIED.fullmatch(name):
        raise _bad(f"id is {name[:40]!r}; in {TIES} it is ref:N or tied:N")
    if subset != TIES and (len(chosen) != 1 or len(rejected) != SHOWN - 1):
        raise _bad(f"{len(chosen)} chosen and {len(rejected)} rejected answers, not 1 and 3")
    prompt = row.get("prompt")
    asked = (
        (Message("user", prompt),)
        if isinstance(prompt, str)
        else turns_of(prompt, "prompt", "user")
    )
    return BestOfPrompt(name, subset, asked, (*chosen, *rejected), len(chosen))


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    values = row.get(name)
    if not isinstance(values, list) or not values:
        raise _bad(f"{name} is {_shown(values)}, not a list of answers")
    if not all(isinstance(value, str) for value in values):
        raise _bad(f"{name} holds something that is not text")
    return values


# Two sets of answers.

_QUESTIONS = ("instruction", *PROMPTS)
_ANSWERS = (*COMPLETIONS, "answer")


@dataclass(frozen=True, slots=True)
class TwoSets:
    """Pairs of the answers of two ``names`` to the same questions; their label, always "tie", means
    nothing. ``difficulty`` by :func:`prompt_of` is empty unless every question has one; ``partial``
    describes rows and questions that are left out."""

    names: tuple[str, str]
    pairs: tuple[Pair, ...]
    difficulty: Mapping[str, float]
    partial: tuple[str, ...]


def read_two_sets(files: Sequence[Path]) -> TwoSets:
    """Read two files of answers: a row has a question and an answer under their usual names, as
    AlpacaEval's outputs ``instruction`` and ``output``; optional are ``generator``, the name of the
    set, and the question's ``difficulty``. Raises DataError for files that cannot be read, or
    without a common question."""

    def read(row: Mapping[str, Any], number: str) -> tuple[str, str, object, float | None]:
        question, answer = (
            next((row[name] for name in names if isinstance(row.get(name), str)), None)
            for names in (_QUESTIONS, _ANSWERS)
        )
        if not question or answer is None:
            raise _bad(f"no question ({', '.join(_QUESTIONS)}) or no answer")
        difficulty = number_of(row.get("difficulty"), "difficulty")
        return question, answer, row.get("generator"), difficulty

    sets = [_read([p], read, lambda row: ("", row[0]), "answer in it can be used") for p in files]
    first, second = ({row[0]: row for row in found.rows} for found in sets)
    generators = [{row[2] for row in found.rows} for found in sets]
    names = [
        str(named.pop()) if len(named) == 1 and named != {None} else path.stem
        for path, named in zip(files, generators, strict=True)
    ]
    source, pairs, known = " against ".join(names), [], {}
    for number, question in enumerate((each for each in first if each in second), 1):
        turns = (Message("user", question),)
        pair = Pair(str(number), source, turns, first[question][1], second[question][1], "tie")
        pairs.append(pair)
        if (value := first[question][3]) is not None:
            known[prompt_of(pair)] = value
    if not pairs:
        raise DataError(f"{files[0]} and {files[1]} have no question in common")
    lone = len(first.keys() ^ second.keys())
    partial = [f"{lone:,} questions have one answer only"] if lone else []
    partial += [problem for found in sets for problem in found.problems]
    is_known = len(known) == len(pairs)
    return TwoSets((names[0], names[1]), tuple(pairs), known if is_known else {}, tuple(partial))


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
            raise _bad(f"the row lacks {error.args[0]}") from None

    nothing = "row with two judgments in it"
    found = _read([path], read, lambda row: (row[0].source, row[0].id), nothing)
    judges = dict.fromkeys(judge for *_, judge in found.rows)
    games = {key_of(pair): games for pair, games, _ in found.rows}
    pairs = tuple(pair for pair, *_ in found.rows)
    return PublishedOutputs(", ".join(judges), pairs, games, found.problems)


def _output_pair(row: Mapping[str, Any]) -> Pair:
    names = ("pair_id", "question", "response_A", "response_B")
    texts = {name: row[name] for name in names}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise _bad(f"{name} is not text")
    label = _DECISIONS.get(row["label"]) if isinstance(row["label"], str) else None
    if label not in ("first", "second"):
        raise _bad(f"label is {_shown(row['label'])}, not A>B or B>A")
    name, question, first, second = texts.values()
    turns, category = (Message("user", question),), _category(row.get("source"))
    return Pair(name, "judgebench", turns, first, second, label, category)


def _category(source: object) -> str:
    for start, category in _CATEGORIES.items():
        if isinstance(source, str) and source.startswith(start):
            return category
    raise _bad(f"source is {_shown(source)}; known ones begin with {', '.join(_CATEGORIES)}")


def _games(row: Mapping[str, Any]) -> Games:
    judgments = row["judgments"]
    if not isinstance(judgments, list) or len(judgments) != 2:
        raise _bad("judgments are not two: the pair was judged in one order only")
    straight, swapped = (_outcome(judgment) for judgment in judgments)
    return Games(straight, swapped.turned())


def _outcome(judgment: object) -> GameOutcome:
    """The outcome of a game; without one of the three decisions it is unreadable, as the authors
    count it."""
    if judgment is None:
        return GameOutcome(None, "unreadable", reason="no judgment")
    if not isinstance(judgment, Mapping):
        raise _bad("a judgment is an object or null")
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
