"""Rows of benchmarks are not trained on: by the name of their source, and by their text."""

import json
from pathlib import Path
from typing import Any

import pytest

from flowright.core.errors import DataError
from flowright.data.contamination import TrainedOn
from flowright.data.preference_files import HELD_OUT
from flowright.environments.base import make_environment
from flowright.environments.judging.config import BENCHMARKS, JudgingSection
from flowright.environments.judging.tasks import load_conversations, load_rows, read_benchmarks
from flowright.environments.registry import make_config
from flowright.llm.chat import Message

Row = dict[str, Any]


def row(question: str, source: str | None = None) -> Row:
    asked = [{"role": "user", "content": question}]
    answers = [[*asked, {"role": "assistant", "content": text}] for text in ("yes", "no")]
    return {"chosen": answers[0], "rejected": answers[1], "source": source}


def section(folder: Path, *rows: Row, **more: Any) -> JudgingSection:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    given = {
        "data": "files",
        "train_files": [path],
        "benchmark_dir": folder / "raw",
        "val_share": 0.4,
    }
    return JudgingSection.model_validate({**given, "method": "bradley_terry", **more})


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """EvalBiasBench and RewardBench 2 of one row each, by hand."""
    bias = {"instruction": "Is it long?", "response1": "a", "response2": "b", "label": 1}
    best = {"id": "1", "subset": "Math", "prompt": "1 + 1?", "chosen": ["2"], "rejected": [*"345"]}
    for path, text in (
        (
            "evalbiasbench/biasbench.json",
            json.dumps({"length bias": [bias | {"bias": "length bias"}]}),
        ),
        ("rewardbench2/test.jsonl", json.dumps(best) + "\n"),
    ):
        (tmp_path / "raw" / path).parent.mkdir(parents=True)
        (tmp_path / "raw" / path).write_text(text)
    return tmp_path / "raw"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("evalbiasbench", "evalbiasbench"),
        ("EvalBiasBench/length", "evalbiasbench"),
        ("LLMBar/Manual", "llmbar/manual"),
        ("allenai/reward-bench-2", "rewardbench2"),
        ("llmbar", None),
        ("llmbar/natural", None),
        ("mine/manual", None),
        ("judge", None),
    ],
)
def test_a_benchmark_is_known_by_the_name_of_a_source(source: str, name: str | None) -> None:
    sealed = read_benchmarks(BENCHMARKS, Path("none"))
    why = f"its source is {name}, a benchmark" if name else ""
    assert sealed.why_not(source, (Message("user", "What?"),)) == why
    assert sealed.unread == BENCHMARKS


def test_rows_of_benchmarks_are_left_out_by_name_and_by_text(raw: Path) -> None:
    rows = [row("Mine?"), row("Yours?"), row("Theirs?", "judgebench"), row(" IS it\nlong? ")]
    found = load_rows(section(raw.parent, *rows, row("1 + 1?")), seed=0)
    asked = {each.conversation[-1].content for each in (*found.train, *found.held_out)}
    assert asked == {"Mine?", "Yours?"}
    told = "\n".join(found.lines)
    assert "2 of 5 rows used; left out: benchmark 3" in told
    assert "mine.jsonl:3: its source is judgebench, a benchmark" in told
    assert "mine.jsonl:4: its conversation is one of evalbiasbench, a benchmark" in told
    assert "mine.jsonl:5: its conversation is one of rewardbench2, a benchmark" in told
    assert "rows compared with evalbiasbench, rewardbench2 by name and by text" in told
    assert "judgebench by name only, no files in" in told


def test_a_longer_conversation_that_begins_as_theirs_is_left_out(raw: Path) -> None:
    turns = [("user", "Is it long?"), ("assistant", "No."), ("user", "Why?"), ("assistant", "So.")]
    long = {"messages": [{"role": role, "content": text} for role, text in turns]}
    mine = [{"messages": long["messages"][2:]}, {"messages": row("Mine?")["chosen"]}]
    found = load_conversations(section(raw.parent, long, *mine, method="sft"), seed=0)
    assert len(found.train) + len(found.held_out) == 2


def test_where_nothing_is_left_or_nothing_is_sealed(raw: Path) -> None:
    rows = [row("Is it long?"), row("1 + 1?")]
    with pytest.raises(DataError, match="all rows to train on are of benchmarks"):
        load_rows(section(raw.parent, *rows), seed=0)
    found = load_rows(section(raw.parent, *rows, benchmarks=[]), seed=0)
    assert len(found.train) == 1 and "compared with no benchmark" in "\n".join(found.lines)
    with pytest.raises(DataError, match="evalbiasbench"):
        load_rows(section(raw.parent, *rows, benchmarks=["evalbiasbanch"]), seed=0)


def test_what_is_held_out_of_files_is_sealed() -> None:
    assert set(HELD_OUT) < set(BENCHMARKS)


def test_what_stands_beside_the_files_is_known_too(tmp_path: Path) -> None:
    """Subsets, where rows name a source alone, and what a judgement was about."""
    beside = TrainedOn.of_conversations([[Message("user", "Judged.")]])
    (beside | TrainedOn(frozenset({"llmbar/natural"}))).write(tmp_path)
    rows = [row("a", "llmbar"), row("b", "llmbar"), row("c", "other")]
    judging = section(tmp_path, *rows).model_dump()
    values = {"environment": "judging", "judging": judging, "grpo": {"loss": "bradley_terry"}}
    values |= {"policy": {"head": "score"}}
    made = make_environment(make_config(values))
    made.tasks()
    said = made.trained_on()
    assert said is not None and said.subsets == {"llmbar/natural", "other"}
    assert beside.conversations < said.conversations
