"""A corpus of judges' replies as they occur, each with what an attentive reader takes from it (null
where nothing can be taken) and the reason it is there: none is read as anything else.
"""

import json
from pathlib import Path
from typing import Any

from flowright.judging.parsing import parse_reply
from flowright.judging.schemas import BETTER, GRADE, SHARE, TRUTH, Field

CORPUS = [
    json.loads(line)
    for line in Path(__file__)
    .with_name("judge_replies.jsonl")
    .read_text(encoding="utf-8")
    .split("\n")[:-1]
]
FIELDS = {
    "true_false": [Field("verdict", TRUTH)],
    "score": [Field("score", SHARE, tagged=True)],
    "pointwise": [Field("score", GRADE, tagged=True)],
    "pairwise": [Field("better", BETTER, tagged=True)],
    "rubric": [Field("criterion_1", TRUTH), Field("criterion_2", TRUTH)],
    "multi_aspect": [Field("clarity", GRADE), Field("overall", GRADE)],
}


def expected(row: dict[str, Any]) -> dict[str, Any]:
    says = row["expected"]
    return says if isinstance(says, dict) else {FIELDS[row["ask"]][0].key: says}


def read(row: dict[str, Any]) -> dict[str, Any]:
    return dict(parse_reply(row["reply"], row["form"], FIELDS[row["ask"]]).values)


def test_the_corpus_is_what_it_says() -> None:
    assert len(CORPUS) >= 150
    assert len({(row["ask"], row["form"], row["reply"]) for row in CORPUS}) == len(CORPUS)
    assert all(row["reason"] for row in CORPUS)
    assert {row["ask"] for row in CORPUS} == set(FIELDS)


def test_no_reply_is_read_as_what_it_does_not_say() -> None:
    failures = [
        f"{row['id']}: {row['reason']}"
        for row in CORPUS
        if any(value != expected(row)[key] for key, value in read(row).items())
    ]
    assert failures == []


def test_clear_replies_in_the_asked_form_are_read() -> None:
    """What is clear to a reader but not in the form that was asked for may be asked again."""
    for row in CORPUS:
        said = {key: value for key, value in expected(row).items() if value is not None}
        if said and "clear to a reader" not in row["reason"] and "open" not in row["reason"]:
            assert read(row) == said, row["id"]
