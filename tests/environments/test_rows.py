"""Files of training data for judges: the four forms as they are, and what is told of every row that
cannot be used."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from examples import up_to
from hypothesis import given, strategies as st
from pyarrow import parquet

from flowright.core.errors import DataError
from flowright.data.row_files import RowFile, UnusableRow
from flowright.data.task import Pair
from flowright.environments.judging.rows import (
    FORMS,
    Form,
    PointwiseRow,
    SftRow,
    form_of,
    read_rows,
    typed,
)
from flowright.llm.chat import Message

Row = dict[str, Any]
ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Peru?"},
    {"role": "assistant", "content": "What of it?"},
    {"role": "user", "content": "Its capital."},
]
TURNS = tuple(Message(message["role"], message["content"]) for message in ASKED)  # pyright: ignore


def said(content: Any, **label: Any) -> Row:
    return {"answer": {"role": "assistant", "content": content, "label": label or None}}


def messages(answer: str) -> list[Row]:
    return [*ASKED, {"role": "assistant", "content": answer}]


SFT: Row = {"messages": messages("Lima.")}
CHOSEN: Row = {"chosen": json.dumps(messages("Lima.")), "rejected": json.dumps(messages("Rome."))}
POINT: Row = {"input": ASKED, "output": [said("Lima.", helpfulness=3)], "source": "helpsteer2"}
PAIR: Row = {
    "input": ASKED,
    "output": [
        said("Rome.", preference="B", preference_strength=2, response_id="A"),
        said("Lima."),
    ],
    "source": "helpsteer2",
}


def lines(path: Path, rows: Sequence[object]) -> Path:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def one(form: Form, row: Mapping[str, Any]) -> Any:
    return typed(form, row, "f:1", "f")


def test_the_four_forms_are_read() -> None:
    assert one("sft", SFT) == SftRow((*TURNS, Message("assistant", "Lima.")), "f", "f:1")
    assert one("bradley_terry", CHOSEN) == Pair("f:1", "f", TURNS, "Lima.", "Rome.", "first")
    assert one("pointwise", POINT) == PointwiseRow(TURNS, "Lima.", 3, "helpsteer2", "f:1")
    assert one("pairwise", PAIR) == Pair(
        "f:1", "helpsteer2", TURNS, "Rome.", "Lima.", "second", strength=2.0
    )


@pytest.mark.parametrize("form", FORMS)
def test_columns_stand_in_any_order_and_a_form_shows_in_its_columns(form: Form) -> None:
    row = {"sft": SFT, "bradley_terry": CHOSEN, "pointwise": POINT, "pairwise": PAIR}[form]
    assert form_of(row, FORMS) == form
    assert one(form, dict(reversed(row.items()))) == one(form, row)


def test_lists_of_messages_are_taken_for_chosen_and_rejected() -> None:
    listed = {"chosen": messages("Lima."), "rejected": messages("Rome.")}
    assert one("bradley_terry", listed) == one("bradley_terry", CHOSEN)


@pytest.mark.parametrize(
    ("more", "tie", "margin"),
    [
        ({}, False, None),
        ({"margin": 1.5}, False, 1.5),
        ({"strength": 3}, False, 3.0),
        ({"strength": 3, "margin": 0.5}, False, 0.5),
        ({"strength": 0}, True, 0.0),
        ({"tie": True}, True, None),
        ({"margin": float("nan"), "tie": None}, False, None),
        ({"margin": np.float32(0.5), "tie": np.bool_(True)}, True, 0.5),
    ],
)
def test_margins_and_ties(more: Row, tie: bool, margin: float | None) -> None:
    row = one("bradley_terry", CHOSEN | more)
    assert (row.label, row.strength) == ("tie" if tie else "first", margin)


@pytest.mark.parametrize("label", [4, 4.0, np.int64(4), np.float64(4)])
def test_a_whole_number_is_a_label_whatever_its_type(label: object) -> None:
    assert one("pointwise", POINT | {"output": [said("Lima.", helpfulness=label)]}).label == 4


@pytest.mark.parametrize(
    ("first", "second", "label", "strength"),
    [
        ({"preference": "A"}, {}, "first", None),
        ({}, {"preference": "A", "preference_strength": -3}, "first", 3.0),
        ({"preference": "Tie"}, {"preference": "tie"}, "tie", None),
        ({"preference": None}, {"preference": "B", "response_id": "B"}, "second", None),
    ],
)
def test_a_preference_stands_with_either_answer(
    first: Row, second: Row, label: str, strength: float | None
) -> None:
    pair = one("pairwise", PAIR | {"output": [said("Rome.", **first), said("Lima.", **second)]})
    assert (pair.label, pair.strength, pair.first) == (label, strength, "Rome.")


def test_the_order_of_chosen_and_rejected_is_handed_in(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [CHOSEN, PAIR])
    forms = ("bradley_terry", "pairwise")
    as_it_is = read_rows([file], forms).rows
    turned = read_rows([file], forms, lambda pair: pair.swapped()).rows
    assert isinstance(as_it_is[0], Pair) and turned == (as_it_is[0].swapped(), as_it_is[1])


def test_the_rows_of_the_guide_are_read() -> None:
    page = Path(__file__).parents[2] / "docs/training_judges.md"
    shown = page.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [form_of(row, FORMS) for row in rows] == list(FORMS)
    assert [type(one(form, row)) for form, row in zip(FORMS, rows, strict=True)] == [
        *(SftRow, Pair, PointwiseRow, Pair)
    ]


def pointwise(content: Any = "Lima.", **label: Any) -> Row:
    return POINT | {"output": [said(content, **label)]}


def table(path: Path, rows: Sequence[Row]) -> Path:
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    rows = [POINT, POINT | {"source": "other"}]
    path = table(tmp_path / "train.parquet", rows)
    found = read_rows([path], ["pointwise"])
    assert [row.source for row in found.rows] == ["helpsteer2", "other"]
    assert [row.id for row in found.rows] == [f"{path}:1", f"{path}:2"]
    both = read_rows([table(tmp_path / "pairs.parquet", [PAIR]), path], ["pointwise", "pairwise"])
    assert [type(row) for row in both.rows] == [Pair, PointwiseRow, PointwiseRow]


def test_arrays_of_numpy_are_lists() -> None:
    row = {"input": np.array(ASKED, dtype=object), "output": np.array(POINT["output"])}
    assert one("pointwise", row).conversation == TURNS
    assert form_of(row, FORMS) == "pointwise"


def test_packed_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(SFT).encode() + b"\n"))
    assert len(read_rows([path], ["sft"]).rows) == 1


def test_a_report_names_the_first_rows_of_each_reason(tmp_path: Path) -> None:
    rows = [pointwise(helpfulness=9)] * 5 + [POINT] * 2 + [pointwise("", helpfulness=1)]
    report = read_rows([lines(tmp_path / "t.jsonl", rows)], ["pointwise"]).report
    told = report.lines(most=2)
    assert told[0] == "2 of 8 rows used; left out: label 5, empty text 1"
    assert told[1].endswith("t.jsonl:1: helpfulness is 9, not a whole number from 0 to 4")
    assert told[3:] == ["  and 3 more: label", f"  {tmp_path}/t.jsonl:8: {report.left_out[-1].why}"]


def test_answers_behind_the_first_are_counted(tmp_path: Path) -> None:
    row = POINT | {"output": [said("Lima.", helpfulness=3), said("Rome.", helpfulness=0)]}
    report = read_rows([lines(tmp_path / "t.jsonl", [row])], ["pointwise"]).report
    assert "1 answers behind the first of their row are not read" in report.lines()[1]


def test_a_row_of_another_form_is_told(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", [POINT, SFT])
    report = read_rows([path], ["pointwise", "pairwise"]).report
    assert report.left_out[0].why == "none of the forms pointwise, pairwise: it has messages"


def test_files_that_cannot_be_read_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("hello")
    with pytest.raises(DataError) as caught:
        read_rows([tmp_path / "a.parquet", tmp_path / "b.jsonl"], ["sft"])
    assert len(caught.value.problems) == 2
    with pytest.raises(DataError, match=r"no row of form pairwise(.|\n)*missing column 1"):
        read_rows([lines(tmp_path / "t.jsonl", [SFT])], ["pairwise"])


def test_one_text_that_is_not_utf_8_loses_its_own_row_alone(tmp_path: Path) -> None:
    good, bad = json.dumps(messages("Lima.")).encode(), b"\xff"
    chosen = pa.Array.from_buffers(
        pa.string(),
        3,
        [None, *pa.array([good, bad, good], pa.binary()).buffers()[1:]],
    )
    rejected = pa.array([CHOSEN["rejected"]] * 3)
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"chosen": chosen, "rejected": rejected}), path)
    found: RowFile[Any] = read_rows([path], ["bradley_terry"])
    assert [row.id for row in found.rows] == [f"{path}:1", f"{path}:3"]
    assert found.report.left_out[0].why.startswith("not UTF-8")


KEYS = (
    *("messages", "chosen", "rejected", "input", "output", "answer", "label", "role", "content"),
    *("helpfulness", "preference", "margin"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@up_to(40)
@given(st.dictionaries(st.sampled_from([*SFT, *CHOSEN, *PAIR, "margin"]), json_values))
def test_any_row_is_typed_or_told_in_a_line(row: Row) -> None:
    for form in FORMS:
        try:
            one(form_of(row, [form]), row)
        except UnusableRow as error:
            assert "\n" not in error.why and len(error.why) < 300


@up_to(40)
@given(json_values)
def test_any_value_in_the_place_of_another_is_told(value: object) -> None:
    for good, form, key in (
        (SFT, "sft", "messages"),
        (PAIR, "pairwise", "output"),
        (POINT, "pointwise", "input"),
    ):
        with pytest.raises(UnusableRow):
            one(form, good | {key: [value]})
