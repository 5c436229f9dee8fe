"""The task file: what is written comes back, and a bad line is named by file and number."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from flowright.core.errors import DataError
from flowright.data.task import Problem, read_tasks, write_tasks

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
tests = st.lists(words, max_size=3).map(tuple)


@given(
    st.builds(
        Problem,
        id=words,
        kind=st.sampled_from(["math", "qa"]),
        source=words,
        question=words,
        reference=words,
        context=st.none() | words,
        choices=st.lists(st.tuples(words, words), max_size=3).map(tuple),
        alternatives=tests,
        entry_point=st.none() | words,
        test_setup=st.just("") | words,
        public_tests=tests,
        hidden_tests=tests,
        verifier=st.none() | st.dictionaries(words, st.integers() | words, min_size=1),
    )
)
def test_a_task_comes_back_from_its_line(task: Problem) -> None:
    line = task.to_json()
    assert "\n" not in line
    assert Problem.from_row(json.loads(line), "here") == task


GOOD = '{"id": "a", "kind": "math", "source": "s", "question": "q", "reference": "1"'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[]", "a row is a JSON object, not list"),
        ('{"id": "b", "kind": "math"}', "the task lacks source, question, reference"),
        (GOOD + ', "answer": 2}', "unknown field answer"),
        (GOOD.replace("math", "maths") + "}", "kind is 'maths', not one of math, code, qa"),
        (GOOD.replace('"1"', "1") + "}", "reference is int, not a string"),
        (GOOD.replace("math", "code") + "}", "a code task needs hidden_tests"),
        (GOOD + ', "hidden_tests": "assert"}', "hidden_tests is not a list of strings"),
        (GOOD + ', "alternatives": [1]}', "alternatives is not a list of strings"),
        (GOOD + ', "choices": [["A"]]}', "choices is not a list of [label, text] pairs"),
        (GOOD + ', "verifier": "gym"}', "verifier is not an object"),
        (GOOD + "}", "id 'a' was used in line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{GOOD}}}\n\n{line}\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:3: {message}")):
        read_tasks(path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(GOOD.encode() + b'}\n{"id": "\xff"}\n')
    with pytest.raises(DataError, match=re.escape(f"{path}:2: not UTF-8")):
        read_tasks(path)
    with pytest.raises(DataError, match="no such file"):
        read_tasks(tmp_path / "absent.jsonl")


def test_writing_replaces_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tasks.jsonl"
    tasks = [Problem(f"t{i}", "math", "s", f"line one\nline {i}  ", str(i)) for i in range(3)]
    assert write_tasks(path, tasks) == 3
    assert read_tasks(path) == tasks

    def failing():
        yield tasks[0]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_tasks(path, failing())
    assert read_tasks(path) == tasks


def test_the_problem_is_what_a_solver_reads() -> None:
    task = Problem(
        id="t",
        kind="qa",
        source="s",
        question="Where?",
        reference="B",
        context="Once upon a time.",
        choices=(("A", "here"), ("B", "None")),
        alternatives=("secret",),
    )
    assert task.problem == "Once upon a time.\n\nWhere?\n\nA. here\nB. None"


def test_a_task_of_input_and_output_needs_no_reference() -> None:
    line = {"id": "a", "kind": "code", "source": "own", "question": "Square it.",
            "hidden_tests": ['{"input": "3", "output": "9"}']}  # fmt: skip
    task = Problem.from_row(line, "here")
    assert task.is_program and task.reference == ""
    assert Problem.from_row(json.loads(task.to_json()), "here") == task
    for test in ('{"input": 3, "output": 9}', '{"input": [3], "output": 9}'):
        with pytest.raises(DataError, match="here: "):
            Problem.from_row({**line, "hidden_tests": [test]}, "here")
    call = Problem.from_row({**line, "hidden_tests": [test], "entry_point": "f"}, "here")
    assert not call.is_program
