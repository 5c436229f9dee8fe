"""What other judges said, out of files that others published: JudgeBench's outputs, a line of JSON
a pair with two ``judgments``, the second of the swapped pair. No judge is asked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.tables import read_errors
from flowright.data.preferences import Pair, Preferred, Turn
from flowright.judging.measuring.benchmarks.contenders import key_of
from flowright.judging.measuring.benchmarks.outcomes import Games, Outcome

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
    """The pairs of a file, what ``judge`` said of each by :func:`key_of`, and a line for each row
    that cannot be used."""

    judge: str
    pairs: tuple[Pair, ...]
    said: Mapping[str, Games]
    problems: tuple[str, ...]


def read_outputs(path: Path) -> PublishedOutputs:
    """Raises DataError for a file that cannot be read or has no row that can be used."""
    pairs: dict[str, Pair] = {}
    said: dict[str, Games] = {}
    problems: list[str] = []
    judges: dict[str, None] = {}
    with read_errors(path), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                pair, games = _pair(row), _games(row)
                if key_of(pair) in pairs:
                    raise ValueError(f"pair_id {pair.id!r} stands there twice")
                judges[_judge(row)] = None
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                problems.append(f"{path}:{number}: {_why(error)}")
                continue
            pairs[key_of(pair)], said[key_of(pair)] = pair, games
    if not pairs:
        raise DataError(*problems[:10], f"{path}: no row with two judgments in it")
    return PublishedOutputs(", ".join(judges), tuple(pairs.values()), said, tuple(problems))


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the row lacks {error.args[0]}"
    return str(error)[:200]


def _pair(row: Mapping[str, Any]) -> Pair:
    if not isinstance(row, dict):
        raise TypeError("a row is a JSON object")
    texts = {name: row[name] for name in ("pair_id", "question", "response_A", "response_B")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} is not text")
    label = _DECISIONS.get(row["label"])
    if label not in ("first", "second"):
        raise ValueError(f"label is {row['label']!r}, not A>B or B>A")
    asked, first, second = (texts[name] for name in ("question", "response_A", "response_B"))
    turns = (Turn("user", asked),)
    return Pair(
        texts["pair_id"], "judgebench", turns, first, second, label, _category(row.get("source"))
    )


def _category(source: object) -> str:
    for start, category in _CATEGORIES.items():
        if isinstance(source, str) and source.startswith(start):
            return category
    raise ValueError(f"source is {source!r}; known ones begin with {', '.join(_CATEGORIES)}")


def _games(row: Mapping[str, Any]) -> Games:
    judgments = row["judgments"]
    if not isinstance(judgments, list) or len(judgments) != 2:
        raise ValueError("judgments are not two: the pair was judged in one order only")
    straight, swapped = (_outcome(judgment) for judgment in judgments)
    return Games(straight, swapped.turned())


def _outcome(judgment: object) -> Outcome:
    """A decision that is none of the three, or none at all, is unreadable, as its authors count
    it."""
    if judgment is None:
        return Outcome(None, "unreadable", reason="no judgment")
    if not isinstance(judgment, Mapping):
        raise TypeError("a judgment is an object or null")
    decision = judgment.get("decision")
    preferred = _DECISIONS.get(decision) if isinstance(decision, str) else None
    scores = _scores(judgment.get("judgment"))
    if preferred is None:
        return Outcome(None, "unreadable", scores, f"decision {str(decision)[:60]}")
    return Outcome(preferred, "ok", scores)


def _scores(said: object) -> tuple[float, float] | None:
    scores = said.get("scores") if isinstance(said, Mapping) else None
    if not isinstance(scores, list) or len(scores) != 2:
        return None
    if not all(isinstance(s, int | float) and not isinstance(s, bool) for s in scores):
        return None
    return float(scores[0]), float(scores[1])


def _judge(row: Mapping[str, Any]) -> str:
    """The model that judged, and how it was asked."""
    for judgment in row["judgments"]:
        said = judgment.get("judgment") if isinstance(judgment, Mapping) else None
        model = said.get("judge_model") if isinstance(said, Mapping) else None
        if isinstance(model, str):
            return f"{model} ({row.get('judge_name', 'unknown')})"
    return str(row.get("judge_name", "unknown"))
