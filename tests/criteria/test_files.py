"""Rubric files and VerIF's: what a row may look like, and what is told of every one that is not
used."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from flowright.core.errors import DataError
from flowright.criteria.rubrics.rows import (
    Constraint,
    Item,
    MathAnswer,
    WordCount,
    read_rubrics,
    read_verif,
    rubric_row,
    verif_row,
)
from flowright.data.row_files import Fault, UnusableRow
from flowright.llm.chat import Message

Row = dict[str, Any]
PROMPT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Peru?"},
    {"role": "assistant", "content": "What of it?"},
    {"role": "user", "content": "Its capital."},
]
NAMES = {"criterion": "It names Lima.", "points": 3, "tags": {"source": "s", "verifier": "llm"}}
FUNCTION = "def check_following(instruction, response):\n    return '?' not in response\n"


def row(*items: Any, **changes: Any) -> Row:
    model = {"style": "rubric", "ground_truth": "", "rubrics": list(items)}
    given = {"prompt": PROMPT, "data_source": "geo", "ability": "qa", "reward_model": model}
    return given | {"extra_info": {"index": 7}} | changes


def item(tags: Any = None, points: Any = 1, criterion: Any = "It is short.") -> Row:
    return {"criterion": criterion, "points": points, "tags": tags}


def rule(function: Any, parameters: Any) -> Row:
    return item({"verifier": "rule", "function": function, "parameters": parameters})


def verif(checkers: Any, functions: Any, **changes: Any) -> Row:
    truth = json.dumps({"checkers": checkers, "functions": functions})
    return {"prompt": PROMPT, "reward_model": {"style": "rm", "ground_truth": truth}} | changes


COUNTED = {"min_count": 10, "max_count": "20", "answer": None}
TAGS = [
    (None, {}, None),
    ({}, {}, None),
    ([], {}, None),
    ({"axis": "accuracy", "cluster": None}, {"axis": "accuracy"}, None),
    (["axis:a", "level:a:b", "bare"], {"axis": "a", "level": "a:b", "bare": ""}, None),
    (
        {"verifier": "rule", "function": "word_count_range", "parameters": COUNTED},
        {"verifier": "rule", "function": "word_count_range"},
        WordCount(10, 20),
    ),
    (
        ["verifier:rule", "function:math_verify", 'parameters:{"answer": "1/2"}'],
        {"verifier": "rule", "function": "math_verify", "parameters": '{"answer": "1/2"}'},
        MathAnswer("1/2"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tags", "shown", "rule"), TAGS)
def test_tags_are_an_object_or_a_list(tags: Any, shown: Row, rule: Any) -> None:
    read = rubric_row(row(item(tags)), "f:1", Path("f.parquet"))
    assert read.items == (Item("It is short.", 1.0, rule, shown),)
    assert read.items[0].tags == shown


def test_a_row_keeps_the_whole_conversation() -> None:
    read = rubric_row(row(NAMES, item(points=-2.5)), "f:1", Path("f.parquet"))
    assert [turn.role for turn in read.conversation] == ["system", "user", "assistant", "user"]
    assert (read.source, read.ability, read.id) == ("geo", "qa", "f:1")
    assert [each.points for each in read.items] == [3.0, -2.5]


def test_healthbenchs_own_rows_have_their_rubric_in_a_column() -> None:
    given = {"prompt": PROMPT[-1:], "rubrics": [item(["axis:accuracy"])], "prompt_id": "x"}
    read = rubric_row(given, "f:1", Path("oss_eval.jsonl"))
    assert read.source == "oss_eval"
    assert read.conversation == (Message("user", "Its capital."),)


BAD_RUBRICS = [
    (row(), Fault.RUBRIC, "rubrics is empty"),
    (row("short"), Fault.RUBRIC, "rubrics[0] is short, not an object"),
    (row(item(criterion=" ")), Fault.EMPTY, "rubrics[0].criterion: the text is empty"),
    (row(item(points=0)), Fault.POINTS, "rubrics[0]: points are 0; a number"),
    (row(item(points="3")), Fault.POINTS, "rubrics[0]: points are 3; a number"),
    (row(item(points=True)), Fault.POINTS, "points are True"),
    (row(item(points=float("nan"))), Fault.POINTS, "points are None"),
    (row(item(points=-1)), Fault.POINTS, "no item has points above 0"),
    (row(item(tags=3)), Fault.RULE, "rubrics[0]: tags are 3, not an object or a list"),
    (row(item(tags=[3])), Fault.RULE, 'something other than "key:value"'),
    (row(rule("rhymes", {})), Fault.RULE, "verifier rule with function rhymes; known is"),
    (row(item({"verifier": "human"})), Fault.RULE, "verifier human with function None"),
    (row(rule("math_verify", None)), Fault.RULE, "math_verify needs parameters, not None"),
    (row(rule("math_verify", {"value": 1})), Fault.RULE, "math_verify needs answer"),
    (row(rule("word_count_range", {"min_count": 3})), Fault.RULE, "max_count of word_count_range"),
    (row(rule("word_count_range", {"min_count": 1.5, "max_count": 2})), Fault.RULE, "is 1.5, not"),
    (row(rule("word_count_range", {"min_count": 1, "max_count": float("inf")})), Fault.RULE, "inf"),
    (row(item(points=float("inf"))), Fault.POINTS, "points are inf"),
    (row(rule("word_count_range", {"min_count": 3, "max_count": 2})), Fault.RULE, "3 is above"),
    (row(item(), prompt=PROMPT[:3]), Fault.ROLES, "prompt does not end with a message of the user"),
    (row(item(), prompt=[]), Fault.ROLES, "prompt does not end with a message of the user"),
    (row(item(), reward_model=3), Fault.FORM, "reward_model is 3, not an object"),
    (row(item(), reward_model={"style": "rm"}), Fault.FORM, "reward_model.style is rm, not rubric"),
    (row(item(), reward_model={"style": "rubric"}), Fault.COLUMN, "no rubrics"),
    (row(item(), data_source=3), Fault.FORM, "data_source is 3, not text"),
]  # fmt: skip

BAD_VERIF = [
    (verif([], []), Fault.CHECKERS, "0 checkers and 0 functions"),
    (verif(["[llm] a"], []), Fault.CHECKERS, "1 checkers and 0 functions; one each is needed"),
    (verif(["a"], ["b"]), Fault.CHECKERS, "checkers[0] has neither [llm] nor [rule]"),
    (verif(["[llm] "], ["b"]), Fault.EMPTY, "checkers[0]: the text is empty"),
    (verif([3], ["b"]), Fault.MESSAGES, "checkers[0]: content is 3, not text"),
    (verif(["[rule] a"], ["x = 1"]), Fault.CHECKERS, "functions[0] of a rule does not define"),
    (verif(["[rule] a"], [None]), Fault.MESSAGES, "functions[0]: content is missing"),
    (verif(3, ["b"]), Fault.MESSAGES, "checkers is 3, not a list"),
    ({"prompt": PROMPT, "reward_model": {"ground_truth": "{"}}, Fault.MESSAGES, "not JSON"),
    ({"prompt": PROMPT, "reward_model": {"ground_truth": "[]"}}, Fault.CHECKERS, "a list, not"),
    ({"prompt": PROMPT, "reward_model": {}}, Fault.COLUMN, "no ground_truth"),
    ({"prompt": PROMPT}, Fault.COLUMN, "no reward_model"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "fault", "why"), BAD_RUBRICS)
def test_an_unusable_rubric_row_says_why(given: Row, fault: Fault, why: str) -> None:
    with pytest.raises(UnusableRow) as caught:
        rubric_row(given, "f:1", Path("f"))
    assert caught.value.fault is fault
    assert why in caught.value.why


@pytest.mark.parametrize(("given", "fault", "why"), BAD_VERIF)
def test_an_unusable_row_of_verif_says_why(given: Row, fault: Fault, why: str) -> None:
    with pytest.raises(UnusableRow) as caught:
        verif_row(given, "f:1", Path("f"))
    assert caught.value.fault is fault
    assert why in caught.value.why


def test_checkers_are_marked_at_one_end() -> None:
    given = verif(["[llm] Style: be kind.", "Ask nothing. [rule]"], ["import llm_call", FUNCTION])
    read = verif_row(given, "f:2", Path("f.jsonl"))
    assert read.constraints == (
        Constraint("Style: be kind.", "soft"),
        Constraint("Ask nothing.", "rule", FUNCTION),
    )
    assert (read.instruction, read.source) == ("Its capital.", "f")


def test_every_row_of_a_file_is_used_or_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    rows = [row(NAMES), row(), "not a row", row(item(points=0)), row(NAMES)]
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    found = read_rubrics([path])
    assert [read.id for read in found.rows] == [f"{path}:1", f"{path}:5"]
    assert found.report.lines()[0] == "2 of 5 rows used; left out: rubric 1, not a row 1, points 1"
    assert f"  {path}:2: rubrics is empty" in found.report.lines()


def test_parquet_holds_what_json_lines_hold(tmp_path: Path) -> None:
    rows = [row(NAMES, item(), rule("word_count_range", COUNTED | {"max_count": 20}))]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    (read,) = read_rubrics([tmp_path / "r.parquet"]).rows
    assert [each.rule for each in read.items] == [None, None, WordCount(10, 20)]
    assert read.items[1].tags == {}
    with pytest.raises(DataError, match="no row with checkers"):
        read_verif([tmp_path / "r.parquet"])
