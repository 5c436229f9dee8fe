"""Pairs out of files: three forms, and a line for each row that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples import up_to
from hypothesis import given, strategies as st
from pyarrow import parquet

from flowright.core.errors import DataError
from flowright.data.task import Pair
from flowright.judging.measuring.pair_files import read_outputs, read_pairs_file
from flowright.llm.chat import Message

OURS = {"question": "2 + 2?", "first": "4", "second": "5", "label": "first"}
TURNS = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def test_llmbars_form(tmp_path: Path) -> None:
    path = tmp_path / "dataset.json"
    row = {"input": "2 + 2?", "output_1": "4", "output_2": "5", "label": 2}
    path.write_text(json.dumps([row]))
    (pair,) = read_pairs_file(path).rows
    assert pair == Pair("1", "dataset.json", (Message("user", "2 + 2?"),), "4", "5", "second")


def test_our_own_form(tmp_path: Path) -> None:
    told = {"id": "x", "source": "s", "category": "c", "strength": 2, "votes": ["tie", "first"]}
    turns = [{"role": "system", "content": "Be brief."}, TURNS[0]]
    whole = {**{k: v for k, v in OURS.items() if k != "question"}, "conversation": turns, **told}
    first, second = read_pairs_file(lines(tmp_path / "a.jsonl", OURS, whole)).rows
    assert (first.id, first.source, first.question) == ("1", "a.jsonl", "2 + 2?")
    conversation = (Message("system", "Be brief."), Message("user", "2 + 2?"))
    votes = ("tie", "first")
    assert second == Pair("x", "s", conversation, "4", "5", "first", "c", 2, votes)


def test_chosen_and_rejected_as_lists_and_as_strings(tmp_path: Path) -> None:
    other = [TURNS[0], {"role": "assistant", "content": "5"}]
    path = tmp_path / "a.parquet"
    rows = [{"chosen": json.dumps(TURNS), "rejected": json.dumps(other)}]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    as_text = read_pairs_file(path).rows[0]
    as_lists = read_pairs_file(lines(tmp_path / "a.jsonl", {"chosen": TURNS, "rejected": other}))
    assert (as_text.first, as_text.second, as_text.label) == ("4", "5", "first")
    assert as_lists.rows[0].conversation == as_text.conversation


BAD = [
    ("{", "not JSON"),
    ("[1]", "a row is a JSON object"),
    ("[" * 100_000, "lists too deep"),
    ({}, "its keys are nothing; a pair has"),
    ({"prompt": "x"}, "its keys are prompt; a pair has"),
    (OURS | {"label": 1}, "label is 1; write first, second or tie"),
    (OURS | {"label": None}, "label is missing"),
    ({k: v for k, v in OURS.items() if k != "second"}, "second is missing, not text"),
    (OURS | {"first": 4}, "first is 4, not text"),
    (OURS | {"question": None}, "question is missing"),
    (OURS | {"conversation": TURNS}, "write either question or conversation"),
    (OURS | {"lable": "x"}, "unknown field lable; did you mean label"),
    (OURS | {"votes": "first"}, "votes is not a list"),
    (OURS | {"votes": ["A"]}, "a vote is 'A'"),
    (OURS | {"strength": "much"}, "strength is much, not a number"),
    ({"input": "x", "output_1": "a", "output_2": "b", "label": 0}, "label is 0; write 1 or 2"),
    ({"input": "x", "output_1": "a", "output_2": "b", "label": True}, "label is True"),
    ({"input": "x", "output_1": "a", "label": 1}, "output_2 is missing"),
    ({"chosen": TURNS, "rejected": "x"}, "rejected is a string that is not JSON"),
    ({"chosen": TURNS, "rejected": TURNS[:1]}, "rejected does not end with"),
    ({"chosen": TURNS, "rejected": [TURNS[1]]}, "rejected: the roles are assistant"),
    ({"chosen": TURNS[1:], "rejected": TURNS[1:]}, "chosen: the roles are assistant"),
    ({"chosen": [{"role": "tool", "content": ""}], "rejected": []}, "role tool is not one of"),
    ({"chosen": [{"role": "user", "content": 1}], "rejected": []}, "content is 1, not text"),
    ({"chosen": ["a"], "rejected": []}, "chosen[0] is a, not a message"),
    (OURS | {"id": "1"}, "id '1' was used at"),
]  # fmt: skip


def test_every_bad_row_is_one_line_and_nothing_else_is_lost(tmp_path: Path) -> None:
    rows = [OURS, *(row for row, _ in BAD), OURS]
    read = read_pairs_file(lines(tmp_path / "a.jsonl", *rows))
    assert len(read.rows) == 2 and len(read.problems) == len(BAD)
    for number, ((_, why), problem) in enumerate(zip(BAD, read.problems, strict=True), start=2):
        assert problem.startswith(f"{tmp_path}/a.jsonl:{number}: ") and why in problem
        assert len(problem.splitlines()) == 1


def test_a_file_without_a_pair(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pair in it can be used"):
        read_pairs_file(lines(tmp_path / "a.jsonl", {}))
    with pytest.raises(DataError, match="no such file"):
        read_pairs_file(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="not one of"):
        read_pairs_file(tmp_path / "none.txt")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from([*OURS, "conversation", "chosen", "rejected", "input", "output_1", "votes"])


@up_to(50)
@given(st.dictionaries(KEYS, JSON))
def test_whatever_a_row_holds_it_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, row: dict[str, Any]
) -> None:
    path = lines(tmp_path_factory.getbasetemp() / "any.jsonl", OURS, row)
    read = read_pairs_file(path)
    assert len(read.rows) + len(read.problems) == 2


# What others published.


def published(name: str, first: str | None, second: str | None, **more: Any) -> dict[str, Any]:
    """A row of JudgeBench's outputs, its texts made up."""
    judgments = [
        None
        if d is None
        else {"judgment": {"judge_model": "m/x", "scores": [0.5, -1]}, "decision": d}
        for d in (first, second)
    ]
    return {
        "pair_id": name, "source": "mmlu-pro-law", "question": "Q?", "response_A": "a",
        "response_B": "b", "label": "A>B", "judge_name": "reward_model", "judgments": judgments,
        **more,
    }  # fmt: skip


def test_decisions_of_the_second_game_are_of_the_swapped_pair(tmp_path: Path) -> None:
    rows = [published("1", "A>B", "B>A"), published("2", "B>A", "B>A"), published("3", "A=B", None)]
    read = read_outputs(lines(tmp_path / "o.jsonl", *rows))
    said = [tuple(game.preferred for game in games.both) for games in read.games.values()]
    assert said == [("first", "first"), ("second", "first"), ("tie", None)]
    assert read.judge == "m/x (reward_model)" and read.problems == ()
    games = read.games["judgebench/1"]
    assert (games.straight.scores, games.swapped.scores) == ((0.5, -1.0), (-1.0, 0.5))
    assert [pair.category for pair in read.pairs] == ["knowledge"] * 3


def test_rows_of_outputs_that_cannot_be_used(tmp_path: Path) -> None:
    bad = [
        published("1", "A>B", "B>A"),
        published("1", "A>B", "B>A"),
        published("2", "A>B", "B>A", source="chess"),
        published("3", "A>B", "B>A", label="A=B"),
        published("4", "A>B", "B>A", judgments=[{"decision": "A>B"}]),
        published("5", "A>B", "B>A", question=None),
        {"pair_id": "6"},
        [],
        "{",
    ]
    read = read_outputs(lines(tmp_path / "o.jsonl", *bad))
    told = "\n".join(read.problems)
    assert len(read.pairs) == 1 and len(read.problems) == 8
    for why in ("was used at", "known ones begin", "not A>B or B>A", "one order only",
                "question is not", "lacks question", "a JSON object"):  # fmt: skip
        assert why in told
    with pytest.raises(DataError, match="no row with two judgments"):
        read_outputs(lines(tmp_path / "o.jsonl", {}))
