"""Training files for judges: preferences in the four forms that OpenJudge's cookbooks read
(github.com/agentscope-ai/OpenJudge, cookbooks/training_judge_model), and their split.

Every row has ``id`` and ``source``, so that training data can be traced. Off-topic pairs can be
added, whose worse answer is a good one to another question: a judge that goes by how an answer
reads, and not by what was asked, is wrong about half of them. OffsetBias (arXiv 2407.06551) trains
judges on such pairs; there a model writes the other question, here it is one of the rows'.
"""

import hashlib
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import write_rows
from flowright.data.contamination import (
    TrainedOn,
    beginnings,
    conversation_key,
    folded,
    subset_of,
)
from flowright.data.sources.registry import (
    Preferences,
    preference_source,
    read_preferences,
)
from flowright.data.task import Pair, Preferred, Rated
from flowright.llm.chat import Message

if TYPE_CHECKING:
    import pyarrow as pa


HELD_OUT = ("llmbar/gptinst", "llmbar/gptout", "llmbar/manual", "llmbar/neighbor", "evalbiasbench")
"""The default benchmarks of judges trained here."""

Row = Pair | Rated


@dataclass(frozen=True, slots=True)
class PreferenceSplit:
    """Rows to train and to validate on; no conversation is on both sides. ``sha256`` is of which
    conversation is on which side. ``held_out`` counts the rows of the sources that were held out;
    ``left_out`` names, for each reason, the rows that cannot or must not be trained on;
    ``unread`` are the held out sources whose files are not there, so that no text could be compared
    with theirs. ``paths`` are the files that were read, below the folder."""

    train: tuple[Row, ...]
    val: tuple[Row, ...]
    sha256: str
    held_out: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def trained_on(self) -> TrainedOn:
        return TrainedOn.of((*self.train, *self.val))


def split_preferences(
    names: Sequence[str],
    folder: Path,
    *,
    held_out: Sequence[str] = HELD_OUT,
    val_share: float = 0.1,
    seed: int = 0,
) -> PreferenceSplit:
    """Read the sources, hold out, and split by prompt.

    ``held_out`` names sources or subsets, ``llmbar`` or ``llmbar/manual``: they are not trained on,
    and neither is any row that has one of their conversations. ``val_share`` of the conversations
    validate, by a hash of the seed and the text: one never changes sides when other sources are
    added. Raises DataError.
    """
    read = {name: read_preferences(name, folder) for name in _to_train_on(names)}
    benchmarks, unread = held_out_rows(held_out, folder, read)
    rows = [row for one in read.values() for row in (*one.pairs, *one.rated)]
    kept = [row for row in rows if not _is_held_out(row, held_out)]
    _check_left(read, kept)
    sealed = {conversation_key(row.conversation) for row in benchmarks}
    left_out = {"cannot be read": [line for one in read.values() for line in one.unusable]}
    train: list[Row] = []
    val: list[Row] = []
    for row in kept:
        reason = _why_not(row, sealed)
        if reason:
            left_out.setdefault(reason, []).append(f"{row.source}/{row.id}")
        else:
            (val if _validates(row, val_share, seed) else train).append(row)
    if not train or not val:
        raise DataError(
            f"{len(train)} rows to train and {len(val)} to validate on: name more sources, or "
            "give another --val-share or --seed"
        )
    random.Random(f"{seed}/preferences").shuffle(train)
    return PreferenceSplit(
        train=tuple(train),
        val=tuple(val),
        sha256=_hash_of_split(train, val),
        held_out=Counter(subset_of(row) for row in rows if _is_held_out(row, held_out)),
        left_out={reason: tuple(named) for reason, named in left_out.items() if named},
        unread=tuple(unread),
        paths=tuple(path for one in read.values() for path in one.paths),
    )


def _to_train_on(names: Sequence[str]) -> list[str]:
    """The names once each. Raises DataError for sources that are measured on only."""
    closed = [name for name in dict.fromkeys(names) if not preference_source(name).open]
    if closed:
        raise DataError(
            *(f"{name}: no licence is stated: to be measured on only" for name in closed)
        )
    return list(dict.fromkeys(names))


def _is_held_out(row: Row, held_out: Sequence[str]) -> bool:
    return row.source in held_out or subset_of(row) in held_out


def held_out_rows(
    held_out: Sequence[str], folder: Path, read: Mapping[str, Preferences] | None = None
) -> tuple[list[Row], list[str]]:
    """The rows of sources and subsets that are held out, and the sources whose files are not in the
    folder or hold no pairs; ``read`` are those that were read already. Raises DataError for a name
    that is neither a source nor a subset of one."""
    read = read or {}
    rows: list[Row] = []
    unread: list[str] = []
    for source in dict.fromkeys(name.partition("/")[0] for name in held_out):
        if source not in read and not _is_there(source, folder):
            unread.append(source)
            continue
        found = read.get(source) or read_preferences(source, folder)
        everything = [*found.pairs, *found.rated]
        subsets = [source, *dict.fromkeys(map(subset_of, everything))]
        for name in held_out:
            if name.partition("/")[0] == source and name not in subsets:
                raise DataError(f"{name}: no such subset{suggest(name, subsets)}")
        rows += [row for row in everything if _is_held_out(row, held_out)]
    return rows, unread


def _is_there(source: str, folder: Path) -> bool:
    parts = preference_source(source).parts
    return bool(parts) and all((folder / part.path).is_file() for part in parts)


def _check_left(read: Mapping[str, Preferences], kept: Iterable[Row]) -> None:
    """Raise DataError for a source of which nothing is left to train on."""
    left = {row.source for row in kept}
    whole = [name for name in read if name not in left]
    if whole:
        raise DataError(
            *(f"{name}: nothing is left to train on, all of it is held out" for name in whole),
            "leave it away, or say what is held out instead with --hold-out",
        )


def _why_not(row: Row, sealed: set[str]) -> str:
    """Return why a row is not trained on; empty for a usable one."""
    if not sealed.isdisjoint(beginnings(row.conversation)):
        return "its conversation is held out"
    answers = (row.first, row.second) if isinstance(row, Pair) else (row.answer,)
    if not all(answer.strip() for answer in answers):
        return "an answer is empty"
    if isinstance(row, Pair) and row.first == row.second and row.label != "tie":
        return "one of two equal answers is preferred"
    return ""


def _validates(row: Row, val_share: float, seed: int) -> bool:
    return share_of(f"{seed}/{conversation_key(row.conversation)}") < val_share


def share_of(text: str) -> float:
    """A number from 0 to below 1 that is a function of the text alone, evenly spread."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


def _hash_of_split(train: Iterable[Row], val: Iterable[Row]) -> str:
    """The SHA-256 of ``side key`` lines, sorted: of the conversations, not of their order."""
    lines = {f"train {conversation_key(row.conversation)}\n" for row in train}
    lines |= {f"val {conversation_key(row.conversation)}\n" for row in val}
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


# Off-topic pairs.

OFF_TOPIC = ", off topic"
"""Suffix of the source of such a pair."""

_NEAREST = 8  # questions, of which one is drawn
_SAME = 0.6  # of the words of both: the same answer may do for two such questions
_READ = 2000  # characters of a question
_COMMON = 0.05  # of the questions, at most
_MOST_COMMON = 500  # questions: a commoner word is little help, and costs most
_WORD = re.compile(r"\w+")


def off_topic_pairs(rows: Sequence[Row], times: float, seed: int) -> list[Pair]:
    """Make pairs of rows with a better answer: that answer, and the better answer to one of the
    questions nearest to theirs by shared words. Each row makes ``times`` pairs, with different
    answers as far as there are some; 0.5 is every second row, drawn. In every second pair the worse
    answer is the longer one if such a question has one, so that length does not give it away. A row
    that shares no word with another makes none."""
    pairs = [_better_first(row) for row in rows if isinstance(row, Pair) and row.label != "tie"]
    if not times:
        return []
    known = [conversation_key(pair.conversation) for pair in pairs]
    asked = dict(zip(known, pairs, strict=True))
    nearest = _Nearest({key: pair.question for key, pair in asked.items()})
    rng = random.Random(f"{seed}/off topic")
    whole = int(times)
    once_more = {*rng.sample(range(len(pairs)), round((times - whole) * len(pairs)))}
    made = list[Pair]()
    for place, (key, pair) in enumerate(zip(known, pairs, strict=True)):
        wanted = whole + (place in once_more)
        near = nearest.of(key) if wanted else []
        answers = [asked[other].first for other in near if asked[other].first != pair.first]
        for number in range(1, min(wanted, len(answers)) + 1):
            longer = len(made) % 2 == 0
            fitting = [one for one in answers if (len(one) > len(pair.first)) == longer]
            answer = rng.choice(fitting or answers)
            answers.remove(answer)
            made.append(_off_topic(pair, answer, number))
    return made


def _better_first(pair: Pair) -> Pair:
    return pair.swapped() if pair.label == "second" else pair


def _off_topic(pair: Pair, answer: str, number: int) -> Pair:
    return replace(
        pair,
        id=f"{pair.id}{OFF_TOPIC} {number}",
        source=f"{pair.source}{OFF_TOPIC}",
        second=answer,
        strength=None,
        votes=(),
    )


class _Nearest:
    """Questions by shared words, each word weighed by its rarity."""

    def __init__(self, questions: dict[str, str]) -> None:
        self._words = {key: _words(text) for key, text in questions.items()}
        counted = Counter(word for words in self._words.values() for word in words)
        most = min(max(2, _COMMON * len(questions)), _MOST_COMMON)
        self._weight = {
            word: math.log(len(questions) / number)
            for word, number in counted.items()
            if 1 < number <= most
        }
        self._having = defaultdict[str, list[str]](list)
        for key, words in self._words.items():
            for word in words & self._weight.keys():
                self._having[word].append(key)

    def of(self, key: str) -> list[str]:
        """The keys of up to eight questions nearest to this one, those left out that are nearly the
        same; the nearest first."""
        shared = defaultdict[str, float](float)
        for word in sorted(self._words[key] & self._weight.keys()):
            for other in self._having[word]:
                shared[other] += self._weight[word]
        shared.pop(key, None)
        own = self._words[key]
        apart = [
            other
            for other in nlargest(4 * _NEAREST, shared, key=shared.__getitem__)
            if len(own & self._words[other]) < _SAME * len(own | self._words[other])
        ]
        return apart[:_NEAREST]


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(folded(text[:_READ])))


# Forms.

Form = Literal["sft", "bradley_terry", "pointwise", "pairwise"]
FORMS: tuple[Form, ...] = get_args(Form)
Kept = Literal["parquet", "jsonl"]

_BEST = 4  # of the labels 0 to 4
_LETTERS: Mapping[Preferred, str] = {"first": "A", "second": "B", "tie": "tie"}


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options of the rows. ``grades`` are the labels, 0 to 4, of a pair's worse and better answer
    in the pointwise form, None to leave pairs out; ``ties`` keeps ties in the Bradley-Terry form,
    with strength 0; ``seed`` decides which pairs are swapped in the pairwise form."""

    grades: tuple[int, int] | None = None
    ties: bool = False
    seed: int = 0


def rows_of(form: Form, rows: Iterable[Row], making: RowOptions) -> list[dict[str, Any]]:
    """Return the rows of a training file in that form. Rows without use for the form are left out:
    a tie has no better answer, a rated answer is no pair."""
    return [made for row in rows for made in _MAKERS[form](row, making)]


def _sft(row: Row, making: RowOptions) -> list[dict[str, Any]]:
    """``messages``: the conversation and the better answer, or one that was rated best."""
    if isinstance(row, Pair):
        answer = {"first": row.first, "second": row.second, "tie": None}[row.label]
    else:
        answer = row.answer if row.label == _BEST else None
    return [] if answer is None else [{**_named(row), "messages": _messages(row, answer)}]


def _bradley_terry(row: Row, making: RowOptions) -> list[dict[str, Any]]:
    """``chosen`` and ``rejected``, JSON strings of message lists."""
    if not isinstance(row, Pair) or (row.label == "tie" and not making.ties):
        return []
    turned = row.swapped() if row.label == "second" else row
    chosen, rejected = (
        json.dumps(_messages(row, answer), ensure_ascii=False)
        for answer in (turned.first, turned.second)
    )
    strength = 0.0 if row.label == "tie" else row.strength
    return [{**_named(row), "chosen": chosen, "rejected": rejected, "strength": strength}]


def _pointwise(row: Row, making: RowOptions) -> list[dict[str, Any]]:
    """``input``, and one ``output`` with its helpfulness."""
    if not isinstance(row, Pair):
        return [{**_named(row), **_prompt_of(row), "output": [_answered(row.answer, row.label)]}]
    if making.grades is None or row.label == "tie":
        return []
    worse, better = making.grades
    first, second = (better, worse) if row.label == "first" else (worse, better)
    return [
        {
            **_named(row),
            "id": f"{row.id}/{place}",
            **_prompt_of(row),
            "output": [_answered(text, label)],
        }
        for place, text, label in ((1, row.first, first), (2, row.second, second))
    ]


def _pairwise(row: Row, making: RowOptions) -> list[dict[str, Any]]:
    """``input``, and two ``output``, A and B. Half of the pairs are turned round, because in some
    sources the better answer is always the first."""
    if not isinstance(row, Pair):
        return []
    turned = share_of(f"{making.seed}/{row.source}/{row.id}") < 0.5
    shown = row.swapped() if turned else row
    output = [
        _answer(
            text,
            {
                "preference": _LETTERS[shown.label],
                "preference_strength": shown.strength,
                "response_id": letter,
            },
        )
        for letter, text in (("A", shown.first), ("B", shown.second))
    ]
    return [{**_named(row), **_prompt_of(row), "output": output}]


_MAKERS: Mapping[Form, Callable[[Row, RowOptions], list[dict[str, Any]]]] = {
    "sft": _sft,
    "bradley_terry": _bradley_terry,
    "pointwise": _pointwise,
    "pairwise": _pairwise,
}


def _named(row: Row) -> dict[str, Any]:
    return {"id": row.id, "source": row.source}


def _messages(row: Row, answer: str) -> list[dict[str, str]]:
    return [asdict(turn) for turn in (*row.conversation, Message("assistant", answer))]


def _prompt_of(row: Row) -> dict[str, Any]:
    return {"input": [asdict(turn) for turn in row.conversation]}


def _answered(text: str, label: int) -> dict[str, Any]:
    return _answer(text, {"helpfulness": label})


def _answer(text: str, label: Mapping[str, Any]) -> dict[str, Any]:
    return {"answer": {"role": "assistant", "content": text, "label": dict(label)}}


def write_training_file(path: Path, form: Form, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a training file at once; parquet or JSON Lines, by the end of its name."""
    write_rows(path, rows, None if path.suffix == ".jsonl" else _schema(form))


def _schema(form: Form) -> "pa.Schema":
    """Return the columns' types, so that a column without a value has one, too."""
    import pyarrow as pa

    text = pa.string()
    messages = pa.list_(pa.struct([("role", text), ("content", text)]))
    label = {
        "pointwise": pa.struct([("helpfulness", pa.int64())]),
        "pairwise": pa.struct(
            [("preference", text), ("preference_strength", pa.float64()), ("response_id", text)]
        ),
    }.get(form, pa.null())
    answer = pa.struct([("role", text), ("content", text), ("label", label)])
    judged = [("input", messages), ("output", pa.list_(pa.struct([("answer", answer)])))]
    columns = {
        "sft": [("messages", messages)],
        "bradley_terry": [("chosen", text), ("rejected", text), ("strength", pa.float64())],
    }.get(form, judged)
    return pa.schema([("id", text), ("source", text), *columns])
