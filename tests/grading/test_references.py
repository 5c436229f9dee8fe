"""References of code tasks against their own tests: in the sandbox, in ``--own``, in a dry run."""

import json
from pathlib import Path

import pytest
from command_lines import command
from lost_sandbox import LostSandbox

from flowright.core.errors import DataError
from flowright.data.loading import load_problems
from flowright.data.task import Problem
from flowright.environments.registry import make_config
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.grading.references import CHECKED, check_references
from flowright.sandbox import Sandbox

DOUBLE = "def double(x):\n    return 2 * x"


def program(id: str, reference: str = DOUBLE, *tests: str, **given: object) -> Problem:
    tests = tests or ("assert double(2) == 4",)
    row = {"id": id, "kind": "code", "source": "x", "question": "Twice.", "reference": reference}
    row |= {"hidden_tests": list(tests), **given}
    row |= {} if tests[0].startswith("{") else {"entry_point": "double"}
    return Problem.from_row(row, "f:1")


async def test_references_run_against_their_own_tests(tmp_path: Path) -> None:
    io_test = '{"input": "3\\n", "output": "9\\n"}'
    tasks = [
        program("right"),
        program("again"),
        program("wrong", "def double(x):\n    return x"),
        program("wrong too", "def double(x):\n    return x"),
        program("says nothing", DOUBLE, "def test_double():\n    assert double(2) == 5"),
        program("nothing there", ""),
        program("reads", "print(int(input()) ** 2)", io_test),
        program("prints", "print(int(input()) + 2)", io_test),
        program("example", public_tests=["assert double(1) == 3", "assert double(0) == 0"]),
        program("shown", public_tests=["assert double(1) == 3"]),
    ]
    async with Sandbox(workers=2) as sandbox:
        report = await check_references(tasks, sandbox, tmp_path, examples={"example"})
        assert report.failed.keys() == {"wrong", "wrong too", "says nothing", "prints", "shown"}
        assert "0 of 1 pass; the first failure: AssertionError" in report.failed["wrong"]
        assert "does nothing" in report.failed["says nothing"]
        assert report.public_tests(tasks[8]) == ("assert double(0) == 0",)
        assert report.lines() == [
            "4 of 9 references pass their own tests",
            "1 code tasks have no reference: their tests are unproven",
            "1 tasks lose examples that their reference fails",
        ]
        known = (tmp_path / CHECKED).read_text().split()
        assert len(known) == 2  # of three that pass two are equal
        again = await check_references(tasks[:3], sandbox, tmp_path)
        assert (again.kept, again.checked, [*again.failed]) == (2, 1, ["wrong"])
    lost = await check_references(tasks[:1], LostSandbox(workers=1))
    assert lost.unchecked and not lost.failed
    assert "could not be checked" in lost.lines()[-1]


ROW = {"question": "Write double(x).", "solution": DOUBLE}


def test_own_rows_whose_reference_fails_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{**ROW, "question": f"{n}: double(x)", "tests": ["assert double(1) == 2"]}
            for n in range(12)]  # fmt: skip
    rows[4]["tests"] = ["assert double(1) == 3"]
    rows[2] |= {"solution": f"{DOUBLE}\nT = double(1)\n", "tests": ["assert double(1) == T"]}
    rows[6] |= {"solution": "", "entry_point": "double"}
    rows.append({"question": "x?", "answer": None})
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mix = command("data mix")
    assert mix(["--own", "mine.jsonl"]) == 2
    assert "mine.jsonl:13: no answer: answer is null" in capsys.readouterr().err
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:12]))
    assert mix(["--own", "mine.jsonl"]) == 2
    told = capsys.readouterr()
    assert "10 of 11 references pass their own tests" in told.out
    assert "1 code tasks have no reference" in told.out
    assert "any meaning: mine.jsonl:3: T" in " ".join(told.out.split())
    assert "mine.jsonl:5: the reference fails its own tests: 0 of 1 pass" in told.err
    assert not Path("data/own").exists()
    assert mix(["--own", "mine.jsonl", "--skip-bad"]) == 0
    told = capsys.readouterr()
    assert "left out: mine.jsonl:5: the reference fails" in " ".join(told.out.split())
    assert len(load_problems("data/own/train_mixed.jsonl", "train")) == 10


async def test_the_dry_run_runs_references_and_reads_own_files(tmp_path: Path) -> None:
    rows = [{**ROW, "question": f"{n}: double(x)", "tests": ["assert double(1) == 2"]}
            for n in range(3)]  # fmt: skip
    (tmp_path / "val.jsonl").write_text('{"problem": "1 + 1?", "ground_truth": "2"}\n')
    files = {"train_dataset": f"{tmp_path}/a.jsonl", "val_dataset": f"{tmp_path}/val.jsonl"}
    config = make_config(
        {**files, "aflow_executor_model": "x", "policy": {"tiny": {"cache_dir": str(tmp_path)}}}
    )

    async def check() -> str:
        return await dict(WorkflowEnvironment(config).checks())["sandbox"]()

    for wanted, row in ((2, rows[1]), (3, rows[0])):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:wanted]))
        assert f"{wanted} of {wanted} references pass" in await check(), row
    environment = WorkflowEnvironment(config)
    assert len(environment.tasks().train) == 3
    assert any("question from problem (1 rows)" in note for note in environment.task_notes())
    rows[2]["tests"] = ["assert double(1) == 3"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="train/own/a/3: the reference fails its own tests"):
        await check()
