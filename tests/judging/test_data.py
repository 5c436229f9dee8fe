"""Labelled answers: read with errors that name the line, made of tasks by the gold check."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowright.core.errors import DataError
from flowright.data.task import Problem, write_tasks
from flowright.grading import gold_check
from flowright.judging.measuring.labelled_answers import (
    LabelledItem,
    is_task_file,
    labelled_set,
    mistakes,
    read_labelled,
    write_labelled,
)
from flowright.sandbox import Limits, Sandbox

ROW = {"question": "1 + 1?", "answer": "2", "reference": "2", "label": True}


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    items = [
        LabelledItem("a", "Q?", "2", "2", True),
        LabelledItem("b", "Q?", "", "2", False, "number", ("two",), "passed 1 of 2 tests"),
    ]
    path = tmp_path / "new" / "labelled.jsonl"
    assert write_labelled(path, items) == 2
    assert read_labelled(path) == items
    assert not is_task_file(path)


def test_rows_without_an_id_are_named_by_their_line(tmp_path: Path) -> None:
    found = read_labelled(written(tmp_path, ROW, {**ROW, "label": False}))
    assert [item.id for item in found] == ["line-1", "line-2"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], ":2: a row is a JSON object, not list"),
        ({"question": "?", "label": True}, ":2: the row lacks answer, reference"),
        ({**ROW, "anwser": "2"}, "unknown field anwser; did you mean answer?"),
        ({**ROW, "label": "yes"}, "label is 'yes'; write true (right) or false (wrong)"),
        ({**ROW, "label": 1}, "label is 1; write true"),
        ({**ROW, "answer": 2}, "answer is int, not a string"),
        ({**ROW, "question": " "}, "the question is empty"),
        ({**ROW, "answer_type": "essay"}, "answer_type is 'essay', not one of number"),
        ({**ROW, "alternatives": "two"}, "alternatives is not a list of strings"),
        ({**ROW, "id": "line-1"}, "id 'line-1' was used in line 1"),
    ],
)
def test_an_unusable_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_labelled(written(tmp_path, ROW, row))
    assert message in str(error.value) and "labelled.jsonl:2" in str(error.value)


def test_files_that_hold_nothing_usable(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; --build"):
        read_labelled(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="no labelled answer in it"):
        read_labelled(written(tmp_path))
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b'{"question": \n')
    with pytest.raises(DataError, match=r"broken\.jsonl:1: not JSON"):
        read_labelled(broken)
    broken.write_bytes(b"\n\xff\n")
    with pytest.raises(DataError, match=r"broken\.jsonl:2: not UTF-8"):
        read_labelled(broken)


# Made of tasks.

CHOICES = (("A", "red"), ("B", "blue"), ("C", "green"))
TASKS = (
    Problem("m1", "math", "sums", "What is 17 + 25?", "42"),
    Problem("m2", "math", "sums", "What is 3/4 of 1?", "\\frac{3}{4}"),
    Problem("m3", "math", "sums", "How long is it?", "2.5"),
    Problem("q1", "qa", "colours", "Which is the sky's?", "B", choices=CHOICES),
    Problem("q2", "qa", "cities", "Capital of France?", "Paris", alternatives=("Paris, France",)),
    Problem("q3", "qa", "cities", "Capital of Italy?", "Rome"),
    Problem("q4", "qa", "facts", "Is water wet?", "yes"),
    Problem(
        "c1",
        "code",
        "functions",
        "Write add(a, b).",
        "def add(a, b):\n    return a + b",
        entry_point="add",
        hidden_tests=("assert add(1, 2) == 3", "assert add(0, 0) == 0"),
    ),
)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(Limits(cpu_seconds=5.0, wall_seconds=30.0), workers=2) as opened:
        yield opened


async def test_every_task_gives_a_right_and_a_wrong_answer(sandbox: Sandbox) -> None:
    made = await labelled_set(TASKS, sandbox, seed=0)
    assert made.left_out == {}
    assert len(made.items) == 2 * len(TASKS)
    by_id = {task.id: task for task in TASKS}
    for item in made.items:
        task = by_id[item.id.rpartition("/")[0]]
        gold = await gold_check(task, item.answer, sandbox)
        assert gold.correct is item.label, item
        assert item.question == task.problem
    types = {item.id: item.answer_type for item in made.items}
    assert types["m1/right"] == "number" and types["q1/wrong"] == "multiple_choice"
    assert types["q2/right"] == "span" and types["c1/wrong"] == "code"


async def test_programs_come_with_what_was_seen_of_their_tests(sandbox: Sandbox) -> None:
    right, wrong = (await labelled_set(TASKS[-1:], sandbox, seed=0)).items
    assert (right.evidence, wrong.evidence) == ("passed 2 of 2 tests", "passed 1 of 2 tests")
    assert "a - b" in wrong.answer and wrong.answer.startswith("```python\n")


async def test_the_set_is_fixed_by_its_seed_and_takes_kinds_in_turn(sandbox: Sandbox) -> None:
    first = await labelled_set(TASKS, sandbox, seed=1, limit=3)
    assert (await labelled_set(TASKS, sandbox, seed=1, limit=3)).items == first.items
    assert {item.id[0] for item in first.items} == {"m", "q", "c"}
    other = await labelled_set(TASKS, sandbox, seed=2)
    assert {i.answer for i in other.items} != {
        i.answer for i in (await labelled_set(TASKS, sandbox, seed=1)).items
    }


async def test_what_gold_does_not_bear_out_is_left_out_and_counted(sandbox: Sandbox) -> None:
    broken = Problem(
        "c2", "code", "f", "Write f().", "def f():\n    return 1", entry_point="f",
        hidden_tests=("assert f() == 2",),
    )  # fmt: skip
    lonely = Problem("q9", "qa", "names", "Who?", "x")
    made = await labelled_set([broken, lonely], sandbox, seed=0)
    assert made.items == []
    assert made.left_out == {
        "the gold check does not accept the reference": 1,
        "no mistake was found that the gold check refuses": 1,
    }


def test_mistakes_are_plausible() -> None:
    numbers = {float(value) for value in mistakes(TASKS[0], {}, 0)}
    assert {41, 43, 52, 84, 21, 24, 67, 59, 17, 25} >= numbers and len(numbers) > 6
    assert set(mistakes(TASKS[3], {}, 0)) == {"A", "C"}
    pools = {("cities", "name"): ["Paris", "Rome"]}
    assert "Rome" in mistakes(TASKS[4], pools, 0) and "Paris" not in mistakes(TASKS[4], pools, 0)
    assert mistakes(TASKS[6], {}, 0)[0] == "no"


def test_a_mixture_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    write_tasks(path, TASKS)
    assert is_task_file(path)
