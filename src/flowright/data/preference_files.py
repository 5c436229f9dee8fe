"""Training files for judges: preferences in the four forms that OpenJudge's cookbooks read
(github.com/agentscope-ai/OpenJudge, cookbooks/training_judge_model). No reading here, and no
choosing of rows.

Every row also has ``id`` and ``source``, so that what was trained on can be told.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from flowright.core.files import write_bytes, write_text
from flowright.data.preference_split import Row, share_of
from flowright.data.preferences import Pair, Preferred, Turn

if TYPE_CHECKING:
    import pyarrow as pa

Form = Literal["sft", "bradley_terry", "pointwise", "pairwise"]
FORMS: tuple[Form, ...] = get_args(Form)
Kept = Literal["parquet", "jsonl"]

_BEST = 4  # of the labels 0 to 4
_LETTERS: Mapping[Preferred, str] = {"first": "A", "second": "B", "tie": "tie"}


@dataclass(frozen=True, slots=True)
class Making:
    """How rows are made. ``grades`` are the labels, 0 to 4, of a pair's worse and better answer in
    the pointwise form, None where pairs have no part in it; ``ties`` keeps ties in the
    Bradley-Terry form, with strength 0; ``seed`` decides which pairs are turned round in the
    pairwise form."""

    grades: tuple[int, int] | None = None
    ties: bool = False
    seed: int = 0


def rows_of(form: Form, rows: Iterable[Row], making: Making) -> list[dict[str, Any]]:
    """The rows of a training file in that form. A row that the form has no use for is not there: a
    tie says nothing of a better answer, a rated answer nothing of a pair."""
    return [made for row in rows for made in _MAKERS[form](row, making)]


def _sft(row: Row, making: Making) -> list[dict[str, Any]]:
    """``messages``: the conversation and the better answer, or one that was rated best."""
    if isinstance(row, Pair):
        answer = {"first": row.first, "second": row.second, "tie": None}[row.label]
    else:
        answer = row.answer if row.label == _BEST else None
    return [] if answer is None else [{**_named(row), "messages": _messages(row, answer)}]


def _bradley_terry(row: Row, making: Making) -> list[dict[str, Any]]:
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


def _pointwise(row: Row, making: Making) -> list[dict[str, Any]]:
    """``input``, and one ``output`` with its helpfulness."""
    if not isinstance(row, Pair):
        return [{**_named(row), **_asked(row), "output": [_answered(row.answer, row.label)]}]
    if making.grades is None or row.label == "tie":
        return []
    worse, better = making.grades
    first, second = (better, worse) if row.label == "first" else (worse, better)
    return [
        {
            **_named(row),
            "id": f"{row.id}/{place}",
            **_asked(row),
            "output": [_answered(text, label)],
        }
        for place, text, label in ((1, row.first, first), (2, row.second, second))
    ]


def _pairwise(row: Row, making: Making) -> list[dict[str, Any]]:
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
    return [{**_named(row), **_asked(row), "output": output}]


_MAKERS: Mapping[Form, Callable[[Row, Making], list[dict[str, Any]]]] = {
    "sft": _sft,
    "bradley_terry": _bradley_terry,
    "pointwise": _pointwise,
    "pairwise": _pairwise,
}


def _named(row: Row) -> dict[str, Any]:
    return {"id": row.id, "source": row.source}


def _message(turn: Turn) -> dict[str, str]:
    return {"role": turn.role, "content": turn.content}


def _messages(row: Row, answer: str) -> list[dict[str, str]]:
    return [_message(turn) for turn in (*row.conversation, Turn("assistant", answer))]


def _asked(row: Row) -> dict[str, Any]:
    return {"input": [_message(turn) for turn in row.conversation]}


def _answered(text: str, label: int) -> dict[str, Any]:
    return _answer(text, {"helpfulness": label})


def _answer(text: str, label: Mapping[str, Any]) -> dict[str, Any]:
    return {"answer": {"role": "assistant", "content": text, "label": dict(label)}}


def write_rows(path: Path, form: Form, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a training file, replacing it at once; the end of its name says as what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return
    import pyarrow as pa  # half a second that JSON Lines do without
    from pyarrow import parquet

    buffer = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=_schema(form)), buffer)
    write_bytes(path, buffer.getvalue().to_pybytes())


def _schema(form: Form) -> "pa.Schema":
    """The columns' types, given so that a column without a value has one, too."""
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
