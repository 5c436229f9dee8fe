"""Rows that cannot be used: each has a line of file and row that says why, whatever is wrong with
it, and no row beside it is lost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from flowright.data.row_files import Fault, RowFile
from flowright.environments.judging.rows import FORMS, Form, read_rows

Row = dict[str, Any]
Bad = tuple[object, Fault, str]
"""A row, or a line as it stands in its file; why it is left out, and words that say so."""

ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Peru?"},
    {"role": "assistant", "content": "What of it?"},
    {"role": "user", "content": "Its capital."},
]
HUGE = 10**400
DEEP = "[" * 100_000


def turns(*said: object) -> list[Row]:
    """Messages of these roles, each of which is a role or a role and a content."""
    return [
        dict(
            zip(("role", "content"), one if isinstance(one, tuple) else (one, "text"), strict=True)
        )
        for one in said
    ]


def messages(answer: object) -> list[Row]:
    return [*ASKED, {"role": "assistant", "content": answer}]


def said(content: Any, **label: Any) -> Row:
    return {"answer": {"role": "assistant", "content": content, "label": label or None}}


def sft(*said: object) -> Row:
    return {"messages": turns(*said)}


def chosen(**more: Any) -> Row:
    return {"chosen": json.dumps(messages("Lima.")), "rejected": messages("Rome.")} | more


def strings(row: Row) -> Row:
    return {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()}


def point(content: Any = "Lima.", **label: Any) -> Row:
    return {"input": ASKED, "output": [said(content, **label)]}


def asked(*said: object) -> Row:
    return point(helpfulness=3) | {"input": turns(*said)}


def pair(first: Row | None = None, second: Row | None = None, **more: Any) -> Row:
    outputs = [first or said("Rome.", preference="B"), second or said("Lima.")]
    return {"input": ASKED, "output": outputs} | more


GOOD: dict[Form, Row] = {
    "sft": {"messages": messages("Lima.")},
    "bradley_terry": strings(chosen()),
    "pointwise": point(helpfulness=3),
    "pairwise": pair(),
}

LINES: Sequence[Bad] = [
    ("{", Fault.NOT_A_ROW, "not JSON: Expecting property name"),
    ("[1]", Fault.NOT_A_ROW, "a row is a JSON object, not list"),
    ("null", Fault.NOT_A_ROW, "not NoneType"),
    (DEEP, Fault.NOT_A_ROW, "too deep"),
    ('{"messages": ' + "1" * 5000 + "}", Fault.NOT_A_ROW, "a number is too long"),
    ("{}", Fault.COLUMN, "the row has nothing"),
]
"""Of JSON Lines, whatever the form."""

SFT: Sequence[Bad] = [
    ({"message": []}, Fault.COLUMN, "no messages; the row has message"),
    ({"messages": None}, Fault.COLUMN, "messages is null"),
    ({"messages": "hello"}, Fault.MESSAGES, "messages is hello, not a list"),
    ({"messages": 5}, Fault.MESSAGES, "messages is 5, not a list"),
    ({"messages": {"role": "user"}}, Fault.MESSAGES, "messages is a dict, not a list"),
    ({"messages": [None]}, Fault.MESSAGES, "messages[0] is None, not a message"),
    ({"messages": [[ASKED[1]]]}, Fault.MESSAGES, "messages[0] is a list, not a message"),
    ({"messages": ["hello"]}, Fault.MESSAGES, "messages[0] is hello, not a message"),
    ({"messages": []}, Fault.ROLES, "does not end with a message of the assistant"),
    ({"messages": ASKED}, Fault.ROLES, "does not end with a message of the assistant"),
    (sft("tool"), Fault.ROLES, "role tool is not one of system, user, assistant"),
    (sft((None, "text")), Fault.ROLES, "messages[0]: role None is not one"),
    (sft("User", "assistant"), Fault.ROLES, "role User is not one"),
    (sft("user", "system", "assistant"), Fault.ROLES, "after an optional system message"),
    (sft("system", "system", "user", "assistant"), Fault.ROLES, "roles are system system user"),
    (sft("user", "user", "assistant"), Fault.ROLES, "the roles are user user assistant"),
    (sft("user", "assistant", "assistant"), Fault.ROLES, "the roles are user assistant assist"),
    (sft("system", "assistant"), Fault.ROLES, "the roles are system assistant"),
    ({"messages": messages(None)}, Fault.MESSAGES, "messages[4]: content is missing"),
    ({"messages": messages(7)}, Fault.MESSAGES, "messages[4]: content is 7, not text"),
    ({"messages": messages([{"type": "text"}])}, Fault.MESSAGES, "content is a list, not text"),
    ({"messages": messages(" \n")}, Fault.EMPTY, "messages[4]: the text is empty"),
    ({"messages": messages("\u200b\u2060\ufeff")}, Fault.EMPTY, "the text is empty"),
    ({"messages": messages("\ud800")}, Fault.CHARACTERS, "half of a surrogate pair"),
    ({"messages": messages("a\x00")}, Fault.CHARACTERS, "NUL at character 2"),
    ({"messages": messages("a"), "source": 5}, Fault.SOURCE, "source is 5, not text"),
    ({"messages": messages("a"), "source": "\ud800"}, Fault.CHARACTERS, "source: half of a surr"),
]

BRADLEY_TERRY: Sequence[Bad] = [
    (chosen(chosen=None), Fault.COLUMN, "chosen is null"),
    ({"rejected": messages("a")}, Fault.COLUMN, "no chosen; the row has rejected"),
    (chosen(chosen="[{"), Fault.MESSAGES, "chosen is a string that is not JSON: Expecting"),
    (chosen(chosen=""), Fault.MESSAGES, "chosen is a string that is not JSON"),
    (chosen(chosen="Lima."), Fault.MESSAGES, "chosen is a string that is not JSON"),
    (chosen(rejected=DEEP), Fault.MESSAGES, "too long or too deep"),
    (chosen(rejected="1" * 5000), Fault.MESSAGES, "too long or too deep"),
    (chosen(chosen='"Lima."'), Fault.MESSAGES, "chosen is Lima., not a list"),
    (chosen(chosen="null"), Fault.MESSAGES, "chosen is None, not a list"),
    (chosen(chosen=json.dumps([messages("a")])), Fault.MESSAGES, "chosen[0] is a list"),
    (chosen(chosen=json.dumps(messages("\ud800"))), Fault.CHARACTERS, "half of a surrogate"),
    (chosen(rejected=json.dumps(messages("\x00"))), Fault.CHARACTERS, "NUL at character 1"),
    (chosen(rejected=messages("\x00")), Fault.CHARACTERS, "NUL at character 1"),
    (chosen(rejected=messages("")), Fault.EMPTY, "rejected[4]: the text is empty"),
    (chosen(chosen=json.dumps(ASKED)), Fault.ROLES, "does not end with a message of the assistant"),
    (chosen(chosen=messages("a")[1:]), Fault.CONVERSATIONS, "answer different conversations"),
    (chosen(rejected=messages("Lima.")), Fault.SAME_ANSWERS, "the same answer, and it is no tie"),
    (chosen(margin=-1), Fault.MARGIN, "margin is -1, which calls the rejected answer the better"),
    (chosen(margin=float("inf")), Fault.MARGIN, "margin is inf, not a number of at most"),
    (chosen(margin=1e300), Fault.MARGIN, "margin is 1e+300"),
    (chosen(margin=HUGE), Fault.MARGIN, "margin is 1000000"),
    (chosen(strength="2"), Fault.MARGIN, "strength is 2, not a number"),
    (chosen(strength=True), Fault.MARGIN, "strength is True, not a number"),
    (chosen(strength=[1]), Fault.MARGIN, "strength is a list, not a number"),
    (chosen(tie="yes"), Fault.PREFERENCE, "tie is yes, not true or false"),
    (chosen(tie=1), Fault.PREFERENCE, "tie is 1, not true or false"),
    (chosen(tie=False, strength=0), Fault.PREFERENCE, "tie is false, strength 0"),
    (chosen(tie=True, strength=2), Fault.PREFERENCE, "tie is true, strength 2"),
]

POINTWISE: Sequence[Bad] = [
    *((point(helpfulness=label), Fault.LABEL, f"helpfulness is {words}, not a whole number")
      for label, words in ((5, "5"), (-1, "-1"), (2.5, "2.5"), ("3", "3"), (True, "True"),
                           (float("nan"), "missing"), (float("inf"), "inf"), (1e300, "1e+300"),
                           ([3], "a list"), ({"score": 3}, "a dict"))),
    (point(helpfulness=HUGE), Fault.LABEL, "helpfulness is 10000"),
    (point(preference="A"), Fault.LABEL, "helpfulness is missing"),
    (point(), Fault.LABEL, "helpfulness is missing"),
    (point("", helpfulness=3), Fault.EMPTY, "output[0].answer: the text is empty"),
    (point(["Lima."], helpfulness=3), Fault.MESSAGES, "content is a list, not text"),
    (point(None, helpfulness=3), Fault.MESSAGES, "content is missing"),
    (point("a\x00b", helpfulness=3), Fault.CHARACTERS, "NUL at character 2"),
    ({"input": ASKED}, Fault.COLUMN, "no output; the row has input"),
    ({"input": None, "output": [said("a", helpfulness=3)]}, Fault.COLUMN, "input is null"),
    (point() | {"output": []}, Fault.ANSWERS, "output holds no answer"),
    (point() | {"output": [None]}, Fault.ANSWERS, "output[0] has no answer"),
    (point() | {"output": [[said("a")]]}, Fault.ANSWERS, "output[0] has no answer"),
    (point() | {"output": [{"answer": "Lima."}]}, Fault.ANSWERS, "output[0] has no answer"),
    (point() | {"output": "Lima."}, Fault.MESSAGES, "output is Lima., not a list"),
    (point() | {"output": [{"answer": {"content": "a", "label": 3}}]}, Fault.LABEL, "label is 3"),
    (point() | {"output": [{"answer": {"role": "user", "content": "a"}}]}, Fault.ROLES, "of user"),
    (point(helpfulness=3) | {"input": "Peru?"}, Fault.MESSAGES, "input is Peru?, not a list"),
    (asked("user", "user"), Fault.ROLES, "the roles are user user"),
    (asked("assistant"), Fault.ROLES, "the roles are assistant"),
    (asked("user", "system", "user"), Fault.ROLES, "after an optional system message"),
    (asked("system"), Fault.ROLES, "does not end with a message of the user"),
    (asked("user", "assistant"), Fault.ROLES, "does not end with a message of the user"),
]  # fmt: skip

PAIRWISE: Sequence[Bad] = [
    (pair() | {"output": [said("a", preference="A")]}, Fault.ANSWERS, "1 answers, not two"),
    (pair() | {"output": [said("a"), said("b"), said("c")]}, Fault.ANSWERS, "3 answers, not two"),
    (pair() | {"output": None}, Fault.COLUMN, "output is null"),
    (pair() | {"output": {"A": "a"}}, Fault.MESSAGES, "output is a dict, not a list"),
    (pair(said("a"), said("b")), Fault.PREFERENCE, "neither answer's label has a preference"),
    *((pair(said("a", preference=said_), said("b")), Fault.PREFERENCE, f"preference is {words}")
      for said_, words in (("C", "C, not A, B or tie"), (1, "1, not"), (True, "True, not"),
                           ("", "empty, not"), (["A"], "a list, not"), (0.5, "0.5, not"))),
    (pair(said("a", preference="A"), said("b", preference="B")), Fault.PREFERENCE, "disagree"),
    (pair(said("a", preference="A", response_id="B"), said("b")), Fault.PREFERENCE, "is A, its"),
    (pair(said("a", preference="A", response_id=1), said("b")), Fault.PREFERENCE, "response_id 1"),
    (pair(said("a", preference="A"), said("a")), Fault.SAME_ANSWERS, "it is no tie"),
    (pair(said("", preference="A")), Fault.EMPTY, "output[0].answer: the text is empty"),
    (pair(said(None, preference="A")), Fault.MESSAGES, "output[0].answer: content is missing"),
    (pair(None, said("\ud800")), Fault.CHARACTERS, "output[1].answer: half of a surrogate"),
    (pair(None, {"answer": None}), Fault.ANSWERS, "output[1] has no answer"),
    (pair(None, {"text": "b"}), Fault.ANSWERS, "output[1] has no answer"),
    *((pair(said("a", preference="A", preference_strength=s), said("b")), fault, words)
      for s, fault, words in (
          (HUGE, Fault.MARGIN, "preference_strength is 1000"),
          (float("-inf"), Fault.MARGIN, "preference_strength is -inf"),
          ("2", Fault.MARGIN, "preference_strength is 2, not a number"),
          (0, Fault.PREFERENCE, "preference is A, preference_strength 0"))),
    (pair(said("a", preference="tie", preference_strength=1), said("b")),
     Fault.PREFERENCE, "preference is tie, preference_strength 1"),
    (pair(input=turns("user", "assistant")), Fault.ROLES, "end with a message of the user"),
    (pair(input=turns("user", "user")), Fault.ROLES, "the roles are user user"),
    (pair(source=["a"]), Fault.SOURCE, "source is a list, not text"),
]  # fmt: skip

MALFORMED: dict[Form, Sequence[Bad]] = {
    "sft": SFT,
    "bradley_terry": BRADLEY_TERRY,
    "pointwise": POINTWISE,
    "pairwise": PAIRWISE,
}


def check(found: RowFile, places: Sequence[str], bad: Sequence[Bad], good: int) -> None:
    """Each of the bad rows has its line, and every good one is used."""
    assert len(found.rows) == found.report.used == good
    assert [row.where for row in found.report.left_out] == places
    for told, (row, fault, why) in zip(found.report.left_out, bad, strict=True):
        assert (told.fault, why in told.why) == (fault, True), f"{row}"[:300] + f": {told}"
        assert "\n" not in str(told) and len(told.why) < 300
        str(told).encode()
    assert sum(found.report.faults.values()) == len(bad)


@pytest.mark.parametrize("form", FORMS)
def test_every_malformed_line_is_told_and_nothing_else_is_lost(form: Form, tmp_path: Path) -> None:
    bad = [*LINES, *MALFORMED[form]]
    assert len(bad) > 25
    path = tmp_path / "train.jsonl"
    texts = [row if isinstance(row, str) else json.dumps(row) for row, _, _ in bad]
    good = json.dumps(GOOD[form])
    path.write_text("".join(f"{text}\n{good}\n" for text in texts), encoding="utf-8")
    found = read_rows([path], [form])
    check(found, [f"{path}:{2 * n + 1}" for n in range(len(bad))], bad, len(bad))
    assert [row.id for row in found.rows] == [f"{path}:{2 * n + 2}" for n in range(len(bad))]


@pytest.mark.parametrize("form", FORMS)
def test_every_malformed_row_of_parquet_is_told(form: Form, tmp_path: Path) -> None:
    """A file for each, because the rows of one have one type; those that have no type in Arrow,
    such as half a surrogate pair, cannot stand in one."""
    paths: list[Path] = []
    bad: list[Bad] = []
    for each in MALFORMED[form]:
        assert isinstance(each[0], dict)
        try:
            table = pa.Table.from_pylist([each[0]])
        except (pa.ArrowException, UnicodeEncodeError, OverflowError):
            continue
        paths += [tmp_path / f"{len(bad)}.parquet", tmp_path / f"{len(bad)}.good.parquet"]
        parquet.write_table(table, paths[-2])
        parquet.write_table(pa.Table.from_pylist([GOOD[form]]), paths[-1])
        bad.append(each)
    assert len(bad) >= 20
    check(read_rows(paths, [form]), [f"{path}:1" for path in paths[::2]], bad, len(bad))


def test_bad_rows_among_good_ones_of_one_parquet_file(tmp_path: Path) -> None:
    labels = [3, 2.5, float("nan"), None, 5, 0, -1]
    path = tmp_path / "train.parquet"
    parquet.write_table(pa.Table.from_pylist([point(helpfulness=label) for label in labels]), path)
    found = read_rows([path], ["pointwise"])
    assert [row.id for row in found.rows] == [f"{path}:1", f"{path}:6"]
    assert [row.where for row in found.report.left_out] == [f"{path}:{n}" for n in (2, 3, 4, 5, 7)]
    assert set(found.report.faults) == {Fault.LABEL}


def test_a_value_that_python_has_none_for_loses_its_own_row_alone(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([GOOD["sft"]] * 3)
    when = pa.array([0, 2**60, 1], pa.timestamp("ms"))
    path = tmp_path / "train.parquet"
    parquet.write_table(table.append_column("when", when), path)
    found = read_rows([path], ["sft"])
    assert [row.id for row in found.rows] == [f"{path}:1", f"{path}:3"]
    assert str(found.report.left_out[0]).startswith(f"{path}:2: a value is too large")


def test_every_sort_of_malformed_row_is_tried() -> None:
    tried = {fault for bad in (LINES, *MALFORMED.values()) for _, fault, _ in bad}
    elsewhere = {Fault.OVERLONG, Fault.TEMPLATE, Fault.HELD_OUT, Fault.BENCHMARK}
    elsewhere |= {Fault.RUBRIC, Fault.POINTS, Fault.RULE, Fault.CHECKERS}
    assert set(Fault) - tried == {Fault.FORM, *elsewhere}
