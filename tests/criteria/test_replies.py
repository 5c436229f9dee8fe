"""Replies in the formats of RuscaRL and VerIF, read strictly."""

import json

import pytest
from hypothesis import given, strategies as st

from flowright.judging.rubrics.criteria_judge import read_bracketed, read_presence

BOTH = '{"1": "PRESENT", "2": "NOT_PRESENT"}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOTH, {1: True, 2: False}),
        (f"```json\n{BOTH}\n```", {1: True, 2: False}),
        (f"\n```\n{BOTH}\n```\n", {1: True, 2: False}),
        (f"<think>1 is not.</think>\n{BOTH}", {1: True, 2: False}),
        ('{"1": "PRESENT"}', {1: True}),
        ('{"1": "present", "2": "NOT PRESENT"}', {}),
        ('{"1": true, "2": ["PRESENT"]}', {}),
        ('{"1": "PRESENT", "2": "PRESENT", "1": "NOT_PRESENT"}', {2: True}),
        ('{"0": "PRESENT", "3": "PRESENT", "01": "PRESENT", "2": "PRESENT"}', {2: True}),
        (f"Here it is: {BOTH}", {}),
        (f"{BOTH}\nBut 1 is doubtful.", {}),
        (f"[{BOTH}]", {}),
        (f"<think>{BOTH}", {}),
        ("[" * 5_000, {}),
        ("", {}),
    ],
)
def test_presence_is_read_from_one_object_alone(text: str, said: dict[int, bool]) -> None:
    assert read_presence(text, 2) == said


@given(st.dictionaries(st.integers(1, 9), st.booleans()), st.booleans())
def test_what_is_written_is_read(said: dict[int, bool], fenced: bool) -> None:
    names = {str(n): "PRESENT" if yes else "NOT_PRESENT" for n, yes in said.items()}
    text = json.dumps(names, indent=1)
    assert read_presence(f"```json\n{text}\n```" if fenced else text, 9) == said


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("[[1]]", True),
        (" [[0]]\n\n理由：回复中存在。", False),
        ("[[1]] All constraints hold; so [[1]].", True),
        ("<think>[[0]]?</think>[[1]]", True),
        ("[[1]]\nOr rather [[0]].", None),
        ("[[0]] [[ 1 ]]", None),
        ("Verdict: [[1]]", None),
        ("1", None),
        ("[1]", None),
        ("[[2]]", None),
        ("[[01]]", None),
        ("[[1", None),
        ("<think>[[1]]", None),
        ("是", None),
        ("", None),
    ],
)
def test_a_verdict_stands_at_the_head(text: str, verdict: bool | None) -> None:
    assert read_bracketed(text) is verdict
